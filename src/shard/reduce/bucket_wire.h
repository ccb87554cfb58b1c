/* bucket_wire.h - averages a bucket over the ranks: as it lies, in 16 bits, or by a function of the caller's. */
#ifndef SHARD_REDUCE_BUCKET_WIRE_H
#define SHARD_REDUCE_BUCKET_WIRE_H

#include "shard/reduce/buckets.h"
#include "shard/reduce/reduction.h"

typedef struct fsdp__bucket_wire {
    fsdp__param_group *group;
    fsdp__comm_context *comm;
    const fsdp__bucket *bucket;
    fsdp__region *from, *to; /* may be the same */
    const fsdp__reduce_settings *settings;
    fsdp_stream *stream;
    fsdp__storage **scratch; /* gets memory that must be held until the work is done, if some is needed */
} fsdp__bucket_wire;

/* Averages the bucket. With the last bucket the ranks also tell each other whether all of them have a gradient of every
 * parameter. [collective] [stream] */
fsdp_status fsdp__bucket_average(const fsdp__bucket_wire *wire);

#endif
