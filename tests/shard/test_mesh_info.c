/* The mesh of a front door: which of its dimensions replicate and which shard, and what is refused. */
#include "shard/group/mesh_info.h"

#include "shard/net.h"

enum {
    BLOCKS = 1,
    STEPS = 2
};

static const char *const names[] = {"pp", "dp", "cp", "tp"};

/* ---- the data-parallel dimensions of a larger mesh ---- */

typedef struct choice {
    fsdp_dp_mesh_dims dims;
    int replicas, shards; /* what comes of them in a 2 x 2 x 2 mesh of pp, dp, cp */
    const char *names[2];
} choice;

static const choice choices[] = {
    {{.shard = {"dp"}}, 1, 2, {"dp"}},
    {{.shard = {"dp", "cp"}}, 1, 4, {"dp_cp"}},
    {{.shard = {"pp", "dp", "cp"}}, 1, 8, {"pp_dp_cp"}},
    {{.shard = {"cp"}, .replicate = {"dp"}}, 2, 2, {"dp", "cp"}},
    {{.shard = {"pp"}, .replicate = {"cp"}}, 2, 2, {"cp", "pp"}},
    {{.shard = {"cp"}, .replicate = {"pp", "dp"}}, 4, 2, {"pp_dp", "cp"}},
    {{.shard = {"dp", "cp"}, .replicate = {"pp"}}, 2, 4, {"pp", "dp_cp"}},
    {{.replicate = {"dp"}}, 2, 1, {"dp", "not sharded"}},
    {{.replicate = {"pp", "dp", "cp"}}, 8, 1, {"pp_dp_cp", "not sharded"}},
};

static fsdp_mesh *cube(fsdp_context *context)
{
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 3, (const int64_t[]){2, 2, 2}, names, &mesh));
    return mesh;
}

static void check_choice(fsdp_context *context, void *arg)
{
    const choice *c = arg;
    fsdp_mesh *mesh = cube(context), *chosen = NULL;
    int dims = c->dims.replicate[0] ? 2 : 1;
    fsdp__mesh_info info;

    CHECK_OK(fsdp__data_parallel_mesh(mesh, &c->dims, &chosen));
    CHECK_EQ(fsdp_mesh_ndim(chosen), dims);
    for (int d = 0; d < dims; d++)
        CHECK_STRING(fsdp_mesh_dim_name(chosen, d), c->names[d]);
    info = fsdp__mesh_info_of(chosen);
    CHECK_EQ(info.ranks, c->shards);
    CHECK_EQ(info.replicas, c->replicas);
    CHECK_EQ(info.rank, fsdp_mesh_coordinate(chosen, dims - 1));
    CHECK((info.replicate_pg != NULL) == (dims == 2));
    CHECK_EQ(fsdp_process_group_size(info.shard_pg), c->shards);
    fsdp__mesh_info_release(&info);
    fsdp_mesh_unref(chosen);
    fsdp_mesh_unref(mesh);
}

TEST(dimensions_are_named_and_flattened)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(choices); i++)
        test_run_ranks(8, check_choice, (void *)(uintptr_t)&choices[i]);
}

/* Every part of the mesh is a model of its own: it learns what its own ranks are given. */
static void train_part(fsdp_context *context, void *arg)
{
    const choice *c = arg;
    fsdp_mesh *mesh = cube(context);
    fsdp_shard_options options = {.mesh = mesh, .dp_mesh_dims = c->dims};
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    int ranks = c->replicas * c->shards, rows = NET_ROWS / 8;
    fsdp_tensor *x, *targets, *p = fsdp_module_parameter(module, "blocks.0.up.weight");
    const fsdp_distribution *d = fsdp_tensor_distribution(p);
    float *values;
    int64_t count;
    fsdp_comm_stats stats;

    fsdp_mesh_unref(mesh);
    fsdp_context_reset_comm_stats(context);
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, fsdp_context_rank(context) * rows, rows, &x, &targets);
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(module, x, targets))));
        fsdp_scope_end(context, NULL);
        net_sgd(module, 0.1f);
    }
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], c->shards > 1 ? STEPS * (BLOCKS + 1) : 0);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], c->replicas > 1 ? STEPS * (BLOCKS + 1) : 0);
    CHECK_EQ(fsdp_mesh_size(d->mesh, -1), ranks);
    values = net_values(module, &count);
    /* The ranks of the part agree; with all eight, so do all. */
    for (int dim = 0; dim < d->placement_count; dim++) {
        fsdp_process_group *group = fsdp_mesh_process_group(d->mesh, dim);
        void **all;
        size_t *bytes;

        CHECK_OK(fsdp_gather_objects(group, values, (size_t)count * sizeof *values, &all, &bytes));
        for (int r = 0; r < fsdp_process_group_size(group); r++)
            CHECK_BYTES(all[r], values, (size_t)count * sizeof *values);
        fsdp_objects_free(group, all, bytes);
    }
    free(values);
    fsdp_module_unref(module);
}

