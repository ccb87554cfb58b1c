/* test_by_name.c - ranks with the variables of torchrun, or set by hand, and nothing that they inherit. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/host.h"
#include "fsdp/launch.h"
#include "launch/waiting_ranks.h"
#include "support/program.h"

static const char ranks[] = TEST_BINARY_DIR "/tests/program_ranks";

typedef struct rank {
    int rank, size;
    const char *what, *path;  /* of program_ranks */
    const char *name, *value; /* one variable more; NULL: none */
    const char *errors;       /* file for what it prints; NULL: the test's */
    const char *program;      /* NULL: program_ranks */
} rank;

static pid_t start(const rank *r)
{
    pid_t pid = fork();
    char text[16];

    CHECK(pid >= 0);
    if (pid != 0)
        return pid;
    snprintf(text, sizeof text, "%d", r->rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", r->size);
    setenv("WORLD_SIZE", text, 1);
    if (r->name)
        setenv(r->name, r->value, 1);
    if (r->errors && dup2(open(r->errors, O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO) < 0)
        _exit(99);
    execl(r->program ? r->program : ranks, ranks, r->what, r->path, NULL);
    _exit(98);
}

static int ended(pid_t pid)
{
    int status = 0;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Gives the ranks a run of their own: those of other tests, and of this one in another build, may wait meanwhile. */
static int setup(void **state)
{
    char own[24];

    (void)state;
    snprintf(own, sizeof own, "test-%d", (int)getpid());
    setenv("MASTER_ADDR", own, 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    return 0;
}

TEST_WITH(ranks_with_the_variables_alone_find_each_other, setup, NULL)
{
    for (int size = 2; size <= 4; size++) {
        pid_t pids[4];

        for (int r = 0; r < size; r++)
            pids[r] = start(&(rank){.rank = r, .size = size, .what = "collectives"});
        for (int r = 0; r < size; r++)
            CHECK_EQ(ended(pids[r]), 0);
    }
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1);
}

/* Two of them at once from one parent differ in their port, as two of torchrun do. */
TEST_WITH(two_runs_do_not_meet, setup, NULL)
{
    pid_t pids[2][3];

    for (int r = 2; r >= 0; r--)
        for (int run = 0; run < 2; run++)
            pids[run][r] = start(&(rank){
                .rank = r, .size = 3, .what = "collectives", .name = "MASTER_PORT", .value = run ? "29500" : "29501"});
    for (int run = 0; run < 2; run++)
        for (int r = 0; r < 3; r++)
            CHECK_EQ(ended(pids[run][r]), 0);
}

TEST_WITH(who_finds_nobody_says_so, setup, NULL)
{
    static const char *const texts[] = {
        "rank 0 of 11 of the environment does not find the others (all must have the same parent process",
        "rank 1 of 11 of the environment does not find the others"};
    static const char *const warnings[] = {
        "fsdp: warning: rank 0 of 11 waits for the others, for 1 s (FSDP_JOIN_TIMEOUT): it is a rank because the "
        "environment has RANK=0 and WORLD_SIZE=11; if nobody starts the others, unset RANK and WORLD_SIZE\n",
        "fsdp: warning: rank 1 of 11 waits for the others, for 1 s (FSDP_JOIN_TIMEOUT): it is a rank because the "
        "environment has RANK=1 and WORLD_SIZE=11; if nobody starts the others, unset RANK and WORLD_SIZE\n"};
    char *directory = test_directory();

    setenv("FSDP_JOIN_TIMEOUT", "1", 1);
    for (int r = 0; r < 2; r++) {
        char *path = test_path(directory, r ? "one" : "zero"), *errors;

        CHECK_EQ(ended(start(&(rank){.rank = r, .size = 11, .what = "collectives", .errors = path})), 1);
        errors = test_read_file(path, NULL);
        CHECK_CONTAINS(errors, texts[r]);
        CHECK_CONTAINS(errors, "FSDP_JOIN_TIMEOUT is 1 s");
        CHECK_CONTAINS(errors, r ? warnings[1] : warnings[0]); /* before that */
    }
    setenv("FSDP_JOIN_TIMEOUT", "never", 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    CHECK_ERROR(fsdp_context_from_env(&(fsdp_context *){NULL}), FSDP_INVALID,
                "FSDP_JOIN_TIMEOUT is 'never', not a number from 1");
}

/* Ranks 0 and 1 of three, and one more: all end, and say why, in no time where it is not that one is missing. */
static void check_who_comes(int third, const char *seconds, const char *expected)
{
    char *directory = test_directory(), *path = test_path(directory, "errors"), *errors;
    pid_t pids[3];
    int count = third < 0 ? 2 : 3;

    setenv("FSDP_JOIN_TIMEOUT", seconds, 1);
    for (int i = 0; i < count; i++)
        pids[i] = start(&(rank){.rank = i < 2 ? i : third, .size = 3, .what = "collectives", .errors = path});
    for (int i = 0; i < count; i++)
        CHECK_EQ(ended(pids[i]), 1);
    errors = test_read_file(path, NULL);
    CHECK_CONTAINS(errors, expected);
    CHECK_EQ(strstr(errors, "does not find the others") != NULL, third < 0);
    unsetenv("FSDP_JOIN_TIMEOUT");
    test_directory_free(directory);
}

TEST_WITH(nobody_waits_for_a_rank_that_is_missing, setup, NULL)
{
    check_who_comes(-1, "2", " of 2 other processes of this machine have not come for"); /* 1, if rank 1 was in time */
    check_who_comes(1, "60", "rank 1 has joined before, as process");
    check_who_comes(0, "60", "there is another rank 0: each process needs a RANK of its own: process ");
}

/* Each of four ranks, of which two are the same, says which. */
static void check_all_name(const int numbers[4], const char *expected)
{
    char *directory = test_directory(), *paths[4];
    pid_t pids[4];

    setenv("FSDP_JOIN_TIMEOUT", "30", 1);
    for (int i = 0; i < 4; i++) {
        paths[i] = test_path(directory, (const char *const[]){"a", "b", "c", "d"}[i]);
        pids[i] = start(&(rank){.rank = numbers[i], .size = 4, .what = "collectives", .errors = paths[i]});
    }
    for (int i = 0; i < 4; i++)
        CHECK_EQ(ended(pids[i]), 1);
    for (int i = 0; i < 4; i++)
        CHECK_CONTAINS(test_read_file(paths[i], NULL), expected);
    unsetenv("FSDP_JOIN_TIMEOUT");
    test_directory_free(directory);
}

TEST_WITH(all_ranks_name_one_that_is_there_twice, setup, NULL)
{
    check_all_name((const int[]){0, 1, 1, 3}, "rank 1 has joined before, as process");
    check_all_name((const int[]){0, 0, 1, 2},
                   "there is another rank 0: each process needs a RANK of its own: process ");
}

TEST_WITH(all_ranks_say_that_one_has_another_world_size, setup, NULL)
{
    char *directory = test_directory(), *paths[3], *errors;
    pid_t pids[3];

    for (int i = 0; i < 3; i++) {
        paths[i] = test_path(directory, (const char *const[]){"a", "b", "c"}[i]);
        pids[i] = start(&(rank){.rank = i, .size = i == 1 ? 4 : 3, .what = "collectives", .errors = paths[i]});
    }
    for (int i = 0; i < 3; i++)
        CHECK_EQ(ended(pids[i]), 1);
    for (int i = 0; i < 3; i++) {
        errors = test_read_file(paths[i], NULL);
        CHECK_CONTAINS(errors, "with WORLD_SIZE 4");
        CHECK_CONTAINS(errors, "with WORLD_SIZE 3");
        CHECK(!strstr(errors, "does not find the others"));
    }
    test_directory_free(directory);
}

/* A script without 'exec' is the parent of its rank. */
TEST_WITH(ranks_that_wait_for_others_elsewhere_say_what_differs, setup, NULL)
{
    static const char script[] = "#!/bin/sh\n" TEST_BINARY_DIR "/tests/program_ranks \"$@\"; exit $?\n";
    char *directory = test_directory(), *wrapper = test_path(directory, "script"), *paths[2], *errors;
    pid_t pids[2];

    test_write_file(wrapper, script, strlen(script));
    CHECK_EQ(chmod(wrapper, 0700), 0);
    setenv("FSDP_JOIN_TIMEOUT", "4", 1);
    for (int i = 0; i < 2; i++) {
        paths[i] = test_path(directory, i == 0 ? "a" : "b");
        pids[i] = start(&(rank){i, 7, "collectives", "", NULL, NULL, paths[i], i == 1 ? wrapper : NULL});
    }
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(ended(pids[i]), 1);
        errors = test_read_file(paths[i], NULL);
        CHECK_CONTAINS(errors, i == 0 ? "rank 1 of 7 (process " : "rank 0 of 7 (process ");
        CHECK_CONTAINS(errors, ") waits, too, but its parent is process ");
    }
    unsetenv("FSDP_JOIN_TIMEOUT");
    test_directory_free(directory);
}

static fsdp__waiting_rank waiting_rank(int number, int size)
{
    return (fsdp__waiting_rank){
        .rank = number, .size = size, .pid = getpid(), .parent = getppid(), .run = 7, .command = 9};
}

/* Two runs of one shell may wait at the same time. */
TEST(ranks_of_two_runs_of_other_sizes_are_not_taken_for_one)
{
    fsdp__waiting_rank self = waiting_rank(1, 3), first = waiting_rank(0, 3), other = waiting_rank(0, 2);
    fsdp__waiting_seen seen = {.together = 0};
    int fds[3] = {fsdp__waiting_rank_show(&self), fsdp__waiting_rank_show(&other)};

    fsdp__waiting_ranks_look(&self, &seen);
    if (seen.together == 0)
        skip(); /* this system does not list them */
    CHECK_EQ(seen.other_size.size, 2);
    CHECK(!seen.two_runs);
    fds[2] = fsdp__waiting_rank_show(&first);
    fsdp__waiting_ranks_look(&self, &seen);
    CHECK_EQ(seen.together, 3);
    CHECK(seen.two_runs);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(close(fds[i]), 0);
}

/* So they may, however late their other ranks come. */
TEST(ranks_of_other_sizes_and_commands_are_of_two_runs)
{
    fsdp__waiting_rank self = waiting_rank(1, 3), other = waiting_rank(0, 2), last = waiting_rank(2, 3);
    fsdp__waiting_seen seen = {.together = 0};
    int fds[3];

    other.command = 10;
    last.command = 11; /* which counts only where the sizes differ */
    fds[0] = fsdp__waiting_rank_show(&self);
    fds[1] = fsdp__waiting_rank_show(&other);
    fds[2] = fsdp__waiting_rank_show(&last);
    fsdp__waiting_ranks_look(&self, &seen);
    if (seen.together == 0)
        skip(); /* this system does not list them */
    CHECK_EQ(seen.other_size.pid, 0);
    CHECK_EQ(seen.apart.pid, 0);
    CHECK_EQ(seen.together, 1);
    CHECK_EQ(seen.most, 3);
    CHECK(!seen.two_runs);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(close(fds[i]), 0);
}

/* Anybody may give a socket the name of a rank of somebody else. */
TEST(a_name_that_another_process_has_made_is_not_believed)
{
    fsdp__waiting_rank self = waiting_rank(0, 3), other = waiting_rank(1, 2), apart = waiting_rank(1, 3);
    fsdp__waiting_seen seen = {.together = 0};
    int fds[2];

    other.pid = apart.pid = getppid();
    apart.run = 8;
    fds[0] = fsdp__waiting_rank_show(&other);
    fds[1] = fsdp__waiting_rank_show(&apart);
    fsdp__waiting_ranks_look(&self, &seen);
    CHECK_EQ(seen.other_size.pid, 0);
    CHECK_EQ(seen.apart.pid, 0);
    CHECK_EQ(close(fds[0]), 0);
    CHECK_EQ(close(fds[1]), 0);
}

/* torchrun goes on where a process ends well, whether it has joined or not. */
TEST_WITH(one_that_torchrun_has_started_and_that_is_gone_is_not_waited_for, setup, NULL)
{
    char *directory = test_directory(), *path = test_path(directory, "errors"), *errors;

    setenv("FSDP_JOIN_TIMEOUT", "4", 1);
    for (int r = 0; r < 2; r++) {
        CHECK_EQ(ended(start(&(rank){r, 2, "collectives", "", "TORCHELASTIC_RUN_ID", "x", path, NULL})), 1);
        errors = test_read_file(path, NULL);
        CHECK_CONTAINS(errors, "a rank that was started beside this one has ended without joining the others");
        CHECK_EQ(unlink(path), 0);
    }
}

TEST_WITH(ranks_of_two_builds_are_told, setup, NULL)
{
    char *directory = test_directory(), *other = test_path(directory, "other"), *errors;
    char host[FSDP__HOST_BYTES], expected[400];
    pid_t pids[3];

    program_other_build(ranks, other);
    fsdp__host_name(host);
    for (int odd = 1; odd < 3; odd++) {
        char *path = test_path(directory, odd == 1 ? "one" : "two");

        for (int r = 0; r < 3; r++)
            pids[r] = start(&(rank){
                .rank = r, .size = 3, .what = "collectives", .errors = path, .program = r == odd ? other : NULL});
        for (int r = 0; r < 3; r++)
            CHECK_EQ(ended(pids[r]), 1);
        errors = test_read_file(path, NULL);
        snprintf(expected, sizeof expected, ", and rank %d fsdp " FSDP_VERSION ", build ", odd);
        CHECK_CONTAINS(errors, "rank 0 runs fsdp " FSDP_VERSION ", build ");
        CHECK_CONTAINS(errors, expected);
        snprintf(expected, sizeof expected, " (machine '%s'): start all ranks from one build", host);
        CHECK_CONTAINS(errors, expected);
    }
}

/* What is left of a run does not join the restart of it. */
TEST_WITH(a_restart_does_not_meet_what_is_left, setup, NULL)
{
    char *directory = test_directory(), *path = test_path(directory, "left");
    pid_t left, pids[2];

    setenv("FSDP_JOIN_TIMEOUT", "3", 1);
    left = start(&(rank){1, 2, "collectives", "", "TORCHELASTIC_RESTART_COUNT", "0", path, NULL});
    unsetenv("FSDP_JOIN_TIMEOUT");
    for (int r = 0; r < 2; r++)
        pids[r] = start(&(rank){r, 2, "collectives", "", "TORCHELASTIC_RESTART_COUNT", "1", NULL, NULL});
    for (int r = 0; r < 2; r++)
        CHECK_EQ(ended(pids[r]), 0);
    CHECK_EQ(ended(left), 1);
}

TEST_WITH(a_rank_that_dies_is_named_by_the_others, setup, NULL)
{
    char *directory = test_directory(), *path = test_path(directory, "errors"), *errors, expected[80];
    pid_t pids[3];

    for (int r = 0; r < 3; r++)
        pids[r] = start(&(rank){.rank = r, .size = 3, .what = "kill", .path = path});
    CHECK_EQ(ended(pids[0]), 5);
    CHECK_EQ(ended(pids[2]), 5);
    CHECK_EQ(ended(pids[1]), 128 + SIGKILL);
    errors = test_read_file(path, NULL);
    snprintf(expected, sizeof expected, "0: rank 1 has died (process %d)\n", (int)pids[1]);
    CHECK_CONTAINS(errors, expected);
    *expected = '2';
    CHECK_CONTAINS(errors, expected);
}
