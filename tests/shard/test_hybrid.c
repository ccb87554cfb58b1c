/* Hybrid sharding: replicas of the model, each sharded over its own ranks.
 * Links: optim state */
#include "fsdp/state.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2,
    STEPS = 3
};

/* ---- what it looks like ---- */

static void check_placements(fsdp_context *context, void *arg)
{
    int replicas = *(int *)arg, shards = fsdp_context_world_size(context) / replicas;
    fsdp_mesh *mesh = net_hybrid_mesh(context, replicas);
    fsdp_module *module = net_sharded(context, BLOCKS, &(fsdp_shard_options){.mesh = mesh});
    fsdp_tensor *p = fsdp_module_parameter(module, "blocks.0.up.weight");
    const fsdp_distribution *d = fsdp_tensor_distribution(p);
    int64_t chunk = (NET_FFN + shards - 1) / shards, start;
    fsdp_shard_info info;

    CHECK_EQ(d->placement_count, 2);
    CHECK_EQ(d->placements[0].kind, FSDP_REPLICATE);
    CHECK_EQ(d->placements[1].kind, FSDP_SHARD);
    CHECK_EQ(d->placements[1].dim, 0);
    CHECK_EQ(d->global_shape[0], NET_FFN);
    CHECK_EQ(fsdp_tensor_shape(p)[0], fsdp_shard_range(NET_FFN, shards, fsdp_mesh_coordinate(mesh, 1), &start));
    net_forward_backward(module, 0, 0, 1);
    d = fsdp_tensor_distribution(fsdp_tensor_grad(p));
    CHECK_EQ(d->placement_count, 2);
    CHECK_EQ(d->placements[0].kind, FSDP_REPLICATE);
    CHECK_OK(fsdp_module_shard_info(net_block_at(module, 0), &info));
    CHECK_EQ(info.padded_numel, shards * (chunk * (NET_DIM + 1) + (NET_DIM + shards - 1) / shards * (NET_FFN + 1)));
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(parameters_are_replicated_and_sharded)
{
    int replicas[] = {1, 2, 3, 6};

    for (size_t i = 0; i < FSDP__COUNT_OF(replicas); i++)
        test_run_ranks(6, check_placements, &replicas[i]);
}

/* ---- it trains as the plain model does ---- */

typedef struct shape {
    int replicas, shards;
} shape;

static const shape shapes[] = {{1, 1}, {1, 2}, {2, 1}, {3, 1}, {1, 3}, {2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}};

enum {
    WIDEST = 8 /* ranks */
};

typedef struct parity {
    shape shape;
    fsdp_shard_options options;
    bool channel;          /* reductions have one of their own, and two are in flight */
    bool one_dimension;    /* all ranks sharded, for comparison */
    const float *expected; /* of the plain model; NULL: not compared */
    float *values[WIDEST]; /* of each rank */
    int64_t count;
} parity;

static void train(fsdp_context *context, void *arg)
{
    parity *p = arg;
    fsdp_shard_options options = p->options;
    fsdp_module *module;
    int64_t count;

    if (!p->one_dimension)
        options.mesh = net_hybrid_mesh(context, p->shape.replicas);
    module = net_sharded(context, BLOCKS, &options);
    if (p->channel) {
        CHECK_OK(fsdp_module_set_separate_reduce_scatter_group(module, true, true));
        CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(module, 2, true));
    }
    net_train(module, STEPS);
    p->values[fsdp_context_rank(context)] = net_values(module, &count);
    if (fsdp_context_rank(context) == 0)
        p->count = count;
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

/* All ranks have the same bits, in every residence; `*first`, if it is NULL, becomes those. */
static void run_parity(parity *p, float **first)
{
    int world = p->shape.replicas * p->shape.shards;

    test_run_ranks(world, train, p);
    if (p->expected)
        CHECK_CLOSE(p->values[0], p->expected, p->count, 1e-5, 1e-6);
    for (int r = 0; r < world; r++) {
        if (!*first) {
            *first = p->values[r];
            continue;
        }
        CHECK_BYTES(p->values[r], *first, (size_t)p->count * sizeof(float));
        free(p->values[r]);
    }
}

TEST(every_shape_equals_unsharded)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

    for (size_t s = 0; s < FSDP__COUNT_OF(shapes); s++) {
        float *first = NULL;

        for (int variant = 0; variant < 3 * 2 * 2; variant++) {
            parity p = {.shape = shapes[s], .expected = expected, .channel = variant % 4 == 3};

            p.options.reshard_after_forward = (fsdp_reshard)(variant % 3);
            p.options.no_shared_memory = variant / 3 % 2;
            p.options.overlap = variant / 6 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
            if (test_brief() ? p.options.overlap == FSDP_OVERLAP_WORKER && variant % 6 == (int)s % 6
                             : test_takes(variant + variant / 6 + (int)s, 2, 2))
                run_parity(&p, &first);
        }
        free(first);
    }
    free(expected);
}

