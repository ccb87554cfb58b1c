/* test_launch.c - ranks that are real processes: started, watched, ended; none is left behind. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fsdp/launch.h"
#include "support/test.h"

static const char program[] = TEST_BINARY_DIR "/tests/program_ranks";

enum {
    LONG_MS = 1000000, /* of grace: no test takes as long */
    LOOKS = 120000     /* 10 ms apart: nor as long */
};

static fsdp_status launch(int ranks, const char *what, const char *path, int grace_ms, fsdp_launch_report *report)
{
    const char *argv[] = {program, what, path, NULL};

    return fsdp_launch(&(fsdp_launch_options){.ranks = ranks, .argv = argv, .grace_ms = grace_ms}, report);
}

/* No process of ours is left, not even a dead one. */
static void check_nothing_left(void)
{
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1);
}

TEST(processes_give_naive_results)
{
    fsdp_launch_report report;

    for (int ranks = 2; ranks <= 4; ranks++) {
        CHECK_OK(launch(ranks, "collectives", "", 0, &report));
        CHECK_EQ(report.failed_rank, -1);
        CHECK_EQ(report.exit_code, 0);
        CHECK_STRING(report.reason, "");
    }
    check_nothing_left();
}

TEST(ranks_find_themselves_in_the_environment)
{
    for (int ranks = 1; ranks <= 8; ranks++)
        CHECK_OK(launch(ranks, "variables", "", 0, NULL));
    setenv("OMP_NUM_THREADS", "3", 1);
    CHECK_OK(launch(2, "variables", "", 0, NULL));
    unsetenv("OMP_NUM_THREADS");
    /* as in a launcher that a rank of another world has started */
    setenv("FSDP_SHM_FD", "999", 1);
    setenv("WORLD_SIZE", "7", 1);
    CHECK_OK(launch(2, "variables", "", 0, NULL));
    unsetenv("WORLD_SIZE");
    unsetenv("FSDP_SHM_FD");
    check_nothing_left();
}

typedef struct ending {
    const char *what;
    int failed_rank, exit_code;
    const char *reason;     /* of the report */
    const char *peer_error; /* what each other rank got */
    bool dies;              /* a rank may find that by itself, and the others get what it says */
} ending;

/* What rank `rank` has written down is in `errors`. */
static void check_peer(const ending *e, int rank, const char *errors)
{
    char expected[300], found[64];

    snprintf(expected, sizeof expected, "%d: %s\n", rank, e->peer_error);
    snprintf(found, sizeof found, "%d: rank 1 has died (process ", rank);
    CHECK_CONTAINS(errors, e->dies && strstr(errors, found) ? found : expected);
}

/* Nobody is ended before it has written down what it was told. */
static void check_ending(const ending *e, int ranks)
{
    char *directory = test_directory(), *path = test_path(directory, "errors"), *errors;
    fsdp_launch_report report;

    CHECK_ERROR(launch(ranks, e->what, path, LONG_MS, &report), FSDP_COMM, e->reason);
    CHECK_STRING(report.reason, e->reason);
    CHECK_EQ(report.failed_rank, e->failed_rank);
    CHECK_EQ(report.exit_code, e->exit_code);
    errors = test_read_file(path, NULL);
    for (int r = 0; r < ranks; r++)
        if (r != 1)
            check_peer(e, r, errors);
    test_directory_free(directory);
    check_nothing_left();
}

TEST(the_first_failing_rank_is_named_everywhere)
{
    static const ending endings[] = {
        {"kill", 1, 128 + SIGKILL, "rank 1 was killed by signal 9 (Killed)", "rank 1 was killed by signal 9 (Killed)",
         true},
        {"abort", 1, 7, "rank 1 failed: out of luck", "rank 1 failed: out of luck", false},
        {"exit", 1, 3, "rank 1 exited with code 3", "rank 1 exited with code 3", true},
    };

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        check_ending(&endings[i], 2);
        check_ending(&endings[i], 4);
    }
}

TEST(a_rank_that_ends_before_joining_ends_the_others)
{
    fsdp_launch_report report;

    CHECK_ERROR(launch(3, "early", "/dev/null", 0, &report), FSDP_COMM, "rank 1 exited with code 6");
    CHECK_EQ(report.exit_code, 6);
    check_nothing_left();
}

