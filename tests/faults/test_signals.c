/* test_signals.c - a run that is cut off by signals: it ends with one message and a shell's status, and leaves nothing.
 */
#include <errno.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "faults/run.h"

#define START(...) run_start(f->directory, (const char *const[]){PROGRAM, __VA_ARGS__, NULL})
#define ENDLESS "train", f->config, "--training.steps=1000000", "--metrics.log_freq=1"

static void send(run *r, const char *entry, int signal)
{
    pid_t pid = run_await_process(r, entry);

    CHECK(pid > 0);
    CHECK_EQ(kill(pid, signal), 0);
}

/* ---- any signal, to anybody, at any time ---- */

typedef enum victim {
    VICTIM_RANK,
    VICTIM_LAUNCHER,
    VICTIM_SINGLE,
    VICTIMS
} victim;

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGKILL};
/* What it has printed when it is sent: nothing, the banner, some steps, the last step (the export follows). */
static const char *const moments[] = {"", "train: ", "step:  3", "done: "};
enum {
    SIGNALS = sizeof signals / sizeof *signals,
    MOMENTS = sizeof moments / sizeof *moments
};

/* Processes that the signal's arrival is spread over: nothing is checked against it. */
static void spread(unsigned *draw)
{
    *draw = *draw * 1103515245u + 12345u;
    nanosleep(&(struct timespec){.tv_nsec = (long)(*draw >> 16) % 40 * 1000000}, NULL);
}

static void check_end(const run *r, victim who, int signal, const char *moment)
{
    const program *p = &r->program;
    /* What a run before left half saved is finished, and told: no message about an end. */
    int said = test_count(p->output, "fsdp: ") - test_count(p->output, "is now finished"), died = 128 + signal;
    bool over = p->status == 0; /* it was faster than the signal */

    if (who != VICTIM_RANK && p->status != died && !over)
        TEST_FAIL("signal %d at '%s' to %d: status %d:\n%s", signal, moment, (int)who, p->status, p->output);
    /* A launcher that is told too early, or killed, says nothing: its status does. */
    if (said > 1 || (said == 0 && who == VICTIM_RANK && !over) || (said == 1 && over))
        TEST_FAIL("signal %d at '%s' to %d: %d messages, status %d:\n%s", signal, moment, (int)who, said, p->status,
                  p->output);
}

static void cut_off(fixture *f, victim who, int signal, const char *moment, unsigned *draw)
{
    run r = who == VICTIM_SINGLE ? START("train", f->config, "--training.steps=8", "--metrics.log_freq=1")
                                 : START("train", f->config, "--training.steps=8", "--metrics.log_freq=1", "-n", "3");
    pid_t target = r.program.pid;

    if (*moment)
        (void)run_await_output(&r, moment);
    if (who == VICTIM_RANK)
        target = run_await_process(&r, *draw & 1 << 16 ? "RANK=0" : "RANK=2");
    spread(draw);
    if (target > 0)
        (void)kill(target, signal);
    run_wait(&r);
    run_await_nothing(&r);
    check_end(&r, who, signal, moment);
}

FIXTURE_TEST(a_run_ends_at_any_signal_to_anybody_at_any_time)
{
    unsigned draw = 1;
    int rounds = test_long() ? 200 : 16;

    for (int i = 0; i < rounds; i++)
        if (test_takes(i / VICTIMS + i % VICTIMS, 1, 3))
            cut_off(f, (victim)(i % VICTIMS), signals[i / VICTIMS % SIGNALS], moments[(draw >> 18) % MOMENTS], &draw);
}

/* ---- what was ignored ---- */

FIXTURE_TEST(what_was_ignored_at_the_start_stays_ignored)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        char n[16];
        run r;

        snprintf(n, sizeof n, "-n%d", ranks);
        r = run_start(f->directory, (const char *const[]){"env", "--ignore-signal=HUP", "--ignore-signal=INT", PROGRAM,
                                                          ENDLESS, n, NULL});
        CHECK(run_await_output(&r, "step:  1"));
        kill(r.program.pid, SIGHUP);
        kill(r.program.pid, SIGINT);
        if (ranks > 1)
            send(&r, "RANK=1", SIGHUP);
        CHECK(run_await_output(&r, "step: 100")); /* it goes on */
        kill(r.program.pid, SIGTERM);
        run_wait(&r);
        run_await_nothing(&r);
        CHECK_EQ(r.program.status, 128 + SIGTERM);
    }
}

