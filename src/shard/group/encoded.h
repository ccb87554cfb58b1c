/* encoded.h - groups that are gathered in other bytes than those of their shards, because some parameter has an
 * extension (fsdp_gather_extension). What each rank sends of a group is one run of bytes, the parameters' one after the
 * other. Parameters without an extension are sent in param_dtype.
 *
 *   encode   after a write to a shard: calls pre of every parameter; what this rank sends stays until the next encode
 *   gather   gathers the ranks' bytes, then calls post of every parameter, into memory of this rank's own (COPY)
 *
 * If ranks share memory, what they send lies there, and peers decode it in place: a rank is a reader from its gather to
 * the last post. Otherwise it is gathered into memory of the communication context, which only that gather uses.
 *
 * Offloaded shards are brought to the device for that; the encoded bytes stay there.
 *
 * [Note: measures]
 * What an extension has to know of all ranks' shards (the largest magnitude, for one scale) takes a collective, but any
 * rank alone may have written its shard since the last one. So nobody asks who has: each forward of the outermost
 * module, and each unshard by the caller, begins with one all-reduce for all groups that are sharded. A rank that has
 * written nothing sends the number that it sent before, and encodes anew only if the result differs. Between a forward
 * and its backward there is no such all-reduce, unless a shard was written: there all ranks write, or none. */
#pragma once

#include "shard/group/comm_context.h"
#include "shard/group/region.h"

struct fsdp__param_group;

typedef struct fsdp__encoded {
    size_t bytes;           /* that each rank sends; 0: the group is gathered as it lies */
    int64_t measured;       /* number of parameters that have a measure */
    fsdp__region *sent;     /* this rank's bytes, or if memory is shared those of all ranks, one after the other */
    fsdp__region *measures; /* of this rank's shards; NULL: none */
    fsdp_event *encoded;    /* the shards were read, and `sent` written; gathers need not wait for it */
    bool shared;
    bool current;   /* `sent` is up to date with the shards */
    bool receiving; /* a gather on a stream of its own may still use memory of the context */
} fsdp__encoded;

/* Checks that the extension has all functions that it needs. */
fsdp_status fsdp__encoded_check(const fsdp_gather_extension *extension);
/* Lays out what is sent. Extents and chunks must be known. */
void fsdp__encoded_lay_out(struct fsdp__param_group *group);
/* Makes memory on the residence's device; memory that ranks share gets its bytes in fsdp__encoded_fill.
 * fsdp__encoded_close undoes a failure. */
fsdp_status fsdp__encoded_open(struct fsdp__param_group *group);
/* Gives memory that ranks share its bytes. [collective] */
fsdp_status fsdp__encoded_fill(const fsdp__encoded *own);
void fsdp__encoded_close(fsdp__encoded *own);
/* Makes `stream` wait for the encoding, so that its work may write the shards, or free what was read and written. */
fsdp_status fsdp__encoded_await(const fsdp__encoded *own, fsdp_stream *stream);

/* Encodes what these groups of one process group send, from their shards. With measures [collective]. [stream] */
fsdp_status fsdp__encoded_encode(struct fsdp__param_group *const *groups, int64_t count, fsdp__comm_context *comm);