TEST(a_part_of_a_mesh_trains_by_itself)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(choices); i++)
        test_run_ranks(8, train_part, (void *)(uintptr_t)&choices[i]);
}

/* ---- a mesh of groups that exist ---- */

static void train_on_groups(fsdp_context *context, void *arg)
{
    static const int rows[2][2] = {{0, 1}, {2, 3}}, columns[2][2] = {{0, 2}, {1, 3}};
    static const int all[] = {0, 1, 2, 3};
    int rank = fsdp_context_rank(context);
    fsdp_process_group *groups[2];
    fsdp_shard_options options = {.no_shared_memory = arg != NULL};
    fsdp_module *module;
    int64_t count, expected_count;
    float *values, *expected = net_expected(BLOCKS, STEPS, &expected_count);

    CHECK_OK(fsdp_process_group_create(context, columns[rank % 2], 2, "across", &groups[0]));
    CHECK_OK(fsdp_process_group_create(context, rows[rank / 2], 2, "inside", &groups[1]));
    CHECK_OK(fsdp_mesh_from_groups(groups, 2, all, names, &options.mesh));
    module = net_sharded(context, BLOCKS, &options);
    net_train(module, STEPS);
    values = net_values(module, &count);
    CHECK_CLOSE(values, expected, count, 1e-5, 1e-6);
    free(values);
    free(expected);
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
    fsdp_process_group_free(groups[1]);
    fsdp_process_group_free(groups[0]);
}

TEST(groups_that_exist_will_do)
{
    for (int copy = 0; copy < 2; copy++)
        test_run_ranks(4, train_on_groups, copy ? &copy : NULL);
}

/* ---- what is refused ---- */

RANKS_TEST(wrong_dimensions_and_names_are_refused, 8)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_context *other = test_context();
    fsdp_mesh *mesh = cube(context), *foreign = NULL;
    fsdp_shard_options options = {.mesh = mesh};

    CHECK_OK(fsdp_mesh_create(other, 1, (const int64_t[]){1}, NULL, &foreign));
    CHECK_ERROR(fsdp_fully_shard(module, &options), FSDP_INVALID, "this one has 3: name its data-parallel dimensions");
    options.dp_mesh_dims = (fsdp_dp_mesh_dims){.shard = {"ep"}};
    CHECK_ERROR(fsdp_fully_shard(module, &options), FSDP_NOT_FOUND,
                "(dp_mesh_dims) of a mesh: it has no dimension 'ep', only 'pp', 'dp', 'cp'");
    options.dp_mesh_dims = (fsdp_dp_mesh_dims){.shard = {"dp"}, .replicate = {"pp", "dp"}};
    CHECK_ERROR(fsdp_fully_shard(module, &options), FSDP_INVALID, "dimension 'dp' is named twice");
    options.mesh = NULL; /* one dimension, "dp" */
    options.dp_mesh_dims = (fsdp_dp_mesh_dims){.shard = {"dp"}, .replicate = {"pp"}};
    CHECK_ERROR(fsdp_fully_shard(module, &options), FSDP_NOT_FOUND, "no dimension 'pp', only 'dp'");
    options = (fsdp_shard_options){.mesh = foreign};
    CHECK_ERROR(fsdp_fully_shard(module, &options), FSDP_INVALID, "of another context");
    CHECK(!fsdp_module_is_sharded(module));
    fsdp_mesh_unref(foreign);
    fsdp_mesh_unref(mesh);
    fsdp_module_unref(module);
    fsdp_context_free(other);
}

/* ---- agreement ---- */

static void agree(fsdp_context *context, void *arg)
{
    int replicas = *(int *)arg, rank = fsdp_context_rank(context);
    fsdp_mesh *mesh = net_hybrid_mesh(context, replicas);
    fsdp__mesh_info info = fsdp__mesh_info_of(mesh);
    int machines = test_machines_of(fsdp_context_world_size(context));
    char expected[80] = "rank 4: no more paper";

    if (machines > 1)
        snprintf(expected, sizeof expected, "rank 4: no more paper (machine '%c')",
                 'a' + 4 * machines / fsdp_context_world_size(context));
    CHECK_OK(fsdp__mesh_info_agree(&info, FSDP_OK));
    CHECK_ERROR(fsdp__mesh_info_agree(&info, rank == 4 ? FSDP_FAIL(FSDP_IO, "no more paper") : FSDP_OK), FSDP_IO,
                "rank 4: no more paper");
    CHECK_STRING(fsdp_last_error(), expected); /* not "rank 0: rank 4: ..." */
    fsdp__mesh_info_release(&info);
    fsdp_mesh_unref(mesh);
}

TEST(what_fails_on_one_rank_fails_on_all)
{
    for (int replicas = 1; replicas <= 6; replicas++)
        if (6 % replicas == 0)
            test_run_ranks(6, agree, &replicas);
}
