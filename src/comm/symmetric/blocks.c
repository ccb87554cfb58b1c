/* blocks.c - the vectored collectives of sharded parameters.
 *
 * gather   common memory: cast one's own rows into place, meet. Done. There is no other way: a row of common memory has
 *          one writer, who may write it again as soon as the others are through.
 *          visible memory: the same, then copy the peers' rows from their `whole` to the same place in one's own.
 *          other memory: the chunks of all blocks, one after the other, travel through the staging halves in pieces.
 * reduce   visible memory: add the peers' rows where they are, in rank order.
 *          other memory: through staging, the part for each rank apart.
 * All paths round each element the same number of times in the same order, so the bits are the same. */
#include <string.h>

#include "base/compiler.h"
#include "comm/symmetric/symmetric.h"

enum {
    BATCH = 64,                                                /* segments a kernel launch takes */
    TABLE_BLOCKS = FSDP__PAYLOAD_BYTES / (int)sizeof(uint64_t) /* addresses a rank can show */
};

typedef struct exchange {
    fsdp__symmetric_group *group;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
} exchange;

/* Element `first` of the concatenation of all blocks' chunks, and on. */
typedef struct cursor {
    int64_t block, offset;
} cursor;

/* A part of one block's chunk that lies in a piece. */
typedef struct part {
    const fsdp_block *block;
    int64_t index;
    int64_t offset; /* in the chunk */
    int64_t at;     /* in the piece */
    int64_t numel;  /* padding included */
} part;

/* ---- casts in batches ---- */

typedef struct batch {
    exchange *x;
    fsdp_dtype src_dtype, dst_dtype;
    int64_t count;
    fsdp__segment segments[BATCH];
} batch;

static fsdp_status batch_flush(batch *b)
{
    fsdp__cast_segments_args args = {b->segments, b->count, b->src_dtype, b->dst_dtype};

    if (b->count == 0)
        return FSDP_OK;
    b->count = 0;
    FSDP_TRY(fsdp__run_kernel(b->x->stream, FSDP__KERNEL_CAST_SEGMENTS, &args));
    return FSDP_OK;
}

static fsdp_status batch_add(batch *b, void *dst, const void *src, int64_t numel)
{
    if (numel <= 0 || (dst == src && b->src_dtype == b->dst_dtype))
        return FSDP_OK;
    if (b->count == BATCH)
        FSDP_TRY(batch_flush(b));
    b->segments[b->count++] = (fsdp__segment){src, dst, numel};
    b->x->traffic->moved_bytes += numel * (int64_t)fsdp_dtype_size(b->dst_dtype);
    return FSDP_OK;
}

/* ---- geometry ---- */

/* Rows of the block that rank r owns. */
static int64_t rows_of(const fsdp_block *block, int rank)
{
    int64_t left = block->numel - rank * block->chunk;

    return left < 0 ? 0 : FSDP__MIN(left, block->chunk);
}

/* How much of `p` is not padding at rank r. */
static int64_t valid_of(const part *p, int rank)
{
    int64_t left = rows_of(p->block, rank) - p->offset;

    return left < 0 ? 0 : FSDP__MIN(left, p->numel);
}

static char *place(const void *base, int64_t index, fsdp_dtype dtype)
{
    return (char *)(uintptr_t)base + (size_t)index * fsdp_dtype_size(dtype);
}

static char *whole_of(const exchange *x, const part *p, int rank)
{
    return place(p->block->whole, rank * p->block->chunk + p->offset, x->call->whole_dtype);
}

static int64_t total_chunks(const fsdp__call *call)
{
    int64_t total = 0;

    for (int64_t i = 0; i < call->block_count; i++)
        total += call->blocks[i].chunk;
    return total;
}

/* The next part of a piece that has room for `room` more elements; false at the end. */
static bool next_part(const fsdp__call *call, cursor *c, int64_t *at, int64_t room, part *out)
{
    while (c->block < call->block_count && c->offset == call->blocks[c->block].chunk) {
        c->block++;
        c->offset = 0;
    }
    if (c->block == call->block_count || *at == room)
        return false;
    *out = (part){.block = &call->blocks[c->block], .index = c->block, .offset = c->offset, .at = *at};
    out->numel = FSDP__MIN(out->block->chunk - c->offset, room - *at);
    c->offset += out->numel;
    *at += out->numel;
    return true;
}

