/* Runs of PyTorch's FSDP2, FSDP1 and DDP step by step through the engine's calls, ranks as threads: all that no key of
 * a config asks for. Losses, norms, shards, collectives, their bytes, and final weights must agree. */
#include <math.h>

#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "support/ranks.h"
#include "tensor/tensor.h"
#include "train/replay.h"

enum {
    MOST_STEPS = 20,
    MOST_RANKS = 4,
    BRIEF_STEPS = 5 /* of calls and bytes the fourth is the last that is looked at */
};

typedef struct run {
    const char *name;
    const char *model;     /* NULL: what the file says */
    double relative;       /* of losses; 0: of f32 */
    bool tied_apart;       /* what PyTorch refuses: counts are not compared */
    int64_t more_scatters; /* that PyTorch has in step 1: see below */
} run;

/* PyTorch reduces what unsynchronised backwards left after the first of two uses, and the rest after the second; here
 * the last use reduces all. */
static const run runs[] = {
    {.name = "fsdp2-gpt2-shard1-ws2"},
    {.name = "fsdp2-llama-shard1-ws2"},
    {.name = "fsdp2-llama-bf16-accum3-ws2", .relative = 1e-2},
    {.name = "fsdp2-llama-bf16-nored-accum3-ws2", .relative = 1e-2},
    {.name = "fsdp2-llama-divide1-ws2"},
    {.name = "fsdp2-gpt2-divide5-sgd-ws3"},
    {.name = "fsdp2-llama-divide3-hsdp-2x2"},
    {.name = "fsdp2-llama-hsdp-arlast-accum3-2x2"},
    {.name = "fsdp2-llama-zero1like-accum3-ws2"},
    {.name = "fsdp2-llama-reshard2-accum3-sync-ws4"},
    {.name = "fsdp2-llama-fwdprefetch1-ws2"},
    {.name = "fsdp2-llama-fwdprefetch2-ws2"},
    {.name = "fsdp2-llama-offload-ws2"},
    {.name = "fsdp2-llama-ignored-ws2"},
    {.name = "fsdp2-llama-freeze-unfreeze10-ws2"},
    {.name = "fsdp2-llama-group-norm-head-ws2"},
    {.name = "fsdp2-llama-group-embed-norm-head-ws3"},
    {.name = "fsdp2-llama-tied-group-ws2", .model = "tiny-llama-tied-st"},
    {.name = "fsdp2-llama-tied-group-ws2", .model = "tiny-llama-tied-st", .tied_apart = true},
    {.name = "fsdp2-llama-reuse-ws2"},
    {.name = "fsdp2-llama-reuse-accum3-ws2", .more_scatters = 1},
    {.name = "fsdp1-gpt2-full-orig-ws2"},
    {.name = "fsdp1-gpt2-full-flat-ws2"},
    {.name = "fsdp1-gpt2-full-orig-ws3"},
    {.name = "fsdp1-gpt2-full-flat-ws3"},
    {.name = "fsdp1-gpt2-gradop-orig-ws2"},
    {.name = "fsdp1-gpt2-gradop-flat-ws2"},
    {.name = "fsdp1-gpt2-none-orig-ws2"},
    {.name = "fsdp1-gpt2-none-flat-ws2"},
    {.name = "fsdp1-gpt2-hybrid-orig-2x2"},
    {.name = "fsdp1-gpt2-hybrid-flat-2x2"},
    {.name = "fsdp1-gpt2-hybrid2-orig-2x2"},
    {.name = "fsdp1-gpt2-hybrid2-flat-2x2"},
    {.name = "fsdp1-gpt2-full-accum3-ws2"},
    {.name = "fsdp1-gpt2-full-accum3-sync-ws2"},
    {.name = "fsdp1-gpt2-gradop-accum3-ws2"},
    {.name = "fsdp1-gpt2-none-accum3-ws2"},
    {.name = "fsdp1-gpt2-bwdpost-ws2"},
    {.name = "fsdp1-gpt2-bwdnone-ws2"},
    {.name = "fsdp1-gpt2-fwdprefetch-ws2"},
    {.name = "fsdp1-gpt2-full-sgd-ws2"},
    {.name = "fsdp1-gpt2-frozen-orig-ws2"},
    {.name = "fsdp1-gpt2-bf16-ws2", .relative = 1e-2},
    {.name = "fsdp1-gpt2-bf16-reduce-bf16-ws2", .relative = 1e-2},
    {.name = "fsdp1-llama-full-ws3"},
    {.name = "ddp-gpt2-ws2"},
    {.name = "ddp-gpt2-ws3"},
    {.name = "ddp-gpt2-sgd-ws2"},
    {.name = "ddp-gpt2-view-ws2"},
    {.name = "ddp-llama-ws2"},
    {.name = "ddp-llama-sgd-ws3"},
    {.name = "ddp-llama-ws3"},
    {.name = "ddp-llama-accum3-ws2"},
    {.name = "ddp-llama-accum3-sync-ws2"},
    {.name = "ddp-llama-findunused-ws2"},
    {.name = "ddp-llama-static-ws2"},
    {.name = "ddp-llama-frozen-ws2"},
    {.name = "ddp-gpt2-bf16hook-ws2", .relative = 1e-2},
    {.name = "ddp-llama-bf16hook-ws3", .relative = 1e-2},
    {.name = "ddp-llama-fp16hook-ws2", .relative = 1e-2},
};
enum {
    RUNS = sizeof runs / sizeof runs[0]
};

