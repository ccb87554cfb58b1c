/* fsdp report: of a run that the program trained, as text and as a page; what it refuses. */
#include "cli/fixture.h"

FIXTURE_TEST(two_runs_are_shown_side_by_side)
{
    fixture *f = *state;
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

FIXTURE_TEST(a_default_is_shown_with_its_value)
{
    fixture *f = *state;
    program p;

    RUN(0, "train", f->config, "--training.steps=5", "--optimizer.lr=0.01");
    RUN(0, "train", f->config, "--training.steps=5", "--optimizer.lr=0.0003", "--data.cache=kept");
    p = RUN(0, "report", f->metrics);
    CHECK_CONTAINS(p.output, "  optimizer.lr\n");
    CHECK_CONTAINS(p.output, "0.0003 (default)\n");
    CHECK(!strstr(p.output, "data.cache"));
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
                                "--training.steps=150",
                                set,
                                "--metrics.log_freq=1",
                                "--metrics.trace.steps=1-150",
                                NULL};
    program p;
    pid_t rank;

    snprintf(set, sizeof set, "--metrics.trace.path=%s", trace);
    snprintf(mark, sizeof mark, "DELAYED_BY=%d", (int)getpid());
    setenv("DELAYED_BY", strchr(mark, '=') + 1, 1);
    p = program_start(f->directory, argv);
    rank = fixture_await_rank(&p, mark, 1);
    fixture_await(&p, "step: ");
    CHECK_EQ(kill(rank, SIGSTOP), 0);
    fixture_await(&p, "rank 1 is stopped");
    (void)usleep(1000000); /* longer than anything else keeps a rank */
    CHECK_EQ(kill(rank, SIGCONT), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 0);
    p = RUN(0, "report", f->metrics);
    CHECK_CONTAINS(p.output, "- Rank 1 was slow in step ");
    CHECK_CONTAINS(p.output, "on the average, longest at ");
}

FIXTURE_TEST(a_report_refuses_what_it_cannot_show)
{
    fixture *f = *state;
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
    fixture *f = *state;

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
    SAYS(2, "--network is 'no'", "report", f->metrics, "--network", "no");
}