/* ---- showing where the blocks are ---- */

static bool all_visible(const exchange *x)
{
    const fsdp__call *call = x->call;

    for (int64_t i = 0; i < call->block_count; i++) {
        const fsdp_block *b = &call->blocks[i];
        if (b->numel > 0 &&
            !fsdp__arena_holds(x->group->world->arena, b->whole, (size_t)b->numel * fsdp_dtype_size(call->whole_dtype)))
            return false;
    }
    return true;
}

typedef enum path {
    PATH_STAGING,
    PATH_VISIBLE,
    PATH_COMMON
} path;

/* The entry of the call: what can be done depends on the memory of all ranks. */
static fsdp_status show_blocks(exchange *x, bool visible, path *out)
{
    fsdp__symmetric_group *g = x->group;
    uint64_t *table = (uint64_t *)fsdp__payload_of(g, x->call, g->rank);
    bool direct = !x->call->force_copy && x->call->block_count <= TABLE_BLOCKS;
    fsdp__entry entry = {.visible = visible};
    const fsdp__entry *first;

    for (int64_t i = 0; visible && i < x->call->block_count; i++) {
        const fsdp_block *b = &x->call->blocks[i];
        uint64_t offset = b->numel ? fsdp__to_offset(g, b->whole) : 0;

        if (direct)
            table[i] = offset;
        entry.blocks_hash = (entry.blocks_hash ^ offset) * 0x9e3779b97f4a7c15u;
        entry.blocks_hash ^= entry.blocks_hash >> 29;
    }
    FSDP_TRY(fsdp__show(g, x->call, &entry, x->traffic));
    first = fsdp__entry_of(g, x->call, 0);
    *out = PATH_COMMON;
    for (int r = 0; r < g->size; r++) {
        const fsdp__entry *other = fsdp__entry_of(g, x->call, r);
        if (!other->visible)
            *out = PATH_STAGING;
        else if (*out == PATH_COMMON && other->blocks_hash != first->blocks_hash)
            *out = direct ? PATH_VISIBLE : PATH_STAGING;
    }
    return FSDP_OK;
}

static void *peer_whole(const exchange *x, int rank, int64_t block)
{
    const uint64_t *table = (const uint64_t *)fsdp__payload_of(x->group, x->call, rank);

    return fsdp__from_offset(x->group, table[block]);
}

static unsigned char *staging_of(const exchange *x, int rank, int half)
{
    const fsdp__symmetric_group *g = x->group;

    return fsdp__arena_staging(g->world->arena, g->index, g->ranks[rank], half);
}

/* ---- gather ---- */

static fsdp_status place_own_rows(exchange *x)
{
    const fsdp__call *call = x->call;
    batch own = {.x = x, .src_dtype = call->shard_dtype, .dst_dtype = call->whole_dtype};
    int rank = x->group->rank;

    for (int64_t i = 0; i < call->block_count; i++) {
        const fsdp_block *b = &call->blocks[i];
        FSDP_TRY(batch_add(&own, place(b->whole, rank * b->chunk, call->whole_dtype), b->shard, rows_of(b, rank)));
    }
    return batch_flush(&own);
}

static fsdp_status copy_peers_rows(exchange *x)
{
    const fsdp__call *call = x->call;
    batch rows = {.x = x, .src_dtype = call->whole_dtype, .dst_dtype = call->whole_dtype};

    for (int64_t i = 0; i < call->block_count; i++) {
        const fsdp_block *b = &call->blocks[i];
        for (int p = 1; p < x->group->size; p++) {
            int r = (x->group->rank + p) % x->group->size; /* not all from the same rank at once */
            FSDP_TRY(batch_add(&rows, place(b->whole, r * b->chunk, call->whole_dtype),
                               place(peer_whole(x, r, i), r * b->chunk, call->whole_dtype), rows_of(b, r)));
        }
    }
    return batch_flush(&rows);
}

