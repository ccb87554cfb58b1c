/* transports.h - the transports by which processes become ranks of one world. */
#pragma once

#include "fsdp/launch.h"
#include "launch/starter.h"

/* The variable in which fsdp_launch gives its ranks the file descriptor of their shared memory. */
#define FSDP__SHM_VARIABLE "FSDP_SHM_FD"

typedef struct fsdp__transport {
    fsdp__starter_kind kind; /* the starter whose ranks join by this transport */
    /* Makes a context whose world has its peers in it. `options` has rank and sizes, as far as `starter` knows them. */
    fsdp_status (*join)(const fsdp__starter *starter, const fsdp_context_options *options, fsdp_context **out);
} fsdp__transport;

/* Returns the transport for ranks that were started in this way; NULL: nobody started them. */
const fsdp__transport *fsdp__transport_of(fsdp__starter_kind kind);
