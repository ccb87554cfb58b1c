/* From the meta device to values: the same first values whatever the world, the mesh, the placement and the options,
 * and in whichever order and parts memory comes. */
#include "fsdp/fsdp1.h"
#include "shard/net.h"

enum {
    BLOCKS = 2
};

/* ---- the ways there ---- */

typedef enum route {
    AT_ONCE,
    IN_PARTS,        /* the blocks' memory first, then the rest; once more for all */
    A_BLOCK_IS_REAL, /* and has other values already */
    SHARDED_LATE,    /* with memory, before there are values */
    INITIALIZED_TWICE,
    ONE_GROUP, /* the blocks */
    ROUTES
} route;

typedef struct expected {
    float *values;
    int64_t count;
    route route;
    fsdp_shard_options options;
    int replicas; /* 0: one dimension */
    bool last_dimension;
} expected;

static void shard(fsdp_module *module, const fsdp_shard_options *options, route how)
{
    fsdp_module *const blocks[] = {net_block_at(module, 0), net_block_at(module, 1)};

    if (how != ONE_GROUP) {
        net_shard(module, options);
        return;
    }
    CHECK_OK(fsdp_fully_shard_modules(blocks, BLOCKS, options));
    CHECK_OK(fsdp_fully_shard(module, options));
}

static fsdp_module *build(fsdp_context *context, const expected *e)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_device *device = test_device(context);
    fsdp_shard_options options = e->options;
    fsdp_mesh *mesh = NULL;

    if (e->replicas > 0)
        options.mesh = mesh = net_hybrid_mesh(context, e->replicas);
    options.placement = e->last_dimension ? net_last_dimension : NULL;
    if (e->route == A_BLOCK_IS_REAL) {
        CHECK_OK(fsdp_module_materialize(net_block_at(module, 1), device));
        CHECK_OK(fsdp_module_initialize(net_block_at(module, 1), 7));
    }
    if (e->route == SHARDED_LATE)
        CHECK_OK(fsdp_module_materialize(module, device));
    shard(module, &options, e->route);
    for (int i = 0; i < BLOCKS && e->route == IN_PARTS; i++)
        CHECK_OK(fsdp_module_materialize(net_block_at(module, BLOCKS - 1 - i), device));
    CHECK_OK(fsdp_module_materialize(module, device));
    if (e->route == INITIALIZED_TWICE)
        CHECK_OK(fsdp_module_initialize(module, 99));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_module_materialize(module, device)); /* what has memory keeps its values */
    fsdp_mesh_unref(mesh);
    return module;
}

static void compare(fsdp_context *context, void *arg)
{
    const expected *e = arg;
    fsdp_module *module = build(context, e);
    int64_t count;
    float *values = net_values(module, &count);

    CHECK_EQ(count, e->count);
    CHECK_BYTES(values, e->values, (size_t)count * sizeof *values);
    free(values);
    net_train(module, 1);
    fsdp_module_unref(module);
}

TEST(first_values_are_those_of_the_plain_model)
{
    static const fsdp_mp_policy bf16 = {.param_dtype = FSDP_BF16};
    expected e = {0};

    e.values = net_expected(BLOCKS, 0, &e.count);
    for (int world = test_brief() ? 4 : 1; world <= 4; world++)
        for (int i = 0; i < ROUTES * 4; i++) {
            e.route = (route)(i % ROUTES);
            e.options = (fsdp_shard_options){.no_shared_memory = i / ROUTES & 1};
            e.options.mp_policy = i / ROUTES & 2 ? bf16 : (fsdp_mp_policy){0};
            e.options.reshard_after_forward_ranks = world == 4 && e.route == IN_PARTS ? 2 : 0;
            e.replicas = (i + world) % 3 == 0 ? (world % 2 == 0 ? 2 : 1) : 0;
            e.last_dimension = (i + world) % 4 == 0;
            test_run_ranks(world, compare, &e);
        }
    free(e.values);
}

/* ---- a group of which some parameters have memory ---- */

