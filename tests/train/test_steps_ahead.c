/* How often the host waits for the device in a step; and that a run whose numbers come a step late is the run that
 * waits for them, whatever becomes of its steps. */
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "base/probe.h"
#include "device/device.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/run.h"
#include "train/story.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#endif

enum {
    STEPS = 5,
    SEQUENCES = 2, /* a step and rank, each a microbatch */
    LENGTH = 8,
    VOCABULARY = 256,
    MOST_RANKS = 3,
    POISON = 'Z',          /* a token whose embedding is not finite */
    ONCE_A_MICROBATCH = 5, /* on the CPU: two for tokens that are copied, two for them to be looked at, the loss */
    ONCE_A_STEP = 2        /* on the CPU: the norm, and the end */
};

typedef struct fixture {
    char *directory, *data, *metrics;
    fsdp_train_config *config;
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->metrics = test_path(f->directory, "metrics.jsonl");
    f->config = test_config("model.preset=llama-1m model.n_layers=1 model.dim=8 model.n_heads=2 model.n_kv_heads=1 "
                            "model.ffn_dim=10 model.tie_word_embeddings=false data.workers=0 training.steps=5 "
                            "training.seq_len=8 training.local_batch_size=1 data.path=%s metrics.jsonl=%s",
                            f->data, f->metrics);
    *state = f;
    return 0;
}

/* The data of twice as many steps. Bit i of `bad`: step i + 1 has the token. */
static void write_data(const fixture *f, int world, unsigned bad)
{
    char text[2 * STEPS * SEQUENCES * MOST_RANKS * LENGTH + 1];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * 7 % 26);
    for (int step = 0; step < STEPS; step++)
        if (bad >> step & 1)
            text[(step * SEQUENCES * world + 1) * LENGTH + 3] = POISON;
    test_write_file(f->data, text, sizeof text);
    f->config->training.global_batch_size = world * SEQUENCES;
}

/* Each rank has VOCABULARY / world rows of the embedding. */
static void poison(fsdp_context *context, fsdp_module *model)
{
    fsdp_tensor *embedding = CHECK_PTR(fsdp_module_parameter(model, "model.embed_tokens.weight"));
    int64_t rows = VOCABULARY / fsdp_context_world_size(context), numel = fsdp_tensor_numel(embedding);
    float *values = malloc((size_t)numel * sizeof *values);

    CHECK_OK(fsdp_tensor_read(embedding, FSDP_F32, values));
    if (POISON / rows == fsdp_context_rank(context))
        values[POISON % rows * (numel / rows)] = NAN;
    CHECK_OK(fsdp_tensor_write(embedding, FSDP_F32, values));
    free(values);
}

/* ---- waits ---- */

typedef struct waits {
    fixture *f;
    pthread_t thread;                            /* the rank's */
    long host;                                   /* how often it has waited for a stream or an event */
    long cuda;                                   /* how often anybody has called a function of CUDA that waits */
    long host_at[STEPS + 1], cuda_at[STEPS + 1]; /* when a step began */
} waits;

static long cuda_waits(void)
{
#ifdef FSDP_HAVE_FAKECUDA
    return fakecuda.uses("cudaStreamSynchronize") + fakecuda.uses("cudaEventSynchronize") +
           fakecuda.uses("cudaDeviceSynchronize");
#else
    return 0;
#endif
}

static fsdp_status count_wait(void *arg, fsdp__probe_event *event)
{
    waits *w = arg;

    if (event->point != FSDP__POINT_STAGE_BEGUN) {
        w->host += pthread_equal(pthread_self(), w->thread) != 0;
    } else if (strcmp(event->name, "step") == 0) {
        w->host_at[event->number] = w->host;
        w->cuda_at[event->number] = cuda_waits();
    }
    return FSDP_OK;
}

static void run_counted(fsdp_context *context, void *arg)
{
    waits *w = arg;
    fsdp__subscriber *subscriber;

    CHECK_PTR(test_device(context));
    w->thread = pthread_self();
    subscriber = CHECK_PTR(fsdp__context_subscribe(context,
                                                   FSDP__POINT_BIT(FSDP__POINT_STREAM_REACHED) |
                                                       FSDP__POINT_BIT(FSDP__POINT_EVENT_REACHED) |
                                                       FSDP__POINT_BIT(FSDP__POINT_STAGE_BEGUN),
                                                   count_wait, w));
    CHECK_OK(fsdp_train(context, w->f->config, NULL));
    fsdp__unsubscribe(subscriber);
}

static bool is_on_cuda(void)
{
    const char *device = getenv("FSDP_TEST_DEVICE");

    return device && strcmp(device, "cuda") == 0;
}