TEST(waiting_for_a_rank_that_left_fails)
{
    char *directory = test_directory(), *path = test_path(directory, "errors"), *errors;
    fsdp_launch_report report;

    CHECK_STATUS(launch(2, "leave", path, LONG_MS, &report), FSDP_COMM);
    CHECK_EQ(report.failed_rank, 0);
    CHECK_EQ(report.exit_code, 5);
    CHECK_STRING(report.reason, "rank 1 has left");
    errors = test_read_file(path, NULL);
    CHECK_STRING(errors, "0: rank 1 has left\n");
    check_nothing_left();
}

TEST(ranks_that_will_not_end_are_killed)
{
    fsdp_launch_report report;

    CHECK_ERROR(launch(3, "stubborn", "", 100, &report), FSDP_COMM, "rank 1 exited with code 4");
    check_nothing_left();
}

TEST(a_program_that_cannot_start_is_named)
{
    const char *missing[] = {"./nope", NULL}, *folder[] = {"/tmp", NULL};
    fsdp_launch_report report;

    CHECK_ERROR(fsdp_launch(&(fsdp_launch_options){.ranks = 3, .argv = missing}, &report), FSDP_NOT_FOUND,
                "cannot start './nope': No such file or directory");
    CHECK_EQ(report.exit_code, 127);
    CHECK_STRING(report.reason, "cannot start './nope': No such file or directory");
    CHECK_ERROR(fsdp_launch(&(fsdp_launch_options){.ranks = 1, .argv = folder}, &report), FSDP_IO,
                "cannot start '/tmp': Permission denied");
    CHECK_ERROR(fsdp_launch(&(fsdp_launch_options){.ranks = 0, .argv = folder}, &report), FSDP_INVALID,
                "at least one rank");
    check_nothing_left();
}

TEST(programs_are_found_in_the_path)
{
    const char *yes[] = {"true", NULL}, *no[] = {"false", NULL};
    fsdp_launch_report report;

    CHECK_OK(fsdp_launch(&(fsdp_launch_options){.ranks = 2, .argv = yes}, &report));
    CHECK_ERROR(fsdp_launch(&(fsdp_launch_options){.ranks = 2, .argv = no}, &report), FSDP_COMM, "exited with code 1");
    check_nothing_left();
}

static pid_t parent_of(pid_t pid)
{
    char path[40];
    int parent = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (file && fscanf(file, "%*d %*s %*c %d", &parent) != 1)
        parent = 0;
    if (file)
        fclose(file);
    return parent;
}

/* Processes whose command line holds `marker`, `parent`'s alone where it is one; `*last`: one of them. */
static int find_processes(const char *marker, pid_t parent, pid_t *last)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int found = 0;

    while ((entry = readdir(proc)) != NULL) {
        char path[300], line[4096];
        FILE *file;
        size_t bytes;

        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        file = atoi(entry->d_name) > 0 ? fopen(path, "r") : NULL;
        if (!file)
            continue;
        bytes = fread(line, 1, sizeof line - 1, file);
        fclose(file);
        for (size_t i = 0; i < bytes; i++)
            if (line[i] == '\0')
                line[i] = ' ';
        line[bytes] = '\0';
        if (!strstr(line, marker) || (parent && parent_of(atoi(entry->d_name)) != parent))
            continue;
        found++;
        *last = atoi(entry->d_name);
    }
    closedir(proc);
    return found;
}

static int processes_with(const char *marker)
{
    pid_t last;

    return find_processes(marker, 0, &last);
}

/* The guardian of a launcher that is not process `but`, as soon as there is one. */
static pid_t guardian_of(pid_t launcher, pid_t but)
{
    pid_t found = 0;

    for (int tries = 0; tries < LOOKS; tries++, usleep(10000))
        if (find_processes("fsdp: guardian", launcher, &found) == 1 && found != but)
            return found;
    return 0;
}

/* fsdp_launch in a process of its own that gets `signal` while its ranks run. Returns its wait status. */
static int signal_launcher(int signal, const char *what, const char *marker)
{
    int status = 0, tries = 0;
    pid_t pid = fork();

    if (pid == 0) {
        fsdp_launch_report report;

        _exit(launch(2, what, marker, 100, &report) == FSDP_INTERRUPTED ? report.exit_code : 1);
    }
    while (processes_with(marker) < 2 && tries++ < LOOKS)
        usleep(10000);
    usleep(100000);
    kill(pid, signal);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    for (tries = 0; processes_with(marker) > 0 && tries < LOOKS; tries++)
        usleep(10000);
    CHECK_EQ(processes_with(marker), 0);
    return status;
}

