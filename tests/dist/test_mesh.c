/* Who sits where, and which ranks make a group. */
#include "fsdp/dist.h"
#include "support/ranks.h"

static const char *const names[] = {"pp", "dp", "tp", "ep"};

typedef struct mesh_case {
    int ndim;
    int64_t shape[4];
} mesh_case;

static const mesh_case cases[] = {
    {1, {1}}, {1, {4}}, {2, {2, 2}}, {2, {2, 3}}, {2, {4, 1}}, {2, {1, 7}}, {3, {2, 2, 2}}, {4, {1, 2, 2, 2}},
};

static int world_of(const mesh_case *c)
{
    int64_t world = 1;

    for (int d = 0; d < c->ndim; d++)
        world *= c->shape[d];
    return (int)world;
}

static void check_mesh(fsdp_context *context, void *arg)
{
    const mesh_case *c = arg;
    int rank = fsdp_context_rank(context), at[4], rest = rank;
    fsdp_mesh *mesh = NULL, *again = NULL;

    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &mesh));
    CHECK_EQ(fsdp_mesh_ndim(mesh), c->ndim);
    CHECK_EQ(fsdp_mesh_size(mesh, -1), world_of(c));
    CHECK(fsdp_mesh_context(mesh) == context);
    for (int d = c->ndim - 1; d >= 0; d--) {
        at[d] = rest % (int)c->shape[d];
        rest /= (int)c->shape[d];
    }
    CHECK_EQ(fsdp_mesh_rank_at(mesh, at), rank);
    for (int d = 0; d < c->ndim; d++) {
        fsdp_process_group *group = fsdp_mesh_process_group(mesh, d);
        int other[4];

        CHECK_EQ(fsdp_mesh_size(mesh, d), c->shape[d]);
        CHECK_STRING(fsdp_mesh_dim_name(mesh, d), names[d]);
        CHECK_EQ(fsdp_mesh_find_dim(mesh, names[d]), d);
        CHECK_EQ(fsdp_mesh_coordinate(mesh, d), at[d]);
        CHECK_EQ(fsdp_process_group_size(group), c->shape[d]);
        CHECK_EQ(fsdp_process_group_rank(group), at[d]);
        memcpy(other, at, sizeof other);
        for (int i = 0; i < c->shape[d]; i++) {
            other[d] = i;
            CHECK_EQ(fsdp_process_group_global_rank(group, i), fsdp_mesh_rank_at(mesh, other));
        }
    }
    CHECK_EQ(fsdp_mesh_find_dim(mesh, "none"), -1);
    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &again));
    CHECK(fsdp_mesh_equal(mesh, mesh));
    CHECK(fsdp_mesh_equal(mesh, again));
    CHECK(!fsdp_mesh_equal(mesh, NULL));
    fsdp_mesh_unref(again);
    fsdp_mesh_unref(mesh);
}

static void every_rank_has_a_place_and_a_group_per_dimension(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_run_ranks(world_of(&cases[i]), check_mesh, (void *)&cases[i]);
}

static void check_groups_talk(fsdp_context *context, void *arg)
{
    static const int64_t shape[] = {2, 3};
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    fsdp_mesh *mesh = NULL;

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 2, shape, names, &mesh));
    for (int d = 0; d < 2; d++) {
        int32_t mine = fsdp_context_rank(context), all[3] = {-1, -1, -1};
        int at[2] = {fsdp_mesh_coordinate(mesh, 0), fsdp_mesh_coordinate(mesh, 1)};

        CHECK_OK(fsdp_all_gather(fsdp_mesh_process_group(mesh, d), &mine, all, 1, FSDP_I32, stream));
        CHECK_OK(fsdp_stream_synchronize(stream));
        for (at[d] = 0; at[d] < shape[d]; at[d]++)
            CHECK_EQ(all[at[d]], fsdp_mesh_rank_at(mesh, at));
    }
    fsdp_mesh_unref(mesh);
}

static void groups_of_a_dimension_talk_among_themselves(void **state)
{
    (void)state;
    test_run_ranks(6, check_groups_talk, NULL);
}