/* On another device tokens may be waited for until they are there. */
static void check_waits(fixture *f)
{
    const char *device = getenv("FSDP_TEST_DEVICE");
    bool scaled = f->config->training.mixed_precision_param == FSDP_F16; /* its gradients are looked at */
    waits w = {.f = f};

    test_run_ranks(1, run_counted, &w);
    for (int step = 1; step < STEPS; step++) {
        long host = w.host_at[step + 1] - w.host_at[step], cuda = w.cuda_at[step + 1] - w.cuda_at[step];

        if (!device)
            CHECK_EQ(host, SEQUENCES * ONCE_A_MICROBATCH + ONCE_A_STEP + scaled);
        else
            CHECK(host <= (is_on_cuda() ? 1 : 2 * SEQUENCES + 1));
        CHECK(cuda <= 1);
    }
    CHECK(w.host > 0); /* they are counted */
}

TEST_OF(the_host_waits_once_for_the_device_in_a_step, setup, NULL, fixture *f)
{
    static const char *const others[][2] = {{"training.on_nan", "skip"},
                                            {"optimizer.name", "sgd"},
                                            {"activation_checkpoint.mode", "full"},
                                            {"training.mixed_precision_param", "bfloat16"}};

    write_data(f, 1, 0);
    check_waits(f);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CHECK_OK(fsdp_train_config_set(f->config, others[i][0], others[i][1]));
    check_waits(f);
    f->config->metrics.exact = true;
    check_waits(f);
    CHECK_OK(fsdp_train_config_set(f->config, "training.mixed_precision_param", "float16"));
    check_waits(f);
}

/* ---- late is the same ---- */

typedef struct outcome {
    fixture *f;
    bool goes_on; /* after a stop */
    int stops;
    int64_t step, skipped, tokens;
    story_state state;
    char message[512], *lines;
} outcome;

/* The lines of the metrics, without what is measured. */
static char *lines_of(const fixture *f)
{
    char *text = test_read_file(f->metrics, &(size_t){0}), *to = text;

    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *end = strstr(line, ", \"tokens_per_second\"");

        if (!end || strncmp(line, "{\"step\"", 7) != 0)
            continue;
        memmove(to, line, (size_t)(end - line));
        to += end - line;
        *to++ = '\n';
    }
    *to = 0;
    remove(f->metrics);
    return text;
}

static void take_steps(fsdp_context *context, void *arg)
{
    outcome *o = arg, ignored = *o;
    fsdp_train_run *run = NULL;
    fsdp_status status = FSDP_OK;

    if (fsdp_context_rank(context) > 0)
        o = &ignored;
    CHECK_PTR(test_device(context));
    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_OK(fsdp_train_run_create(context, o->f->config, &run));
    poison(context, fsdp_train_run_model(run));
    while (status == FSDP_OK && run->step < STEPS) {
        status = fsdp_train_step(run, NULL);
        if (status == FSDP_NOT_FINITE) {
            o->stops++;
            snprintf(o->message, sizeof o->message, "%s", fsdp_last_error());
            status = o->goes_on ? FSDP_OK : status;
        }
    }
    CHECK(status == FSDP_OK || status == FSDP_NOT_FINITE);
    CHECK_OK(fsdp_train_export(run)); /* nothing; but nothing is open any more */
    o->step = run->step;
    o->skipped = run->skipped;
    o->tokens = run->tokens_seen;
    o->state = story_state_of(run);
    fsdp_train_run_free(run);
}

static outcome outcome_of(fixture *f, int world, bool exact, bool goes_on)
{
    outcome o = {.f = f, .goes_on = goes_on};

    f->config->metrics.exact = exact;
    test_run_ranks(world, take_steps, &o);
    o.lines = lines_of(f);
    return o;
}

static void check_same(fixture *f, int world, unsigned bad)
{
    outcome exact, late;

    write_data(f, world, bad);
    exact = outcome_of(f, world, true, false);
    late = outcome_of(f, world, false, false);
    CHECK_STRING(late.message, exact.message);
    CHECK_STRING(late.lines, exact.lines);
    CHECK_EQ(late.stops, exact.stops);
    CHECK_EQ(late.step, exact.step);
    CHECK_EQ(late.skipped, exact.skipped);
    CHECK_EQ(late.tokens, exact.tokens);
    CHECK_EQ(late.state.model, exact.state.model);
    CHECK_EQ(late.state.optimizer, exact.state.optimizer);
    if (exact.stops == 0)
        CHECK_EQ(late.state.window, exact.state.window);
}

