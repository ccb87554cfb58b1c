/* wire.h - groups that are gathered in other bytes than their shards: some parameter has an extension
 * (fsdp_gather_extension). What each rank sends of a group is one run of bytes, the parameters' one after the other;
 * those without an extension are sent in param_dtype.
 *
 *   encode   after a write to a shard: pre of every parameter, into what this rank sends, which stays until the next
 *   gather   the ranks' bytes, then post of every parameter, into the unsharded ones: memory of this rank's own (COPY)
 *
 * Where ranks share memory, what they send lies there, and peers decode it where it lies: a rank is a reader from its
 * gather to the last post. Elsewhere it is gathered into memory of the communication context's, of that gather alone.
 *
 * Offloaded shards are brought to the device for that, and what they have become stays there.
 *
 * [Note: measures]
 * What an extension has to know of all ranks' shards (the largest magnitude, for one scale) takes a collective, but any
 * rank alone may have written its shard since the last. So nobody asks who has: each forward of the outermost module,
 * and each unshard by the caller, begins with one all-reduce for all groups that are sharded. Who has written nothing
 * sends the number that it sent before, and encodes anew only if the result differs. Between a forward and its backward
 * there is none, unless a shard was written: there all ranks write, or none. */
#ifndef SHARD_WIRE_H
#define SHARD_WIRE_H

#include "shard/comm_context.h"
#include "shard/region.h"

struct fsdp__param_group;

typedef struct fsdp__wire {
    size_t bytes;           /* that each rank sends; 0: the group is gathered as it lies */
    int64_t measured;       /* parameters that have a measure */
    fsdp__region *sent;     /* this rank's, or where memory is shared all ranks', one after the other */
    fsdp__region *measures; /* of this rank's shards; NULL: none */
    fsdp_event *encoded;    /* the shards were read, and `sent` written; no gather need follow that */
    bool shared;
    bool current;   /* `sent` is of the shards as they are */
    bool receiving; /* a gather on a stream of its own may still use memory of the context's */
} fsdp__wire;

/* Whether fsdp_gather_extension is whole. */
fsdp_status fsdp__wire_check(const fsdp_gather_extension *extension);
/* Places in what is sent. Extents and chunks are known. */
void fsdp__wire_lay_out(struct fsdp__param_group *group);
/* Memory on the residence's device; what ranks share gets its bytes in fsdp__wire_fill. A failure is undone by
 * fsdp__wire_close. */
fsdp_status fsdp__wire_open(struct fsdp__param_group *group);
/* [collective] */
fsdp_status fsdp__wire_fill(const fsdp__wire *wire);
void fsdp__wire_close(fsdp__wire *wire);
/* Work of `stream` may write the shards, or give back what was read and written. */
fsdp_status fsdp__wire_await_encoded(const fsdp__wire *wire, fsdp_stream *stream);

/* What these groups of one process group send is made of their shards. With measures [collective]. [stream] */
fsdp_status fsdp__wire_encode(struct fsdp__param_group *const *groups, int64_t count, fsdp__comm_context *comm);
/* The unsharded parameters, which have memory, of what the ranks have encoded. [collective] [stream] */
fsdp_status fsdp__wire_gather(struct fsdp__param_group *group, fsdp__comm_context *comm);
/* The device's stream waits for that. */
void fsdp__wire_arrive(struct fsdp__param_group *group, fsdp__comm_context *comm);

#endif
