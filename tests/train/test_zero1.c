/* Runs of PyTorch's ZeroRedundancyOptimizer under DDP, by an optimizer with partitioned state on a replicated model:
 * losses, norms, weights; who has which parameter, and in which order; broadcasts; the state that comes together on one
 * rank. */
#include <math.h>

#include "support/ranks.h"
#include "tensor/tensor.h"
#include "train/replay.h"

enum {
    MOST_STEPS = 20,
    MOST_RANKS = 3,
    BRIEF_STEPS = 3,
    MOST_BROADCASTS = 64
};

static const char *const runs[] = {"zero1-gpt2-ws2",  "zero1-gpt2-ws3",       "zero1-gpt2-view-ws3",
                                   "zero1-llama-ws2", "zero1-llama-view-ws2", "zero1-llama-ws3"};
enum {
    RUNS = sizeof runs / sizeof runs[0]
};

typedef struct trial {
    replay replay;
    int steps;
    double losses[MOST_RANKS][MOST_STEPS];
} trial;

static void check_near(const char *what, int step, double actual, double expected, double relative)
{
    if (!(fabs(actual - expected) <= relative * fabs(expected)))
        TEST_FAIL("step %d: %s is %.9g, expected %.9g", step, what, actual, expected);
}

/* ---- who has what ---- */

static void check_names(const json_t *names, const fsdp_optimizer *optimizer, int rank)
{
    for (size_t i = 0; i <= json_array_size(names); i++) {
        const char *name = fsdp_optimizer_partition(optimizer, rank, 0, (int64_t)i);

        if (i == json_array_size(names))
            CHECK_NULL(name);
        else
            CHECK_STRING(name, json_string_value(json_array_get(names, i)));
    }
}

static void check_partition(const replay *r, fsdp_module *model, const fsdp_optimizer *optimizer)
{
    const json_t *partition = json_object_get(r->reference, "partition");

    for (int rank = 0; rank < r->world; rank++) {
        int64_t numel = 0;

        check_names(json_array_get(json_array_get(partition, (size_t)rank), 0), optimizer, rank);
        for (int64_t i = 0; fsdp_optimizer_partition(optimizer, rank, 0, i); i++)
            numel += fsdp_tensor_numel(fsdp_module_parameter(model, fsdp_optimizer_partition(optimizer, rank, 0, i)));
        CHECK_EQ(numel, replay_at(json_object_get(r->reference, "partition_numel"), rank));
    }
}

/* Each parameter's moments and step, of the shapes that PyTorch has under its index. */
static void check_consolidated(const replay *r, fsdp_module *model, fsdp_optimizer *optimizer)
{
    const json_t *index = json_object_get(r->reference, "parameter_index");
    const json_t *all = json_object_get(r->reference, "consolidated");
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_optimizer_consolidate_state_dict(optimizer, 0));
    if (fsdp_context_rank(model->context) != 0) {
        CHECK_ERROR(fsdp_optimizer_state_dict(optimizer, &state), FSDP_STATE, "has not been consolidated on this rank");
        CHECK_CONTAINS(json_string_value(json_object_get(r->reference, "state_dict_other_rank")),
                       "has not been consolidated on this rank");
        return;
    }
    CHECK_OK(fsdp_optimizer_state_dict(optimizer, &state));
    CHECK_EQ(state->count, 3 * (int64_t)json_object_size(all));
    for (size_t i = 0; i < json_array_size(index); i++) {
        char number[24], name[160];
        const char *part;
        const json_t *shape;

        snprintf(number, sizeof number, "%zu", i);
        json_object_foreach(json_object_get(all, number), part, shape)
        {
            const fsdp_state_dict_entry *entry;

            snprintf(name, sizeof name, "state.%s.%s", json_string_value(json_array_get(index, i)), part);
            entry = CHECK_PTR(fsdp_state_dict_find(state, name));
            CHECK_EQ(fsdp_tensor_ndim(entry->tensor), json_array_size(shape));
            for (int d = 0; d < fsdp_tensor_ndim(entry->tensor); d++)
                CHECK_EQ(fsdp_tensor_shape(entry->tensor)[d], replay_at(shape, d));
        }
    }
    fsdp_state_dict_free(state);
}

/* ---- steps ---- */

/* Elements of the broadcasts of a step, in their order. */
typedef struct heard {
    int64_t numels[MOST_BROADCASTS];
    int count;
} heard;

