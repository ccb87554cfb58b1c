/* FSDP1's communication hooks, and gradients in 16 bits: what the hook is given, that nothing else changes, what is
 * sent, refusals. */
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    STEPS = 2
};

static fsdp_module *wrapped(fsdp_context *context, fsdp_fsdp1_options options)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, i), &options));
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

static void check_same(fsdp_module *a, fsdp_module *b)
{
    int64_t count, same;
    float *left, *right;

    net_train(a, STEPS);
    net_train(b, STEPS);
    left = net_values(a, &count);
    right = net_values(b, &same);
    CHECK_EQ(count, same);
    net_check_same(left, right, count);
}

/* ---- the hook ---- */

typedef struct hook {
    int64_t calls, elements, failing; /* the last: which call fails, from 1 */
} hook;

static fsdp_status reduce(void *arg, const fsdp_custom_call *call)
{
    hook *h = arg;

    h->elements += call->count;
    if (++h->calls == h->failing)
        return FSDP_FAIL(FSDP_IO, "the hook gave up");
    if (call->send == call->recv)
        return fsdp_all_reduce(call->group, call->send, call->recv, call->count, call->dtype, call->op, call->stream);
    return fsdp_reduce_scatter(call->group, call->send, call->recv, call->count, call->dtype, call->op, call->stream);
}

static int64_t padded_numel(fsdp_module *module)
{
    int64_t sum = 0;

    for (int i = 0; i <= BLOCKS; i++) {
        fsdp_shard_info info;

        CHECK_OK(fsdp_module_shard_info(i < BLOCKS ? net_block_at(module, i) : module, &info));
        sum += info.padded_numel;
    }
    return sum;
}

static void check_hook(fsdp_context *context, void *arg)
{
    const fsdp_fsdp1_options *options = arg;
    int world = fsdp_context_world_size(context);
    bool whole = options->strategy == FSDP_NO_SHARD;
    fsdp_module *module = wrapped(context, *options), *other = wrapped(context, *options);
    hook h = {0};
    fsdp_custom_collective collective = {.run = reduce, .arg = &h};

    CHECK_OK(fsdp_fsdp1_register_comm_hook(module, &collective));
    check_same(module, other);
    CHECK_EQ(h.calls, STEPS * (BLOCKS + 1));
    CHECK_EQ(h.elements, STEPS * padded_numel(module) / (whole ? 1 : world));
    CHECK_OK(fsdp_fsdp1_register_comm_hook(module, NULL));
    check_same(module, other);
    CHECK_EQ(h.calls, STEPS * (BLOCKS + 1));
    fsdp_module_unref(module);
    fsdp_module_unref(other);
    test_drop_workspace(context);
}

TEST(a_hook_takes_the_place_of_the_reduction)
{
    static const fsdp_sharding_strategy strategies[] = {FSDP_FULL_SHARD, FSDP_SHARD_GRAD_OP, FSDP_NO_SHARD};

    for (int world = 2; world <= 3; world++)
        for (size_t s = 0; s < FSDP__COUNT_OF(strategies); s++)
            for (int orig = 0; orig < 2; orig++) {
                fsdp_fsdp1_options options = {.strategy = strategies[s],
                                              .use_orig_params = orig,
                                              .no_shared_memory = (world + (int)s) % 2,
                                              .overlap = orig ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_AUTO};

                test_run_ranks(world, check_hook, &options);
            }
}

