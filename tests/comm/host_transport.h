/* host_transport.h - a transport that reads and writes nothing but memory of the host, as MPI does.
 *
 * What it sends it copies out of the device's memory, and what it received back into it, by the calls for the inside of
 * a stream's work; its own memory no device is told of. In between, ranks that are threads exchange on the CPU. It has
 * what any transport must have, and nothing else. */
#pragma once

#include "comm/transport_ops.h"

/* Runs a coalesced call by a transport's plain ones, for groups of an arena. */
fsdp_status host_transport_packed(fsdp__collective all_gather, fsdp__collective all_to_all, void *group,
                                  const fsdp__call *call, fsdp__traffic *traffic);

extern const fsdp__comm_ops host_transport_ops;
