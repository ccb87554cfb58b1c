/* fsdp report: of a run that the program trained, as text and as a page; what it refuses. */
#include "cli/fixture.h"

#define RUN(expected, ...) program_run(f->directory, (expected), (const char *const[]){PROGRAM, __VA_ARGS__, NULL})

FIXTURE_TEST(two_runs_are_shown_side_by_side)
{
    fixture *f = *state;
    char *page = test_path(f->directory, "r.html"), *text;
    program p = RUN(0, "train", f->config);

    program_free(&p);
    p = RUN(0, "train", f->config, "--optimizer.lr=0.5");
    program_free(&p);
    p = RUN(0, "report", f->metrics, "-o", page);
    CHECK_CONTAINS(p.output, ", run 2\n");
    CHECK_CONTAINS(p.output, "Settings that differ\n  optimizer.lr\n");
    CHECK_CONTAINS(p.output, "0.5\n");
    CHECK_CONTAINS(p.output, "  device              cpu\n");
    CHECK_CONTAINS(p.output, "r.html has the pictures\n");
    program_free(&p);
    p = RUN(0, "report", f->metrics, "-o", page); /* an earlier page is replaced */
    program_free(&p);
    text = test_read_file(page, NULL);
    CHECK_CONTAINS(text, "Settings that differ");
    CHECK_CONTAINS(text, "aria-label=\"Loss\"");
    free(text);
    free(page);
}

FIXTURE_TEST(a_default_is_shown_with_its_value)
{
    fixture *f = *state;
    program p = RUN(0, "train", f->config, "--optimizer.lr=0.01");

    program_free(&p);
    p = RUN(0, "train", f->config, "--optimizer.lr=0.0003", "--data.cache=kept");
    program_free(&p);
    p = RUN(0, "report", f->metrics);
    CHECK_CONTAINS(p.output, "  optimizer.lr\n");
    CHECK_CONTAINS(p.output, "0.0003 (default)\n");
    CHECK(!strstr(p.output, "data.cache"));
    program_free(&p);
}

/* A rank that is stopped for a while in one of the steps that are traced. */
FIXTURE_TEST(the_rank_that_a_step_waited_for_is_named)
{
    fixture *f = *state;
    char *trace = test_path(f->directory, "trace.json.gz"), set[300], mark[64];
    const char *const argv[] = {PROGRAM,
                                "train",
                                f->config,
                                "-n",
                                "2",
                                "--training.steps=400",
                                set,
                                "--metrics.log_freq=1",
                                "--metrics.trace.steps=1-400",
                                NULL};
    program p;
    pid_t rank;

    snprintf(set, sizeof set, "--metrics.trace.path=%s", trace);
    snprintf(mark, sizeof mark, "DELAYED_BY=%d", (int)getpid());
    setenv("DELAYED_BY", strchr(mark, '=') + 1, 1);
    p = program_start(f->directory, argv);
    fixture_await(&p, "step: ");
    rank = fixture_rank(mark, 1);
    CHECK_EQ(kill(rank, SIGSTOP), 0);
    (void)usleep(1000000);
    CHECK_EQ(kill(rank, SIGCONT), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 0);
    program_free(&p);
    p = RUN(0, "report", f->metrics);
    CHECK_CONTAINS(p.output, "- Rank 1 was slow in step ");
    CHECK_CONTAINS(p.output, "on the average, longest at ");
    program_free(&p);
    free(trace);
}

FIXTURE_TEST(a_report_refuses_what_it_cannot_show)
{
    fixture *f = *state;
    program p = RUN(2, "report");
    char *text;

    CHECK_CONTAINS(p.output, "report: no run given");
    program_free(&p);
    p = RUN(1, "report", f->data);
    CHECK_CONTAINS(p.output, "it holds no run: name the metrics.jsonl of fsdp train");
    program_free(&p);
    p = RUN(0, "train", f->config);
    program_free(&p);
    p = RUN(1, "report", f->metrics, "-o", f->metrics);
    CHECK_CONTAINS(p.output, "is the metrics of a run: name another file");
    program_free(&p);
    p = RUN(1, "report", f->metrics, "-o", f->config);
    CHECK_CONTAINS(p.output, "config.yaml' exists and is no page of fsdp report: name another file, or remove it");
    program_free(&p);
    text = test_read_file(f->config, NULL);
    CHECK_CONTAINS(text, "model:\n");
    free(text);
    p = RUN(1, "report", f->metrics, "-o", "/no/such/folder/r.html");
    CHECK_CONTAINS(p.output, "--output: cannot write");
    program_free(&p);
}

#define HEADER(settings)                                                                                        \
    "{\"run\": \"1\", \"device\": \"cuda (NVIDIA H100 80GB HBM3, compute capability 9.0, 80 GiB of memory)\", " \
    "\"machines\": 2, \"world_size\": 4, \"settings\": {" settings "}}\n"                                       \
    "{\"step\": 1, \"step_ms\": 20, \"gather_ms\": 9, \"reduce_ms\": 1}\n"

static void check_advice(fixture *f, const char *metrics, const char *network, const char *part)
{
    program p;

    test_write_file(f->metrics, metrics, strlen(metrics));
    p = program_run(
        f->directory, 0,
        (const char *const[]){PROGRAM, "report", f->metrics, "--device", "cuda:H100", "--network", network, NULL});
    CHECK_CONTAINS(p.output, part);
    program_free(&p);
    p = RUN(0, "report", f->metrics); /* by the data sheet of the run's card */
    CHECK(!strstr(p.output, "cannot be planned") == !strstr(part, "cannot be planned"));
    program_free(&p);
}

/* What a report advises is planned with the run's settings, its ranks and its machines. */
FIXTURE_TEST(advice_has_its_price)
{
    fixture *f = *state;
    program p;

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
    p = RUN(2, "report", f->metrics, "--network", "no");
    CHECK_CONTAINS(p.output, "--network is 'no'");
    program_free(&p);
}