typedef struct trial {
    replay replay;
    const run *run;
    int steps;
    double losses[MOST_RANKS][MOST_STEPS];
} trial;

static void check_near(const char *what, int step, double actual, double expected, double relative)
{
    if (!(fabs(actual - expected) <= relative * fabs(expected)))
        TEST_FAIL("step %d: %s is %.9g, expected %.9g", step, what, actual, expected);
}

/* ---- shards ---- */

/* Each shard's shape, and the dimension that its distribution says; null is a tensor of this rank's own. */
static void check_shards(const replay *r, fsdp_module *model)
{
    const json_t *shapes = json_object_get(r->reference, "local_shapes"), *of_ranks;
    const char *name;

    json_object_foreach((json_t *)(uintptr_t)shapes, name, of_ranks)
    {
        const json_t *placement = json_object_get(json_object_get(r->reference, "placements"), name);
        const json_t *shape = json_array_get(of_ranks, (size_t)fsdp_context_rank(model->context));
        const fsdp_tensor *t = CHECK_PTR(fsdp_module_parameter(model, name));
        const fsdp_distribution *distribution = fsdp_tensor_distribution(t);

        for (int d = 0; d < fsdp_tensor_ndim(t); d++)
            CHECK_EQ(fsdp_tensor_shape(t)[d], replay_at(shape, d));
        CHECK_EQ(distribution != NULL, json_is_string(placement));
        if (distribution)
            CHECK_EQ(distribution->placements[0].dim, strstr(json_string_value(placement), "dim=1") != NULL);
    }
}

/* ---- collectives ---- */

/* What a ring sends for all calls of the name in the reference's second step. */
static int64_t reference_bytes(const replay *r, const char *name)
{
    const json_t *calls = json_object_get(r->reference, "comm_order_step1"), *call;
    int64_t bytes = 0;
    size_t i;

    json_array_foreach(calls, i, call)
    {
        int64_t numel = (int64_t)replay_at(call, 1), ranks = (int64_t)replay_at(call, 3);
        bool half = strcmp(json_string_value(json_array_get(call, 2)), "bfloat16") == 0;

        if (strcmp(json_string_value(json_array_get(call, 0)), name) == 0)
            bytes += numel * (half ? 2 : 4) / ranks * (ranks - 1);
    }
    return bytes;
}

/* As PyTorch sums them up for the step: "comm_step3" and the like where it differs from the others. */
static const json_t *counts_of(const replay *r, int step)
{
    char key[32];
    const json_t *counts;

    snprintf(key, sizeof key, "comm_step%d", step == 0 ? 0 : 3);
    counts = json_object_get(r->reference, key);
    return counts && step != 1 ? counts : json_object_get(r->reference, "comm_per_step");
}

/* What DDP sends, all of it, and the buckets at the end. */
static void check_replicated(const trial *t, fsdp_module *model, int step)
{
    const replay *r = &t->replay;
    const json_t *counts = counts_of(r, step), *calls = json_object_get(r->reference, "comm_order_step1"), *call;
    int64_t bytes = 0;
    fsdp_comm_stats stats;
    size_t i;

    fsdp_context_comm_stats(model->context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], replay_number(counts, "c10d.allreduce_", 0));
    CHECK_EQ(stats.calls[FSDP_BROADCAST], replay_number(counts, "c10d.broadcast_", 0));
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER] + stats.calls[FSDP_REDUCE_SCATTER], 0);
    if (step != 1)
        return;
    json_array_foreach(calls, i, call)
    {
        bool reduces = strcmp(json_string_value(json_array_get(call, 0)), "c10d.allreduce_") == 0;
        const char *dtype = json_string_value(json_array_get(call, 2));
        int64_t numel = (int64_t)replay_at(call, 1);

        if (!reduces && strcmp(dtype, "float32") == 0) /* transformers has its table of frequencies twice */
            numel /= 2;
        bytes += (reduces ? 2 : 1) * numel * (strstr(dtype, "float16") ? 2 : 4) * (r->world - 1) / r->world;
    }
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_REDUCE] + stats.bytes_sent[FSDP_BROADCAST], bytes);
}

