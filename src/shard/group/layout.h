/* layout.h - how the parameters of a group lie in it: a small table of parts. Arithmetic only.
 *
 * Every parameter is seen as (outer, rows, inner) elements: `rows` is its sharded dimension, outer the product of the
 * dimensions before it and inner that of those behind it. All numbers are elements.
 *
 * PER_PARAMETER (FSDP2): each parameter is cut by itself. Rank r has rows [r c, (r+1) c) of it, c = ceil(rows / ranks);
 * trailing ranks may have a short part or none. In memory each parameter begins at a multiple of the alignment.
 *
 * FLAT (FSDP1): the parameters, each seen as one run, lie one after the other as one vector. The vector is cut into
 * equal parts, the last one padded. A rank may have all, a part, or nothing of a parameter. */
#ifndef SHARD_GROUP_LAYOUT_H
#define SHARD_GROUP_LAYOUT_H

#include "fsdp/status.h"

#include <stdint.h>

typedef enum fsdp__layout_kind {
    FSDP__LAYOUT_PER_PARAMETER,
    FSDP__LAYOUT_FLAT
} fsdp__layout_kind;

typedef struct fsdp__extent {
    int64_t outer, rows, inner;
} fsdp__extent;

/* What one rank has of one parameter: `outer` runs of `inner` elements. In the parameter they begin at `at` and are
 * `stride` apart; in the rank's shard of the group they lie one after the other, from `in_shard` on. */
typedef struct fsdp__layout_part {
    int64_t parameter;
    int64_t at, in_shard;
    int64_t outer, stride, inner; /* inner 0: nothing */
} fsdp__layout_part;

typedef struct fsdp__layout {
    int64_t count;           /* of parameters, and of parts: one each */
    int64_t shard_numel;     /* of every rank's shard of the group, padding included */
    int64_t unsharded_numel; /* of the unsharded parameters, padding included */
    struct fsdp__layout_entry {
        fsdp__layout_part part; /* this rank's */
        int64_t chunk_numel;    /* longest part of any rank; pads the parameter. FLAT: the part's */
        int64_t in_unsharded;   /* where the unsharded parameter begins */
    } * entries;
} fsdp__layout;

typedef struct fsdp__layout_options {
    fsdp__layout_kind kind;
    int64_t ranks, rank;
    int64_t unsharded_align; /* each parameter begins at a multiple; 1: they touch */
} fsdp__layout_options;

/* Fills `*out`, which the caller releases. */
fsdp_status fsdp__layout_make(const fsdp__extent *extents, int64_t count, const fsdp__layout_options *options,
                              fsdp__layout *out);
void fsdp__layout_release(fsdp__layout *layout);
int64_t fsdp__extent_numel(const fsdp__extent *extent);
int64_t fsdp__layout_part_numel(const fsdp__layout_part *part);

#endif
