/* reduction.h - a reduce_scatter_coalesced whose contributions the ranks of each machine see: each rank adds up its
 * machine's contributions to the rows of its counterparts and its own, and sends sums.
 *
 * Parts travel in batches of bounded size. While one is on its way the sums of the next are made. */
#ifndef COMM_MACHINES_REDUCTION_H
#define COMM_MACHINES_REDUCTION_H

#include "comm/machines/meeting.h"

/* After the local ranks have shown their buffers (comm/symmetric/shown.h). `visible`: the contributions of this machine
 * are. Where those of another are not, nothing is done but to find that out: not `done`. */
fsdp_status fsdp__machines_reduce(fsdp__machines_group *group, const fsdp__call *call, fsdp_stream *stream,
                                  fsdp__traffic *traffic, bool visible, bool *done);

#endif
