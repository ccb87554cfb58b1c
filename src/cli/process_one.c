/* process_one.c - runs the program as process 1. */
#include <sys/wait.h>
#include <unistd.h>

#include "cli/own_process.h"

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

static _Noreturn void serve(pid_t child, const sigset_t *signals)
{
    siginfo_t info;
    int status = 0;

    for (;;) {
        if (sigwaitinfo(signals, &info) < 0)
            continue;
        if (info.si_signo == SIGCHLD) {
            if (reap(child, &status))
                break;
        } else if (info.si_code != SI_KERNEL) { /* signals of a terminal reach the child anyway */
            (void)kill(child, info.si_signo);
        }
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