/* One piece of the chunks: own rows in, meet, everybody's rows out. `c` moves to the next piece. */
static fsdp_status gather_piece(exchange *x, cursor *c, int64_t room, int half)
{
    const fsdp__call *call = x->call;
    fsdp__symmetric_group *g = x->group;
    batch in = {.x = x, .src_dtype = call->shard_dtype, .dst_dtype = call->whole_dtype};
    batch out = {.x = x, .src_dtype = call->whole_dtype, .dst_dtype = call->whole_dtype};
    cursor walk = *c;
    int64_t at = 0;
    part p;

    while (next_part(call, &walk, &at, room, &p))
        FSDP_TRY(batch_add(&in, place(staging_of(x, g->rank, half), p.at, call->whole_dtype),
                           place(p.block->shard, p.offset, call->shard_dtype), valid_of(&p, g->rank)));
    FSDP_TRY(batch_flush(&in));
    FSDP_TRY(fsdp__rendezvous(g, x->traffic));
    for (int i = 0; i < g->size; i++) {
        int r = (g->rank + i) % g->size;

        walk = *c;
        at = 0;
        while (next_part(call, &walk, &at, room, &p))
            FSDP_TRY(batch_add(&out, whole_of(x, &p, r), place(staging_of(x, r, half), p.at, call->whole_dtype),
                               valid_of(&p, r)));
    }
    *c = walk;
    return batch_flush(&out);
}

fsdp_status fsdp__symmetric_all_gather_blocks(void *group, const fsdp__call *call, fsdp_stream *stream,
                                              fsdp__traffic *traffic)
{
    exchange x = {group, call, stream, traffic};
    bool visible = all_visible(&x);
    int64_t total = total_chunks(call), room = FSDP__STAGING_BYTES / (int64_t)fsdp_dtype_size(call->whole_dtype);
    cursor c = {0};
    int half = 0;
    path way;

    FSDP_TRY(fsdp__symmetric_open_device(x.group->world, stream));
    if (visible)
        FSDP_TRY(place_own_rows(&x)); /* peers read them after the meeting */
    FSDP_TRY(show_blocks(&x, visible, &way));
    if (way == PATH_COMMON)
        return FSDP_OK;
    if (way == PATH_VISIBLE) {
        FSDP_TRY(copy_peers_rows(&x));
        return FSDP_OK;
    }
    for (int64_t done = 0; done < total; done += room, half = !half)
        FSDP_TRY(gather_piece(&x, &c, room, half));
    return FSDP_OK;
}

/* ---- reduce ---- */

/* dst (+)= divided sum over ranks of group->operands. */
static fsdp_status reduce(exchange *x, fsdp_dtype src_dtype, void *dst, int64_t numel)
{
    const fsdp__call *call = x->call;
    int size = x->group->size;
    fsdp__reduce_ranks_args args = {.srcs = x->group->operands,
                                    .count = size,
                                    .dst = dst,
                                    .numel = numel,
                                    .src_dtype = src_dtype,
                                    .dst_dtype = call->shard_dtype,
                                    .op = FSDP__RANK_SUM,
                                    .divisor = call->op == FSDP_AVG ? call->divisor * (float)size : call->divisor,
                                    .accumulate = call->accumulate};

    FSDP_TRY(fsdp__run_kernel(x->stream, FSDP__KERNEL_REDUCE_RANKS, &args));
    return FSDP_OK;
}