static void mix(fsdp_context *context, void *arg)
{
    const expected *e = arg;
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_module *head = ((net *)module)->head, *input = ((net *)module)->input;
    int64_t count;
    float *values;

    CHECK_OK(fsdp_module_materialize(e->route ? head : input, test_device(context)));
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fully_shard(net_block_at(module, i), NULL));
    CHECK_ERROR(fsdp_fully_shard(module, NULL), FSDP_INVALID, "it is on device");
    CHECK_CONTAINS(fsdp_last_error(), "call fsdp_module_materialize for the whole module first");
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_fully_shard(module, NULL));
    CHECK_OK(fsdp_module_initialize(module, 1));
    values = net_values(module, &count);
    CHECK_BYTES(values, e->values, (size_t)count * sizeof *values);
    free(values);
    net_train(module, 1);
    fsdp_module_unref(module);
}

TEST(a_group_is_on_meta_or_it_is_not)
{
    expected e = {0};

    e.values = net_expected(BLOCKS, 0, &e.count);
    for (int world = 1; world <= 3; world++)
        for (int which = 0; which < 2; which++) {
            e.route = (route)which;
            test_run_ranks(world, mix, &e);
        }
    free(e.values);
}

/* ---- what one rank alone lacks ---- */

typedef enum lack {
    ALL_VALUES,      /* who has no rows misses none */
    VALUES,          /* on the first rank, which has rows in any case */
    THE_SAME_TENSOR, /* the first rank has put another one into a field */
    LACKS
} lack;

typedef struct trial {
    lack lack;
    int64_t rows;
    bool below; /* the sharded module is below a plain one, which is called */
    bool flat;  /* through FSDP1's door */
    bool copy;
    bool keep; /* parameters are to stay unsharded */
} trial;

static fsdp_module *build_linear(fsdp_context *context, const trial *t, fsdp_module **root)
{
    const fsdp_shard_options options = {.no_shared_memory = t->copy};
    const fsdp_fsdp1_options fsdp1 = {.use_orig_params = t->rows % 2, .no_shared_memory = t->copy};
    fsdp_module *linear = fsdp_linear_create(context, fsdp_meta(context), NET_IN, t->rows, NULL);

    *root = t->below ? fsdp_sequential_create(context, &linear, 1) : linear;
    CHECK_OK(t->flat ? fsdp_fsdp1_wrap(linear, &fsdp1) : fsdp_fully_shard(linear, &options));
    CHECK_OK(fsdp_module_materialize(linear, test_device(context)));
    if (t->keep)
        CHECK_OK(fsdp_module_set_keep_unsharded(linear, true));
    return linear;
}

static void fail_together(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    bool first = fsdp_context_rank(context) == 0;
    fsdp_module *root, *linear;
    fsdp_tensor **field, *bias, *x, *targets;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL); /* FSDP1 tells of a world of one rank */
    linear = build_linear(context, t, &root);
    field = &((fsdp_layer *)linear)->bias;
    bias = *field;
    if (t->lack == THE_SAME_TENSOR || (t->lack == VALUES && !first))
        CHECK_OK(fsdp_module_initialize(linear, 1));
    CHECK_OK(fsdp_scope_begin(context));
    if (t->lack == THE_SAME_TENSOR && first)
        *field = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(t->rows)));
    net_batch(context, 0, 0, 4, &x, &targets);
    for (int again = 0; again < 2; again++) {
        CHECK_NULL(fsdp_call(root, x));
        CHECK_STATUS(fsdp_last_status(), FSDP_STATE);
        CHECK_CONTAINS(fsdp_last_error(), fsdp_context_world_size(context) > 1 ? "rank 0: " : "");
        CHECK_CONTAINS(fsdp_last_error(),
                       t->lack == THE_SAME_TENSOR ? "names another tensor" : "has memory but no values");
    }
    CHECK_OK(fsdp_module_set_conditional(linear, false)); /* which is too late once a rank has begun */
    *field = bias;
    CHECK_OK(fsdp_module_initialize(linear, 1));
    CHECK_PTR(fsdp_call(root, x));
    CHECK_ERROR(fsdp_module_set_conditional(linear, false), FSDP_STATE, "has run");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(root);
}

TEST(what_the_first_rank_lacks_is_told_on_all_at_once)
{
    for (int world = test_brief() ? 3 : 1; world <= (test_brief() ? 3 : 4); world++)
        for (int i = 0; i < LACKS * 4 * 8; i++) {
            trial t = {.lack = (lack)(i % LACKS),
                       .rows = 1 + i / LACKS % 4,
                       .below = i / LACKS / 4 & 1,
                       .flat = i / LACKS / 4 & 2,
                       .copy = i / LACKS / 4 & 4,
                       .keep = i / LACKS % 4 >= 2};

            test_run_ranks(world, fail_together, &t);
        }
}
