/* interrupt.h - a run that is interrupted leaves no temporary files, and dies of the signal. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <pthread.h>
#include <signal.h>

#include "fsdp/hub.h"

typedef struct fsdp__interrupt {
    pthread_t thread;
    pthread_mutex_t mutex; /* around `hold` */
    fsdp_hub_hold *hold;   /* what the run has on disk; NULL: nothing */
    sigset_t signals, before;
    bool running;
} fsdp__interrupt;

/* Before the process has other threads: from here on SIGINT, SIGTERM and SIGHUP are taken by a thread that works
 * whatever the others do or wait for. A signal that was ignored (nohup) stays so. */
fsdp_status fsdp__interrupt_start(fsdp__interrupt *interrupt);
/* As fsdp_train_listener.holds. */
void fsdp__interrupt_holds(fsdp__interrupt *interrupt, fsdp_hub_hold *hold);
/* Signals are as they were before. */
void fsdp__interrupt_stop(fsdp__interrupt *interrupt);

#endif
