/* echo.h - a signal that comes twice and is meant once: `timeout` tells its child, and then the child's whole group. */
#ifndef LAUNCH_ECHO_H
#define LAUNCH_ECHO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define FSDP__ECHO_NS INT64_C(300000000) /* a hand that means it twice takes longer, or does it again */

/* Whether `signal` says once more what `first` said at `first_ns`. */
static inline bool fsdp__is_echo(int first, int64_t first_ns, int signal)
{
    return signal == first && fsdp__clock_ns() - first_ns < FSDP__ECHO_NS;
}

#endif
