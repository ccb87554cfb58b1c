/* A small CNN with a batch norm under every front door: the same steps, to the bit, as plain models of which each
 * stands for one rank; running statistics are each rank's own, or under DDP follow rank 0's. Links: optim state */
#include "check/fault.h"
#include "fsdp/fsdp1.h"
#include "fsdp/layers.h"
#include "fsdp/replicate.h"
#include "fsdp/state.h"
#include "nn/module.h"
#include "shard/net.h"
#include "shard/rank_sum.h"

enum {
    CHANNELS = 2,
    HEIGHT = 4,
    WIDTH = 5,
    ROWS = 3, /* of a rank's batch */
    STEPS = 3,
    FEATURES = 5,
    CLASSES = 3,
    MOST_RANKS = 4,
    STATISTICS = 2 * FEATURES + 1
};

typedef enum door {
    SHARDED,
    SHARDED_COPIES,
    FSDP1,
    FSDP1_ORIGINAL,
    DDP,
    DDP_KEEPS, /* its buffers */
    DOORS
} door;

typedef struct cnn_case {
    door door;
    bool recompute;
} cnn_case;

/* ---- the model ---- */

static fsdp_module *cnn_create(fsdp_context *context, fsdp_device *device)
{
    const fsdp_conv2d_layer_options padded = {.conv.padding = {1, 1}, .no_bias = true};
    const fsdp_pool2d_options halves = {.kernel = {2, 2}};
    fsdp_module *const parts[] = {fsdp_conv2d_create(context, device, CHANNELS, FEATURES, 3, 3, &padded),
                                  fsdp_batch_norm2d_create(context, device, FEATURES, NULL),
                                  fsdp_relu_create(context),
                                  fsdp_max_pool2d_create(context, &halves),
                                  fsdp_flatten_create(context, 1, -1),
                                  fsdp_linear_create(context, device, FEATURES * 4, CLASSES, NULL)};
    fsdp_module *m = CHECK_PTR(fsdp_sequential_create(context, parts, 6));

    return m;
}

static fsdp_tensor *images(fsdp_device *device, int step, int rank)
{
    float values[ROWS * CHANNELS * HEIGHT * WIDTH];

    for (int i = 0; i < (int)FSDP__COUNT_OF(values); i++)
        values[i] = (float)((i * 37 + step * 11 + rank * 101) % 41) * 0.05f - 1.0f;
    return CHECK_PTR(fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(ROWS, CHANNELS, HEIGHT, WIDTH), values));
}

static fsdp_tensor *forward(fsdp_module *m, int step, int rank)
{
    fsdp_device *device = test_device(m->context);
    int32_t classes[ROWS];
    fsdp_tensor *targets, *logits;

    for (int i = 0; i < ROWS; i++)
        classes[i] = (i + step + rank) % CLASSES;
    targets = CHECK_PTR(fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(ROWS), classes));
    logits = CHECK_PTR(fsdp_call(m, images(device, step, rank)));
    return CHECK_PTR(fsdp_cross_entropy(logits, targets));
}

static void forward_backward(fsdp_module *m, int step, int rank)
{
    CHECK_OK(fsdp_scope_begin(m->context));
    CHECK_OK(fsdp_backward(forward(m, step, rank)));
    fsdp_scope_end(m->context, NULL);
}

static void evaluate(fsdp_module *m, float logits[ROWS * CLASSES])
{
    fsdp_module_train(m, false);
    fsdp_no_grad_begin(m->context);
    CHECK_OK(fsdp_scope_begin(m->context));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(m, images(test_device(m->context), 9, 0))), FSDP_F32, logits));
    fsdp_scope_end(m->context, NULL);
    fsdp_no_grad_end(m->context);
    fsdp_module_train(m, true);
}

static struct fsdp__module_parts *norm_parts(fsdp_module *m)
{
    fsdp_module *norm = CHECK_PTR(fsdp_module_child(m, "1"));

    return norm->parts;
}

static void read_statistics(fsdp_module *m, float out[STATISTICS])
{
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp_tensor_read(*norm_parts(m)->buffers[i].slot, FSDP_F32, out + (size_t)i * FEATURES));
}

