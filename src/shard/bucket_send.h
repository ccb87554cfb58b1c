/* bucket_send.h - one bucket of gradients, sent. */
#ifndef SHARD_BUCKET_SEND_H
#define SHARD_BUCKET_SEND_H

#include "shard/buckets.h"
#include "shard/reduction.h"

/* The average of all ranks' gradients, into those of the parameters. What this rank has none of is sent as nothing, and
 * its result is late. [collective] */
fsdp_status fsdp__bucket_send(fsdp__param_group *group, fsdp__comm_context *comm, const fsdp__reduce_settings *settings,
                              int64_t index);

#endif