FIXTURE_TEST(ranks_are_waited_for_although_children_were_ignored)
{
    program p = program_run(f->directory, 3,
                            (const char *const[]){"env", "--ignore-signal=CHLD", PROGRAM, "run", "-n", "2", "--", "sh",
                                                  "-c", "exit 3", NULL});

    CHECK_CONTAINS(p.output, "exited with code 3");
}

/* ---- statuses ---- */

FIXTURE_TEST(the_status_is_a_shells)
{
    char script[700];
    program p;

    p = program_run(f->directory, 128 + SIGSEGV,
                    (const char *const[]){PROGRAM, "run", "-n", "2", "--", "sh", "-c", "kill -SEGV $$", NULL});
    CHECK_CONTAINS(p.output, "was killed by signal 11");
    p = program_run(f->directory, 128 + SIGXFSZ,
                    (const char *const[]){PROGRAM, "run", "-n", "1", "--", "sh", "-c", "kill -XFSZ $$", NULL});
    CHECK_CONTAINS(p.output, "'ulimit -f'");
    program_run(f->directory, 127, (const char *const[]){PROGRAM, "run", "-n", "2", "--", "./nothing", NULL});
    /* A loop of the shell's stops where the program says that it was interrupted. */
    snprintf(script, sizeof script,
             "set -m; for i in 1 2; do %s run -n 2 -- sh -c 'test $RANK = 1 || kill -INT $PPID; exec sleep 1000'; "
             "echo status $?; done",
             PROGRAM);
    p = program_run(f->directory, 128 + SIGINT, (const char *const[]){"bash", "-c", script, NULL});
    CHECK_EQ(test_count(p.output, "interrupted by signal 2"), 1);
}

/* ---- what is kept ---- */

FIXTURE_TEST(a_run_that_keeps_nothing_says_so_and_what_was_lost)
{
    static const int ends[] = {SIGTERM, SIGINT, SIGHUP};

    for (int i = 0; i < 6; i++) {
        long step = 0, told;
        char n[16], *at;
        run r;

        snprintf(n, sizeof n, "-n%d", 1 + i % 2);
        r = START(ENDLESS, n, "--export.path=");
        CHECK(run_await_output(&r, "step:  3"));
        kill(r.program.pid, ends[i / 2]);
        run_wait(&r);
        run_await_nothing(&r);
        CHECK_EQ(r.program.status, 128 + ends[i / 2]);
        CHECK_EQ(test_count(r.program.output, "keeps:  nothing: there is no export.path"), 1);
        CHECK_EQ(test_count(r.program.output, ": nothing was kept (checkpoint.folder keeps checkpoints)"), 1);
        for (at = r.program.output; (at = strstr(at, "step: ")); at++)
            step = strtol(at + 6, NULL, 10);
        at = CHECK_PTR(strstr(r.program.output, " after step "));
        CHECK_EQ(test_count(r.program.output, "fsdp: "), 1);
        told = strtol(at + 12, NULL, 10); /* the last that has a line, or one whose line was still to come */
        CHECK(told >= step && told <= step + 1);
    }
}

/* With training.epochs training.steps, which is 30, says nothing. */
FIXTURE_TEST(a_run_of_epochs_is_not_at_the_export_before_its_last_step)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        char n[16];
        run r;

        snprintf(n, sizeof n, "-n%d", ranks);
        r = START("train", f->config, "--training.epochs=100000", "--metrics.log_freq=1", n);
        CHECK(run_await_output(&r, "step: 31 "));
        kill(r.program.pid, SIGTERM);
        run_wait(&r);
        run_await_nothing(&r);
        CHECK_EQ(r.program.status, 128 + SIGTERM);
        CHECK_EQ(test_count(r.program.output, ": nothing was kept"), 1);
        CHECK_NULL(strstr(r.program.output, "at the export"));
    }
}

