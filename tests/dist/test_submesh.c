/* Parts of a mesh: slices, dimensions flattened into one, one cut into several. */
#include "dist/dist.h"
#include "fsdp/dist.h"
#include "support/ranks.h"

static const char *const names[] = {"pp", "dp", "tp", "ep"};

RANKS_TEST(a_slice_is_the_part_with_this_rank_in_it, 8)
{
    static const int64_t shape[] = {2, 2, 2};
    fsdp_mesh *mesh = NULL, *tp = NULL, *pp_tp = NULL, *turned = NULL, *part = NULL;
    int rank = fsdp_context_rank(context), dp = rank / 2 % 2;

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
    CHECK_ERROR(fsdp_mesh_slice(mesh, 2, (const char *const[]){"dp", "dp"}, &part), FSDP_INVALID,
                "dimension 'dp' is named twice");
    CHECK_STATUS(fsdp_mesh_slice(mesh, 4, names, &part), FSDP_INVALID);
    /* Slices keep the mesh that owns their groups. */
    fsdp_mesh_unref(mesh);
    CHECK_EQ(fsdp_process_group_size(fsdp_mesh_process_group(tp, 0)), 2);
    fsdp_mesh_unref(pp_tp);
    fsdp_mesh_unref(turned);
    fsdp_mesh_unref(tp);
}

/* What each rank of the group has, in the order of the mesh. */
static void check_talk(fsdp_mesh *mesh, int dim)
{
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(fsdp_mesh_context(mesh)));
    int32_t mine = fsdp_context_rank(fsdp_mesh_context(mesh)), all[8];
    int at[FSDP_MAX_MESH_DIMS];

    for (int d = 0; d < fsdp_mesh_ndim(mesh); d++)
        at[d] = fsdp_mesh_coordinate(mesh, d);
    CHECK_OK(fsdp_all_gather(fsdp_mesh_process_group(mesh, dim), &mine, all, 1, FSDP_I32, stream));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_EQ(fsdp_process_group_rank(fsdp_mesh_process_group(mesh, dim)), at[dim]);
    for (at[dim] = 0; at[dim] < fsdp_mesh_size(mesh, dim); at[dim]++)
        CHECK_EQ(all[at[dim]], fsdp_mesh_rank_at(mesh, at));
}

/* 2 x 3 x 2: pp, dp, tp. */
RANKS_TEST(dimensions_flatten_into_one, 12)
{
    static const int64_t shape[] = {2, 3, 2};
    const char *const pp_dp[] = {"pp", "dp"}, *const pp_tp[] = {"pp", "tp"};
    int rank = fsdp_context_rank(context), pp = rank / 6, dp = rank / 2 % 3, tp = rank % 2;
    fsdp_mesh *mesh = NULL, *flat = NULL, *again = NULL, *part = NULL, *whole = NULL;

    CHECK_OK(fsdp_mesh_create(context, 3, shape, names, &mesh));
    CHECK_OK(fsdp_mesh_flatten(mesh, 2, pp_dp, "fsdp", &flat));
    CHECK_EQ(fsdp_mesh_ndim(flat), 1);
    CHECK_STRING(fsdp_mesh_dim_name(flat, 0), "fsdp");
    CHECK_EQ(fsdp_mesh_size(flat, 0), 6);
    CHECK_EQ(fsdp_mesh_coordinate(flat, 0), pp * 3 + dp);
    for (int i = 0; i < 6; i++)
        CHECK_EQ(fsdp_mesh_rank_at(flat, &i), i * 2 + tp);
    check_talk(flat, 0);
    /* A second time nothing is made, under whatever name. */
    CHECK_OK(fsdp_mesh_flatten(mesh, 2, pp_dp, "other", &again));
    CHECK(fsdp_mesh_process_group(again, 0) == fsdp_mesh_process_group(flat, 0));
    CHECK(!fsdp_mesh_equal(again, flat));
    fsdp_mesh_unref(again);
    /* Of a slice, and of what is flat already. */
    CHECK_OK(fsdp_mesh_slice(mesh, 2, pp_tp, &part));
    CHECK_OK(fsdp_mesh_flatten(part, 2, pp_tp, "rest", &again));
    for (int i = 0; i < 4; i++)
        CHECK_EQ(fsdp_mesh_rank_at(again, &i), i / 2 * 6 + dp * 2 + i % 2);
    check_talk(again, 0);
    CHECK_OK(fsdp_mesh_flatten(again, 1, (const char *const[]){"rest"}, "renamed", &whole));
    CHECK(fsdp_mesh_process_group(whole, 0) == fsdp_mesh_process_group(again, 0));
    fsdp_mesh_unref(whole);
    CHECK_OK(fsdp_mesh_flatten(mesh, 3, names, "all", &whole));
    for (int i = 0; i < 12; i++)
        CHECK_EQ(fsdp_mesh_rank_at(whole, &i), i);
    fsdp_mesh_unref(whole);
    /* All of them keep the mesh that has the groups. */
    fsdp_mesh_unref(mesh);
    fsdp_mesh_unref(part);
    check_talk(flat, 0);
    fsdp_mesh_unref(again);
    fsdp_mesh_unref(flat);
}