/* "29, 28 25 24, 23": of each bucket, parameters by their place among those that are trained. */
static void check_buckets(const replay *r, fsdp_module *model)
{
    const json_t *logging = json_object_get(r->reference, "ddp_logging");
    const char *list = json_string_value(json_object_get(logging, "rebuilt_per_bucket_param_indices"));
    int64_t bucket = 0, at = 0, buckets;
    fsdp_parameters all, trained;
    char *end;

    if (!list)
        return;
    CHECK_OK(fsdp_module_parameters(model, &all));
    trained = all;
    trained.count = 0;
    for (int64_t i = 0; i < all.count; i++)
        if (fsdp_tensor_requires_grad(all.items[i].tensor)) {
            fsdp_parameter swapped = all.items[trained.count];

            all.items[trained.count++] = all.items[i];
            all.items[i] = swapped;
        }
    for (; *list; list = end) {
        int64_t index = strtoll(list, &end, 10);
        fsdp_parameter p;

        CHECK(index < trained.count);
        CHECK_OK(fsdp_module_bucket_parameter(model, bucket, at++, &p));
        if (p.tensor != trained.items[index].tensor)
            TEST_FAIL("'%s' in bucket %lld is parameter %lld, expected '%s'", p.name, (long long)bucket,
                      (long long)(at - 1), trained.items[index].name);
        if (*end != ',')
            continue;
        end++;
        bucket++;
        at = 0;
    }
    CHECK_OK(fsdp_module_bucket_count(model, &buckets));
    CHECK_EQ(buckets, bucket + 1);
    fsdp_parameters_release(&all);
}

static void check_sent(const trial *t, fsdp_context *context)
{
    const json_t *counts = json_object_get(t->replay.reference, "comm_per_step");
    const char *gather = replay_is_fsdp1(&t->replay) ? "c10d.allgather_" : "c10d._allgather_base_";
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], replay_number(counts, gather, 0));
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], reference_bytes(&t->replay, gather));
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER] + t->run->more_scatters,
             replay_number(counts, "c10d._reduce_scatter_base_", 0));
    if (t->run->more_scatters == 0)
        CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], reference_bytes(&t->replay, "c10d._reduce_scatter_base_"));
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE],
             replay_number(counts, "c10d.allreduce_", 0) + replay_number(counts, "c10d_functional.all_reduce", 0));
}

/* ---- a step ---- */

static void set_frozen(const replay *r, fsdp_module *model, bool frozen)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (replay_lists(r, "freeze_after", parameters.items[i].name))
            CHECK_OK(fsdp_tensor_set_requires_grad(parameters.items[i].tensor, !frozen));
    fsdp_parameters_release(&parameters);
}

/* Of the ignored parameters' gradients, on this rank. */
static double ignored_norm(const replay *r, fsdp_module *model)
{
    fsdp_parameters parameters;
    double squares = 0;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *grad = fsdp_tensor_grad(parameters.items[i].tensor);
        float *values;

        if (!grad || !replay_lists(r, "ignored", parameters.items[i].name))
            continue;
        values = CHECK_PTR(malloc((size_t)fsdp_tensor_numel(grad) * sizeof *values));
        CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, values));
        for (int64_t e = 0; e < fsdp_tensor_numel(grad); e++)
            squares += (double)values[e] * (double)values[e];
        free(values);
    }
    fsdp_parameters_release(&parameters);
    return sqrt(squares);
}

static void set_modes(const replay *r, fsdp_module *model, bool last)
{
    bool every = replay_is_set(r, "all_reduce_last") || json_is_false(json_object_get(r->reference, "no_sync"));

    CHECK_OK(fsdp_module_set_requires_gradient_sync(model, last || every, true));
    if (replay_is_set(r, "all_reduce_last"))
        CHECK_OK(fsdp_module_set_requires_all_reduce(model, last, true));
    if (replay_is_set(r, "reshard_after_backward_last"))
        CHECK_OK(fsdp_module_set_reshard_after_backward(model, last, true));
}

static double run_microbatch(const replay *r, fsdp_module *model, int step, int micro)
{
    bool last = micro == r->micros - 1, held = !last && !json_is_false(json_object_get(r->reference, "no_sync"));
    double loss;

    if (!replay_is_fsdp1(r)) {
        set_modes(r, model, last);
        return replay_backward(r, model, step, micro);
    }
    if (held)
        CHECK_OK(fsdp_fsdp1_no_sync_begin(model));
    loss = replay_backward(r, model, step, micro);
    if (held)
        CHECK_OK(fsdp_fsdp1_no_sync_end(model));
    return loss;
}

