/* supervise.c - fsdp_launch: watches the ranks until the last one is gone, and says who failed first. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/health/process.h"
#include "comm/health/verdict.h"
#include "launch/descriptors.h"
#include "launch/echo.h"
#include "launch/guardian.h"
#include "launch/launch.h"
#include "watch/flight.h"

enum {
    DEFAULT_GRACE_MS = 2000,
    KILLED_MS = 1000,  /* after which those that were killed are named if they have not ended */
    OWN_END_MS = 500,  /* ranks that learn of a failure have this long to report it and end by themselves */
    MOST_GUARDIANS = 4 /* after the first: whoever kills so many means it */
};

/* Says how ranks are made to end. */
typedef enum stage {
    STAGE_RUNNING,
    STAGE_TOLD, /* their collectives fail */
    STAGE_TERMINATED,
    STAGE_KILLED,
    STAGE_NAMED /* the user knows whom this process still waits for */
} stage;

typedef struct supervisor {
    fsdp__arena *arena;
    fsdp__child *children;
    fsdp__guardian guardian;
    fsdp__flight_memory flight;
    int guardians;       /* number of guardians that somebody has killed */
    long long oom_kills; /* before the first rank was started */
    int ranks, running;
    int grace_ms, interrupt_grace_ms;
    int first;          /* the first rank that ended with a failure; -1 */
    int interrupt;      /* the signal that this process got; 0 */
    bool failed_before; /* a rank had failed when it came */
    int64_t interrupt_ns;
    bool echoes; /* what comes may be an echo of it (echo.h) */
    int again;   /* the signal that came behind it, and has told the ranks to end at once; 0 */
    stage stage;
    int64_t next_stage_ns;
} supervisor;

