/* test_compare.c - `fsdp compare` that is cut off, or loses a rank, or its disk: what was measured is told. */
#include <sys/stat.h>

#include "comm/health/process.h"
#include "faults/run.h"

#define COMPARE(...) "compare", f->config, "-n", "2", "--rounds=1", __VA_ARGS__

FIXTURE_TEST(an_interruption_ends_all)
{
    fixture *f = *state;
    run r = run_start(f->directory, (const char *const[]){PROGRAM, COMPARE("--steps=200", "--rounds=1000"), NULL});

    CHECK(run_await_process(&r, "RANK=1") > 0);
    CHECK_EQ(kill(r.program.pid, SIGINT), 0);
    run_wait(&r);
    CHECK_EQ(r.program.status, 128 + SIGINT);
    run_await_nothing(&r);
}

FIXTURE_TEST(a_rank_that_is_killed_costs_its_strategy)
{
    fixture *f = *state;
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
    fixture *f = *state;
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

/* At every call that changes the picture's folder. */
FIXTURE_TEST(a_full_disk_does_not_cost_the_table)
{
    fixture *f = *state;
    char *area, *svg, number[16];
    bool failed = true;

    if (TEST_SANITIZED)
        skip(); /* a sanitizer's library must come before any that is preloaded */
    area = test_path(f->directory, "area");
    svg = test_path(area, "bars.svg");
    CHECK_EQ(mkdir(area, 0755), 0);
    for (int nth = 1; failed; nth++) {
        program p;

        snprintf(number, sizeof number, "%d", nth);
        setenv("LD_PRELOAD", TEST_BINARY_DIR "/tests/preload_calls.so", 1);
        setenv("CALLS_BELOW", area, 1);
        setenv("CALLS_ACT", "ENOSPC", 1);
        setenv("CALLS_NTH", number, 1);
        p = program_start(f->directory, (const char *const[]){PROGRAM, COMPARE("--strategies=zero1", "--steps=1"),
                                                              "--svg", svg, NULL});
        unsetenv("LD_PRELOAD");
        program_wait(&p);
        failed = p.status != 0;
        CHECK_CONTAINS(p.output, "tokens/s");
        CHECK_EQ(strstr(p.output, "bars.svg has the picture\n") != NULL, !failed);
        if (failed) {
            CHECK_EQ(p.status, 1);
            CHECK_CONTAINS(p.output, "fsdp: --svg: cannot ");
            (void)unlink(svg); /* of a rename whose folder could not be synced */
            CHECK_EQ(rmdir(area), 0);
            CHECK_EQ(mkdir(area, 0755), 0);
        }
        CHECK(nth < 20);
    }
    CHECK_EQ(access(svg, F_OK), 0);
}
