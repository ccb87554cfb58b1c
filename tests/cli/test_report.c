/* fsdp report: of a run that the program trained, as text and as a page; what it refuses. */
#include "base/clock.h"
#include "cli/fixture.h"
#include "report/run_file.h"

#include <sys/stat.h>

FIXTURE_TEST(two_runs_are_shown_side_by_side)
{
    char *page = test_path(f->directory, "r.html"), *text;
    program p;

    RUN(0, "train", f->config, "--training.steps=5");
    RUN(0, "train", f->config, "--training.steps=5", "--optimizer.lr=0.5");
    p = RUN(0, "report", f->metrics, "-o", page);
    CHECK_CONTAINS(p.output, ", run 2\n");
    CHECK_CONTAINS(p.output, "Settings that differ\n  optimizer.lr\n");
    CHECK_CONTAINS(p.output, "0.5\n");
    CHECK_CONTAINS(p.output, "  device              cpu\n");
    CHECK_CONTAINS(p.output, "r.html has the pictures\n");
    RUN(0, "report", f->metrics, "-o", page); /* an earlier page is replaced */
    text = test_read_file(page, NULL);
    CHECK_CONTAINS(text, "Settings that differ");
    CHECK_CONTAINS(text, "aria-label=\"Loss\"");
}

/* Starts a run that keeps checkpoints in a folder of its own, or goes on there. */
static program start_run(const fixture *f, const char *name, const char *steps)
{
    char *folder = test_path(f->directory, name), keeps[300], seed[40];
    const char *const argv[] = {PROGRAM, "train", f->config, keeps, seed, steps, "--export.path=", NULL};

    snprintf(keeps, sizeof keeps, "--checkpoint.folder=%s", folder);
    snprintf(seed, sizeof seed, "--training.seed=%d", *name);
    (void)mkdir(folder, 0700);
    return program_start(folder, argv);
}

static void check_losses(const fsdp__recorded_run *run, int64_t count, int64_t continued, fsdp__series *out)
{
    *out = *fsdp__series_of(run, "loss");
    CHECK_EQ(out->count, count);
    CHECK_EQ(run->continued, continued);
    for (int64_t i = 0; i < count; i++)
        CHECK_NEAR(out->points[i].step, (double)(i + 1), 0);
}

/* Two runs write to one file at once, and then one of them goes on, twice. What is shown of it is what a third run
 * does, which has its seed and nobody beside it. */
FIXTURE_TEST(runs_that_write_to_one_file_at_once_and_again_are_not_mixed)
{
    program a = start_run(f, "a", "--training.steps=12"), b = start_run(f, "b", "--training.steps=15");
    fsdp__recorded_runs runs = {0};
    fsdp__series losses[3];

    program_wait(&a);
    program_wait(&b);
    for (int i = 0; i < 3; i++) {
        static const char *const more[][2] = {
            {"a", "--training.steps=14"}, {"a", "--training.steps=17"}, {"apart", "--training.steps=17"}};
        program p = start_run(f, more[i][0], more[i][1]);

        program_wait(&p);
        CHECK_EQ(p.status, 0);
    }
    CHECK_OK(fsdp__recorded_runs_read(&runs, f->metrics));
    CHECK_EQ(runs.count, 3);
    check_losses(&runs.runs[0], 15, 0, &losses[0]);
    check_losses(&runs.runs[1], 17, 2, &losses[1]);
    check_losses(&runs.runs[2], 17, 0, &losses[2]);
    for (int i = 0; i < 17; i++) {
        CHECK_NEAR(losses[1].points[i].value, losses[2].points[i].value, 0);
        CHECK(i >= 15 || losses[0].points[i].value != losses[1].points[i].value);
    }
    fsdp__recorded_runs_free(&runs);
    SAYS(0, ", run 3\n", "report", f->metrics);
    SAYS(0, "losses.svg has the picture\n", "report", f->metrics, "--svg", test_path(f->directory, "losses.svg"));
}

FIXTURE_TEST(a_default_is_shown_with_its_value)
{
    program p;

    RUN(0, "train", f->config, "--training.steps=5", "--optimizer.lr=0.01", "--optimizer.weight_decay=0.2");
    RUN(0, "train", f->config, "--training.steps=5", "--optimizer.lr=0.0003", "--data.cache=kept");
    p = RUN(0, "report", f->metrics);
    CHECK_CONTAINS(p.output, "  optimizer.lr\n");
    CHECK_CONTAINS(p.output, "0.0003 (default)\n");
    CHECK_CONTAINS(p.output, " not set (default)\n");
    CHECK(!strstr(p.output, "data.cache"));
}

/* Returns what the program has printed, as soon as it has printed `text` once more. */
static const char *await_another(const program *p, const char *text, int before)
{
    const char *output;

    while (output = test_read_file(p->output_path, NULL), test_count(output, text) <= before) {
        CHECK_EQ(kill(p->pid, 0), 0);
        (void)usleep(5000);
    }
    return output;
}

static void await_step(const program *p)
{
    (void)await_another(p, "step: ", test_count(test_read_file(p->output_path, NULL), "step: "));
}

