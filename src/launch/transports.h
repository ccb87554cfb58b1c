/* transports.h - the transports by which processes become ranks of one world. */
#ifndef LAUNCH_TRANSPORTS_H
#define LAUNCH_TRANSPORTS_H

#include "fsdp/launch.h"

/* What fsdp_launch gives the ranks that it starts: the file descriptor of their shared memory. */
#define FSDP__SHM_VARIABLE "FSDP_SHM_FD"

typedef struct fsdp__transport {
    const char *variable; /* of the environment: a process that has it set is to join by this transport */
    /* A context whose world has its peers in it. `options`: rank and sizes, as the environment says. [collective] */
    fsdp_status (*join)(const fsdp_context_options *options, fsdp_context **out);
} fsdp__transport;

/* The one the environment asks for; NULL: none. */
const fsdp__transport *fsdp__transport_wanted(void);
/* Whether "NAME=value" is a transport's variable: no business of ranks that are started with another one. */
bool fsdp__is_transport_variable(const char *assignment);

#endif