static void hear(void *arg, fsdp_log_level level, const char *line)
{
    const char *call = strstr(line, "broadcast: ");
    heard *h = arg;

    (void)level;
    if (call && h->count < MOST_BROADCASTS)
        h->numels[h->count++] = strtoll(call + strlen("broadcast: "), NULL, 10);
}

/* Those after the all-reduce of the gradients: before it PyTorch's second step has those of DDP's buckets and buffers.
 */
static void check_broadcasts(const replay *r, const heard *h)
{
    const json_t *calls = json_object_get(r->reference, "comm_order_step1"), *call;
    bool after = false;
    int count = 0;
    size_t at;

    json_array_foreach(calls, at, call)
    {
        const char *name = json_string_value(json_array_get(call, 0));

        after = after || strcmp(name, "c10d.allreduce_") == 0;
        if (!after || strcmp(name, "c10d.broadcast_") != 0)
            continue;
        CHECK(count < h->count);
        CHECK_EQ(h->numels[count], replay_at(call, 1));
        count++;
    }
    CHECK_EQ(h->count, count);
}

static double step_of(trial *t, fsdp_module *model, fsdp_optimizer *optimizer, int step)
{
    const replay *r = &t->replay;
    static const char *const of_steps[] = {"comm_step0", "comm_per_step", NULL, "comm_step3"};
    fsdp_comm_stats stats;
    heard h = {.count = 0};
    double norm;

    fsdp_context_reset_comm_stats(model->context);
    t->losses[fsdp_context_rank(model->context)][step] = replay_backward(r, model, step, 0);
    fsdp_context_set_log(model->context, FSDP_LOG_DEBUG, hear, &h);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, replay_number(r->reference, "clip", 0), &norm));
    CHECK_OK(fsdp_optimizer_step(optimizer));
    fsdp_context_set_log(model->context, FSDP_LOG_WARNING, NULL, NULL);
    fsdp_context_comm_stats(model->context, &stats);
    if (step < 2 || step == 3) {
        const json_t *counts = json_object_get(r->reference, of_steps[step]);

        CHECK_EQ(stats.calls[FSDP_BROADCAST], replay_number(counts, "c10d.broadcast_", 0));
        CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], replay_number(counts, "c10d.allreduce_", 0)); /* none of the clip */
    }
    check_broadcasts(r, &h);
    CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    return norm;
}

static void train(fsdp_context *context, void *arg)
{
    trial *t = arg;
    const replay *r = &t->replay;
    fsdp_module *model = replay_model(r, context);
    fsdp_optimizer *optimizer = replay_optimizer(r, model);
    fsdp_partition_options options = {.parameters_as_bucket_view = replay_is_set(r, "parameters_as_bucket_view")};

    CHECK_OK(fsdp_optimizer_partition_state(optimizer, &options));
    check_partition(r, model, optimizer);
    for (int step = 0; step < t->steps; step++) {
        double norm = step_of(t, model, optimizer, step);

        check_near("the norm", step, norm, replay_at(json_object_get(r->reference, "grad_norm"), step), 2e-4);
    }
    check_consolidated(r, model, optimizer);
    if (t->steps == MOST_STEPS)
        replay_check_weights(r, model);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(model);
    test_drop_workspace(context);
}

static void repeats_the_reference(void **state)
{
    trial t = {.steps = 0};

    if (!replay_is_there(*state))
        skip();
    replay_open(&t.replay, *state);
    t.steps = test_brief() ? BRIEF_STEPS : MOST_STEPS;
    CHECK_EQ(replay_number(t.replay.reference, "steps", 0), MOST_STEPS);
    CHECK(t.replay.world <= MOST_RANKS && t.replay.micros == 1);
    test_run_ranks(t.replay.world, train, &t);
    for (int step = 0; step < t.steps; step++) {
        double loss = 0;

        for (int rank = 0; rank < t.replay.world; rank++)
            loss += t.losses[rank][step] / t.replay.world;
        check_near("the loss", step, loss, replay_at(json_object_get(t.replay.reference, "loss"), step), 2e-4);
    }
    replay_close(&t.replay);
}

static int test_main(void)
{
    struct CMUnitTest tests[RUNS];

    for (int i = 0; i < RUNS; i++)
        tests[i] = (struct CMUnitTest){
            .name = runs[i], .test_func = repeats_the_reference, .initial_state = (void *)(uintptr_t)runs[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

TEST_FILE(test_main)
