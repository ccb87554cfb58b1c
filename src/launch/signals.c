/* signals.c - what a process that waits for others does with signals. */
#include <pthread.h>
#include <stddef.h>

#include "base/compiler.h"
#include "launch/launch.h"

void fsdp__choose_signals(sigset_t *out, bool flight)
{
    static const int choice[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGTSTP, SIGUSR2};
    struct sigaction action;

    sigemptyset(out);
    sigaddset(out, SIGCHLD);
    for (size_t i = 0; i < FSDP__COUNT_OF(choice) - !flight; i++)
        if (sigaction(choice[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(out, choice[i]);
}

void fsdp__expect_children(struct sigaction *before)
{
    struct sigaction action = {.sa_handler = SIG_DFL};

    (void)sigaction(SIGCHLD, NULL, before);
    if (before->sa_handler == SIG_IGN || before->sa_flags & SA_NOCLDWAIT)
        (void)sigaction(SIGCHLD, &action, NULL);
}

void fsdp__stop_with_job(void)
{
    sigset_t stop, before;

    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, &before);
    (void)raise(SIGTSTP); /* the system decides what stops a job and what does not */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fsdp__lead_own_group(void)
{
    (void)setpgid(0, 0);
    (void)signal(SIGTTOU, SIG_IGN);
}
