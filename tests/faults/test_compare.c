/* test_compare.c - `fsdp compare` that is cut off, or loses a rank, or its disk: what was measured is told. */
#include <sys/stat.h>

#include "comm/health/process.h"
#include "faults/run.h"

#define COMPARE(...) "compare", f->config, "-n", "2", "--rounds=1", __VA_ARGS__

FIXTURE_TEST(an_interruption_ends_all)
{
    run r = run_start(f->directory, (const char *const[]){PROGRAM, COMPARE("--steps=200", "--rounds=1000"), NULL});

    CHECK(run_await_process(&r, "RANK=1") > 0);
    CHECK_EQ(kill(r.program.pid, SIGINT), 0);
    run_wait(&r);
    CHECK_EQ(r.program.status, 128 + SIGINT);
    run_await_nothing(&r);
}

FIXTURE_TEST(a_rank_that_is_killed_costs_its_strategy)
{
    run r = run_start(f->directory,
                      (const char *const[]){PROGRAM, COMPARE("--strategies=zero1,zero2", "--steps=200"), NULL});
    pid_t rank = run_await_process(&r, "RANK=1");

    CHECK(rank > 0);
    CHECK_EQ(kill(rank, SIGKILL), 0);
    run_wait(&r);
    CHECK_EQ(r.program.status, 1); /* the others are there all the same */
    CHECK_CONTAINS(r.program.output, " has failed: rank 1 was killed by signal 9");
    CHECK_CONTAINS(r.program.output, "tokens/s");
    run_await_nothing(&r);
}

/* Returns the process of a rank once it has joined the others, which its title shows. */
static pid_t await_joined(run *r, const char *entry)
{
    pid_t rank = run_await_process(r, entry);
    char path[40], title[12] = "";

    CHECK(rank > 0);
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)rank);
    while (strcmp(title, "fsdp: rank ") != 0) {
        FILE *file = CHECK_PTR(fopen(path, "re"));

        title[fread(title, 1, sizeof title - 1, file)] = '\0';
        CHECK_EQ(fclose(file), 0);
        usleep(1000);
    }
    return rank;
}

/* The launcher hears of both at once, and does not start the other strategies. */
FIXTURE_TEST(an_interruption_after_a_failure_ends_all)
{
    run r = run_start(
        f->directory,
        (const char *const[]){PROGRAM, COMPARE("--strategies=zero1,zero2", "--steps=200", "--rounds=1000"), NULL});
    pid_t peer = await_joined(&r, "RANK=0"), failed = await_joined(&r, "RANK=1");

    CHECK_EQ(kill(r.program.pid, SIGSTOP), 0);
    CHECK_EQ(kill(failed, SIGKILL), 0);
    while (!fsdp__process_is_dead(peer, 0))
        usleep(1000);
    CHECK_EQ(kill(r.program.pid, SIGINT), 0);
    CHECK_EQ(kill(r.program.pid, SIGCONT), 0);
    run_wait(&r);
    CHECK_EQ(r.program.status, 128 + SIGINT);
    CHECK_CONTAINS(r.program.output, "fsdp: rank 1 was killed by signal 9 (Killed)");
    CHECK_NULL(strstr(r.program.output, "has failed")); /* as a strategy beside others */
    run_await_nothing(&r);
}

/* ---- a full disk ---- */

/* A command that writes two files, of which one has a folder of its own. */
typedef struct two_files {
    const fixture *f;
    const char *const *argv, *prints;
    char *area, *svg, *other, *log;
} two_files;

static two_files two_files_of(const fixture *f)
{
    two_files t = {.f = f, .area = test_path(f->directory, "area"), .other = test_path(f->directory, "other")};

    t.svg = test_path(t.area, "drawn.svg");
    t.log = test_path(f->directory, "calls");
    CHECK_EQ(mkdir(t.area, 0755), 0);
    return t;
}

/* Runs the command; the n-th call that changes the folder finds no room, none if that is 0. */
static program run_without_room(const two_files *t, int nth)
{
    char number[16];
    program p;

    snprintf(number, sizeof number, "%d", nth);
    setenv("LD_PRELOAD", TEST_BINARY_DIR "/tests/preload_calls.so", 1);
    setenv("CALLS_BELOW", t->area, 1);
    setenv("CALLS_ACT", "ENOSPC", 1);
    setenv("CALLS_NTH", number, 1);
    setenv("CALLS_LOG", t->log, 1);
    p = program_start(t->f->directory, t->argv);
    unsetenv("LD_PRELOAD");
    unsetenv("CALLS_LOG");
    program_wait(&p);
    CHECK_CONTAINS(p.output, t->prints);
    return p;
}

/* Empties the folder, as it was. */
static void remove_files(const two_files *t)
{
    (void)unlink(t->svg);
    (void)unlink(t->other);
    CHECK_EQ(rmdir(t->area), 0);
    CHECK_EQ(mkdir(t->area, 0755), 0);
}

/* Neither file is there, or the only one that is has been told of; and that is so only where all was written, and names
 * changed one after the other. */
static bool check_failed(const two_files *t, int nth)
{
    program p = run_without_room(t, nth);
    bool has_other = access(t->other, F_OK) == 0;

    CHECK_EQ(strstr(p.output, "other has the ") != NULL, has_other);
    CHECK_EQ(strstr(p.output, "drawn.svg has the picture\n") != NULL, p.status == 0);
    if (p.status != 0) {
        CHECK_EQ(p.status, 1);
        CHECK_CONTAINS(p.output, "fsdp: --svg: cannot ");
        CHECK(!has_other || strstr(p.output, "cannot rename") || strstr(p.output, "cannot sync"));
    }
    remove_files(t);
    return p.status != 0;
}

/* Lets each call fail that writes the picture. Its file is made by the call before the first that writes to it. */
static void check_full_disk(const two_files *t)
{
    program p = run_without_room(t, 0);
    char *calls = test_read_file(t->log, NULL), *written = CHECK_PTR(strstr(calls, "pwrite\n"));
    int all = test_count(calls, "\n"), behind = test_count(written, "\n"), failed = 0;

    CHECK_EQ(p.status, 0);
    CHECK(access(t->svg, F_OK) == 0 && access(t->other, F_OK) == 0);
    remove_files(t);
    for (int nth = all - behind; nth <= all; nth++)
        failed += check_failed(t, nth);
    CHECK_EQ(failed, 6); /* made, written, synced, closed, renamed, and its folder synced */
}

FIXTURE_TEST(a_full_disk_does_not_cost_the_table)
{
    two_files t = two_files_of(f);

    if (TEST_SANITIZED)
        skip(); /* a sanitizer's library must come before any that is preloaded */
    t.argv = (const char *const[]){
        PROGRAM, COMPARE("--strategies=zero1", "--steps=1"), "--svg", t.svg, "--markdown", t.other, NULL};
    t.prints = "tokens/s";
    check_full_disk(&t);
}

FIXTURE_TEST(a_full_disk_does_not_cost_the_text_of_a_report)
{
    two_files t = two_files_of(f);
    program p;

    if (TEST_SANITIZED)
        skip();
    p = program_run(f->directory, 0, (const char *const[]){PROGRAM, "train", f->config, "--training.steps=2", NULL});
    CHECK_CONTAINS(p.output, "model written to");
    t.argv = (const char *const[]){PROGRAM, "report", f->metrics, "-o", t.other, "--svg", t.svg, NULL};
    t.prints = "  device              cpu\n";
    check_full_disk(&t);
}
