/* reduction.h - a reduce_scatter_coalesced where the ranks of each machine see each other's contributions: each rank
 * adds up its machine's contributions to its counterparts' rows and to its own, and sends sums.
 *
 * Parts travel in batches of bounded size. While one batch is on its way the sums of the next are computed. */
#pragma once

#include "comm/transport/network/meeting.h"

/* Runs the reduction, after the local ranks have shown their buffers (comm/transport/arena/shown.h). `visible`: the
 * contributions of this machine are visible. Where those of another machine are not, this only finds that out, and
 * `*done` is false. */
fsdp_status fsdp__network_reduce(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic,
                                 bool visible, bool *done);