TEST(every_shape_in_bf16_is_the_same_in_all_residences)
{
    for (size_t s = 0; s < FSDP__COUNT_OF(shapes); s++)
        for (int reduce = 0; reduce < 2; reduce++) {
            float *first = NULL;

            for (int variant = 0; variant < 2 * 2; variant++) {
                parity p = {.shape = shapes[s]};

                p.options.mp_policy.param_dtype = FSDP_BF16;
                p.options.mp_policy.reduce_dtype = reduce ? FSDP_F32 : FSDP_BF16;
                p.options.no_shared_memory = variant % 2;
                p.options.overlap = variant / 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
                if (!test_brief() || (p.options.overlap == FSDP_OVERLAP_WORKER && (s + (size_t)reduce) % 2 == 0))
                    run_parity(&p, &first);
            }
            free(first);
        }
}

/* Where all ranks replicate, or all shard, sums are made in the order of all ranks. */
TEST(one_dimension_of_two_gives_the_bits_of_one)
{
    for (int world = 1; world <= 4; world++) {
        float *first = NULL;

        for (int variant = 0; variant < 3; variant++) {
            parity p = {.shape = {variant == 2 ? world : 1, variant == 2 ? 1 : world}, .one_dimension = variant == 0};

            run_parity(&p, &first);
        }
        free(first);
    }
}

/* ---- its state ---- */

/* Every element is written by one rank. */
static void check_writers(fsdp_context *context, void *arg)
{
    fsdp_mesh *mesh = net_hybrid_mesh(context, *(int *)arg);
    fsdp_module *module = net_sharded(context, BLOCKS, &(fsdp_shard_options){.mesh = mesh});
    fsdp_state_dict *state;

    CHECK_OK(fsdp_state_dict_from_module(module, &state));
    for (int64_t i = 0; i < state->count; i++) {
        const fsdp_state_dict_entry *e = &state->entries[i];
        int64_t mine = e->writer ? fsdp_tensor_numel(e->tensor) : 0, whole = 1, sum = 0;
        void **all;
        size_t *bytes;

        for (int d = 0; d < e->ndim; d++)
            whole *= e->global_shape[d];
        CHECK_OK(fsdp_gather_objects(fsdp_world(context), &mine, sizeof mine, &all, &bytes));
        for (int r = 0; r < fsdp_context_world_size(context); r++)
            sum += *(int64_t *)all[r];
        fsdp_objects_free(fsdp_world(context), all, bytes);
        CHECK_EQ(sum, whole);
        CHECK(!e->writer || fsdp_mesh_coordinate(mesh, 0) == 0);
    }
    fsdp_state_dict_free(state);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(one_replica_writes_the_state)
{
    for (int replicas = 1; replicas <= 6; replicas++)
        if (6 % replicas == 0)
            test_run_ranks(6, check_writers, &replicas);
}

/* ---- what is divided by ---- */

typedef struct division {
    int replicas; /* 0: a mesh of one dimension */
    fsdp_shard_options options;
} division;

/* The gradient of one parameter of the first block, whole, times `times`. */
static void check_gradient(fsdp_module *module, const float *mean, double times)
{
    fsdp_tensor *p = fsdp_module_parameter(module, "blocks.0.up.weight"), *whole;
    float values[NET_FFN * NET_DIM];

    fsdp_module_zero_grad(module);
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_full_tensor(fsdp_tensor_grad(p), &whole));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
    for (int64_t i = 0; i < NET_FFN * NET_DIM; i++)
        CHECK_NEAR(values[i], mean[i] * times, 1e-6);
    if (times == 1)
        CHECK_BYTES(values, mean, sizeof values);
    fsdp_tensor_unref(whole);
}

