/* process_one.c - runs the program as process 1. */
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/context.h"
#include "cli/own_process.h"
#include "comm/health/process.h"
#include "launch/launch.h"

/* Returns whether `child` has ended. It reaps all other processes, too. */
static bool reap(pid_t child, int *status)
{
    pid_t ended;
    int ended_status;
    bool found = false;

    while ((ended = waitpid(-1, &ended_status, WNOHANG)) > 0) {
        if (ended != child)
            continue;
        *status = ended_status;
        found = true;
    }
    return found;
}

/* Returns whether `child` has ended, as far as a signal tells it, which is passed on otherwise. */
static bool hear(pid_t child, const siginfo_t *info, int *status)
{
    if (info->si_signo == SIGCHLD)
        return reap(child, status);
    if (info->si_code != SI_KERNEL) /* signals of a terminal reach the child anyway */
        (void)kill(child, info->si_signo);
    return false;
}

/* Returns whether `child` has ended, but a debugger keeps it, so that no signal tells it: for two looks, since it may
 * have ended between them. `*looks` counts those that have seen that. */
static bool is_kept(pid_t child, int *looks, int *status)
{
    char who[FSDP__WHO_TRACES];

    *looks = fsdp__process_is_kept(child, status, who) ? *looks + 1 : 0;
    if (*looks < 2)
        return false;
    fsdp__warn("process %d has ended, but %s has not let it go: it is not waited for", (int)child, who);
    return true;
}

static _Noreturn void serve(pid_t child, const sigset_t *signals)
{
    const struct timespec a_while = {.tv_nsec = FSDP__KEPT_MS * 1000000L};
    bool ended = false;
    int status = 0, looks = 0;
    siginfo_t info;

    while (!ended) {
        if (sigtimedwait(signals, &info, &a_while) >= 0)
            ended = hear(child, &info, &status);
        else
            ended = reap(child, &status) || is_kept(child, &looks, &status);
    }
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

void fsdp__leave_process_one(void)
{
    sigset_t all, before;
    pid_t child;

    if (getpid() != 1)
        return;
    (void)signal(SIGCHLD, SIG_DFL);
    sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before);
    child = fork();
    if (child > 0)
        serve(child, &all);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
}
