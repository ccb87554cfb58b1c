/* Ranks with different numbers of batches: each step is that of the plain model over the batches that there are, and in
 * the end all have the same parameters. */
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    BLOCKS = 1,
    WORLDS = 4,
    MOST = 5 /* batches of a rank */
};

static const int uneven[][WORLDS] = {{3, 1, 2, 0}, {0, 5, 5, 1}, {2, 2, 2, 2}, {0, 0, 4, 0}, {0, 0, 0, 0}};

typedef struct trial {
    const int *batches; /* by rank */
    int world;
    fsdp_replicate_options options;
    fsdp_join_options join;
    bool every_other; /* batch is not synchronised, and not stepped with */
    bool evaluate;    /* before each step */
    float *values[WORLDS];
    int64_t count;
} trial;

/* Of rank `rank`, its share of the mean. */
static void backward(fsdp_module *module, int step, int rank, double share)
{
    fsdp_tensor *x, *targets;

    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, step, rank * 2, 2, &x, &targets);
    CHECK_OK(fsdp_backward(fsdp_scale(CHECK_PTR(fsdp_call(module, x, targets)), share)));
    fsdp_scope_end(module->context, NULL);
}

static int present(const trial *t, int step)
{
    int count = 0;

    for (int r = 0; r < t->world; r++)
        count += t->batches[r] > step;
    return count;
}

/* What a rank that runs out has not stepped with is lost, unless another synchronises once more. */
static bool counts(const trial *t, int step)
{
    return !t->every_other || step % 2 == 1 || present(t, step + 1) > 0;
}

static float *expected(const trial *t)
{
    fsdp_context *context = test_context();
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    int64_t count;
    float *values;

    CHECK_OK(fsdp_module_initialize(module, 1));
    for (int step = 0; step < MOST && present(t, step) > 0; step++) {
        int ranks = t->join.divide_by_present ? present(t, step) : t->world;

        for (int r = 0; r < t->world; r++)
            if (t->batches[r] > step && counts(t, step))
                backward(module, step, r, 1.0 / ranks);
        if (!t->every_other || step % 2 == 1)
            net_sgd(module, 0.1f);
    }
    values = net_values(module, &count);
    fsdp_module_unref(module);
    fsdp_context_free(context);
    return values;
}

static void train(fsdp_context *context, void *arg)
{
    trial *t = arg;
    int rank = fsdp_context_rank(context);
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_parameters parameters;
    int64_t count;

    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_replicate(module, &t->options));
    CHECK_OK(fsdp_module_join_begin(module, &t->join));
    for (int step = 0; step < t->batches[rank]; step++) {
        bool sync = !t->every_other || step % 2 == 1;

        if (t->evaluate)
            net_evaluate(module, step, 2);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, sync, true));
        backward(module, step, rank, 1);
        if (sync)
            net_sgd(module, 0.1f);
    }
    CHECK_OK(fsdp_module_join_end(module));
    fsdp_module_zero_grad(module);
    t->values[rank] = net_values(module, &count);
    if (rank == 0)
        t->count = count;
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
    backward(module, 0, rank, 1); /* as ever */
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        CHECK_PTR(fsdp_tensor_grad(parameters.items[i].tensor));
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(module);
}

static trial trial_of(int bits)
{
    trial t = {.batches = uneven[bits % 5], .every_other = bits / 5 % 3 == 1, .evaluate = bits / 5 % 3 == 2};

    t.join.divide_by_present = bits & 1;
    t.options.gradient_as_bucket_view = bits >> 1 & 1;
    t.options.no_shared_memory = bits >> 2 & 1;
    t.options.overlap = bits >> 3 & 1 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
    t.options.bucket_cap_mb = bits % 3 ? 2e-4 : 0;
    t.options.find_unused_parameters = bits % 7 == 1;
    t.options.static_graph = bits % 7 == 2;
    return t;
}

TEST(every_step_is_of_the_batches_there_are)
{
    for (int bits = 0; bits < 240; bits += test_long() ? 1 : test_brief() ? 37 : 7)
        for (int world = 1 + test_brief(); world <= WORLDS - test_brief(); world++) {
            trial t = trial_of(bits);
            float *plain;

            t.world = world;
            if (t.every_other) /* what is kept is divided by who is there when it is sent */
                t.join.divide_by_present = false;
            plain = expected(&t);
            test_run_ranks(world, train, &t);
            CHECK_CLOSE(t.values[0], plain, t.count, 1e-5, 1e-6);
            for (int r = 0; r < world; r++) {
                CHECK_BYTES(t.values[r], t.values[0], (size_t)t.count * sizeof(float));
                if (r > 0)
                    free(t.values[r]);
            }
            free(t.values[0]);
            free(plain);
        }
}

/* ---- errors ---- */

/* After an error the module is as ever: alone, in a join with as many batches on all ranks, and with one that has none.
 */
static void go_on(fsdp_module *module)
{
    int rank = fsdp_context_rank(module->context), size = fsdp_context_world_size(module->context);
    float *values, *first;
    size_t *bytes;
    void **all;
    int64_t count;

    CHECK_EQ(fsdp_module_join_end(module), FSDP_STATE);
    fsdp_module_zero_grad(module);
    for (int epoch = 0; epoch < 3; epoch++) {
        if (epoch > 0)
            CHECK_OK(fsdp_module_join_begin(module, NULL));
        for (int step = 0; step < (epoch == 2 && rank > 0 ? 0 : 2); step++) {
            backward(module, step, rank, 1);
            net_sgd(module, 0.1f);
        }
        if (epoch > 0)
            CHECK_OK(fsdp_module_join_end(module));
    }
    values = net_values(module, &count);
    CHECK_OK(fsdp_gather_objects(fsdp_world(module->context), values, (size_t)count * sizeof *values, &all, &bytes));
    first = all[0];
    CHECK_BYTES(values, first, (size_t)count * sizeof *values);
    CHECK(count > 0 && size > 1);
    fsdp_objects_free(fsdp_world(module->context), all, bytes);
    free(values);
}