/* They have the order of the mesh, however they are named, also in a slice whose order is another. */
RANKS_TEST(dimensions_flatten_in_the_order_of_the_mesh, 8)
{
    const char *const orders[][2] = {{"pp", "tp"}, {"tp", "pp"}};
    int rank = fsdp_context_rank(context);
    fsdp_mesh *mesh = NULL, *flat = NULL, *part = NULL, *again = NULL;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(2, 2, 2), names, &mesh));
    CHECK_OK(fsdp_mesh_flatten(mesh, 2, orders[0], "rest", &flat));
    for (int slice = 0; slice < 2; slice++) {
        CHECK_OK(fsdp_mesh_slice(mesh, 2, orders[slice], &part));
        for (int order = 0; order < 4; order++) {
            CHECK_OK(fsdp_mesh_flatten(order < 2 ? part : mesh, 2, orders[order % 2], "rest", &again));
            CHECK(fsdp_mesh_equal(again, flat));
            CHECK(fsdp_mesh_process_group(again, 0) == fsdp_mesh_process_group(flat, 0));
            CHECK_EQ(fsdp_mesh_coordinate(again, 0), rank / 4 * 2 + rank % 2);
            fsdp_mesh_unref(again);
        }
        fsdp_mesh_unref(part);
    }
    check_talk(flat, 0);
    fsdp_mesh_unref(flat);
    fsdp_mesh_unref(mesh);
}

/* Groups whose ranks do not ascend cannot be one: the mesh is named, and its dimensions. */
RANKS_TEST(dimensions_of_another_order_than_the_ranks_do_not_flatten, 4)
{
    const int ranks[] = {0, 2, 1, 3};
    const char *const both[] = {"dp", "cp"};
    fsdp_mesh *turned = NULL, *mesh = NULL, *flat = NULL;
    fsdp_process_group *groups[2];

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(2, 2), both, &turned));
    groups[0] = fsdp_mesh_process_group(turned, 1);
    groups[1] = fsdp_mesh_process_group(turned, 0);
    CHECK_OK(fsdp_mesh_from_groups(groups, 2, ranks, both, &mesh));
    CHECK_ERROR(fsdp_mesh_flatten(mesh, 2, both, "all", &flat), FSDP_INVALID,
                "dimensions 'dp', 'cp' of mesh (dp=2, cp=2) cannot become one: ");
    CHECK_CONTAINS(fsdp_last_error(), "its ranks must ascend");
    CHECK_NULL(flat);
    fsdp_mesh_unref(mesh);
    fsdp_mesh_unref(turned);
}

/* A dimension of several, one of one, one of none. */
RANKS_TEST(a_dimension_of_a_part_is_any_number_of_dimensions, 8)
{
    static const int64_t shape[] = {2, 2, 2};
    const fsdp__mesh_names dims[] = {{1, &names[1]}, {0, NULL}, {2, (const char *const[]){"pp", "tp"}}};
    const char *const called[] = {"replicate", "alone", "shard"};
    int rank = fsdp_context_rank(context);
    fsdp_mesh *mesh = NULL, *part = NULL;

    CHECK_OK(fsdp_mesh_create(context, 3, shape, names, &mesh));
    CHECK_OK(fsdp__mesh_part(mesh, "take apart a mesh", 3, dims, called, &part));
    CHECK_EQ(fsdp_mesh_size(part, 0), 2);
    CHECK_EQ(fsdp_mesh_size(part, 1), 1);
    CHECK_EQ(fsdp_mesh_size(part, 2), 4);
    CHECK_EQ(fsdp_mesh_coordinate(part, 0), rank / 2 % 2);
    CHECK_EQ(fsdp_mesh_coordinate(part, 2), rank / 4 * 2 + rank % 2);
    for (int d = 0; d < 3; d++)
        check_talk(part, d);
    fsdp_mesh_unref(part);
    fsdp_mesh_unref(mesh);
}