/* Returns the signal that ended the rank; 0: it exited. */
static int signal_of(const supervisor *s, int rank)
{
    int status = s->children[rank].status;

    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Returns whether the signal that this process got ended the run. If a rank has failed before, that did, unless the
 * rank died of the same signal, which somebody has then sent to all. */
static bool was_interrupted(const supervisor *s)
{
    bool same = s->first >= 0 && !s->children[s->first].was_signalled && signal_of(s, s->first) == s->interrupt;

    return s->interrupt && (!s->failed_before || same);
}

/* ---- what they did last ---- */

/* Makes the memory for that. A run that could go on without goes on. */
static void begin_flight(supervisor *s, const char *folder)
{
    if (folder && fsdp__flight_memory_create(s->ranks, folder, &s->flight) != FSDP_OK)
        fsdp__warn("the last calls of the ranks are not recorded: %s", fsdp_last_error());
}

/* Writes it, since somebody has asked for it. */
static void show_flight(const supervisor *s)
{
    char folder[FSDP__FLIGHT_TEXT];

    if (fsdp__flight_memory_write(&s->flight, folder) == FSDP_OK)
        fsdp__warn("the last calls of all ranks are in '%s': fsdp flight %s", folder, FSDP__SHELL_WORD(folder));
    else
        fsdp__warn("the last calls of the ranks cannot be written: %s", fsdp_last_error());
}

/* Writes it at the end, if it tells anything: a rank has failed, or did not even end when it was told to. */
static void end_flight(supervisor *s, bool failed, fsdp_launch_report *report)
{
    fsdp__error_aside aside;

    fsdp__put_error_aside(&aside);
    if (failed && (!was_interrupted(s) || s->stage >= STAGE_KILLED) && fsdp__flight_memory_tells(&s->flight) &&
        fsdp__flight_memory_write(&s->flight, report->flight) != FSDP_OK)
        fsdp__warn("the last calls of the ranks could not be written: %s", fsdp_last_error());
    fsdp__put_error_back(&aside);
    fsdp__flight_memory_free(&s->flight);
}

/* ---- what came of it ---- */

static fsdp_status conclude(const supervisor *s, fsdp_launch_report *report)
{
    const fsdp__board *board = s->arena->board;
    int rank = board->abort_rank, status;

    report->interrupted_by = s->interrupt;
    if (was_interrupted(s)) {
        report->exit_code = 128 + s->interrupt;
        snprintf(report->reason, sizeof report->reason, "interrupted by signal %d (%s)", s->interrupt,
                 strsignal(s->interrupt));
        return FSDP_FAIL(FSDP_INTERRUPTED, "%s", report->reason);
    }
    if (s->first < 0)
        return FSDP_OK;
    /* A rank that reported a failure counts as the first one, even if another ended sooner. */
    if (rank < 0 || fsdp__ended_well(s->children[rank].status))
        rank = s->first;
    status = s->children[rank].status;
    report->ended_by = signal_of(s, s->children[rank].was_signalled || !WIFSIGNALED(status) ? s->first : rank);
    report->failed_rank = rank;
    report->exit_code = fsdp__exit_status(status);
    /* A peer that was first to find it dead knows less of how it ended. */
    if (!s->children[rank].was_signalled &&
        (fsdp__verdict_was_found(board, rank) || (WIFSIGNALED(status) && board->abort_rank != rank)))
        fsdp__describe_ending(rank, status, s->oom_kills, report->reason, sizeof report->reason);
    else
        snprintf(report->reason, sizeof report->reason, "%.*s", (int)sizeof report->reason - 1, board->abort_text);
    return FSDP_FAIL(FSDP_COMM, "%s", report->reason);
}

/* ---- making them end ---- */

static void signal_all(supervisor *s, int signal)
{
    for (int r = 0; r < s->ranks; r++) {
        fsdp__child *child = &s->children[r];
        char who[FSDP__WHO_TRACES];
        int status;

        child->was_signalled |= child->running && !fsdp__process_is_kept(child->pid, &status, who);
        fsdp__signal_child(child, signal);
    }
}

/* Asks all to end. A stopped process (Ctrl-Z, kill -STOP) would not hear it, so it is continued. */
static void end_all(supervisor *s, int signal)
{
    signal_all(s, signal);
    signal_all(s, SIGCONT);
}

static void enter_stage(supervisor *s, stage next, int wait_ms)
{
    s->stage = next;
    s->next_stage_ns = fsdp__clock_ns() + (int64_t)wait_ms * 1000000;
}

static void kill_ranks(supervisor *s)
{
    fsdp__flight_memory_freeze(&s->flight);
    signal_all(s, SIGKILL);
    for (int r = 0; r < s->ranks; r++)
        s->children[r].was_killed = s->children[r].running;
    enter_stage(s, STAGE_KILLED, KILLED_MS);
}

/* Says what came of the run, and whose end this process still waits for. */
static void name_remaining(supervisor *s)
{
    fsdp_launch_report so_far = {.failed_rank = -1};
    int first = 0;

    while (!s->children[first].running)
        first++;
    (void)conclude(s, &so_far);
    fsdp__warn("%s; %d rank%s been killed, and %s not ended (rank %d is process %d): waiting for %d s at most",
               so_far.reason, s->running, s->running == 1 ? " has" : "s have", s->running == 1 ? "has" : "have", first,
               (int)s->children[first].pid, FSDP__LAST_WAIT_S);
    enter_stage(s, STAGE_NAMED, 1000 * FSDP__LAST_WAIT_S);
}

static void child_ended(supervisor *s, int rank)
{
    int status = s->children[rank].status;
    char text[400];

    s->running--;
    /* It may not have left by itself, so tell peers that wait for it. */
    if (fsdp__ended_well(status)) {
        fsdp__board_leave(s->arena->board, rank);
        return;
    }
    fsdp__describe_ending(rank, status, s->oom_kills, text, sizeof text);
    fsdp__flight_memory_freeze(&s->flight);
    if (!s->children[rank].was_signalled)
        fsdp__flight_memory_ending(&s->flight, rank, text);
    fsdp__verdict_end(s->arena->board, FSDP__GONE, rank, text);
    if (s->first < 0)
        s->first = rank;
    if (s->stage == STAGE_RUNNING)
        enter_stage(s, STAGE_TOLD, OWN_END_MS < s->grace_ms ? OWN_END_MS : s->grace_ms);
    /* The ranks that are being waited for cannot finish what they do any more. */
    if (s->stage == STAGE_TERMINATED && s->next_stage_ns > fsdp__clock_ns() + (int64_t)s->grace_ms * 1000000)
        enter_stage(s, STAGE_TERMINATED, s->grace_ms);
}

/* Waits for nobody any more. */
static void leave_ranks(supervisor *s)
{
    for (int r = 0; r < s->ranks; r++)
        if (s->children[r].running) {
            fsdp__leave_child(&s->children[r], s->guardian.fd);
            child_ended(s, r);
        }
}

static void next_stage(supervisor *s)
{
    if (s->stage == STAGE_TOLD) {
        end_all(s, SIGTERM);
        enter_stage(s, STAGE_TERMINATED, s->grace_ms);
    } else if (s->stage == STAGE_TERMINATED) {
        kill_ranks(s);
    } else if (s->stage == STAGE_KILLED) {
        name_remaining(s);
    } else if (s->stage == STAGE_NAMED) {
        leave_ranks(s);
    }
}

/* Stops the ranks along with this process, and continues them with it: Ctrl-Z reaches only this process's group. */
static void suspend(supervisor *s)
{
    int64_t stopped_ns = fsdp__clock_ns();

    for (int r = 0; r < s->ranks; r++)
        fsdp__signal_child(&s->children[r], SIGSTOP);
    fsdp__stop_with_job();
    for (int r = 0; r < s->ranks; r++)
        fsdp__signal_child(&s->children[r], SIGCONT);
    s->next_stage_ns += fsdp__clock_ns() - stopped_ns;
}

/* Begins to wait for echoes of a signal that has come now. */
static void expect_echoes(supervisor *s)
{
    s->interrupt_ns = fsdp__clock_ns();
    s->echoes = true;
}

/* Makes the ranks end sooner, since the user has asked again: at first by that signal, at which they remove what they
 * have not finished. */
static void hurry(supervisor *s, int signal)
{
    if (s->stage == STAGE_NAMED) {
        leave_ranks(s);
    } else if (s->stage < STAGE_KILLED && s->again) {
        kill_ranks(s);
    } else if (s->stage < STAGE_KILLED) {
        s->again = signal;
        expect_echoes(s);
        end_all(s, signal);
        enter_stage(s, STAGE_TERMINATED, FSDP__MIN(s->grace_ms, DEFAULT_GRACE_MS));
    }
}

/* Ends the wait for echoes. A rank that has heard of the first signal late may have taken the second for its echo, and
 * gets it once more. */
static void end_echoes(supervisor *s)
{
    s->echoes = false;
    if (s->again && s->stage < STAGE_KILLED)
        end_all(s, s->again);
}

static void interrupted(supervisor *s, int signal)
{
    if (s->echoes && (s->again || signal == s->interrupt))
        return;
    if (s->interrupt) {
        hurry(s, signal);
        return;
    }
    s->interrupt = signal;
    expect_echoes(s);
    s->failed_before = s->first >= 0 || s->arena->board->abort_rank >= 0;
    if (s->stage >= STAGE_KILLED)
        return;
    /* The ranks get the same signal, and time to end by themselves. */
    end_all(s, signal);
    enter_stage(s, STAGE_TERMINATED, s->first >= 0 ? s->grace_ms : s->interrupt_grace_ms);
}

/* Passes SIGUSR1 on to the programs, which know what to do with it, and not to what they have started. */
static void pass_on(const supervisor *s)
{
    for (int r = 0; r < s->ranks; r++)
        if (s->children[r].running)
            (void)kill(s->children[r].pid, SIGUSR1);
}

/* ---- the loop ---- */

static void handle_signals(supervisor *s, int fd)
{
    struct signalfd_siginfo info;

    while (read(fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGTSTP)
            suspend(s);
        else if (info.ssi_signo == SIGUSR1)
            pass_on(s);
        else if (info.ssi_signo == SIGUSR2)
            show_flight(s);
        else if (info.ssi_signo != SIGCHLD)
            interrupted(s, (int)info.ssi_signo);
}

/* Returns how long to wait for what happens, as poll takes it. `*for_echo`: an echo is what is waited for. */
static int timeout_ms(const supervisor *s, bool *for_echo)
{
    int64_t left = s->next_stage_ns - fsdp__clock_ns(), echo = fsdp__echo_left_ns(s->interrupt_ns);
    bool stays = s->stage == STAGE_RUNNING;

    left = FSDP__MAX(left, 0);
    *for_echo = s->echoes && (stays || echo < left);
    if (*for_echo)
        left = echo;
    return stays && !*for_echo ? -1 : (int)((left + 999999) / 1000000);
}

/* Starts another guardian, since somebody has killed the old one. */
static void renew_guardian(supervisor *s)
{
    pid_t killed = s->guardian.pid;

    fsdp__guardian_end(&s->guardian);
    if (s->guardians++ < MOST_GUARDIANS && fsdp__guardian_start(s->ranks, &s->guardian) == FSDP_OK) {
        for (int r = 0; r < s->ranks; r++)
            if (s->children[r].running)
                fsdp__guardian_watch(s->guardian.fd, s->children[r].pid);
        fsdp__warn("somebody has killed the guardian of the ranks (process %d); there is another one (process %d)",
                   (int)killed, (int)s->guardian.pid);
        return;
    }
    fsdp__warn("somebody has killed the guardian of the ranks (process %d), and there is no other one (%s): if this "
               "process (%d) is killed, too, processes that the ranks have started will go on running",
               (int)killed, s->guardians > MOST_GUARDIANS ? "it was not the first" : fsdp_last_error(), (int)getpid());
}

/* Learns of ends. It checks all ranks: one SIGCHLD may stand for several. */
static void reap(supervisor *s, bool (*reap_one)(fsdp__child *child, int guardian_fd))
{
    for (int r = 0; r < s->ranks; r++)
        if (reap_one(&s->children[r], s->guardian.fd))
            child_ended(s, r);
}

static void watch(supervisor *s, int signal_fd)
{
    struct pollfd fds[2] = {{.fd = signal_fd, .events = POLLIN}};

    while (s->running > 0) {
        bool for_echo, looks;
        int ready, wait_ms = timeout_ms(s, &for_echo);

        looks = wait_ms < 0 || wait_ms > FSDP__KEPT_MS;
        fds[1] = (struct pollfd){.fd = s->guardian.fd}; /* below 0: there is none, and poll skips it */
        ready = poll(fds, 2, looks ? FSDP__KEPT_MS : wait_ms);
        reap(s, fsdp__reap); /* first: a rank that has failed did so before the signal */
        if (ready > 0)
            handle_signals(s, signal_fd);
        if (ready > 0 && fds[1].revents)
            renew_guardian(s);
        if (ready == 0 && looks)
            reap(s, fsdp__reap_kept);
        else if (ready == 0 && for_echo)
            end_echoes(s);
        else if (ready == 0 && s->running > 0)
            next_stage(s);
    }
}

/* ---- all of it ---- */

static fsdp_status start(const fsdp_launch_options *options, supervisor *s, const sigset_t *read,
                         const sigset_t *before, fsdp_launch_report *report)
{
    sigset_t blocked = *before;
    fsdp_status status;

    /* The signals are blocked here, to be read from a descriptor; the program gets them as any program does. A caller
     * that has blocked SIGUSR1 or SIGUSR2 until it can be handled has ranks that block it, too. */
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(read, signal) == 1 && signal != SIGUSR1 && signal != SIGUSR2)
            sigdelset(&blocked, signal);
    s->oom_kills = fsdp__oom_kills();
    status = fsdp__guardian_start(options->ranks, &s->guardian);
    if (status == FSDP_OK)
        status = fsdp__spawn(options, s->arena, s->flight.fd, &blocked, s->guardian.fd, s->children);
    if (status == FSDP_OK)
        return FSDP_OK;
    report->exit_code = status == FSDP_NOT_FOUND ? 127 : 126;
    snprintf(report->reason, sizeof report->reason, "%s", fsdp_last_error());
    return fsdp_fail_hop(status, __FILE__, __LINE__);
}

static fsdp_status run(const fsdp_launch_options *options, supervisor *s, fsdp_launch_report *report)
{
    struct sigaction child_action;
    sigset_t signals, before;
    fsdp_status status = FSDP_OK;
    int signal_fd;

    fsdp__choose_signals(&signals, s->flight.fd >= 0);
    fsdp__expect_children(&child_action);
    /* Block the signals before the first rank is started, since its end might come before anybody looks. */
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_fd < 0) {
        status = FSDP_FAIL(FSDP_IO, "cannot watch for signals: %s%s", strerror(errno), fsdp__limit_behind(errno));
        goto out;
    }
    FSDP_TRY_GOTO(status, start(options, s, &signals, &before, report), out);
    s->running = options->ranks;
    watch(s, signal_fd);
    status = conclude(s, report);
out:
    fsdp__guardian_end(&s->guardian);
    if (signal_fd >= 0)
        close(signal_fd);
    (void)sigaction(SIGCHLD, &child_action, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

fsdp_status fsdp_launch(const fsdp_launch_options *options, fsdp_launch_report *report)
{
    fsdp_launch_report own;
    supervisor s = {.first = -1, .flight.fd = -1};
    fsdp_status status = FSDP_OK;
    unsigned taken;

    if (!report)
        report = &own;
    *report = (fsdp_launch_report){.failed_rank = -1};
    if (!options || !options->argv || !options->argv[0] || options->ranks < 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot launch: a program and at least one rank are required");
    s.ranks = options->ranks;
    s.grace_ms = options->grace_ms > 0 ? options->grace_ms : DEFAULT_GRACE_MS;
    s.interrupt_grace_ms = options->interrupt_grace_ms > 0 ? options->interrupt_grace_ms : s.grace_ms;
    /* Do this first: what the ranks print must not go into their shared memory, nor into a pipe. */
    FSDP_TRY(fsdp__take_standard_descriptors(&taken));
    s.children = fsdp__calloc((size_t)options->ranks, sizeof *s.children);
    if (!s.children) {
        status = FSDP_NO_MEMORY;
        goto out;
    }
    FSDP_TRY_GOTO(status, fsdp__shm_create(options->ranks, &s.arena), out);
    begin_flight(&s, options->flight);
    status = run(options, &s, report);
    end_flight(&s, status != FSDP_OK, report);
out:
    fsdp__arena_unref(s.arena);
    fsdp__free(s.children);
    fsdp__give_standard_descriptors(taken);
    return status;
}
