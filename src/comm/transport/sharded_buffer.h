/* sharded_buffer.h - what all ways of running a coalesced call have in common: whose rows lie where, and the copies and
 * sums that the call is made of. All of them are kernels of the stream: no pointer to device memory is followed here.
 *
 * A rank's *part* of a buffer is what it owns of all runs, one after the other: this is how the part lies in the shard,
 * and how it travels. */
#pragma once

#include "comm/transport_ops.h"
#include "device/kernels.h"

enum {
    FSDP__COPIES = 64 /* the most that one kernel launch takes */
};

/* Return the number of elements of group rank `rank`'s part; of the longest part that any rank may have, which is what
 * counts on the wire; and of the unsharded buffer. */
int64_t fsdp__part_numel(const fsdp_sharded_buffer *buffer, int rank);
int64_t fsdp__chunk_numel(const fsdp_sharded_buffer *buffer);
int64_t fsdp__unsharded_numel(const fsdp_sharded_buffer *buffer);
/* Returns how many elements of the rank's part, from `at` on and at most `most`, also lie together in the unsharded
 * buffer; `*index` is where they begin there. */
int64_t fsdp__part_run(const fsdp_sharded_buffer *buffer, int rank, int64_t at, int64_t most, int64_t *index);
/* Returns the address of element `index`. */
char *fsdp__place(const void *base, int64_t index, fsdp_dtype dtype);
/* Returns the dtype to which contributions are rounded, and in which they count. */
fsdp_dtype fsdp__reduce_dtype(const fsdp_sharded_buffer *buffer);
/* Returns the dtype in which contributions travel: unsharded_dtype when none is rounded. */
fsdp_dtype fsdp__wire_dtype(const fsdp__call *call, const fsdp_sharded_buffer *buffer);

/* Copies with conversion, of which one launch runs many. */
typedef struct fsdp__copies {
    fsdp__traffic *traffic; /* of the stream that they run on; the bytes written are added to it */
    float divisor;          /* divides what is copied; 0 and 1: nothing is divided */
    bool issues;            /* the host gives the copies to the stream; otherwise they run inside its work */
    fsdp_dtype src_dtype, dst_dtype;
    int64_t count;
    fsdp__span spans[FSDP__COPIES];
} fsdp__copies;

/* Begins with no copies: the same as {.traffic = traffic}, without a kilobyte of zeros. */
void fsdp__copies_begin(fsdp__copies *copies, fsdp__traffic *traffic);
/* Sets the dtypes of the copies that are added from now on. */
fsdp_status fsdp__copies_set(fsdp__copies *copies, fsdp_dtype src_dtype, fsdp_dtype dst_dtype);
/* Adds a copy. Does nothing for no elements, or when `dst` is `src`. */
fsdp_status fsdp__copies_add(fsdp__copies *copies, void *dst, const void *src, int64_t numel);
/* Add copies of elements [at, at + numel) of the rank's part: from where they lie together to where they lie in the
 * unsharded buffer; the other way; and from one unsharded buffer to the same place in another. */
fsdp_status fsdp__copies_spread(fsdp__copies *copies, const fsdp_sharded_buffer *buffer, int rank, int64_t at,
                                int64_t numel, const void *src);
fsdp_status fsdp__copies_collect(fsdp__copies *copies, const fsdp_sharded_buffer *buffer, const void *unsharded,
                                 int rank, int64_t at, int64_t numel, void *dst);
fsdp_status fsdp__copies_mirror(fsdp__copies *copies, const fsdp_sharded_buffer *buffer, const void *unsharded,
                                int rank);
/* Launches the copies that have been added and not been launched yet. */
fsdp_status fsdp__copies_flush(fsdp__copies *copies);

/* Returns whether a gather's rows get to their places in shared memory, to which the host may follow pointers
 * (`follows`). Also true where nothing is to be moved. */
static inline bool fsdp__gathers_in_place(const fsdp__call *call, bool follows)
{
    return call->shared && (follows || call->places == 0);
}

/* Copies the shards of group rank `rank` to their rows of the call's unsharded buffers. */
fsdp_status fsdp__place_own_rows(const fsdp__call *call, int rank, fsdp__traffic *traffic);

/* The contributions of `ranks` ranks to a buffer, in the order in which they are added. */
typedef struct fsdp__sum {
    const void **srcs;
    int count, ranks;
    int block; /* number of srcs added at a time: see [Note: order of addition] in order.h; 0: one after the other */
    fsdp_dtype dtype;
} fsdp__sum;

/* Adds the next source; NULL: that rank has nothing to add. */
void fsdp__sum_add(fsdp__sum *sum, const void *src);
/* Computes dst (+)= the sum of at least one contribution, or what else the call's `op` asks for, divided as it asks
 * for; `dst` is in the buffer's shard. */
fsdp_status fsdp__sum_rows(const fsdp__call *call, fsdp_stream *stream, const fsdp_sharded_buffer *buffer,
                           const fsdp__sum *sum, void *dst, int64_t numel);
/* Records whether any of the ranks contributes to buffer i. Called once for every buffer of a
 * reduce_scatter_coalesced. */
void fsdp__contributed(const fsdp__call *call, int64_t i, bool any, int ranks, fsdp__traffic *traffic);
/* Returns the bytes that a ring sends for the buffer in a reduction. */
int64_t fsdp__reduced_bytes(const fsdp_sharded_buffer *buffer, int ranks);

/* Returns what the kernel is to do for a plain reduction of a group of `size` ranks, which adds in blocks (order.h).
 * The caller fills in the places and the number of elements. */
fsdp__reduce_ranks_args fsdp__call_reduction(const fsdp__call *call, int size, int block);

/* ---- plain calls, by rows ---- */

/* Returns a buffer of the plain call's dtype, for fsdp__call_by_rows. */
fsdp_sharded_buffer fsdp__plain_buffer(const fsdp__call *call, const void *unsharded, const void *shard, int64_t numel,
                                       int64_t chunk);
/* Returns a call that does what the plain `call` does, or a step of it, by the rows of such buffers. Both must stay. */
fsdp__call fsdp__call_by_rows(const fsdp__call *call, const fsdp_sharded_buffer *buffers, int64_t count);
/* Returns the chunk of a vector of `count` elements, of `element` bytes each, that so many ranks share: chunks begin on
 * cache lines, so that no two ranks write to one. */
int64_t fsdp__even_chunk(int64_t count, int ranks, size_t element);