RANKS_TEST(a_dimension_is_cut_into_several, 12)
{
    static const int64_t shape[] = {2, 6}, sizes[] = {3, 2}, one[] = {6};
    const char *const pair[] = {"shard", "cp"}, *const same[] = {"pp", "cp"};
    fsdp_mesh *mesh = NULL, *cut = NULL, *back = NULL;
    int rank = fsdp_context_rank(context);

    CHECK_OK(fsdp_mesh_create(context, 2, shape, names, &mesh));
    CHECK_OK(fsdp_mesh_unflatten(mesh, "dp", 2, sizes, pair, &cut));
    CHECK_EQ(fsdp_mesh_ndim(cut), 3);
    for (int d = 0; d < 3; d++) {
        CHECK_STRING(fsdp_mesh_dim_name(cut, d), d == 0 ? "pp" : pair[d - 1]);
        CHECK_EQ(fsdp_mesh_size(cut, d), d == 0 ? 2 : sizes[d - 1]);
        check_talk(cut, d);
    }
    CHECK_EQ(fsdp_mesh_coordinate(cut, 1), rank % 6 / 2);
    CHECK(fsdp_mesh_process_group(cut, 0) == fsdp_mesh_process_group(mesh, 0));
    fsdp_mesh_unref(mesh); /* the other keeps it */
    CHECK_OK(fsdp_mesh_flatten(cut, 2, pair, "dp", &back));
    for (int i = 0; i < 6; i++)
        CHECK_EQ(fsdp_mesh_rank_at(back, &i), rank / 6 * 6 + i);
    fsdp_mesh_unref(back);
    mesh = NULL;
    CHECK_OK(fsdp_mesh_unflatten(cut, "pp", 1, (const int64_t[]){2}, (const char *const[]){"rows"}, &mesh));
    CHECK_STRING(fsdp_mesh_dim_name(mesh, 0), "rows");
    check_talk(mesh, 2);
    fsdp_mesh_unref(mesh);
    mesh = NULL;
    CHECK_ERROR(fsdp_mesh_unflatten(cut, "dp", 2, sizes, pair, &mesh), FSDP_NOT_FOUND,
                "no dimension 'dp', only 'pp', 'shard', 'cp'");
    CHECK_ERROR(fsdp_mesh_unflatten(cut, "shard", 2, sizes, pair, &mesh), FSDP_INVALID,
                "'shard' of a mesh into (3, 2): it has 3 ranks");
    CHECK_ERROR(fsdp_mesh_unflatten(cut, "cp", 1, one, pair, &mesh), FSDP_INVALID, "it has 2 ranks");
    CHECK_ERROR(fsdp_mesh_unflatten(cut, "cp", 3, (const int64_t[]){1, 2, 1}, names, &mesh), FSDP_INVALID,
                "it would have 5 dimensions");
    CHECK_ERROR(fsdp_mesh_unflatten(cut, "shard", 2, (const int64_t[]){3, 1}, same, &mesh), FSDP_INVALID,
                "both named 'pp'");
    CHECK_STATUS(fsdp_mesh_unflatten(cut, "shard", 0, sizes, pair, &mesh), FSDP_INVALID);
    CHECK_NULL(mesh);
    fsdp_mesh_unref(cut);
}

