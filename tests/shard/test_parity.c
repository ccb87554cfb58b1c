/* Sharded equals unsharded, for every option and world; and all layouts of memory give the same bits. Links: launch */
#include "fsdp/launch.h"
#include "shard/net.h"

static const int worlds[] = {1, 2, 3, 4, 6, 8};

enum {
    BLOCKS = 3,
    STEPS = 4
};

typedef struct run {
    fsdp_shard_options options;
    bool real;       /* built with values on the CPU instead of on the meta device */
    bool root_only;  /* one group */
    bool group_ends; /* norm and head as one group of two modules */
    const float *expected;
    float *first; /* of the first run: later ones must have its bits */
} run;

static void shard_as_asked(fsdp_module *module, const run *r)
{
    net *n = (net *)module;

    if (r->root_only) {
        CHECK_OK(fsdp_fully_shard(module, &r->options));
        return;
    }
    if (r->group_ends)
        CHECK_OK(fsdp_fully_shard_modules((fsdp_module *const[]){n->norm, n->head}, 2, &r->options));
    net_shard(module, &r->options);
}

static void train(fsdp_context *context, void *arg)
{
    run *r = arg;
    fsdp_module *module = net_create(context, r->real ? test_device(context) : fsdp_meta(context), BLOCKS);
    int64_t count;
    float *values;

    if (r->real)
        CHECK_OK(fsdp_module_initialize(module, 1));
    shard_as_asked(module, r);
    if (!r->real) {
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
        CHECK_OK(fsdp_module_initialize(module, 1));
    }
    net_train(module, STEPS);
    values = net_values(module, &count);
    CHECK_CLOSE(values, r->expected, count, 1e-5, 1e-6);
    if (fsdp_context_rank(context) == 0) {
        if (!r->first) {
            r->first = values;
            values = NULL;
        } else {
            CHECK_BYTES(values, r->first, (size_t)count * sizeof(float));
        }
    }
    free(values);
    fsdp_module_unref(module);
}

TEST(every_option_equals_unsharded)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

    for (size_t w = test_brief() ? 1 : 0; w < (test_brief() ? 4 : FSDP__COUNT_OF(worlds)); w++) {
        run r = {.expected = expected};

        bool fewer = test_brief() || (test_machines_of(worlds[w]) > 1 && !test_long());

        for (int variant = 0; variant < 3 * 2 * 2 * 2; variant += fewer ? 5 : 1) {
            r.options.reshard_after_forward = (fsdp_reshard)(variant % 3);
            r.options.no_shared_memory = variant / 3 % 2;
            r.options.overlap = variant / 6 % 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_AUTO;
            r.real = variant / 12;
            test_run_ranks(worlds[w], train, &r);
        }
        r.options = (fsdp_shard_options){0};
        r.root_only = true;
        test_run_ranks(worlds[w], train, &r);
        r.root_only = false;
        r.group_ends = true;
        test_run_ranks(worlds[w], train, &r);
        free(r.first);
    }
    free(expected);
}

/* ---- accumulation ---- */

typedef struct accumulation {
    int micros;
    bool sync;  /* reduce in every microbatch */
    bool never; /* keep whole between forward and backward, and over the microbatches */
    bool copy;
    const float *expected;
} accumulation;

static void accumulate(fsdp_context *context, void *arg)
{
    const accumulation *a = arg;
    fsdp_shard_options options = {.reshard_after_forward = a->never ? FSDP_RESHARD_NEVER : FSDP_RESHARD_ALWAYS,
                                  .no_shared_memory = a->copy};
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    int64_t count;
    float *values;

    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < a->micros; micro++) {
            bool last = micro == a->micros - 1;

            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, a->sync || last, true));
            CHECK_OK(fsdp_module_set_is_last_backward(module, last));
            if (a->never)
                CHECK_OK(fsdp_module_set_reshard_after_backward(module, last, true));
            net_forward_backward(module, step, micro, a->micros);
        }
        net_sgd(module, 0.1f);
    }
    values = net_values(module, &count);
    CHECK_CLOSE(values, a->expected, count, 1e-5, 1e-6);
    free(values);
    fsdp_module_unref(module);
}

TEST(accumulated_microbatches_equal_one_batch)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

    for (int world = test_brief() ? 2 : 1; world <= (test_brief() ? 3 : 4); world++)
        for (int micros = 2; micros <= 3; micros++)
            for (int variant = 0; variant < 8 && NET_ROWS % (world * micros) == 0; variant += test_brief() ? 3 : 1) {
                accumulation a = {.micros = micros,
                                  .sync = variant & 1,
                                  .never = variant & 2,
                                  .copy = variant & 4,
                                  .expected = expected};

                test_run_ranks(world, accumulate, &a);
            }
    free(expected);
}

/* ---- two worlds ---- */

typedef struct worlds_at_once {
    fsdp_context *others[3]; /* of the second world, which has the first two of three ranks */
    const float *expected;
} worlds_at_once;

static void check_values(fsdp_module *module, const float *expected)
{
    int64_t count;
    float *values = net_values(module, &count);

    CHECK_CLOSE(values, expected, count, 1e-5, 1e-6);
    free(values);
}

/* A step of the second world lies between forward and backward of the first. */
static void train_two(fsdp_context *context, void *arg)
{
    const worlds_at_once *w = arg;
    int rank = fsdp_context_rank(context), rows = NET_ROWS / fsdp_context_world_size(context);
    const fsdp_shard_options workers = {.overlap = FSDP_OVERLAP_WORKER}, copies = {.no_shared_memory = true};
    fsdp_module *first = net_sharded(context, BLOCKS, &workers), *second = NULL;

    if (w->others[rank])
        second = net_sharded(w->others[rank], BLOCKS, &copies);
    for (int step = 0; step < STEPS; step++) {
        fsdp_tensor *x, *targets, *loss;

        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, rank * rows, rows, &x, &targets);
        loss = CHECK_PTR(fsdp_call(first, x, targets));
        if (second)
            net_forward_backward(second, step, 0, 1);
        CHECK_OK(fsdp_backward(loss));
        fsdp_scope_end(context, NULL);
        if (second)
            net_sgd(second, 0.1f);
        net_sgd(first, 0.1f);
    }
    if (second)
        check_values(second, w->expected);
    check_values(first, w->expected);
    fsdp_module_unref(second);
    if (w->others[rank])
        CHECK_EQ(test_live_bytes(w->others[rank]), 0);
    fsdp_context_free(w->others[rank]);
    fsdp_module_unref(first);
}

TEST(two_worlds_train_at_once_on_one_device)
{
    const fsdp_context_options options = {.threads = 1};
    worlds_at_once w = {0};
    int64_t count;
    float *expected;

    test_need_threads("the second world's ranks are threads");
    w.expected = expected = net_expected(BLOCKS, STEPS, &count);
    CHECK_OK(fsdp_context_create_threads(2, &options, w.others));
    test_run_ranks(3, train_two, &w);
    free(expected);
}

TEST_FILE_JOINED()