/* ---- what plain models do ---- */

/* Gradients of all become their average. */
static void average(fsdp_module *const *models, int world)
{
    int block = test_rank_block(world, 0, 1, world);
    fsdp_parameters p[MOST_RANKS] = {{0}};

    for (int r = 0; r < world; r++)
        CHECK_OK(fsdp_module_parameters(models[r], &p[r]));
    for (int64_t i = 0; i < p[0].count; i++) {
        int64_t numel = fsdp_tensor_numel(p[0].items[i].tensor);
        float *gradients[MOST_RANKS], *sum;

        for (int r = 0; r < world; r++) {
            gradients[r] = CHECK_PTR(malloc((size_t)numel * sizeof *sum));
            CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(p[r].items[i].tensor), FSDP_F32, gradients[r]));
        }
        sum = rank_sum(gradients, world, block, FSDP_F32, numel);
        for (int64_t e = 0; e < numel; e++)
            sum[e] /= (float)world;
        for (int r = 0; r < world; r++)
            CHECK_OK(fsdp_tensor_write(fsdp_tensor_grad(p[r].items[i].tensor), FSDP_F32, sum));
        free(sum);
    }
    for (int r = 0; r < world; r++)
        fsdp_parameters_release(&p[r]);
}

/* DDP before a forward. */
static void follow_first(fsdp_module *const *models, int world)
{
    for (int r = 1; r < world; r++)
        for (int i = 0; i < 3; i++)
            CHECK_OK(
                fsdp_tensor_copy_(*norm_parts(models[r])->buffers[i].slot, *norm_parts(models[0])->buffers[i].slot));
}

typedef struct expected {
    float *values, statistics[STATISTICS], logits[ROWS * CLASSES];
    int64_t count;
} expected;

/* Of this rank. */
static void expect(fsdp_context *context, door d, expected *out)
{
    int world = fsdp_context_world_size(context), rank = fsdp_context_rank(context);
    fsdp_module *models[MOST_RANKS];

    for (int r = 0; r < world; r++) {
        models[r] = cnn_create(context, test_device(context));
        CHECK_OK(fsdp_module_initialize(models[r], 7));
    }
    for (int step = 0; step < STEPS; step++) {
        if (d == DDP)
            follow_first(models, world);
        for (int r = 0; r < world; r++)
            forward_backward(models[r], step, r);
        average(models, world);
        for (int r = 0; r < world; r++)
            net_sgd(models[r], 0.1f);
    }
    if (d == DDP)
        follow_first(models, world); /* the evaluation is a forward, too */
    evaluate(models[rank], out->logits);
    read_statistics(models[rank], out->statistics);
    out->values = net_values(models[rank], &out->count);
    for (int r = 0; r < world; r++)
        fsdp_module_unref(models[r]);
}

/* ---- the doors ---- */

static void wrap(fsdp_module *m, door d)
{
    const fsdp_shard_options sharded = {.no_shared_memory = d == SHARDED_COPIES};
    const fsdp_fsdp1_options fsdp1 = {.use_orig_params = d == FSDP1_ORIGINAL,
                                      .strategy =
                                          fsdp_context_world_size(m->context) == 1 ? FSDP_NO_SHARD : FSDP_FULL_SHARD};
    const fsdp_replicate_options ddp = {.keep_buffers = d == DDP_KEEPS};
    static const char *const units[] = {"0", "1", ""};

    if (d >= DDP) {
        CHECK_OK(fsdp_replicate(m, &ddp));
        return;
    }
    for (int i = 0; i < 3; i++) {
        fsdp_module *unit = *units[i] ? CHECK_PTR(fsdp_module_child(m, units[i])) : m;

        CHECK_OK(d >= FSDP1 ? fsdp_fsdp1_wrap(unit, &fsdp1) : fsdp_fully_shard(unit, &sharded));
    }
}