/* Steps are left out: the first ones, two in a row, and the last one, of which the end of the run hears. */
TEST_OF(numbers_that_come_late_make_no_difference, setup, NULL, fixture *f)
{
    static const struct {
        const char *optimizer, *on_nan;
        unsigned bad;
        int world; /* ranks that must agree wait, as ever */
    } runs[] = {{"adamw", "stop", 0x06, 1}, {"adamw", "stop", 0x10, 1},     {"adamw", "skip", 0x13, 1},
                {"sgd", "skip", 0x13, 1},   {"adamw", "continue", 0x08, 1}, {"adamw", "skip", 0x06, 2},
                {"adamw", "stop", 0x02, 3}};

    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        f->config->optimizer.momentum = strcmp(runs[i].optimizer, "sgd") == 0 ? 0.9 : NAN;
        CHECK_OK(fsdp_train_config_set(f->config, "optimizer.name", runs[i].optimizer));
        CHECK_OK(fsdp_train_config_set(f->config, "training.on_nan", runs[i].on_nan));
        check_same(f, runs[i].world, runs[i].bad);
    }
}

/* Every stop is heard of, and the other steps are taken; the data of a step that was queued meanwhile is passed over.
 */
TEST_OF(a_run_that_was_stopped_late_can_go_on, setup, NULL, fixture *f)
{
    write_data(f, 1, 0x09);
    for (int late = 0; late < 2; late++) {
        outcome o = outcome_of(f, 1, !late, true);

        CHECK_EQ(o.stops, 2);
        CHECK_EQ(o.step, STEPS);
        CHECK_EQ(o.skipped, 2);
        CHECK_EQ(o.tokens, STEPS * SEQUENCES * LENGTH);
        CHECK_CONTAINS(o.message, late && getenv("FSDP_TEST_DEVICE") ? "step 3: loss nan" : "step 4: loss nan");
    }
}

/* ---- whole runs ---- */

typedef struct ended {
    fixture *f;
    fsdp_status status;
    char message[512];
    int told; /* steps that the listener has heard of */
} ended;

static void on_stepped(void *arg, const fsdp_train_report *report)
{
    ended *e = arg;

    CHECK_EQ(report->step, ++e->told);
}

static void run_whole(fsdp_context *context, void *arg)
{
    ended *e = arg;
    const fsdp_train_listener listener = {.arg = e, .stepped = on_stepped};

    e->told = 0;
    e->status = test_device(context) ? fsdp_train(context, e->f->config, &listener) : fsdp_last_status();
    snprintf(e->message, sizeof e->message, "%s", e->status == FSDP_OK ? "" : fsdp_last_error());
}

/* The first step throws the weights far out; of the second, at whose end a checkpoint is due, there is none. */
TEST_OF(nothing_is_saved_of_a_step_that_stops_the_run, setup, NULL, fixture *f)
{
    ended e = {.f = f};
    char *folder = test_path(f->directory, "checkpoints"), *first = test_path(folder, "step-1"),
         *second = test_path(folder, "step-2");

    write_data(f, 1, 0);
    CHECK_OK(fsdp_train_config_set(f->config, "optimizer.lr", "1e30"));
    CHECK_OK(fsdp_train_config_set(f->config, "checkpoint.folder", folder));
    for (int interval = 1; interval <= 2; interval++) {
        f->config->checkpoint.interval = interval;
        test_run_ranks(1, run_whole, &e);
        CHECK_EQ(e.status, FSDP_NOT_FINITE);
        CHECK_CONTAINS(e.message, "step 2: ");
        CHECK_EQ(e.told, 1);
        CHECK_EQ(access(first, F_OK) == 0, interval == 1);
        CHECK(access(second, F_OK) != 0);
        test_remove_tree(folder);
    }
}

TEST_OF(each_step_is_told_once_and_in_order, setup, NULL, fixture *f)
{
    ended e = {.f = f};

    write_data(f, 1, 0);
    CHECK_OK(fsdp_train_config_set(f->config, "validation.share", "0.2"));
    CHECK_OK(fsdp_train_config_set(f->config, "validation.freq", "2"));
    test_run_ranks(1, run_whole, &e);
    CHECK_OK(e.status);
    CHECK_EQ(e.told, STEPS);
}

#ifdef FSDP_HAVE_FAKECUDA
/* The device is lost in the middle of the run. */
TEST_OF(a_call_of_cuda_that_fails_ends_the_run, setup, NULL, fixture *f)
{
    static const char *const calls[] = {"kernel", "cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize"};
    ended e = {.f = f};

    if (!is_on_cuda())
        skip();
    write_data(f, 1, 0);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        long uses;

        fakecuda.fail_call(calls[i], 0, 0, false);
        test_run_ranks(1, run_whole, &e);
        CHECK_OK(e.status);
        uses = fakecuda.uses(calls[i]);
        fakecuda.fail_call(calls[i], 1 + uses / 2, 999, true);
        test_run_ranks(1, run_whole, &e);
        CHECK(fakecuda.failed(calls[i]) && e.status != FSDP_OK);
        CHECK(strstr(e.message, calls[i]) || strstr(e.message, "cannot be used any more"));
        CHECK(e.told < STEPS);
        fakecuda.mend();
    }
}
#endif
