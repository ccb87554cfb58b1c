/* handoff.h - a descriptor for other processes of this machine, under a name that they know. For ranks that no process
 * of ours has started, which so inherit nothing.
 *
 * The name is of an abstract Unix socket: it is nowhere in the file system, and goes with the process that has it.
 * Processes of other users get nothing, and nobody takes anything from them; a name that they cannot guess keeps them
 * from being in the way. Names are of the network namespace: two containers of a machine do not meet. */
#ifndef COMM_SHM_HANDOFF_H
#define COMM_SHM_HANDOFF_H

#include <stdbool.h>
#include <stdint.h>

#include "fsdp/status.h"

enum {
    FSDP__HANDOFF_NAME = 96 /* bytes of a name, at most */
};

typedef struct fsdp__handoff {
    const char *name;
    int64_t timeout_ns;                     /* for all of it */
    const char *(*stopped)(void *argument); /* optional: why to give up, or NULL; asked every 20 ms */
    void *argument;
} fsdp__handoff;

/* Gives `fd`, which stays the caller's, to as many processes, and returns when they have it. One that dies on its way
 * is not counted. Where another process has the name: FSDP_STATE; of another user, or who does not answer: FSDP_COMM.
 * [blocks] */
fsdp_status fsdp__handoff_give(const fsdp__handoff *handoff, int fd, int takers);
/* Waits for the giver, too. `*out` is close-on-exec. [blocks] */
fsdp_status fsdp__handoff_take(const fsdp__handoff *handoff, int *out);

#endif
