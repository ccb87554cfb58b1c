/* issue.h - how a call gets from the program to the transport. */
#pragma once

#include "comm/comm.h"

/* Checks that a public call may begin: refuses a NULL or broken group. It is also a probe. */
fsdp_status fsdp__comm_enter(fsdp_process_group *group, fsdp__call_name name);
/* Numbers the call and runs `run` in the order of `stream` and of the group; a failure breaks the world. `call` and its
 * buffers are copied when the work runs later. On a device without bytes nothing happens. [stream] */
fsdp_status fsdp__comm_issue(fsdp_process_group *group, fsdp_collective kind, fsdp__collective run,
                             const fsdp__call *call, fsdp_stream *stream);
/* Does what fsdp__comm_issue does, on the host; the call is done on return. [blocks] */
fsdp_status fsdp__comm_issue_host(fsdp_process_group *group, fsdp_collective kind, fsdp__collective run,
                                  const fsdp__call *call);
/* Allocates shared memory by a host call. Its failure is the same on all ranks, and breaks nothing unless the transport
 * itself failed. */
fsdp_status fsdp__comm_issue_alloc(fsdp_process_group *group, fsdp__call *call, void **out);
