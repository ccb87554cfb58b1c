/* test_spin.c - how long threads wait for each other stands in the environment of who computes. */
#include "cli/fixture.h"

#ifdef _OPENMP
#define STARTS_ANEW 1
#else
#define STARTS_ANEW 0
#endif

static program start(fixture *f, const char *tag, const char *ranks)
{
    program p;

    setenv("FSDP_TEST_TAG", tag, 1);
    p = program_start(f->directory, (const char *const[]){PROGRAM, "train", f->config, "--training.steps=1000000",
                                                          "--metrics.log_freq=1", ranks, NULL});
    unsetenv("FSDP_TEST_TAG");
    return p;
}

/* Waits until `count` processes of the run have `entry` in their environment, while it computes; then ends the run. */
static void await(program *p, const char *tag, const char *entry, int count)
{
    char tagged[96];
    int both = 0;

    snprintf(tagged, sizeof tagged, "FSDP_TEST_TAG=%s", tag);
    for (int tries = 0; tries < PATIENCE_LOOKS && both < count; tries++) {
        pid_t mine[16], those[64];
        int ours = find_processes(tagged, mine, 16), others = find_processes(entry, those, 64);

        both = 0;
        for (int m = 0; m < ours; m++)
            for (int o = 0; o < others; o++)
                both += mine[m] == those[o];
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    kill(p->pid, SIGTERM);
    program_wait(p);
    CHECK_EQ(p->status, 128 + SIGTERM);
    program_free(p);
    CHECK(both >= count);
}

FIXTURE_TEST(one_process_starts_anew_with_a_short_spin)
{
    fixture *f = *state;
    program p;

    if (!STARTS_ANEW)
        skip();
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    p = start(f, "spin-one", "-n1");
    await(&p, "spin-one", "GOMP_SPINCOUNT=3000", 1);
    p = start(f, "spin-two", "-n2");
    await(&p, "spin-two", "GOMP_SPINCOUNT=3000", 2);
}

FIXTURE_TEST(what_the_user_says_stands)
{
    fixture *f = *state;
    program p;

    setenv("GOMP_SPINCOUNT", "77", 1);
    p = start(f, "spin-user", "-n1");
    await(&p, "spin-user", "GOMP_SPINCOUNT=77", 1);
    p = start(f, "spin-users", "-n2");
    await(&p, "spin-users", "GOMP_SPINCOUNT=77", 2);
    unsetenv("GOMP_SPINCOUNT");
}

/* A pipe can be read once. */
FIXTURE_TEST(it_starts_anew_before_it_reads_anything)
{
    fixture *f = *state;
    char script[700];
    program p;

    snprintf(script, sizeof script, "cat '%s' | '%s' train /dev/stdin --training.steps=2", f->config, PROGRAM);
    p = program_run(f->directory, 0, (const char *const[]){"sh", "-c", script, NULL});
    CHECK_CONTAINS(p.output, "model written to");
    program_free(&p);
}

FIXTURE_TEST(the_key_of_threads_wins_over_the_environment)
{
    fixture *f = *state;
    program p = program_run(
        f->directory, 0,
        (const char *const[]){PROGRAM, "train", f->config, "--training.steps=1", "--training.threads=3", NULL});

    CHECK_CONTAINS(p.output, "3 threads each");
    program_free(&p);
    p = program_run(f->directory, 2, (const char *const[]){PROGRAM, "train", f->config, "--training.threads=0", NULL});
    CHECK_CONTAINS(p.output, "training.threads is '0'");
    program_free(&p);
    p = program_run(f->directory, 2,
                    (const char *const[]){PROGRAM, "train", f->config, "--training.threads=100000", NULL});
    CHECK_CONTAINS(p.output, "1024");
    program_free(&p);
    setenv("OMP_NUM_THREADS", "100000", 1);
    p = program_run(f->directory, 1, (const char *const[]){PROGRAM, "train", f->config, NULL});
    CHECK_CONTAINS(p.output, "OMP_NUM_THREADS is '100000', not a number from 1 to 1024");
    program_free(&p);
    p = program_run(f->directory, 1, (const char *const[]){PROGRAM, "train", f->config, "-n", "2", NULL});
    CHECK_CONTAINS(p.output, "fsdp: environment variable OMP_NUM_THREADS is '100000'");
    program_free(&p);
    setenv("OMP_NUM_THREADS", "1", 1);
}