CONTEXT_TEST(bad_names_are_refused)
{
    static const int64_t ones[] = {1, 1};
    const char *const twice[] = {"pp", "pp"};
    fsdp_mesh *mesh = NULL, *out = NULL;

    CHECK_OK(fsdp_mesh_create(context, 2, ones, names, &mesh));
    CHECK_ERROR(fsdp_mesh_flatten(mesh, 2, twice, "x", &out), FSDP_INVALID, "cannot flatten a mesh: dimension 'pp'");
    CHECK_ERROR(fsdp_mesh_flatten(mesh, 1, (const char *const[]){"ep"}, "x", &out), FSDP_NOT_FOUND,
                "cannot flatten a mesh: it has no dimension 'ep', only 'pp', 'dp'");
    CHECK_ERROR(fsdp_mesh_flatten(mesh, 1, names, NULL, &out), FSDP_INVALID, "has no name");
    CHECK_STATUS(fsdp_mesh_flatten(mesh, 3, names, "x", &out), FSDP_INVALID);
    CHECK_STATUS(fsdp_mesh_flatten(NULL, 1, names, "x", &out), FSDP_INVALID);
    CHECK_STATUS(fsdp_mesh_slice(mesh, 1, (const char *const[]){NULL}, &out), FSDP_NOT_FOUND);
    CHECK_NULL(out);
    fsdp_mesh_unref(mesh);
}

TEST(parts_survive_every_failed_allocation)
{
    static const int64_t ones[] = {1, 1};

    for (long n = 1, hit = 1; hit; n++) {
        fsdp_context *context = test_context();
        fsdp_mesh *mesh = NULL, *made[3] = {NULL};
        fsdp_status status;

        CHECK_OK(fsdp_mesh_create(context, 2, ones, names, &mesh));
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_mesh_slice(mesh, 2, names, &made[0]);
        if (status == FSDP_OK)
            status = fsdp_mesh_flatten(mesh, 2, names, "x", &made[1]);
        if (status == FSDP_OK)
            status = fsdp_mesh_unflatten(mesh, "dp", 2, ones, (const char *const[]){"a", "b"}, &made[2]);
        CHECK((made[2] != NULL) == (status == FSDP_OK));
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        for (int i = 0; i < 3; i++)
            fsdp_mesh_unref(made[i]);
        fsdp_mesh_unref(mesh);
        fsdp_context_free(context);
    }
}

/* ---- two parts together ---- */

/* 2 x 2 x 2: pp, dp, tp. */
RANKS_TEST(two_parts_of_one_mesh_make_a_third, 8)
{
    static const int64_t shape[] = {2, 2, 2};
    const char *const pp_dp[] = {"pp", "dp"}, *const tp_name[] = {"tp"};
    fsdp_mesh *mesh = NULL, *other = NULL, *dp = NULL, *tp = NULL, *tp2 = NULL, *flat = NULL, *joint = NULL;

    CHECK_OK(fsdp_mesh_create(context, 3, shape, names, &mesh));
    CHECK_OK(fsdp_mesh_create(context, 3, shape, names, &other));
    CHECK_OK(fsdp_mesh_slice(mesh, 2, pp_dp, &dp));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, tp_name, &tp));
    CHECK_OK(fsdp_mesh_slice(other, 1, tp_name, &tp2));
    CHECK_OK(fsdp__mesh_join(tp, dp, &joint));
    CHECK(fsdp_mesh_equal(joint, mesh));
    fsdp_mesh_unref(joint);
    CHECK_OK(fsdp_mesh_flatten(mesh, 2, pp_dp, "shards", &flat));
    CHECK_OK(fsdp__mesh_join(flat, tp, &joint));
    CHECK_EQ(fsdp_mesh_ndim(joint), 2);
    CHECK_STRING(fsdp_mesh_dim_name(joint, 0), "shards");
    CHECK_EQ(fsdp_mesh_size(joint, 0), 4);
    CHECK(fsdp_mesh_process_group(joint, 0) == fsdp_mesh_process_group(flat, 0));
    CHECK(fsdp_mesh_process_group(joint, 1) == fsdp_mesh_process_group(mesh, 2));
    fsdp_mesh_unref(joint);
    CHECK_ERROR(fsdp__mesh_join(dp, tp2, &joint), FSDP_INVALID,
                "cannot combine mesh (pp=2, dp=2) with mesh (tp=2): they are parts of two meshes");
    CHECK_NULL(joint);
    CHECK_ERROR(fsdp__mesh_join(mesh, tp, &joint), FSDP_INVALID,
                "cannot combine mesh (pp=2, dp=2, tp=2) with mesh (tp=2): they have a dimension in common");
    fsdp_mesh_unref(mesh);
    fsdp_mesh_unref(other);
    fsdp_mesh_unref(dp);
    fsdp_mesh_unref(tp);
    fsdp_mesh_unref(tp2);
    fsdp_mesh_unref(flat);
}