TEST(signals_to_the_launcher_leave_no_process)
{
    char *directory = test_directory(), *path = test_path(directory, "interrupt-marker");
    int status;

    status = signal_launcher(SIGINT, "barriers", path);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT); /* of the report */
    status = signal_launcher(SIGTERM, "deaf", path);
    CHECK(WIFEXITED(status));
    status = signal_launcher(SIGKILL, "barriers", path);
    CHECK(WIFSIGNALED(status));
    check_nothing_left();
}

/* Waits until a rank of two has failed (fail_with) and ended, and the launcher, whose other child is the guardian,
 * knows of it. Without the file, a launcher that has started one rank so far would look alike. */
static void await_first_end(pid_t launcher, const char *marker)
{
    char failed[1200];
    pid_t last;

    snprintf(failed, sizeof failed, "%s.failed", marker);
    while (access(failed, F_OK) != 0)
        usleep(10000);
    while (processes_with(marker) != 1 || find_processes("", launcher, &last) != 2)
        usleep(10000);
}

/* The ranks are told, too, and a second signal still ends those that do not listen. */
TEST(what_a_rank_has_failed_of_stays_the_result_when_the_user_interrupts)
{
    char *directory = test_directory(), *path = test_path(directory, "failed-marker");
    pid_t launcher = fork();
    int status;

    if (launcher == 0) {
        fsdp_launch_report report;

        status = launch(2, "stubborn", path, LONG_MS, &report) == FSDP_COMM && report.interrupted_by == SIGINT &&
                 strcmp(report.reason, "rank 1 exited with code 4") == 0;
        _exit(status ? report.exit_code : 1);
    }
    await_first_end(launcher, path);
    for (status = 0; waitpid(launcher, &status, WNOHANG) == 0; usleep(50000))
        CHECK_EQ(kill(launcher, SIGINT), 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 4);
    check_nothing_left();
    CHECK_EQ(processes_with(path), 0);
}