/* Peers' rows of block i are rounded into this rank's own staging first, which nobody else reads in this call. */
static fsdp_status reduce_rounded(exchange *x, int64_t i, int64_t rows)
{
    const fsdp__call *call = x->call;
    fsdp__symmetric_group *g = x->group;
    const fsdp_block *b = &call->blocks[i];
    int64_t room = FSDP__STAGING_BYTES / (g->size * (int64_t)fsdp_dtype_size(call->wire_dtype));
    batch in = {.x = x, .src_dtype = call->whole_dtype, .dst_dtype = call->wire_dtype};

    for (int64_t at = 0; at < rows; at += room) {
        int64_t n = FSDP__MIN(room, rows - at);

        for (int r = 0; r < g->size; r++) {
            char *rounded = place(staging_of(x, g->rank, 0), r * room, call->wire_dtype);
            const void *src = place(peer_whole(x, r, i), g->rank * b->chunk + at, call->whole_dtype);
            FSDP_TRY(batch_add(&in, rounded, src, n));
            g->operands[r] = rounded;
        }
        FSDP_TRY(batch_flush(&in));
        FSDP_TRY(reduce(x, call->wire_dtype, place(b->shard, at, call->shard_dtype), n));
    }
    return FSDP_OK;
}

static fsdp_status reduce_visible(exchange *x)
{
    const fsdp__call *call = x->call;
    fsdp__symmetric_group *g = x->group;

    for (int64_t i = 0; i < call->block_count; i++) {
        const fsdp_block *b = &call->blocks[i];
        int64_t rows = rows_of(b, g->rank);

        if (rows == 0)
            continue;
        if (call->wire_dtype != call->whole_dtype) {
            FSDP_TRY(reduce_rounded(x, i, rows));
            continue;
        }
        for (int r = 0; r < g->size; r++)
            g->operands[r] = place(peer_whole(x, r, i), g->rank * b->chunk, call->whole_dtype);
        x->traffic->moved_bytes += (g->size - 1) * rows * (int64_t)fsdp_dtype_size(call->whole_dtype);
        FSDP_TRY(reduce(x, call->whole_dtype, b->shard, rows));
    }
    return FSDP_OK;
}

/* One piece of the chunks: all ranks' rows in, each rank's apart, meet, own rows added up. */
static fsdp_status reduce_piece(exchange *x, cursor *c, int64_t room, int half)
{
    const fsdp__call *call = x->call;
    fsdp__symmetric_group *g = x->group;
    batch in = {.x = x, .src_dtype = call->whole_dtype, .dst_dtype = call->wire_dtype};
    cursor walk;
    int64_t at;
    part p;

    for (int to = 0; to < g->size; to++) {
        walk = *c;
        at = 0;
        while (next_part(call, &walk, &at, room, &p))
            FSDP_TRY(batch_add(&in, place(staging_of(x, g->rank, half), to * room + p.at, call->wire_dtype),
                               whole_of(x, &p, to), valid_of(&p, to)));
    }
    FSDP_TRY(batch_flush(&in));
    FSDP_TRY(fsdp__rendezvous(g, x->traffic));
    walk = *c;
    at = 0;
    while (next_part(call, &walk, &at, room, &p)) {
        int64_t rows = valid_of(&p, g->rank);

        if (rows == 0)
            continue;
        for (int r = 0; r < g->size; r++)
            g->operands[r] = place(staging_of(x, r, half), g->rank * room + p.at, call->wire_dtype);
        x->traffic->moved_bytes += (g->size - 1) * rows * (int64_t)fsdp_dtype_size(call->wire_dtype);
        FSDP_TRY(reduce(x, call->wire_dtype, place(p.block->shard, p.offset, call->shard_dtype), rows));
    }
    *c = walk;
    return FSDP_OK;
}

fsdp_status fsdp__symmetric_reduce_scatter_blocks(void *group, const fsdp__call *call, fsdp_stream *stream,
                                                  fsdp__traffic *traffic)
{
    exchange x = {group, call, stream, traffic};
    int64_t total = total_chunks(call);
    int64_t room = FSDP__STAGING_BYTES / (x.group->size * (int64_t)fsdp_dtype_size(call->wire_dtype));
    cursor c = {0};
    int half = 0;
    path way;

    FSDP_TRY(fsdp__symmetric_open_device(x.group->world, stream));
    FSDP_TRY(show_blocks(&x, all_visible(&x), &way));
    if (way == PATH_VISIBLE) {
        FSDP_TRY(reduce_visible(&x));
        return FSDP_OK;
    }
    for (int64_t done = 0; done < total; done += room, half = !half)
        FSDP_TRY(reduce_piece(&x, &c, room, half));
    return FSDP_OK;
}