/* A run that saves writes the trace of all its ranks; one that does not says that it is lost. */
FIXTURE_TEST(a_trace_that_a_signal_cuts_short_is_written_or_missed)
{
    char *path = test_path(f->directory, "trace.json"), *kept = test_path(f->directory, "kept"), trace[256],
         folder[256];

    snprintf(trace, sizeof trace, "--metrics.trace.path=%s", path);
    snprintf(folder, sizeof folder, "--checkpoint.folder=%s", kept);
    for (int i = 0; i < 4; i++) {
        bool saves = i >= 2, alone = false; /* rank 0 has seen rank 1 end before its own signal */
        char n[16];
        run r;

        snprintf(n, sizeof n, "-n%d", 1 + i % 2);
        r = START(ENDLESS, n, "--export.path=", trace, "--metrics.trace.steps=2-900000",
                  saves ? folder : "--checkpoint.enable=false");
        CHECK(run_await_output(&r, "step:  3"));
        kill(r.program.pid, SIGINT);
        run_wait(&r);
        run_await_nothing(&r);
        CHECK_EQ(r.program.status, 128 + SIGINT);
        CHECK_EQ(test_count(r.program.output, "a trace was written to"), saves);
        alone = i % 2 && !saves && access(path, F_OK) == 0;
        CHECK_EQ(access(path, F_OK) == 0, saves || alone);
        CHECK_EQ(test_count(r.program.output, "was not written: the run has ended among the steps"), !saves && !alone);
        if (alone)
            CHECK_EQ(unlink(path), 0);
        if (saves) {
            size_t bytes;
            char *text = test_read_file(path, &bytes);

            CHECK_EQ(test_count(text, "\"incomplete\""), 0);
            CHECK_EQ(test_count(text, "\"name\":\"step 3\""), 1 + i % 2);
            CHECK_EQ(unlink(path), 0);
        }
        test_remove_tree(kept);
    }
}

/* One step in the test's folder; how often it says that it keeps nothing. */
static int count_keeps(const fixture *f, const char *export, const char *folder, const char *enable)
{
    program p = program_run(f->directory, 0,
                            (const char *const[]){"env", "-C", f->directory, PROGRAM, "train", f->config,
                                                  "--training.steps=1", export, folder, enable, NULL});
    int count = test_count(p.output, "keeps:  nothing");

    return count;
}

FIXTURE_TEST(a_run_that_keeps_something_does_not_say_that_it_does_not)
{
    CHECK_EQ(count_keeps(f, "--export.path=", NULL, NULL), 1);
    CHECK_EQ(count_keeps(f, "--export.path=out", NULL, NULL), 0);
    CHECK_EQ(count_keeps(f, "--export.path=", "--checkpoint.folder=kept", NULL), 0);
    CHECK_EQ(count_keeps(f, "--export.path=", "--checkpoint.folder=kept", "--checkpoint.enable=false"), 1);
}

/* ---- Ctrl-Z ---- */

/* Waits until the process is in `state` (a letter of /proc/PID/stat). */
static void await_state(pid_t pid, char state)
{
    for (int i = 0; i < PATIENCE_LOOKS; i++) {
        char path[64], text[600] = "", *at;
        FILE *file;

        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        file = fopen(path, "re");
        CHECK(file != NULL);
        CHECK(fgets(text, sizeof text, file) != NULL);
        fclose(file);
        at = strrchr(text, ')');
        if (at && at[2] == state)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    TEST_FAIL("process %d never came to state %c", (int)pid, state);
}

FIXTURE_TEST(a_suspended_run_stops_its_ranks_and_goes_on_with_them)
{
    run r = START(ENDLESS, "-n", "2");
    pid_t rank = run_await_process(&r, "RANK=1");

    CHECK(run_await_output(&r, "step:  1"));
    kill(r.program.pid, SIGTSTP);
    await_state(rank, 'T');
    await_state(r.program.pid, 'T');
    kill(r.program.pid, SIGCONT);
    kill(r.program.pid, SIGTERM);
    run_wait(&r);
    run_await_nothing(&r);
    CHECK_EQ(r.program.status, 128 + SIGTERM);
    /* A rank that somebody has stopped ends too. */
    r = START(ENDLESS, "-n", "2");
    CHECK(run_await_output(&r, "step:  1"));
    send(&r, "RANK=1", SIGSTOP);
    kill(r.program.pid, SIGTERM);
    run_wait(&r);
    run_await_nothing(&r);
    CHECK_EQ(r.program.status, 128 + SIGTERM);
}

/* ---- those behind the ranks ---- */

FIXTURE_TEST(what_ranks_have_started_ends_with_a_killed_launcher)
{
    run r = START("run", "-n", "2", "--", "sh", "-c", "sleep 1000 & echo rank $RANK has started it; wait");

    CHECK(run_await_output(&r, "rank 0 has"));
    CHECK(run_await_output(&r, "rank 1 has"));
    kill(r.program.pid, SIGKILL);
    run_wait(&r);
    run_await_nothing(&r);
    CHECK_EQ(r.program.status, 128 + SIGKILL);
}

/* ---- process 1 ---- */

/* The command as process 1 of a namespace; skipped where none can be made. */
static run start_as_process_one(fixture *f, const char *const *argv)
{
    const char *all[16] = {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"};
    program probe =
        program_start(f->directory, (const char *const[]){"unshare", "--pid", "--fork", "--mount-proc", "true", NULL});

    program_wait(&probe);
    test_skip_if(probe.status != 0, "no process namespaces here");
    for (int i = 0; argv[i]; i++)
        all[5 + i] = argv[i];
    return run_start(f->directory, all);
}

/* The only child, which is process 1 inside. */
static pid_t first_child(pid_t pid)
{
    char path[80], text[64] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    file = fopen(path, "re");
    if (!file || !fgets(text, sizeof text, file))
        TEST_FAIL("no children in %s", path);
    fclose(file);
    return atoi(text);
}

FIXTURE_TEST(as_process_one_signals_work)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        char n[16];
        run r;

        snprintf(n, sizeof n, "-n%d", ranks);
        r = start_as_process_one(f, (const char *const[]){PROGRAM, ENDLESS, n, NULL});
        CHECK(run_await_output(&r, "step:  1"));
        kill(first_child(r.program.pid), SIGTERM);
        run_wait(&r);
        run_await_nothing(&r);
        CHECK_EQ(r.program.status, 128 + SIGTERM);
    }
}

