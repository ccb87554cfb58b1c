/* guardian.h - what ends the processes that ranks have started when the launcher cannot, because it was killed. */
#ifndef LAUNCH_GUARDIAN_H
#define LAUNCH_GUARDIAN_H

#include <sys/types.h>

#include "fsdp/status.h"

/* A process that waits for the launcher's end. Ranks themselves die with the launcher (PR_SET_PDEATHSIG), but not what
 * they started: the guardian then kills the ranks' process groups. It learns of the launcher's end from a connection
 * whose other end nobody else holds. */
typedef struct fsdp__guardian {
    pid_t pid; /* 0: none */
    int fd;    /* to tell it; close-on-exec */
} fsdp__guardian;

/* For up to `ranks` groups. In `ps` it is "fsdp: guardian of N", the launcher's number. */
fsdp_status fsdp__guardian_start(int ranks, fsdp__guardian *out);
/* The process group `group` is there from now on: said by its leader before it becomes the program. Async-signal-safe.
 */
void fsdp__guardian_watch(int fd, pid_t group);
/* It is gone: said before its number can be given to somebody else. */
void fsdp__guardian_forget(int fd, pid_t group);
/* Waits until it has ended; groups that it still watches are killed, unless somebody has killed the guardian: then its
 * `fd` has shown POLLHUP. None: nothing. */
void fsdp__guardian_end(fsdp__guardian *guardian);

#endif
