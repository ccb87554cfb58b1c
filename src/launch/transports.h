/* transports.h - the transports by which processes become ranks of one world. */
#ifndef LAUNCH_TRANSPORTS_H
#define LAUNCH_TRANSPORTS_H

#include "fsdp/launch.h"
#include "launch/starter.h"

/* What fsdp_launch gives the ranks that it starts: the file descriptor of their shared memory. */
#define FSDP__SHM_VARIABLE "FSDP_SHM_FD"

typedef struct fsdp__transport {
    fsdp__starter_kind kind; /* of those who start ranks that join by it */
    /* A context whose world has its peers in it. `options`: rank and sizes, as far as `starter` says them. */
    fsdp_status (*join)(const fsdp__starter *starter, const fsdp_context_options *options, fsdp_context **out);
} fsdp__transport;

/* The one for ranks that were started so; NULL: they were started by nobody. */
const fsdp__transport *fsdp__transport_of(fsdp__starter_kind kind);

#endif
