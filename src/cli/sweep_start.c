/* sweep_start.c - a run of a sweep as a child process: what it is told, and how it is waited for. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/cli.h"
#include "cli/sweep.h"
#include "comm/health/process.h"
#include "launch/launch.h"

/* Runs as the child: it has a process group of its own, so that a Ctrl-C reaches it by this process alone. Both
 * processes make the group, since either may run first. */
static _Noreturn void be_child(const char *const *argv, const sigset_t *mask)
{
    fsdp__lead_own_group();
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* Passes a signal on to a run. Returns whether it ends the run: one that is stopped would not hear it, so it is
 * continued. A Ctrl-Z is for all that the run has started, as a terminal would send it. */
static bool pass_on(pid_t child, int number)
{
    bool ends = number == SIGINT || number == SIGTERM || number == SIGHUP;

    (void)kill(number == SIGTSTP ? -child : child, number);
    if (ends)
        (void)kill(-child, SIGCONT);
    return ends;
}

/* Returns the next signal; 0: none has come for a while. */
static int next_signal(const sigset_t *signals)
{
    int number = sigtimedwait(signals, NULL, &(struct timespec){.tv_nsec = FSDP__KEPT_MS * 1000000L});

    return number > 0 ? number : 0;
}

/* Returns whether the child has ended, or stopped: `*stopped`. */
static bool has_changed(pid_t child, bool *stopped)
{
    siginfo_t info = {0};

    if (waitid(P_PID, (id_t)child, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) != 0 || info.si_pid != child)
        return false;
    *stopped = info.si_code == CLD_STOPPED;
    return true;
}

/* A run that is waited for. */
typedef struct watched {
    pid_t child;
    int first;  /* signal that ends a run; 0: none has come */
    bool stops; /* a Ctrl-Z has come: this process stops as soon as the child has */
    bool told;  /* the user knows that the child hears no signal */
    bool gone;  /* it has ended, or nobody waits for it any more */
} watched;

static void hear(watched *w, int number)
{
    w->stops = number == SIGTSTP || (w->stops && (number == SIGUSR1 || number == SIGUSR2));
    if (!pass_on(w->child, number))
        return;
    if (w->told) {
        (void)kill(-w->child, SIGKILL);
        w->gone = true;
    }
    if (w->first == 0)
        w->first = number;
}

/* Looks for what no signal tells: a debugger may keep a run that has ended, and a debugger or a frozen control group
 * may keep a run from ending. */
static void look(watched *w, int *status)
{
    char who[FSDP__WHO_TRACES], why[120];

    w->gone = fsdp__process_is_kept(w->child, status, who);
    if (w->gone || w->told || w->first == 0 || !fsdp__process_is_held(w->child, why, sizeof why))
        return;
    w->told = true;
    fsdp__failure("the run (process %d) does not hear that it is to end, because %s: the same once more ends the sweep",
                  (int)w->child, why);
}

/* Waits for the child, and passes signals on to it. After a Ctrl-Z the child goes on with this process. Returns the
 * first signal that ends a run; 0: none has come. */
static int wait_for(pid_t child, const sigset_t *signals, int *status)
{
    watched w = {.child = child};

    while (!w.gone) {
        int number = next_signal(signals);
        bool stopped;

        if (number > 0 && number != SIGCHLD)
            hear(&w, number);
        if (!has_changed(child, &stopped)) {
            if (number == 0)
                look(&w, status);
        } else if (!stopped) {
            w.gone = true;
        } else if (w.stops) {
            w.stops = false;
            fsdp__stop_with_job();
            (void)kill(-child, SIGCONT);
        }
    }
    (void)fsdp__await_end(child, "the run", status);
    return w.first;
}

int fsdp__sweep_start(const char *const *argv, int *exit_status)
{
    struct sigaction child_action;
    sigset_t signals, before;
    int status = 0, signal;
    pid_t child;

    fsdp__choose_signals(&signals, true);
    sigprocmask(SIG_BLOCK, &signals, &before);
    fsdp__expect_children(&child_action);
    fflush(NULL);
    child = fork();
    if (child == 0)
        be_child(argv, &before);
    if (child > 0)
        (void)setpgid(child, child);
    signal = child > 0 ? wait_for(child, &signals, &status) : 0;
    (void)sigaction(SIGCHLD, &child_action, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    *exit_status = child < 0 ? FSDP__FAILED : fsdp__exit_status(status);
    if (child < 0)
        fsdp__failure("cannot start a run: %s%s", strerrordesc_np(errno), fsdp__limit_behind(errno));
    return signal;
}