static void divide(fsdp_context *context, void *arg)
{
    const division *d = arg;
    fsdp_shard_options options = d->options;
    int world = fsdp_context_world_size(context);
    fsdp_module *module, *block;
    float mean[NET_FFN * NET_DIM];
    fsdp_tensor *whole;

    options.mesh = d->replicas > 0 ? net_hybrid_mesh(context, d->replicas) : NULL;
    module = net_sharded(context, BLOCKS, &options);
    block = net_block_at(module, 0);
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_full_tensor(fsdp_tensor_grad(fsdp_module_parameter(module, "blocks.0.up.weight")), &whole));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, mean));
    fsdp_tensor_unref(whole);
    CHECK_OK(fsdp_module_set_force_sum_reduction(block, true));
    check_gradient(module, mean, 1);
    CHECK_OK(fsdp_module_set_gradient_divide_factor(block, (float)world)); /* what the default is */
    check_gradient(module, mean, 1);
    CHECK_OK(fsdp_module_set_force_sum_reduction(block, false));
    CHECK_OK(fsdp_module_set_gradient_divide_factor(block, 1));
    check_gradient(module, mean, world);
    CHECK_OK(fsdp_module_set_gradient_divide_factor(block, 2.5f));
    check_gradient(module, mean, world / 2.5);
    CHECK_OK(fsdp_module_set_gradient_divide_factor(block, 0));
    check_gradient(module, mean, 1);
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

TEST(the_divisor_is_one_for_all_ranks)
{
    for (int world = 1; world <= (test_brief() ? 4 : 6); world++)
        for (int replicas = 0; replicas <= world; replicas++)
            for (int variant = 0; variant < 4 && (replicas == 0 || world % replicas == 0); variant++) {
                division d = {.replicas = replicas, .options.no_shared_memory = variant & 1};

                d.options.overlap = variant & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
                test_run_ranks(world, divide, &d);
            }
}

/* ---- accumulation, in every mode and any order ---- */

/* Mesh of the ways' worlds; plain: none. */
static fsdp_module *ways_hybrid(fsdp_context *context, const way_run *run, fsdp_mesh **mesh)
{
    way_run hybrid = *run;
    int least = run->world % 2 == 0 ? 2 : run->world; /* 1, 2, 3, 2 x 2, 5 */

    *mesh = NULL;
    if (run->way)
        *mesh = net_hybrid_mesh(context, run->arg ? run->world / least : least);
    hybrid.options.mesh = *mesh;
    return ways_net(context, &hybrid, BLOCKS, FSDP_RESHARD_AUTO);
}

typedef enum mode {
    KEEP,    /* unsharded */
    SCATTER, /* reduced inside the replica */
    REDUCE,
    MODES
} mode;

static void set_mode(const way_run *run, fsdp_module *module, mode m, bool recurse)
{
    if (!run->way)
        return;
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, m != KEEP, recurse));
    CHECK_OK(fsdp_module_set_requires_all_reduce(module, m == REDUCE, recurse));
}

/* Microbatch `micro` of `micros`, each module in a mode of its own; the last reduces all. */
static void microbatch(const way_run *run, fsdp_module *module, int step, int micro, int micros)
{
    uint32_t draw = (uint32_t)(step * 31 + micro * 7 + run->world) * 2654435761u >> 8;

    for (int i = 0; i <= BLOCKS; i++) {
        set_mode(run, i < BLOCKS ? net_block_at(module, i) : module,
                 micro == micros - 1 ? REDUCE : (mode)(draw % MODES), false);
        draw /= MODES;
    }
    if (run->way)
        CHECK_OK(fsdp_module_set_is_last_backward(module, micro == micros - 1));
    dawdle(module->context, run);
    ways_backward(run, module, step * 5 + micro);
}

static void accumulate(fsdp_context *context, way_run *run)
{
    fsdp_mesh *mesh;
    fsdp_module *module = ways_hybrid(context, run, &mesh);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < 4; micro++) {
            microbatch(run, module, step, micro, 4);
            if (micro == 1) {
                float loss = ways_evaluate(run, module, 3); /* changes nothing */

                if (fsdp_context_rank(context) == 0 && run->world == 1)
                    note(context, run, &loss, 1);
            }
        }
        note_gradients(run, module);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
    fsdp_mesh_unref(mesh);
}

TEST(modes_mix_in_any_order)
{
    for (int turned = 0; turned < 2; turned++)
        in_every_way_with(accumulate, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, turned);
}

/* ---- what is pending can be dropped ---- */

static void check_no_gradient(fsdp_module *module)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        CHECK_NULL(fsdp_tensor_grad(parameters.items[i].tensor));
    fsdp_parameters_release(&parameters);
}

