/* test_spin.c - how long threads wait for each other stands in the environment of who computes. */
#include "cli/fixture.h"

#ifdef _OPENMP
#define STARTS_ANEW 1
#else
#define STARTS_ANEW 0
#endif

/* Runs until `count` processes of the run have `entry` in their environment. */
static void run_until(const fixture *f, const char *ranks, const char *entry, int count)
{
    char mark[300];
    int both = 0;
    program p;

    snprintf(mark, sizeof mark, "FSDP_TEST_TAG=%s", f->directory);
    setenv("FSDP_TEST_TAG", f->directory, 1);
    p = program_start(f->directory, (const char *const[]){PROGRAM, "train", f->config, "--training.steps=1000000",
                                                          "--metrics.log_freq=1", ranks, NULL});
    unsetenv("FSDP_TEST_TAG");
    for (int tries = 0; tries < PATIENCE_LOOKS && both < count; tries++) {
        pid_t mine[16];
        int ours = find_processes(mark, mine, 16);

        both = 0;
        for (int m = 0; m < ours; m++)
            both += process_has(mine[m], entry);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    kill(p.pid, SIGTERM);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGTERM);
    CHECK(both >= count);
}

FIXTURE_TEST(one_process_starts_anew_with_a_short_spin)
{
    if (!STARTS_ANEW)
        skip();
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    run_until(f, "-n1", "GOMP_SPINCOUNT=3000", 1);
    run_until(f, "-n2", "GOMP_SPINCOUNT=3000", 2);
}

FIXTURE_TEST(what_the_user_says_stands)
{
    setenv("GOMP_SPINCOUNT", "77", 1);
    run_until(f, "-n1", "GOMP_SPINCOUNT=77", 1);
    run_until(f, "-n2", "GOMP_SPINCOUNT=77", 2);
}

/* A pipe can be read once. */
FIXTURE_TEST(it_starts_anew_before_it_reads_anything)
{
    char script[700];
    program p;

    snprintf(script, sizeof script, "cat '%s' | '%s' train /dev/stdin --training.steps=2", f->config, PROGRAM);
    p = program_run(f->directory, 0, (const char *const[]){"sh", "-c", script, NULL});
    CHECK_CONTAINS(p.output, "model written to");
}

FIXTURE_TEST(the_key_of_threads_wins_over_the_environment)
{
    program p = RUN(0, "train", f->config, "--training.steps=1", "--training.threads=3");

    CHECK_CONTAINS(p.output, "3 threads each");
    SAYS(2, "training.threads is '0'", "train", f->config, "--training.threads=0");
    SAYS(2, "1024", "train", f->config, "--training.threads=100000");
    setenv("OMP_NUM_THREADS", "100000", 1);
    SAYS(1, "OMP_NUM_THREADS is '100000', not a number from 1 to 1024", "train", f->config);
    SAYS(1, "fsdp: environment variable OMP_NUM_THREADS is '100000'", "train", f->config, "-n", "2");
    setenv("OMP_NUM_THREADS", "1", 1);
}
