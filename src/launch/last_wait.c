/* last_wait.c - waits for a child that has been told to end, and not for ever. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/context.h"
#include "comm/health/process.h"
#include "launch/launch.h"

enum {
    FIRST_PAUSE_US = 200,
    LAST_PAUSE_US = 50 * 1000
};

/* Returns why the child cannot end or be collected; NULL: it can. */
static const char *why_it_stays(pid_t pid, int *status, char *text, size_t bytes)
{
    char who[FSDP__WHO_TRACES];
    bool kept = fsdp__process_is_kept(pid, status, who);

    if (kept)
        snprintf(text, bytes, "%s has not let it go", who);
    return kept || fsdp__process_is_held(pid, text, bytes) ? text : NULL;
}

static void pause_for(int us)
{
    (void)nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000L}, NULL);
}

bool fsdp__await_end(pid_t pid, const char *name, int *status)
{
    int64_t began_ns = fsdp__clock_ns(), looked_ns = began_ns;
    const char *why = NULL;
    char text[120];

    for (int us = FIRST_PAUSE_US;; us = FSDP__MIN(2 * us, LAST_PAUSE_US)) {
        pid_t ended = waitpid(pid, status, WNOHANG);
        int64_t now_ns = fsdp__clock_ns();

        if (ended == pid || (ended < 0 && errno != EINTR))
            return true;
        if (now_ns - looked_ns >= FSDP__KEPT_MS * INT64_C(1000000)) {
            bool stayed = why != NULL;

            looked_ns = now_ns;
            *status = SIGKILL;
            why = why_it_stays(pid, status, text, sizeof text);
            if ((why && stayed) || now_ns - began_ns >= FSDP__LAST_WAIT_S * INT64_C(1000000000))
                break;
        }
        pause_for(us);
    }
    fsdp__warn("process %d (%s) remains and is not waited for: %s", (int)pid, name,
               why ? why : "it has been told to end, and has not ended");
    return false;
}
