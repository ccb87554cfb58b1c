/* interrupt.h - an interrupted run leaves no temporary files and dies of the signal: at once, or, if it keeps
 * checkpoints, after one more of them. */
#pragma once

#include <pthread.h>
#include <signal.h>

#include "fsdp/train.h"

typedef struct fsdp__interrupt {
    pthread_t thread;
    pthread_mutex_t mutex;        /* guards what follows, up to the next blank line */
    fsdp_hub_hold *hold;          /* what the run holds on disk; NULL: nothing */
    fsdp_checkpoint_saver *saver; /* the same */
    fsdp_context *recorded;       /* whose flight record SIGUSR2 writes; NULL: none */
    bool asks;                    /* the run can be asked to end by itself */
    bool save;                    /* SIGUSR1 has come */
    int signal;                   /* the first one that asks the run to end; 0: none yet */
    int64_t signal_ns;            /* when it came; the thread alone uses this field and the next */
    bool echoes;                  /* what comes may be an echo of it (launch/echo.h) */
    void (*last_words)(void *arg);
    void *arg; /* for last_words */

    sigset_t signals, before;
    bool running;
    _Atomic bool stops; /* the run is over, and the thread ends */
} fsdp__interrupt;

/* Starts the thread that takes fsdp__ending_signals from here on, and, if the run `saves`, SIGUSR1, and if it `shows`
 * its last calls, SIGUSR2. It works whatever the other threads do or wait for. Call this before the process has other
 * threads. A signal that was ignored (nohup) stays ignored. */
fsdp_status fsdp__interrupt_start(fsdp__interrupt *interrupt, bool saves, bool shows);
/* Sets whose flight record SIGUSR2 writes. NULL: none from now on. */
void fsdp__interrupt_shows(fsdp__interrupt *interrupt, fsdp_context *context);
/* Do the same as fsdp_train_listener.holds, saver and demand. */
void fsdp__interrupt_holds(fsdp__interrupt *interrupt, fsdp_hub_hold *hold);
void fsdp__interrupt_saver(fsdp__interrupt *interrupt, fsdp_checkpoint_saver *saver);
fsdp_train_demand fsdp__interrupt_demand(fsdp__interrupt *interrupt);
/* Sets whether the first signal that asks waits for the end of a step and only the second ends the process, or already
 * the first one does. A signal that still waits when this is switched off has missed the last step, and ends the
 * process now. */
void fsdp__interrupt_asks(fsdp__interrupt *interrupt, bool asks);
/* Sets what that thread calls when a signal ends the process at once, after removing the files: it tells the user what
 * is left. */
void fsdp__interrupt_last_words(fsdp__interrupt *interrupt, void (*last_words)(void *arg), void *arg);
/* Returns the signal that has asked the run to end; 0: none. */
int fsdp__interrupt_signal(fsdp__interrupt *interrupt);
/* Ends the thread and makes signals work as before. */
void fsdp__interrupt_stop(fsdp__interrupt *interrupt);
