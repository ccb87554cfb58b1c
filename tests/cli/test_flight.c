/* test_flight.c - fsdp flight: what ranks did last when one is killed, stopped or asked. */
#include <errno.h>
#include <sys/stat.h>

#include "cli/fixture.h"

/* The folder is of this test alone. */
static program start(const fixture *f, const char *ranks, const char *key)
{
    const char *argv[] = {PROGRAM, "train", f->config, "-n", ranks, "--training.steps=100000000", key, NULL};

    setenv("FSDP_TEST_FLIGHT", f->directory, 1);
    return program_start(f->directory, argv);
}

static pid_t rank_of(const fixture *f, int rank)
{
    char mark[300];

    snprintf(mark, sizeof mark, "FSDP_TEST_FLIGHT=%s", f->directory);
    return fixture_rank(mark, rank);
}

/* What the report says of a folder; free() it. */
static char *report(const fixture *f, const char *folder, const char *option)
{
    char *directory = test_path(f->directory, "flight"), *text;
    program p;

    (void)mkdir(directory, 0700);
    p = program_run(directory, 0, (const char *[]){PROGRAM, "flight", folder, option, NULL});
    text = strdup(p.output);
    test_remove_tree(directory);
    return text;
}

/* `otherwise`: what its first line may begin with, too. */
static void check_report(const fixture *f, const char *folder, const char *first, const char *otherwise,
                         const char *other)
{
    char *text = report(f, folder, "--calls=3");

    if (strncmp(text, first, strlen(first)) != 0 && strncmp(text, otherwise, strlen(otherwise)) != 0)
        TEST_FAIL("%s\ndoes not begin with: %s", text, first);
    CHECK_CONTAINS(text, other);
    CHECK_CONTAINS(text, "rank 0 (machine '");
    CHECK_CONTAINS(text, "rank 2 (machine '");
    free(text);
    text = report(f, folder, "--json");
    CHECK_CONTAINS(text, "{\"verdict\": [\"");
    CHECK_CONTAINS(text, "\"for_module\": true");
    free(text);
}

FIXTURE_TEST(a_rank_that_is_killed_leaves_its_last_calls)
{
    char *folder = test_path(f->directory, "metrics.jsonl.flight");
    program p = start(f, "3", NULL);

    fixture_await(&p, "step: 10 ");
    CHECK_EQ(kill(rank_of(f, 1), SIGKILL), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGKILL);
    CHECK_CONTAINS(p.output, "fsdp: rank 1 was killed by signal 9 (Killed) (fsdp flight /");
    CHECK_CONTAINS(p.output, "metrics.jsonl.flight shows the last calls of all ranks)");
    check_report(f, folder, "rank 1 was killed by signal 9 (Killed); it was last in step ", "rank 1 was killed ",
                 "rank 1 was killed by signal 9 (Killed)\n");
}

/* Of a rank that is stopped; it may have been in a call to which all have come. */
static void check_stuck(const fixture *f, const char *other)
{
    check_report(f, test_path(f->directory, "metrics.jsonl.flight"),
                 "the others wait for rank 2: it has not come to call ", "no rank is missing: all have come to call ",
                 other);
}

static program start_and_stop(const fixture *f, const char *timeout)
{
    program p = start(f, "3", timeout);

    fixture_await(&p, "step: 10 ");
    CHECK_EQ(kill(rank_of(f, 2), SIGSTOP), 0);
    return p;
}

FIXTURE_TEST(a_rank_that_is_stuck_is_named_while_the_run_hangs)
{
    program p = start_and_stop(f, "--comm.timeout=100000");

    fixture_await(&p, "rank 2 is stopped");
    CHECK_EQ(kill(p.pid, SIGUSR2), 0);
    fixture_await(&p, "fsdp: warning: the last calls of all ranks are in '");
    check_stuck(f, "  begun ");
    CHECK_EQ(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGTERM);
}

FIXTURE_TEST(a_rank_that_is_stuck_is_named_after_the_timeout)
{
    program p = start_and_stop(f, "--comm.timeout=1");

    program_wait(&p);
    CHECK_EQ(p.status, 1);
    CHECK_CONTAINS(p.output, "for rank 2, which is stopped");
    check_stuck(f, " was the first to report: rank ");
}

FIXTURE_TEST(records_that_cannot_be_written_say_why)
{
    char *folder = test_path(f->directory, "taken"), key[300];
    program p;

    snprintf(key, sizeof key, "--metrics.flight_recorder=%s", folder);
    p = start(f, "2", key);
    fixture_await(&p, "step: 10 ");
    CHECK(mkdir(folder, 0777) == 0 || errno == EEXIST);
    CHECK_EQ(chmod(folder, 0777), 0);
    CHECK_EQ(kill(rank_of(f, 1), SIGKILL), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGKILL);
    CHECK_CONTAINS(p.output, "fsdp: warning: the last calls of the ranks could not be written: ");
    CHECK_CONTAINS(p.output, "others may write to that folder");
}

FIXTURE_TEST(a_single_process_shows_its_calls_when_it_is_asked)
{
    char *folder = test_path(f->directory, "own"), key[300], *text;
    program p;

    snprintf(key, sizeof key, "--metrics.flight_recorder=%s", folder);
    p = start(f, "1", key);
    fixture_await(&p, "step: 10 ");
    CHECK_EQ(kill(p.pid, SIGUSR2), 0);
    fixture_await(&p, "fsdp: the last calls of rank 0 are in '");
    text = report(f, folder, "--calls=1");
    CHECK_CONTAINS(text, "no rank waits for another one");
    CHECK_CONTAINS(text, "config.yaml, 1 rank, ");
    CHECK_CONTAINS(text, "in step ");
    free(text);
    CHECK_EQ(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGTERM);
}

FIXTURE_TEST(a_run_that_ends_well_or_is_refused_on_all_ranks_leaves_no_records)
{
    char *folder = test_path(f->directory, "metrics.jsonl.flight");
    struct stat info;
    program p;

    RUN(0, "train", f->config, "-n", "2", "--training.steps=2");
    CHECK_EQ(stat(folder, &info), -1);
    p = RUN(1, "train", f->config, "-n", "2", "--data.path=/nowhere/x.txt");
    CHECK_CONTAINS(p.output, "/nowhere/x.txt");
    CHECK_EQ(stat(folder, &info), -1);
    CHECK(!strstr(p.output, "the last calls"));
}

FIXTURE_TEST(what_is_no_record_is_an_error)
{
    program p = RUN(1, "flight", f->data);

    CHECK_CONTAINS(p.output, "is not the record of a rank's last calls (rank-N.flight)");
    SAYS(1, "it has no file named rank-N.flight", "flight", f->directory);
    SAYS(2, "no folder with the records of ranks given", "flight");
    SAYS(2, "--calls", "flight", f->directory, "--calls=x");
}