static void stop(fsdp_context *context, void *arg)
{
    const fsdp_replicate_options options = {.static_graph = arg != NULL, .gradient_as_bucket_view = arg != NULL};
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_tensor *x, *targets;
    fsdp_status status = FSDP_OK;

    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_EQ(fsdp_module_join_begin(module, NULL), FSDP_STATE);
    CHECK_OK(fsdp_replicate(module, &options));
    CHECK_EQ(fsdp_module_join_end(module), FSDP_STATE);
    CHECK_CONTAINS(fsdp_last_error(), "without fsdp_module_join_begin");
    CHECK_OK(fsdp_module_join_begin(module, &(fsdp_join_options){.stop_early = true}));
    CHECK_EQ(fsdp_module_join_begin(module, NULL), FSDP_STATE);
    for (int step = 0; step < (fsdp_context_rank(context) == 1 ? 1 : 2) && status == FSDP_OK; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, 0, 2, &x, &targets);
        x = fsdp_call(module, x, targets);
        status = x ? fsdp_backward(x) : fsdp_last_status();
        fsdp_scope_end(context, NULL);
    }
    if (status == FSDP_OK)
        status = fsdp_module_join_end(module);
    CHECK_EQ(status, FSDP_STATE);
    CHECK_CONTAINS(fsdp_last_error(), "rank 1 has no inputs left");
    go_on(module);
    fsdp_module_unref(module);
}

/* One synchronises, the other does not. */
static void disagree(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_tensor *x, *targets;

    (void)arg;
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_replicate(module, NULL));
    CHECK_OK(fsdp_module_join_begin(module, NULL));
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, fsdp_context_rank(context) == 0, true));
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 2, &x, &targets);
    CHECK(!fsdp_call(module, x, targets));
    CHECK_EQ(fsdp_last_status(), FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), "1 synchronise");
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
    go_on(module);
    fsdp_module_unref(module);
}

/* The last rank alone has set the option: the others find out in a forward, rank 0, which has no inputs, in its end of
 * the join. */
static void join_otherwise(fsdp_context *context, void *arg)
{
    int rank = fsdp_context_rank(context), size = fsdp_context_world_size(context);
    fsdp_join_options options = {0};
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_tensor *x, *targets;
    char with[128];

    *(arg ? &options.stop_early : &options.divide_by_present) = rank == size - 1;
    snprintf(with, sizeof with, "1 of %d ranks have joined (fsdp_module_join_begin) with %s", size,
             arg ? "stop_early" : "divide_by_present");
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_replicate(module, NULL));
    CHECK_OK(fsdp_module_join_begin(module, &options));
    if (rank == 0) {
        CHECK_ERROR(fsdp_module_join_end(module), FSDP_MISMATCH, with);
    } else {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, 0, 0, 2, &x, &targets);
        CHECK_NULL(fsdp_call(module, x, targets));
        CHECK_EQ(fsdp_last_status(), FSDP_MISMATCH);
        CHECK_CONTAINS(fsdp_last_error(), with);
        fsdp_scope_end(context, NULL);
    }
    go_on(module);
    fsdp_module_unref(module);
}

/* With static_graph a second forward without a backward is an error: of the ranks that have one, and so of the rank
 * that follows them. */
static void run_twice(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    bool follows = fsdp_context_rank(context) == 0;
    fsdp_tensor *x, *targets;

    (void)arg;
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_replicate(module, &(fsdp_replicate_options){.static_graph = true}));
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
    CHECK_OK(fsdp_module_join_begin(module, NULL));
    if (follows) {
        CHECK_ERROR(fsdp_module_join_end(module), FSDP_STATE, "rank 1 cannot run this forward");
    } else {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, 0, 0, 2, &x, &targets);
        CHECK_PTR(fsdp_call(module, x, targets));
        CHECK_NULL(fsdp_call(module, x, targets));
        CHECK_CONTAINS(fsdp_last_error(), "a second forward before the backward of the first");
        fsdp_scope_end(context, NULL);
    }
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
    CHECK_OK(fsdp_module_reset_iteration(module));
    fsdp_module_unref(module);
}

/* Rank 1 has no values when the ranks come together for the first time: some by a forward, rank 0 by its end of the
 * join. */
static void lack_values(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    int rank = fsdp_context_rank(context);
    fsdp_tensor *x, *targets;

    (void)arg;
    CHECK_OK(fsdp_replicate(module, NULL));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    if (rank != 1)
        CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_module_join_begin(module, NULL));
    if (rank == 0) {
        CHECK_ERROR(fsdp_module_join_end(module), FSDP_STATE, "rank 1: has memory but no values");
    } else {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, 0, 0, 2, &x, &targets);
        CHECK_NULL(fsdp_call(module, x, targets));
        CHECK_CONTAINS(fsdp_last_error(), "rank 1: Net: has memory but no values");
        fsdp_scope_end(context, NULL);
    }
    CHECK_OK(fsdp_module_initialize(module, 1));
    go_on(module);
    fsdp_module_unref(module);
}

TEST(errors_are_told_on_all_ranks)
{
    for (int world = 2; world <= 4; world++) {
        test_run_ranks(world, lack_values, NULL);
        test_run_ranks(world, stop, NULL);
        test_run_ranks(world, stop, &world);
        test_run_ranks(world, disagree, NULL);
        test_run_ranks(world, join_otherwise, NULL);
        test_run_ranks(world, join_otherwise, &world);
        test_run_ranks(world, run_twice, NULL);
    }
}