/* Of step 0 nothing is left, but for the gradients of one block in the second round. */
static void drop(fsdp_context *context, way_run *run)
{
    fsdp_mesh *mesh;
    fsdp_module *module = ways_hybrid(context, run, &mesh);

    for (int round = 0; round < 3; round++) {
        set_mode(run, module, SCATTER, true);
        ways_backward(run, module, 0);
        if (run->way)
            check_no_gradient(module);
        if (round == 0)
            fsdp_module_zero_grad(module);
        if (round == 1)
            fsdp_module_zero_grad(net_block_at(module, 0));
        if (round == 2 && run->way)
            CHECK_OK(fsdp_module_reset_iteration(module));
        if (round == 2 && !run->way)
            fsdp_module_zero_grad(module);
        set_mode(run, module, round == 0 ? SCATTER : REDUCE, true);
        ways_backward(run, module, 1);
        set_mode(run, module, REDUCE, true);
        ways_backward(run, module, 2);
        note_gradients(run, module);
        fsdp_module_zero_grad(module);
    }
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(what_is_dropped_does_not_come_back)
{
    for (int turned = 0; turned < 2; turned++)
        in_every_way_with(drop, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, turned);
}

/* A model that goes with gradients pending leaves nothing behind; one whose parameters freeze meanwhile goes on. */
static void leave(fsdp_context *context, way_run *run)
{
    fsdp_mesh *mesh;
    fsdp_module *module = ways_hybrid(context, run, &mesh);
    fsdp_tensor *frozen = fsdp_module_parameter(module, "blocks.0.up.weight");

    set_mode(run, module, SCATTER, true);
    ways_backward(run, module, 0);
    CHECK_OK(fsdp_tensor_set_requires_grad(frozen, false));
    ways_backward(run, module, 1); /* without it: its place stays */
    CHECK_OK(fsdp_tensor_set_requires_grad(frozen, true));
    frozen = fsdp_module_parameter(module, "blocks.1.up.bias");
    CHECK_OK(fsdp_tensor_set_requires_grad(frozen, false));
    fsdp_module_zero_grad(module);
    ways_backward(run, module, 2);
    CHECK_OK(fsdp_tensor_set_requires_grad(frozen, true));
    ways_backward(run, module, 3); /* one more place than there was */
    set_mode(run, module, REDUCE, true);
    ways_backward(run, module, 4);
    note_gradients(run, module);
    set_mode(run, module, SCATTER, true);
    ways_backward(run, module, 0);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(parameters_join_and_leave_what_is_pending)
{
    for (int turned = 0; turned < 2; turned++)
        in_every_way_with(leave, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, turned);
}

/* ---- gradients without elements ---- */

/* x (n,5) -> x + w^T (w x), w (0,5), on all ranks but the first. */
typedef struct hollow {
    fsdp_module base;
    fsdp_tensor *w;
} hollow;

static fsdp_tensor *hollow_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *w = ((hollow *)self)->w;

    (void)count;
    if (fsdp_context_rank(self->context) == 0)
        return inputs[0];
    return fsdp_add(inputs[0], fsdp_matmul(fsdp_linear(inputs[0], w, FSDP_NO_BIAS), w));
}

static const fsdp_module_type hollow_type = {.name = "Hollow", .forward = hollow_forward};

static void use_nothing(fsdp_context *context, void *arg)
{
    fsdp_mesh *mesh = net_hybrid_mesh(context, *(int *)arg);
    fsdp_tensor *x, *targets;
    hollow *h;

    CHECK_OK(fsdp_module_create(context, &hollow_type, sizeof *h, &h));
    CHECK_OK(fsdp_module_add_parameter(&h->base, "w", &h->w, test_device(context), FSDP_F32, FSDP_SHAPE(0, NET_IN),
                                       (fsdp_init){.kind = FSDP_INIT_ZEROS}));
    CHECK_OK(fsdp_module_initialize(&h->base, 1));
    CHECK_OK(fsdp_fully_shard(&h->base, &(fsdp_shard_options){.mesh = mesh}));
    for (int step = 0; step < 2; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, 0, 2, &x, &targets);
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(fsdp_call(&h->base, x)))));
        fsdp_scope_end(context, NULL);
        CHECK(fsdp_tensor_grad(h->w) != NULL);
        fsdp_module_zero_grad(&h->base);
    }
    fsdp_module_unref(&h->base);
    fsdp_mesh_unref(mesh);
}

TEST(all_ranks_hear_of_a_gradient_without_elements)
{
    for (int world = 2; world <= 4; world++)
        for (int replicas = 1; replicas <= world; replicas++)
            if (world % replicas == 0)
                test_run_ranks(world, use_nothing, &replicas);
}
