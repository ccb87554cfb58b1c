/* echo.h - a signal that comes twice and is meant once: `timeout` sends it to its child, and then to the child's whole
 * group.
 *
 * Whoever has got the first one waits for the next for as long as the function below says. What comes within that wait
 * and is the same signal is an echo, however late the process gets a core to see it. */
#pragma once

#include <stdint.h>

#include "base/clock.h"
#include "base/compiler.h"

#define FSDP__ECHO_NS INT64_C(300000000) /* a person who means it twice takes longer, or repeats it */

/* Returns how much longer to wait for an echo of the signal that came at `first_ns`. 0: do not wait, but what has come
 * by then is one. */
static inline int64_t fsdp__echo_left_ns(int64_t first_ns)
{
    int64_t left = first_ns + FSDP__ECHO_NS - fsdp__clock_ns();

    return FSDP__MAX(left, 0);
}
