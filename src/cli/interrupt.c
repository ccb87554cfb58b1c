/* interrupt.c - a thread that waits for the signals which end a run. */
#include "cli/interrupt.h"

#include <string.h>

#include "base/limits.h"
#include "cli/process.h"

static void *wait_for_signals(void *arg)
{
    fsdp__interrupt *interrupt = arg;
    int signal = 0;

    if (sigwait(&interrupt->signals, &signal) != 0)
        return NULL;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    /* Never given back: the run must not free what is in use here, nor say that it failed. */
    pthread_mutex_lock(&interrupt->mutex);
    fsdp_hub_abandon(interrupt->hold);
    fsdp__die_of(signal);
}

fsdp_status fsdp__interrupt_start(fsdp__interrupt *interrupt)
{
    static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
    int error;

    memset(interrupt, 0, sizeof *interrupt);
    sigemptyset(&interrupt->signals);
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) {
        struct sigaction now;

        if (sigaction(ending[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&interrupt->signals, ending[i]);
    }
    pthread_sigmask(SIG_BLOCK, &interrupt->signals, &interrupt->before);
    pthread_mutex_init(&interrupt->mutex, NULL);
    error = pthread_create(&interrupt->thread, NULL, wait_for_signals, interrupt);
    if (error == 0) {
        interrupt->running = true;
        return FSDP_OK;
    }
    fsdp__interrupt_stop(interrupt);
    return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start a thread for signals: %s%s", strerrordesc_np(error),
                     fsdp__limit_behind(error));
}

void fsdp__interrupt_holds(fsdp__interrupt *interrupt, fsdp_hub_hold *hold)
{
    pthread_mutex_lock(&interrupt->mutex);
    interrupt->hold = hold;
    pthread_mutex_unlock(&interrupt->mutex);
}

void fsdp__interrupt_stop(fsdp__interrupt *interrupt)
{
    if (interrupt->running) {
        pthread_cancel(interrupt->thread);
        pthread_join(interrupt->thread, NULL);
    }
    pthread_mutex_destroy(&interrupt->mutex);
    pthread_sigmask(SIG_SETMASK, &interrupt->before, NULL);
}
