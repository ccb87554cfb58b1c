/* interrupt.c - a thread that waits for the signals that end a run. */
#include "cli/interrupt.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "base/lock.h"
#include "cli/cli.h"
#include "cli/own_process.h"
#include "launch/echo.h"
#include "watch/flight.h"

/* Wakes the thread. The system delivers such a signal even where its queue is full (ulimit -i), unlike the one behind
 * pthread_cancel; nobody else needs it, and a process without a handler ignores it. */
enum {
    WAKES = SIGURG
};

/* Writes the record of the run's last calls. */
static void show(const fsdp__interrupt *interrupt)
{
    fsdp_context *context = interrupt->recorded;
    char folder[FSDP__FLIGHT_TEXT];

    if (!context) {
        (void)fsdp__failure("there are no last calls to show yet");
    } else if (fsdp_flight_write(context) != FSDP_OK) {
        (void)fsdp__failure("%s", fsdp_last_error());
    } else {
        fsdp__flight_where(context, folder);
        (void)fsdp__failure("the last calls of rank %d are in '%s': fsdp flight %s", fsdp_context_rank(context), folder,
                            FSDP__SHELL_WORD(folder));
    }
}

static bool asks_to_end(int signal)
{
    for (int i = 0; i < FSDP__ASKING_SIGNALS; i++)
        if (signal == fsdp__ending_signals[i])
            return true;
    return false;
}

/* Returns whether the signal is left to the run, which then ends by itself or goes on. */
static bool is_left_to_the_run(fsdp__interrupt *interrupt, int signal)
{
    bool ends = signal != SIGUSR1 && signal != SIGUSR2, left, first;

    FSDP__HELD(&interrupt->mutex);
    first = asks_to_end(signal) && interrupt->asks && interrupt->signal == 0;
    left = !ends || first || (interrupt->asks && interrupt->echoes && signal == interrupt->signal);
    if (signal == SIGUSR2)
        show(interrupt);
    if (signal == SIGUSR1)
        interrupt->save = true;
    if (first) {
        interrupt->signal = signal;
        interrupt->signal_ns = fsdp__clock_ns();
        interrupt->echoes = true;
    }
    return left;
}

/* Waits for a signal, and returns it; 0: what comes from now on is no echo; -1: it cannot wait. */
static int next_signal(fsdp__interrupt *interrupt)
{
    struct timespec time;
    int signal = 0;

    if (!interrupt->echoes)
        return sigwait(&interrupt->signals, &signal) == 0 ? signal : -1;
    time = (struct timespec){.tv_nsec = (long)fsdp__echo_left_ns(interrupt->signal_ns)};
    do
        signal = sigtimedwait(&interrupt->signals, NULL, &time);
    while (signal < 0 && errno == EINTR);
    interrupt->echoes = signal > 0;
    return signal < 0 && errno == EAGAIN ? 0 : signal;
}

static void *wait_for_signals(void *arg)
{
    fsdp__interrupt *interrupt = arg;
    int signal;

    do {
        signal = next_signal(interrupt);
        if (signal < 0 || interrupt->stops)
            return NULL;
    } while (signal == 0 || signal == WAKES || is_left_to_the_run(interrupt, signal));
    /* The mutex is never released: the run must not free what is in use here, nor report that it failed. */
    pthread_mutex_lock(&interrupt->mutex);
    fsdp_hub_abandon(interrupt->hold);
    fsdp_checkpoint_saver_abandon(interrupt->saver);
    if (interrupt->last_words)
        interrupt->last_words(interrupt->arg);
    fsdp__die_of(signal);
}

static void let_reports_through(void)
{
    sigset_t one;

    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

/* Adds a signal, unless it is ignored, to those that are awaited. */
static void await(fsdp__interrupt *interrupt, int signal)
{
    struct sigaction now;

    if (sigaction(signal, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        sigaddset(&interrupt->signals, signal);
}

fsdp_status fsdp__interrupt_start(fsdp__interrupt *interrupt, bool saves, bool shows)
{
    int error;

    memset(interrupt, 0, sizeof *interrupt);
    sigemptyset(&interrupt->signals);
    sigaddset(&interrupt->signals, WAKES);
    for (int i = 0; i < FSDP__ENDING_SIGNALS; i++)
        await(interrupt, fsdp__ending_signals[i]);
    if (saves)
        await(interrupt, SIGUSR1);
    if (shows)
        await(interrupt, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &interrupt->signals, &interrupt->before);
    if (!saves) /* nobody will wait for it */
        let_reports_through();
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
    FSDP__HELD(&interrupt->mutex);
    interrupt->hold = hold;
}

void fsdp__interrupt_shows(fsdp__interrupt *interrupt, fsdp_context *context)
{
    FSDP__HELD(&interrupt->mutex);
    interrupt->recorded = context;
}

void fsdp__interrupt_saver(fsdp__interrupt *interrupt, fsdp_checkpoint_saver *saver)
{
    FSDP__HELD(&interrupt->mutex);
    interrupt->saver = saver;
}

fsdp_train_demand fsdp__interrupt_demand(fsdp__interrupt *interrupt)
{
    fsdp_train_demand demand;

    FSDP__HELD(&interrupt->mutex);
    demand = interrupt->signal ? FSDP_TRAIN_END : interrupt->save ? FSDP_TRAIN_SAVE : FSDP_TRAIN_GO_ON;
    interrupt->save = false;
    return demand;
}

void fsdp__interrupt_asks(fsdp__interrupt *interrupt, bool asks)
{
    int waiting;

    pthread_mutex_lock(&interrupt->mutex);
    interrupt->asks = asks;
    waiting = asks ? 0 : interrupt->signal;
    pthread_mutex_unlock(&interrupt->mutex);
    if (waiting)
        (void)pthread_kill(interrupt->thread, waiting);
}

void fsdp__interrupt_last_words(fsdp__interrupt *interrupt, void (*last_words)(void *arg), void *arg)
{
    FSDP__HELD(&interrupt->mutex);
    interrupt->last_words = last_words;
    interrupt->arg = arg;
}

int fsdp__interrupt_signal(fsdp__interrupt *interrupt)
{
    int signal;

    FSDP__HELD(&interrupt->mutex);
    signal = interrupt->signal;
    return signal;
}

void fsdp__interrupt_stop(fsdp__interrupt *interrupt)
{
    if (interrupt->running) {
        interrupt->stops = true;
        (void)pthread_kill(interrupt->thread, WAKES);
        pthread_join(interrupt->thread, NULL);
    }
    pthread_mutex_destroy(&interrupt->mutex);
    pthread_sigmask(SIG_SETMASK, &interrupt->before, NULL);
}