/* Stops rank 1 where the other waits for it in a step, not between two, where ranks ask each other whether to end. */
static void stop_in_step(const program *p, pid_t rank)
{
    for (int stops = 0;; stops++) {
        const char *last = NULL, *output;

        CHECK_EQ(kill(rank, SIGSTOP), 0);
        output = await_another(p, "rank 1 is stopped", stops);
        for (const char *at = output; (at = strstr(at, "rank 1 is stopped")); at++)
            last = at;
        if (memmem(last, strcspn(last, "\n"), " of group 'dp' ", 15))
            return;
        CHECK_EQ(kill(rank, SIGCONT), 0);
        await_step(p);
    }
}

/* A rank that is stopped for a while in one of the steps that are traced. The run goes on until it is told to end, and
 * the rank is stopped for longer than the run has lasted, so nothing else can have kept one as long. */
FIXTURE_TEST(the_rank_that_a_step_waited_for_is_named)
{
    char trace[300], folder[300], mark[64];
    const char *const argv[] = {PROGRAM,
                                "train",
                                f->config,
                                "-n",
                                "2",
                                "--training.steps=100000000",
                                trace,
                                folder,
                                "--checkpoint.interval=100000000",
                                "--metrics.log_freq=1",
                                "--metrics.trace.steps=1-100000000",
                                NULL};
    int64_t began_ns = fsdp__clock_ns();
    program p;
    pid_t rank;

    snprintf(trace, sizeof trace, "--metrics.trace.path=%s", test_path(f->directory, "trace.json.gz"));
    snprintf(folder, sizeof folder, "--checkpoint.folder=%s", test_path(f->directory, "kept"));
    snprintf(mark, sizeof mark, "DELAYED_BY=%d", (int)getpid());
    setenv("DELAYED_BY", strchr(mark, '=') + 1, 1);
    p = program_start(f->directory, argv);
    rank = fixture_await_rank(&p, mark, 1);
    fixture_await(&p, "step: ");
    stop_in_step(&p, rank);
    (void)usleep((useconds_t)((fsdp__clock_ns() - began_ns) / 1000) + 1000000);
    CHECK_EQ(kill(rank, SIGCONT), 0);
    await_step(&p);
    CHECK_EQ(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGTERM);
    p = RUN(0, "report", f->metrics);
    CHECK_CONTAINS(p.output, "- Rank 1 was slow in step ");
    CHECK_CONTAINS(p.output, "on the average, longest at ");
}

FIXTURE_TEST(a_report_refuses_what_it_cannot_show)
{
    program p = RUN(2, "report");
    char *text;

    CHECK_CONTAINS(p.output, "report: no run given");
    SAYS(1, "it holds no run: name the metrics.jsonl of fsdp train", "report", f->data);
    RUN(0, "train", f->config, "--training.steps=5");
    SAYS(1, "is the metrics of a run: name another file", "report", f->metrics, "-o", f->metrics);
    SAYS(1, "config.yaml' exists and is no page of fsdp report: name another file, or remove it", "report", f->metrics,
         "-o", f->config);
    text = test_read_file(f->config, NULL);
    CHECK_CONTAINS(text, "model:\n");
    SAYS(1, "--output: cannot write", "report", f->metrics, "-o", "/no/such/folder/r.html");
    SAYS(1, "--svg: './both' is the file of --output: name another", "report", f->metrics, "-o", "both", "--svg",
         "./both");
    CHECK(access(test_path(f->directory, "both"), F_OK) != 0);
}

#define HEADER(settings)                                                                                        \
    "{\"run\": \"1\", \"device\": \"cuda (NVIDIA H100 80GB HBM3, compute capability 9.0, 80 GiB of memory)\", " \
    "\"machines\": 2, \"world_size\": 4, \"settings\": {" settings "}}\n"                                       \
    "{\"step\": 1, \"step_ms\": 20, \"gather_ms\": 9, \"reduce_ms\": 1}\n"

static void check_advice(fixture *f, const char *metrics, const char *network, const char *part)
{
    program p;

    test_write_file(f->metrics, metrics, strlen(metrics));
    SAYS(0, part, "report", f->metrics, "--device", "cuda:H100", "--network", network);
    p = RUN(0, "report", f->metrics); /* by the data sheet of the run's card */
    CHECK(!strstr(p.output, "cannot be planned") == !strstr(part, "cannot be planned"));
}

/* What a report advises is planned with the run's settings, its ranks and its machines. */
FIXTURE_TEST(advice_has_its_price)
{
    check_advice(f,
                 HEADER("\"model.preset\": \"llama-1m\", \"training.device\": \"cuda\", \"training.seq_len\": \"32\", "
                        "\"metrics.trace.path\": \"t.json\", \"parallelism.prefetch\": \"1\""),
                 "1", "To wait less for gathers: parallelism.");
    check_advice(f, HEADER("\"model.preset\": \"llama-1m\", \"training.seq_len\": \"32\""), "1",
                 " dry runs at rates of NVIDIA H100");
    check_advice(f, HEADER("\"model.preset\": \"no-such\""), "1",
                 "To wait less for gathers: what would change it cannot be planned: ");
    check_advice(f, HEADER(""), "1", "cannot be planned: its settings name no model.");
    check_advice(f, HEADER("\"model.no_such_key\": \"1\""), "1", "cannot be planned: the settings of a run");
    SAYS(2, "--network is 'no'", "report", f->metrics, "--network", "no", "--device=cpu");
}