/* The gradients by other norms, before they are clipped in step 2, counted from 0. */
static void check_other_norms(const replay *r, fsdp_optimizer *optimizer, int step, double tolerance)
{
    const json_t *norms = json_object_get(r->reference, "other_norms_step2"), *norm;
    const char *type;
    double mine;

    if (!norms || step != 2)
        return;
    json_object_foreach((json_t *)(uintptr_t)norms, type, norm)
    {
        CHECK_OK(fsdp_clip_grad_norm_type(optimizer, 0, strtod(type, NULL), false, &mine));
        check_near(type, step, mine, json_number_value(norm), tolerance);
    }
}

static void take_step(trial *t, fsdp_module *model, fsdp_optimizer *optimizer, int step)
{
    const replay *r = &t->replay;
    const json_t *ignored = json_object_get(r->reference, "ignored_local_grad_norm");
    int rank = fsdp_context_rank(model->context);
    double tolerance = t->run->relative > 0 ? 8 * t->run->relative : 2e-4, norm;

    fsdp_context_reset_comm_stats(model->context);
    for (int micro = 0; micro < r->micros; micro++)
        t->losses[rank][step] += run_microbatch(r, model, step, micro);
    if (ignored)
        check_near("the norm of what is ignored", step, ignored_norm(r, model),
                   replay_at(json_array_get(ignored, (size_t)step), rank), 2e-4);
    check_other_norms(r, optimizer, step, tolerance);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, replay_number(r->reference, "clip", 0), &norm));
    if (replay_is_ddp(r) && (step < 2 || step == 3))
        check_replicated(t, model, step);
    else if (step == 1 && !t->run->tied_apart)
        check_sent(t, model->context);
    check_near("the norm", step, norm, replay_at(json_object_get(r->reference, "grad_norm"), step), tolerance);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    fsdp_module_zero_grad(model);
}

static void train(fsdp_context *context, void *arg)
{
    trial *t = arg;
    fsdp_module *model = replay_model(&t->replay, context);
    fsdp_optimizer *optimizer = replay_optimizer(&t->replay, model);
    int thaw = (int)replay_number(t->replay.reference, "unfreeze_at", MOST_STEPS);

    check_shards(&t->replay, model);
    set_frozen(&t->replay, model, true);
    for (int step = 0; step < t->steps; step++) {
        if (step == thaw)
            set_frozen(&t->replay, model, false);
        take_step(t, model, optimizer, step);
    }
    if (replay_is_ddp(&t->replay))
        check_buckets(&t->replay, model);
    if (t->steps == (int)replay_number(t->replay.reference, "steps", 0) && t->run->relative == 0)
        replay_check_weights(&t->replay, model);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(model);
}

/* Under a sanitizer each run on one device, in its first steps; but for those until something is thawed, and the next.
 */
static int steps_of(const replay *r)
{
    int all = (int)replay_number(r->reference, "steps", 0), thaw = (int)replay_number(r->reference, "unfreeze_at", 0);

    return !test_brief() ? all : thaw > 0 ? thaw + 2 : BRIEF_STEPS;
}

static void repeats_the_reference(void **state)
{
    const run *r = *state;
    trial t = {.run = r, .replay = {.model = r->model, .tied_apart = r->tied_apart}};

    if (!replay_is_there(r->name))
        skip(); /* FSDP_REFERENCE has it */
    if (test_brief() && (r - runs) % 2 == test_on_cpu())
        skip();
    replay_open(&t.replay, r->name);
    t.steps = steps_of(&t.replay);
    CHECK(t.steps <= MOST_STEPS && t.replay.world <= MOST_RANKS);
    test_run_ranks(t.replay.world, train, &t);
    for (int step = 0; step < t.steps; step++) {
        double loss = 0;

        for (int rank = 0; rank < t.replay.world; rank++)
            loss += t.losses[rank][step] / t.replay.world;
        check_near("the loss", step, loss, replay_at(json_object_get(t.replay.reference, "loss"), step),
                   r->relative > 0 ? r->relative : 2e-4);
    }
    replay_close(&t.replay);
}

static int test_main(void)
{
    struct CMUnitTest tests[RUNS];

    for (int i = 0; i < RUNS; i++)
        tests[i] = (struct CMUnitTest){
            .name = runs[i].name, .test_func = repeats_the_reference, .initial_state = (void *)(uintptr_t)&runs[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

TEST_FILE(test_main)
