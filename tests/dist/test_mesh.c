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

TEST(every_rank_has_a_place_and_a_group_per_dimension)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_run_ranks(world_of(&cases[i]), check_mesh, (void *)&cases[i]);
}

RANKS_TEST(groups_of_a_dimension_talk_among_themselves, 6)
{
    static const int64_t shape[] = {2, 3};
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    fsdp_mesh *mesh = NULL;

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

/* ---- of groups that exist ---- */

static fsdp_process_group *group_of(fsdp_context *context, const int *ranks, int count, const char *name)
{
    fsdp_process_group *group = NULL;

    CHECK_OK(fsdp_process_group_create(context, ranks, count, name, &group));
    return group;
}

/* Ranks 1 to 4 of 5 as rows 1, 2 and 3, 4. */
RANKS_TEST(groups_that_exist_make_a_mesh, 5)
{
    static const int ranks[] = {1, 2, 3, 4}, turned[] = {1, 3, 2, 4}, twice[] = {1, 2, 3, 3}, others[] = {1, 2, 3, 9};
    static const int rows[2][2] = {{1, 2}, {3, 4}}, columns[2][2] = {{1, 3}, {2, 4}};
    int rank = fsdp_context_rank(context), row = (rank - 1) / 2, column = (rank - 1) % 2;
    fsdp_process_group *groups[2], *flat;
    fsdp_mesh *mesh = NULL, *same = NULL;

    groups[0] = group_of(context, columns[rank > 0 ? column : 0], 2, "replicate");
    groups[1] = group_of(context, rows[rank > 0 ? row : 0], 2, "shard");
    flat = group_of(context, ranks, 4, "flat");
    if (rank == 0) {
        CHECK_ERROR(fsdp_mesh_from_groups(groups, 2, ranks, names, &mesh), FSDP_INVALID, "group 0 is NULL");
        CHECK_NULL(mesh);
        return;
    }
    CHECK_OK(fsdp_mesh_from_groups(groups, 2, ranks, names, &mesh));
    CHECK_EQ(fsdp_mesh_ndim(mesh), 2);
    CHECK_EQ(fsdp_mesh_size(mesh, -1), 4);
    CHECK_EQ(fsdp_mesh_coordinate(mesh, 0), row);
    CHECK_EQ(fsdp_mesh_coordinate(mesh, 1), column);
    CHECK(fsdp_mesh_process_group(mesh, 1) == groups[1]);
    CHECK_EQ(fsdp_mesh_rank_at(mesh, (const int[]){1, 0}), 3);
    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"dp"}, &same));
    CHECK(fsdp_mesh_process_group(same, 0) == groups[1]);
    fsdp_mesh_unref(mesh);
    fsdp_mesh_unref(same);
    CHECK_OK(fsdp_mesh_from_groups(&flat, 1, NULL, NULL, &mesh));
    CHECK_EQ(fsdp_mesh_coordinate(mesh, 0), rank - 1);
    CHECK_STRING(fsdp_mesh_dim_name(mesh, 0), "dp");
    fsdp_mesh_unref(mesh);
    CHECK_ERROR(fsdp_mesh_from_groups(groups, 2, turned, names, &mesh), FSDP_INVALID, "group 'replicate' of dimension");
    CHECK_ERROR(fsdp_mesh_from_groups(groups, 2, twice, names, &mesh), FSDP_INVALID, "rank 3 is in it twice");
    CHECK_ERROR(fsdp_mesh_from_groups(groups, 2, others, names, &mesh), FSDP_INVALID, "no rank 9");
    CHECK_ERROR(fsdp_mesh_from_groups(&flat, 1, (const int[]){0, 1, 2, 3}, NULL, &mesh), FSDP_INVALID,
                rank == 4 ? "this rank, 4, is not in it" : "group 'flat' of dimension 'dp' has rank 1 at 0");
    CHECK_ERROR(fsdp_mesh_from_groups(groups, 2, ranks, NULL, &mesh), FSDP_INVALID, "ranks and names are required");
    CHECK_STATUS(fsdp_mesh_from_groups(groups, 0, ranks, names, &mesh), FSDP_INVALID);
    CHECK_NULL(mesh);
    fsdp_process_group_free(flat);
    fsdp_process_group_free(groups[1]);
    fsdp_process_group_free(groups[0]);
}

CONTEXT_TEST(bad_meshes_are_refused)
{
    static const int64_t two[] = {1, 2}, ones[] = {1, 1, 1, 1, 1}, zero[] = {0}, negative[] = {-1, -1};
    static const int64_t huge[] = {INT64_MAX / 2, 4};
    const char *const same[] = {"a", "a"}, *const unnamed[] = {"a", NULL}, *const fifth[] = {"a", "b", "c", "d", "e"};
    fsdp_mesh *mesh = NULL;

    CHECK_ERROR(fsdp_mesh_create(context, 2, two, names, &mesh), FSDP_INVALID,
                "shape (1, 2): it has 2 ranks, and the world has 1");
    CHECK_ERROR(fsdp_mesh_create(context, 5, ones, fifth, &mesh), FSDP_INVALID, "5 dimensions");
    CHECK_STATUS(fsdp_mesh_create(context, 0, ones, names, &mesh), FSDP_INVALID);
    CHECK_ERROR(fsdp_mesh_create(context, 1, zero, names, &mesh), FSDP_INVALID, "must be positive");
    CHECK_STATUS(fsdp_mesh_create(context, 2, negative, names, &mesh), FSDP_INVALID);
    CHECK_STATUS(fsdp_mesh_create(context, 2, huge, names, &mesh), FSDP_INVALID);
    CHECK_ERROR(fsdp_mesh_create(context, 2, ones, same, &mesh), FSDP_INVALID, "both named 'a'");
    CHECK_ERROR(fsdp_mesh_create(context, 2, ones, unnamed, &mesh), FSDP_INVALID, "has no name");
    CHECK_STATUS(fsdp_mesh_create(context, 2, ones, NULL, &mesh), FSDP_INVALID);
    CHECK_STATUS(fsdp_mesh_create(context, 1, ones, NULL, NULL), FSDP_INVALID);
    CHECK_NULL(mesh);
    CHECK_OK(fsdp_mesh_create(context, 1, ones, NULL, &mesh));
    CHECK_STRING(fsdp_mesh_dim_name(mesh, 0), "dp");
    fsdp_mesh_unref(mesh);
    fsdp_mesh_unref(NULL);
}

TEST(making_one_survives_every_failed_allocation)
{
    static const int64_t ones[] = {1, 1};

    for (long n = 1, hit = 1; hit; n++) {
        fsdp_context *context = test_context(); /* a failure breaks its groups */
        fsdp_mesh *mesh = (fsdp_mesh *)1, *again = NULL;
        fsdp_status status;

        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_mesh_create(context, 2, ones, names, &mesh);
        CHECK((mesh != NULL) == (status == FSDP_OK));
        if (status == FSDP_OK) {
            fsdp_process_group *groups[] = {fsdp_mesh_process_group(mesh, 0), fsdp_mesh_process_group(mesh, 1)};

            status = fsdp_mesh_from_groups(groups, 2, (const int[]){0}, names, &again);
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        fsdp_mesh_unref(again);
        fsdp_mesh_unref(mesh);
        fsdp_context_free(context);
    }
}
