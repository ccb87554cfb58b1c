/* echo.h - a signal that comes twice and is meant once: `timeout` sends it to its child, and then to the child's whole
 * group. */
#ifndef LAUNCH_ECHO_H
#define LAUNCH_ECHO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define FSDP__ECHO_NS INT64_C(300000000) /* a person who means it twice takes longer, or repeats it */

/* Returns whether `signal` only repeats `first`, which came at `first_ns`. */
static inline bool fsdp__is_echo(int first, int64_t first_ns, int signal)
{
    return signal == first && fsdp__clock_ns() - first_ns < FSDP__ECHO_NS;
}

#endif