static void check_slices(fsdp_context *context, void *arg)
{
    static const int64_t shape[] = {2, 2, 2};
    fsdp_mesh *mesh = NULL, *tp = NULL, *pp_tp = NULL, *turned = NULL, *part = NULL;
    int rank = fsdp_context_rank(context), dp = rank / 2 % 2;

    (void)arg;
    CHECK_OK(fsdp_mesh_create(context, 3, shape, names, &mesh));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"tp"}, &tp));
    CHECK_OK(fsdp_mesh_slice(mesh, 2, (const char *const[]){"pp", "tp"}, &pp_tp));
    CHECK_OK(fsdp_mesh_slice(mesh, 2, (const char *const[]){"tp", "pp"}, &turned));
    CHECK_EQ(fsdp_mesh_ndim(tp), 1);
    CHECK_EQ(fsdp_mesh_size(tp, -1), 2);
    CHECK(fsdp_mesh_process_group(tp, 0) == fsdp_mesh_process_group(mesh, 2));
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(fsdp_mesh_rank_at(tp, &i), rank / 2 * 2 + i);
        for (int j = 0; j < 2; j++) {
            CHECK_EQ(fsdp_mesh_rank_at(pp_tp, (const int[]){i, j}), i * 4 + dp * 2 + j);
            CHECK_EQ(fsdp_mesh_rank_at(turned, (const int[]){j, i}), i * 4 + dp * 2 + j);
        }
    }
    CHECK(!fsdp_mesh_equal(pp_tp, turned));
    CHECK(!fsdp_mesh_equal(pp_tp, mesh));
    CHECK_OK(fsdp_mesh_slice(pp_tp, 1, (const char *const[]){"tp"}, &part));
    CHECK(fsdp_mesh_equal(part, tp));
    fsdp_mesh_unref(part);
    CHECK_ERROR(fsdp_mesh_slice(tp, 1, (const char *const[]){"dp"}, &part), FSDP_NOT_FOUND, "no dimension 'dp'");
    CHECK_NULL(part);
    CHECK_ERROR(fsdp_mesh_slice(mesh, 2, (const char *const[]){"dp", "dp"}, &part), FSDP_INVALID, "both named 'dp'");
    CHECK_STATUS(fsdp_mesh_slice(mesh, 4, names, &part), FSDP_INVALID);
    /* Slices keep the mesh that owns their groups. */
    fsdp_mesh_unref(mesh);
    CHECK_EQ(fsdp_process_group_size(fsdp_mesh_process_group(tp, 0)), 2);
    fsdp_mesh_unref(pp_tp);
    fsdp_mesh_unref(turned);
    fsdp_mesh_unref(tp);
}

static void a_slice_is_the_part_with_this_rank_in_it(void **state)
{
    (void)state;
    test_run_ranks(8, check_slices, NULL);
}

static void bad_meshes_are_refused(void **state)
{
    fsdp_context *context = test_context();
    static const int64_t two[] = {1, 2}, ones[] = {1, 1, 1, 1, 1}, zero[] = {0}, negative[] = {-1, -1};
    static const int64_t huge[] = {INT64_MAX / 2, 4};
    const char *const same[] = {"a", "a"}, *const unnamed[] = {"a", NULL}, *const fifth[] = {"a", "b", "c", "d", "e"};
    fsdp_mesh *mesh = NULL;

    (void)state;
    CHECK_ERROR(fsdp_mesh_create(context, 2, two, names, &mesh), FSDP_INVALID,
                "shape (1, 2): it has 2 ranks, the world has 1");
    CHECK_ERROR(fsdp_mesh_create(context, 5, ones, fifth, &mesh), FSDP_INVALID, "5 dimensions");
    CHECK_STATUS(fsdp_mesh_create(context, 0, ones, names, &mesh), FSDP_INVALID);
    CHECK_ERROR(fsdp_mesh_create(context, 1, zero, names, &mesh), FSDP_INVALID, "must be positive");
    CHECK_STATUS(fsdp_mesh_create(context, 2, negative, names, &mesh), FSDP_INVALID);
    CHECK_STATUS(fsdp_mesh_create(context, 2, huge, names, &mesh), FSDP_INVALID);
    CHECK_ERROR(fsdp_mesh_create(context, 2, ones, same, &mesh), FSDP_INVALID, "both named 'a'");
    CHECK_ERROR(fsdp_mesh_create(context, 2, ones, unnamed, &mesh), FSDP_INVALID, "has no name");
    CHECK_STATUS(fsdp_mesh_create(context, 2, ones, NULL, &mesh), FSDP_INVALID);
    CHECK_NULL(mesh);
    CHECK_OK(fsdp_mesh_create(context, 1, ones, NULL, &mesh));
    CHECK_STRING(fsdp_mesh_dim_name(mesh, 0), "dp");
    fsdp_mesh_unref(mesh);
    fsdp_mesh_unref(NULL);
    fsdp_context_free(context);
}

static void making_one_survives_every_failed_allocation(void **state)
{
    static const int64_t ones[] = {1, 1};

    (void)state;
    for (long n = 1, hit = 1; hit; n++) {
        fsdp_context *context = test_context(); /* a failure breaks its groups */
        fsdp_mesh *mesh = (fsdp_mesh *)1, *slice = NULL;
        fsdp_status status;

        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_mesh_create(context, 2, ones, names, &mesh);
        CHECK((mesh != NULL) == (status == FSDP_OK));
        if (status == FSDP_OK)
            status = fsdp_mesh_slice(mesh, 2, names, &slice);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        fsdp_mesh_unref(slice);
        fsdp_mesh_unref(mesh);
        fsdp_context_free(context);
    }
}

TEST_MAIN(cmocka_unit_test(every_rank_has_a_place_and_a_group_per_dimension),
          cmocka_unit_test(groups_of_a_dimension_talk_among_themselves),
          cmocka_unit_test(a_slice_is_the_part_with_this_rank_in_it), cmocka_unit_test(bad_meshes_are_refused),
          cmocka_unit_test(making_one_survives_every_failed_allocation))
