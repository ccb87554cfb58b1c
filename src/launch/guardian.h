/* guardian.h - ends the processes that ranks have started when the launcher cannot, because it was killed. */
#pragma once

#include <sys/types.h>

#include "fsdp/status.h"

/* A process that waits for the launcher's end. Ranks themselves die with the launcher (PR_SET_PDEATHSIG), but what they
 * started does not: the guardian then kills the ranks' process groups. It learns of the launcher's end from a
 * connection whose other end nobody else holds. */
typedef struct fsdp__guardian {
    pid_t pid; /* 0: none */
    int fd;    /* connection to it; close-on-exec */
} fsdp__guardian;

/* Starts a guardian for up to `ranks` groups. `ps` shows it as "fsdp: guardian of N", where N is the launcher's pid. */
fsdp_status fsdp__guardian_start(int ranks, fsdp__guardian *out);
/* Tells the guardian that the process group `group` exists from now on; its leader calls this before it becomes the
 * program. Async-signal-safe. */
void fsdp__guardian_watch(int fd, pid_t group);
/* Tells the guardian that the group is gone; call it before its number can be given to another process. */
void fsdp__guardian_forget(int fd, pid_t group);
/* Ends the guardian, a stopped one as well, and waits for its end, but not if a debugger has it. It kills the groups
 * that it still watches, unless somebody has killed the guardian: then its `fd` has shown POLLHUP. Does nothing if
 * there is no guardian. */
void fsdp__guardian_end(fsdp__guardian *guardian);
