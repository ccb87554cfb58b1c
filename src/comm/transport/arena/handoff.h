/* handoff.h - hands a descriptor to other processes of this machine, under a name that they know. It is for ranks that
 * were not started by a process of ours, and so inherit nothing.
 *
 * The name is that of an abstract Unix socket: it is nowhere in the file system, and goes away with the process that
 * has it. Processes of other users get nothing, and nobody takes anything from them; a name that they cannot guess
 * keeps them from getting in the way. Names belong to a network namespace: two containers on one machine do not
 * meet. */
#pragma once

#include <stdint.h>

#include "fsdp/status.h"

enum {
    FSDP__HANDOFF_NAME = 96 /* bytes of a name, at most */
};

typedef struct fsdp__handoff {
    const char *name;
    int64_t timeout_ns;                     /* for the whole handoff */
    const char *(*stopped)(void *argument); /* optional: returns why to give up, or NULL; called every 20 ms */
    void *argument;
} fsdp__handoff;

/* Gives `fd`, which stays the caller's, to `takers` processes, and returns when they have it. A process that dies on
 * its way is not counted. Fails with FSDP_STATE where another process has the name, and with FSDP_COMM where that
 * process is another user's or does not answer. [blocks] */
fsdp_status fsdp__handoff_give(const fsdp__handoff *handoff, int fd, int takers);
/* Takes a descriptor; also waits for the giver to come. `*out` is close-on-exec. [blocks] */
fsdp_status fsdp__handoff_take(const fsdp__handoff *handoff, int *out);