/* Those that nobody waits for become children of process 1. */
FIXTURE_TEST(as_process_one_nothing_dead_stays)
{
    static const char script[] = "for i in 1 2 3 4 5 6 7 8; do (true &); done; "
                                 "while grep -qs ') Z' /proc/[0-9]*/stat; do :; done; exit 5";
    run r = start_as_process_one(f, (const char *const[]){PROGRAM, "run", "-n", "1", "--", "bash", "-c", script, NULL});

    run_wait(&r);
    CHECK_EQ(r.program.status, 5);
}

/* Returns a process with this name among one and all that it has started; 0: there is none. */
static pid_t find_below(pid_t pid, const char *name)
{
    char path[80], text[64] = "";
    FILE *children;
    pid_t found = 0;
    int child;

    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    children = fopen(path, "re");
    if (children && fgets(text, sizeof text, children))
        found = strncmp(text, name, strlen(name)) == 0 && text[strlen(name)] == '\n' ? pid : 0;
    if (children)
        fclose(children);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    children = fopen(path, "re");
    while (children && found == 0 && fscanf(children, "%d", &child) == 1)
        found = find_below(child, name);
    if (children)
        fclose(children);
    return found;
}

/* This process, which is outside, traces a rank, or the child of process 1, as which the program goes on. Then nobody
 * inside hears of its end. */
static void check_kept(fixture *f, bool rank)
{
    static const char script[] = "echo ready; until test -e \"$0\"; do :; done; exit 5";
    char *go = test_path(f->directory, "go"), options[400];
    size_t before = strlen(getenv("ASAN_OPTIONS") ? getenv("ASAN_OPTIONS") : "");
    pid_t kept, ended;
    run r;

    /* A process that is traced cannot look for its leaks. */
    snprintf(options, sizeof options, "%s:detect_leaks=0", before ? getenv("ASAN_OPTIONS") : "");
    setenv("ASAN_OPTIONS", options, 1);
    r = start_as_process_one(f, (const char *const[]){PROGRAM, "run", "-n", "1", "--", "sh", "-c", script, go, NULL});
    options[before] = '\0';
    setenv("ASAN_OPTIONS", options, 1);
    CHECK(run_await_output(&r, "ready"));
    kept = rank ? find_below(r.program.pid, "sh") : first_child(first_child(r.program.pid));
    CHECK(kept > 0);
    test_skip_if(ptrace(PTRACE_SEIZE, kept, NULL, NULL) != 0, "nobody may trace here");
    test_write_file(go, "", 0);
    CHECK(run_await_output(&r, "has ended, but a process outside this container, which traces it, has not let it go"));
    while ((ended = waitpid(kept, NULL, __WALL)) < 0 && errno == EINTR)
        ;
    CHECK_EQ(ended, kept);
    run_wait(&r);
    CHECK_EQ(r.program.status, 5);
}

FIXTURE_TEST(as_process_one_a_rank_that_a_debugger_outside_keeps_is_not_waited_for)
{
    check_kept(f, true);
}

FIXTURE_TEST(as_process_one_its_child_that_a_debugger_keeps_is_not_waited_for)
{
    check_kept(f, false);
}

TEST_FILE_IN_MEMORY(false, NULL)