static void check_state(fsdp_module *m)
{
    static const char *const names[] = {"1.running_mean", "1.running_var", "1.num_batches_tracked"};
    fsdp_state_dict *state;
    int found = 0;

    CHECK_OK(fsdp_state_dict_from_module(m, &state));
    for (int64_t i = 0; i < state->count; i++)
        for (int n = 0; n < 3; n++)
            found += strcmp(state->entries[i].name, names[n]) == 0;
    CHECK_EQ(found, 3);
    fsdp_state_dict_free(state);
}

static void trains_as_plain(fsdp_context *context, void *arg)
{
    const cnn_case *c = arg;
    fsdp_module *m = cnn_create(context, c->door >= FSDP1 ? test_device(context) : fsdp_meta(context));
    float statistics[STATISTICS], logits[ROWS * CLASSES], *values;
    expected e;
    int64_t count;

    expect(context, c->door, &e);
    if (c->door >= FSDP1)
        CHECK_OK(fsdp_module_initialize(m, 7));
    wrap(m, c->door);
    if (c->door < FSDP1) { /* buffers on meta get their first values, too */
        CHECK_OK(fsdp_module_materialize(m, test_device(context)));
        CHECK_OK(fsdp_module_initialize(m, 7));
    }
    if (c->recompute)
        CHECK_OK(fsdp_module_set_recompute(m, FSDP_RECOMPUTE_FULL));
    for (int step = 0; step < STEPS; step++) {
        forward_backward(m, step, fsdp_context_rank(context));
        net_sgd(m, 0.1f);
    }
    evaluate(m, logits);
    read_statistics(m, statistics);
    CHECK_BYTES(statistics, e.statistics, sizeof statistics);
    CHECK_EQ((int)statistics[2 * FEATURES], STEPS);
    CHECK_BYTES(logits, e.logits, sizeof logits);
    check_state(m);
    values = net_values(m, &count);
    CHECK_EQ(count, e.count);
    net_check_same(values, e.values, count);
    fsdp_module_unref(m);
}

TEST(every_front_door_trains_as_plain_models)
{
    for (int world = 1; world <= MOST_RANKS; world++)
        for (door d = 0; d < DOORS; d++)
            test_run_ranks(world, trains_as_plain, &(cnn_case){.door = d});
}

TEST(a_recomputed_function_updates_running_statistics_once)
{
    for (door d = 0; d < DOORS; d++)
        test_run_ranks(2, trains_as_plain, &(cnn_case){.door = d, .recompute = true});
}

/* The model is tuned with its statistics as they are; a load, another evaluation, and where it `looks` whole parameters
 * in the caller's hands, come before the backward. free() it. */
static float *tune(fsdp_context *context, door d, fsdp_recompute_mode mode, bool looks, int64_t *count)
{
    const fsdp_summon_options look = {.no_writeback = true};
    fsdp_module *m = cnn_create(context, test_device(context));
    fsdp_tensor *loss[2];
    float *values;

    CHECK_OK(fsdp_module_initialize(m, 7));
    wrap(m, d);
    forward_backward(m, 0, fsdp_context_rank(context));
    fsdp_module_train(m, false);
    CHECK_OK(fsdp_module_set_recompute(m, mode));
    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < 2; i++) {
        loss[i] = forward(m, 1 + i, fsdp_context_rank(context));
        for (int b = 0; b < 2; b++)
            CHECK_OK(fsdp_tensor_fill_(*norm_parts(m)->buffers[b].slot, 3 * i + b + 2));
    }
    if (looks) {
        CHECK_OK(fsdp_module_summon_full_params(m, &look));
        CHECK_OK(fsdp_module_end_summon(m));
    }
    CHECK_OK(fsdp_backward(fsdp_add(loss[0], loss[1])));
    fsdp_scope_end(context, NULL);
    net_sgd(m, 0.1f);
    values = net_values(m, count);
    fsdp_module_unref(m);
    return values;
}