static int exit_status(pid_t pid)
{
    int status = 0;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Another one takes its place, and the launcher says so. */
TEST(a_guardian_that_was_killed_is_replaced)
{
    char *directory = test_directory(), *path = test_path(directory, "guardian-marker");
    char *said_path = test_path(directory, "said"), *said, expected[200];
    pid_t launcher = fork(), guardian = 0, next;

    if (launcher == 0) {
        if (!freopen(said_path, "w", stderr))
            _exit(9);
        _exit(launch(2, "deaf", path, 100, NULL) == FSDP_OK ? 0 : 1);
    }
    while (processes_with(path) < 2)
        usleep(10000);
    for (int i = 0; i < 5; i++, guardian = next) {
        next = guardian_of(launcher, guardian);
        CHECK(next > 0);
        if (i < 4)
            CHECK_EQ(kill(next, SIGKILL), 0);
    }
    /* The launcher warns after it has started the guardian, which this test may see before. */
    snprintf(expected, sizeof expected, "there is another one (process %d)\n", (int)guardian);
    while (said = test_read_file(said_path, NULL), !strstr(said, expected))
        usleep(10000);
    CHECK_CONTAINS(said, "fsdp: warning: somebody has killed the guardian of the ranks (process ");
    CHECK_EQ(kill(launcher, SIGKILL), 0);
    CHECK_EQ(waitpid(launcher, NULL, 0), launcher);
    while (processes_with(path) > 0)
        usleep(10000);
}

/* A launcher that is stopped hears last how rank 1 has ended, when a peer has found it dead, and ended, too. */
static void end_behind_the_launcher(const char *what, int code, int ended_by, const char *reason)
{
    char *directory = test_directory(), *path = test_path(directory, "errors"), *go = test_path(directory, "errors.go");
    char *said_path = test_path(directory, "said"), *said, expected[200];
    fsdp_launch_report report;
    pid_t launcher = fork();

    if (launcher == 0) {
        (void)launch(2, what, path, LONG_MS, &report);
        snprintf(expected, sizeof expected, "%.150s, %d", report.reason, report.ended_by);
        test_write_file(said_path, expected, strlen(expected));
        _exit(report.exit_code);
    }
    while (processes_with(path) < 2)
        usleep(10000);
    CHECK_EQ(kill(launcher, SIGSTOP), 0);
    CHECK_EQ(waitid(P_PID, (id_t)launcher, &(siginfo_t){0}, WSTOPPED | WNOWAIT), 0);
    test_write_file(go, "", 0);
    while (access(path, F_OK) != 0 || !strstr(test_read_file(path, NULL), "0: rank 1 has died (process "))
        usleep(10000);
    while (processes_with(path) > 0)
        usleep(10000);
    CHECK_EQ(kill(launcher, SIGCONT), 0);
    CHECK_EQ(exit_status(launcher), code);
    said = test_read_file(said_path, NULL);
    snprintf(expected, sizeof expected, "%s, %d", reason, ended_by);
    CHECK_STRING(said, expected);
    test_directory_free(directory);
}

TEST(what_a_peer_finds_is_told_as_the_launcher_knows_it)
{
    end_behind_the_launcher("exit_when_told", 3, 0, "rank 1 exited with code 3");
    end_behind_the_launcher("kill_when_told", 128 + SIGKILL, SIGKILL, "rank 1 was killed by signal 9 (Killed)");
}

TEST(a_rank_that_ends_before_it_joins_is_not_waited_for_while_the_launcher_is_stopped)
{
    end_behind_the_launcher("early_when_told", 6, 0, "rank 1 exited with code 6");
}

TEST(the_environment_is_checked)
{
    fsdp_context *context = NULL;

    CHECK_OK(fsdp_context_from_env(&context));
    CHECK_EQ(fsdp_context_world_size(context), 1);
    fsdp_context_free(context);
    setenv("WORLD_SIZE", "4", 1);
    CHECK_ERROR(fsdp_context_from_env(&context), FSDP_INVALID, "WORLD_SIZE is 4, but RANK is not set");
    setenv("RANK", "4", 1);
    CHECK_ERROR(fsdp_context_from_env(&context), FSDP_INVALID,
                "environment variable RANK is '4', not a number from 0 to 3");
    setenv("RANK", "two", 1);
    CHECK_ERROR(fsdp_context_from_env(&context), FSDP_INVALID, "RANK is 'two'");
    setenv("RANK", "0", 1);
    setenv("FSDP_SHM_FD", "three", 1);
    CHECK_ERROR(fsdp_context_from_env(&context), FSDP_INVALID, "FSDP_SHM_FD is 'three', not a number from 0");
    setenv("FSDP_SHM_FD", "999", 1);
    CHECK_ERROR(fsdp_context_from_env(&context), FSDP_IO, "file descriptor 999");
    CHECK_NULL(context);
}

TEST(silly_numbers_of_threads_are_refused)
{
    static const char *const silly[] = {"0", "-1", "abc", "100000", "99999999999999999999", "4;2", " "};
    fsdp_context *context = NULL;

    for (size_t i = 0; i < sizeof silly / sizeof *silly; i++) {
        char expected[120];

        setenv("OMP_NUM_THREADS", silly[i], 1);
        snprintf(expected, sizeof expected, "OMP_NUM_THREADS is '%s', not a number from 1 to 1024", silly[i]);
        CHECK_ERROR(fsdp_context_from_env(&context), FSDP_INVALID, expected);
        CHECK_NULL(context);
    }
    setenv("OMP_NUM_THREADS", "4,2", 1);
    CHECK_OK(fsdp_context_from_env(&context));
    CHECK_EQ(fsdp_context_threads(context), 4);
    fsdp_context_free(context);
    setenv("OMP_NUM_THREADS", "", 1);
    CHECK_OK(fsdp_context_from_env(&context));
    CHECK(fsdp_context_threads(context) >= 1);
    fsdp_context_free(context);
}

/* What a rank finds in GOMP_SPINCOUNT. */
static void check_spin(const char *test)
{
    const char *argv[] = {"sh", "-c", test, NULL};

    CHECK_OK(fsdp_launch(&(fsdp_launch_options){.ranks = 2, .argv = argv}, NULL));
}

TEST(threads_of_ranks_spin_for_a_short_time_unless_the_user_says)
{
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    check_spin("test \"$GOMP_SPINCOUNT\" = 3000");
    setenv("GOMP_SPINCOUNT", "7", 1);
    check_spin("test \"$GOMP_SPINCOUNT\" = 7");
    unsetenv("GOMP_SPINCOUNT");
    setenv("OMP_WAIT_POLICY", "active", 1);
    check_spin("test -z \"$GOMP_SPINCOUNT\"");
}
