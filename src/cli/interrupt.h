/* interrupt.h - a run that is interrupted leaves no temporary files, and dies of the signal: at once, or, where it
 * keeps checkpoints, behind one more of them. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <pthread.h>
#include <signal.h>

#include "fsdp/train.h"

typedef struct fsdp__interrupt {
    pthread_t thread;
    pthread_mutex_t mutex;        /* around what follows, up to the next blank line */
    fsdp_hub_hold *hold;          /* what the run has on disk; NULL: nothing */
    fsdp_checkpoint_saver *saver; /* the same */
    bool asks;                    /* the run can be asked to end by itself */
    bool save;                    /* SIGUSR1 has come */
    int signal;                   /* the first that is to end the run; 0: none yet */
    int64_t signal_ns;            /* when it came */
    void (*last_words)(void *arg);
    void *arg; /* of it */

    sigset_t signals, before;
    bool running;
} fsdp__interrupt;

/* Before the process has other threads: from here on SIGINT, SIGTERM and SIGHUP are taken by a thread that works
 * whatever the others do or wait for, and, where the run `saves`, SIGUSR1. A signal that was ignored (nohup) stays so.
 */
fsdp_status fsdp__interrupt_start(fsdp__interrupt *interrupt, bool saves);
/* As fsdp_train_listener.holds, saver and demand. */
void fsdp__interrupt_holds(fsdp__interrupt *interrupt, fsdp_hub_hold *hold);
void fsdp__interrupt_saver(fsdp__interrupt *interrupt, fsdp_checkpoint_saver *saver);
fsdp_train_demand fsdp__interrupt_demand(fsdp__interrupt *interrupt);
/* Whether the first signal waits for the end of a step, and the second ends the process, or already the first one. One
 * that waits when this is switched off has missed the last step, and ends the process now. */
void fsdp__interrupt_asks(fsdp__interrupt *interrupt, bool asks);
/* Called by that thread when a signal ends the process at once, behind what it removes: to say what is left. */
void fsdp__interrupt_last_words(fsdp__interrupt *interrupt, void (*last_words)(void *arg), void *arg);
/* The signal that has asked the run to end; 0: none. */
int fsdp__interrupt_signal(fsdp__interrupt *interrupt);
/* Signals are as they were before. */
void fsdp__interrupt_stop(fsdp__interrupt *interrupt);

#endif