/* Both reductions of replicas that shard, each by a function of the caller's. */
static void check_both(fsdp_context *context, void *arg)
{
    fsdp_mesh *mesh = net_hybrid_mesh(context, 2);
    const fsdp_shard_options options = {.mesh = mesh};
    fsdp_module *module = net_sharded(context, BLOCKS, &options), *other = net_sharded(context, BLOCKS, &options);
    hook inside = {0}, across = {0};

    (void)arg;
    for (int i = 0; i <= BLOCKS; i++) {
        fsdp_module *unit = i < BLOCKS ? net_block_at(module, i) : module;

        CHECK_OK(fsdp_module_set_custom_reduce_scatter(unit, &(fsdp_custom_collective){.run = reduce, .arg = &inside}));
        CHECK_OK(fsdp_module_set_custom_all_reduce(unit, &(fsdp_custom_collective){.run = reduce, .arg = &across}));
    }
    check_same(module, other);
    CHECK_EQ(inside.calls, STEPS * (BLOCKS + 1));
    CHECK_EQ(across.calls, STEPS * (BLOCKS + 1));
    CHECK_EQ(inside.elements, across.elements);
    CHECK_ERROR(fsdp_fsdp1_register_comm_hook(module, &(fsdp_custom_collective){.run = reduce}), FSDP_UNSUPPORTED,
                "the hybrid strategies have two");
    fsdp_module_unref(module);
    fsdp_module_unref(other);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(replicas_that_shard_have_two)
{
    test_run_ranks(4, check_both, NULL);
}

/* ---- failures ---- */

static void run_failing(fsdp_context *context, void *arg)
{
    bool mine = fsdp_context_rank(context) == 1;
    fsdp_module *module = wrapped(context, (fsdp_fsdp1_options){.strategy = *(fsdp_sharding_strategy *)arg});
    hook h = {.failing = mine ? 2 : 0};
    fsdp_tensor *x, *targets;
    fsdp_status status;

    CHECK_OK(fsdp_fsdp1_register_comm_hook(module, &(fsdp_custom_collective){.run = reduce, .arg = &h}));
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    status = fsdp_backward(CHECK_PTR(fsdp_call(module, x, targets)));
    fsdp_scope_end(context, NULL);
    CHECK(status != FSDP_OK);
    if (mine) {
        CHECK_CONTAINS(fsdp_last_error(), "the hook gave up");
        fsdp_abort(context, fsdp_last_error());
    }
    fsdp_module_unref(module);
}

TEST(a_hook_that_fails_fails_the_backward)
{
    fsdp_sharding_strategy strategies[] = {FSDP_FULL_SHARD, FSDP_NO_SHARD};

    if (!test_on_cpu()) /* behind the host the others are told later */
        return;
    for (int s = 0; s < 2; s++)
        test_run_ranks(2, run_failing, &strategies[s]);
}

static void refuse(fsdp_context *context, void *arg)
{
    const fsdp_custom_collective none = {.arg = arg}, run = {.run = reduce};
    fsdp_module *module = wrapped(context, (fsdp_fsdp1_options){.strategy = FSDP_FULL_SHARD}),
                *plain = net_create(context, test_device(context), BLOCKS);

    net_train(module, 1);
    CHECK_ERROR(fsdp_fsdp1_register_comm_hook(module, &none), FSDP_INVALID, "needs `run`");
    CHECK_ERROR(fsdp_module_set_custom_all_reduce(module, &none), FSDP_INVALID, "needs `run`");
    CHECK_ERROR(fsdp_fsdp1_register_comm_hook(plain, &run), FSDP_STATE, "was not given to");
    CHECK_ERROR(fsdp_fsdp1_register_comm_hook(net_block_at(module, 0), &run), FSDP_STATE, "with the outermost");
    CHECK_ERROR(fsdp_module_set_gradient_compression(module, FSDP_I32, true), FSDP_INVALID, "not to int32");
    CHECK_OK(fsdp_replicate(plain, NULL));
    CHECK_ERROR(fsdp_fsdp1_register_comm_hook(plain, &run), FSDP_UNSUPPORTED, "see fsdp_module_set_bucket_hook");
    CHECK_ERROR(fsdp_module_set_custom_all_reduce(plain, &run), FSDP_UNSUPPORTED, "is replicated");
    CHECK_ERROR(fsdp_module_set_gradient_compression(plain, FSDP_BF16, true), FSDP_UNSUPPORTED,
                "see fsdp_replicate_options.compress");
    fsdp_module_unref(plain);
    fsdp_module_unref(module);
    test_drop_workspace(context);
}

TEST(what_is_no_hook_is_refused)
{
    test_run_ranks(2, refuse, NULL);
}

/* ---- in 16 bits ---- */

typedef struct compression {
    fsdp_dtype dtype;
    fsdp_fsdp1_options options;
    bool hybrid;
} compression;

static int64_t sent(fsdp_context *context)
{
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(context, &stats);
    return stats.bytes_sent[FSDP_REDUCE_SCATTER] + stats.bytes_sent[FSDP_ALL_REDUCE];
}

/* The bits of a reduce dtype, where nothing adds up before, and half of what f32 sends. */
static void check_compression(fsdp_context *context, void *arg)
{
    const compression *c = arg;
    fsdp_fsdp1_options options = c->options;
    fsdp_mesh *mesh = c->hybrid ? net_hybrid_mesh(context, 2) : NULL;
    fsdp_module *module, *other;
    int64_t wide, narrow;

    options.mesh = mesh;
    module = wrapped(context, options);
    options.mixed_precision.reduce_dtype = c->dtype;
    other = wrapped(context, options);
    wide = sent(context);
    net_forward_backward(module, 0, 0, 1);
    fsdp_module_zero_grad(module);
    wide = sent(context) - wide;
    CHECK_OK(fsdp_module_set_gradient_compression(module, c->dtype, true));
    narrow = sent(context);
    net_forward_backward(module, 0, 0, 1);
    fsdp_module_zero_grad(module);
    CHECK_EQ(2 * (sent(context) - narrow), wide);
    check_same(module, other);
    CHECK_OK(fsdp_module_set_gradient_compression(module, FSDP_DTYPE_NONE, true));
    narrow = sent(context);
    net_forward_backward(module, 0, 0, 1);
    CHECK_EQ(sent(context) - narrow, wide);
    fsdp_module_unref(module);
    fsdp_module_unref(other);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(gradients_are_sent_in_sixteen_bits)
{
    for (int i = 0; i < 8; i++) {
        compression c = {.dtype = i % 2 ? FSDP_F16 : FSDP_BF16, .hybrid = i / 2 == 3};

        c.options.strategy = i / 2 == 1 ? FSDP_NO_SHARD : c.hybrid ? FSDP_HYBRID_SHARD : FSDP_FULL_SHARD;
        c.options.no_shared_memory = i / 2 == 2;
        c.options.cpu_offload.cpu = i == 4;
        c.options.use_orig_params = i % 2;
        test_run_ranks(c.hybrid ? 4 : 2 + i % 2, check_compression, &c);
    }
}