static void tunes_alike(fsdp_context *context, void *arg)
{
    int64_t count;
    float *plain = tune(context, *(const door *)arg, FSDP_RECOMPUTE_NONE, false, &count);

    for (int i = 0; i < 7; i++) {
        const fsdp_recompute_mode modes[] = {FSDP_RECOMPUTE_FULL, FSDP_RECOMPUTE_SELECTIVE, FSDP_RECOMPUTE_CHEAP,
                                             FSDP_RECOMPUTE_NONE};
        float *values = tune(context, *(const door *)arg, modes[i % 4], i > 2, &count);

        CHECK_BYTES(values, plain, (size_t)count * sizeof *values);
        free(values);
    }
    free(plain);
}

TEST(a_recomputed_function_keeps_the_statistics_that_an_evaluation_has_read)
{
    for (door d = 0; d < DOORS; d++)
        test_run_ranks(2, tunes_alike, &d);
}

/* ---- mixed precision ---- */

static void buffers_stay(fsdp_context *context, void *arg)
{
    bool fsdp1 = *(const bool *)arg;
    const fsdp_shard_options sharded = {.mp_policy.param_dtype = FSDP_BF16};
    const fsdp_fsdp1_options old = {.mixed_precision = {.param_dtype = FSDP_BF16, .cast_forward_inputs = true}};
    fsdp_module *m = cnn_create(context, test_device(context));
    float before[STATISTICS], after[STATISTICS];

    CHECK_OK(fsdp_module_initialize(m, 7));
    CHECK_OK(fsdp1 ? fsdp_fsdp1_wrap(m, &old) : fsdp_fully_shard(m, &sharded));
    read_statistics(m, before);
    forward_backward(m, 0, fsdp_context_rank(context));
    net_sgd(m, 0.1f);
    read_statistics(m, after);
    CHECK_EQ(fsdp_tensor_dtype(*norm_parts(m)->buffers[0].slot), FSDP_F32);
    CHECK_EQ(fsdp_tensor_dtype(*norm_parts(m)->buffers[2].slot), FSDP_I64);
    for (int i = 0; i < 2 * FEATURES; i++)
        CHECK(after[i] != before[i]);
    fsdp_module_unref(m);
}

TEST(mixed_precision_leaves_buffers_in_full_precision)
{
    for (int fsdp1 = 0; fsdp1 < 2; fsdp1++)
        test_run_ranks(2, buffers_stay, &(bool){fsdp1});
}

/* ---- no memory ---- */

typedef struct fault {
    door door;
    long nth;
    bool hit;
    int failed_ranks;
} fault;

static void step_with_fault(fsdp_context *context, void *arg)
{
    fault *f = arg;
    fsdp_module *m = cnn_create(context, test_device(context));
    bool mine = fsdp_context_rank(context) == 1;
    fsdp_tensor *x, *targets;
    fsdp_status status;

    CHECK_OK(fsdp_module_initialize(m, 7));
    wrap(m, f->door);
    CHECK_OK(fsdp_scope_begin(context));
    x = images(test_device(context), 0, fsdp_context_rank(context));
    targets = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(ROWS)));
    test_meet();
    if (mine)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->nth);
    status = fsdp_backward(fsdp_cross_entropy(fsdp_call(m, x), targets));
    if (mine) {
        f->hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    }
    if (status == FSDP_OK)
        status = fsdp_barrier(fsdp_world(context));
    if (status != FSDP_OK) {
        fsdp_abort(context, fsdp_last_error());
        __atomic_fetch_add(&f->failed_ranks, 1, __ATOMIC_RELAXED);
    }
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(m);
}

/* Of convolution, batch norm and pool in a step: every rank hears of it, and nothing leaks. */
TEST(any_allocation_of_a_step_may_fail_on_one_rank)
{
    test_not_on_gpu("a step does without an event that has no memory");
    for (door d = 0; d < DOORS; d += 2) {
        fault f = {.door = d, .nth = 1, .hit = true};

        for (; f.hit; f.nth += 1 + f.nth / 5) {
            f.failed_ranks = 0;
            test_run_ranks(2 + (int)(f.nth % 2), step_with_fault, &f);
            CHECK_EQ(f.failed_ranks > 0, f.hit);
        }
        CHECK(f.nth > 20);
    }
}
