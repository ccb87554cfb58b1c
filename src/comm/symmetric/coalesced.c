/* coalesced.c - the coalesced collectives of sharded parameters.
 *
 * gather   shared memory: cast one's own rows into place, meet. Done. There is no other way: a row of shared memory has
 *          one writer, who may write it again as soon as the others are through.
 *          symmetric memory: the same, then copy the peers' rows from their `unsharded` to the same place in one's own.
 *          other memory: packed (comm/packed.h); pieces travel through the staging halves, where peers read them.
 * reduce   symmetric memory: add the peers' rows where they are, in rank order.
 *          other memory: packed, in the same way.
 * All paths round each element the same number of times in the same order, so the bits are the same. */
#include "comm/symmetric/coalesced.h"

#include "base/compiler.h"
#include "comm/packed.h"
#include "comm/sharded_buffer.h"
#include "comm/symmetric/devices.h"
#include "comm/symmetric/rendezvous.h"

enum {
    TABLE_BUFFERS = FSDP__PAYLOAD_BYTES / (int)sizeof(uint64_t), /* addresses a rank can show */
    ALIGN = 64                                                   /* elements */
};

typedef struct exchange {
    fsdp__symmetric_group *group;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
} exchange;

/* ---- showing where the buffers are ---- */

static bool all_readable(const exchange *x)
{
    const fsdp__call *call = x->call;

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        if (b->numel > 0 && !fsdp__arena_holds(x->group->world->arena, b->unsharded,
                                               (size_t)b->numel * fsdp_dtype_size(call->unsharded_dtype)))
            return false;
    }
    return true;
}

typedef enum path {
    PATH_STAGING,
    PATH_SYMMETRIC,
    PATH_SHARED
} path;

/* The entry of the call: what can be done depends on the memory of all ranks. */
static fsdp_status show_buffers(exchange *x, bool readable, path *out)
{
    fsdp__symmetric_group *g = x->group;
    uint64_t *table = (uint64_t *)fsdp__payload_to_show(g);
    bool direct = !x->call->force_copy && x->call->buffer_count <= TABLE_BUFFERS;
    fsdp__entry entry = {.readable = readable};
    const fsdp__entry *first;

    for (int64_t i = 0; readable && i < x->call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &x->call->buffers[i];
        uint64_t offset = b->numel ? fsdp__to_offset(g, b->unsharded) : 0;

        if (direct)
            table[i] = offset;
        entry.buffers_hash = fsdp__mix(entry.buffers_hash, offset);
    }
    FSDP_TRY(fsdp__show(g, x->call, &entry, x->traffic));
    first = fsdp__entry_of(g, 0);
    /* All addresses equal: one memory. That holds with force_copy, too, as there is no other way then. */
    *out = PATH_SHARED;
    for (int r = 0; r < g->size; r++) {
        const fsdp__entry *other = fsdp__entry_of(g, r);
        if (!other->readable)
            *out = PATH_STAGING;
        else if (*out == PATH_SHARED && other->buffers_hash != first->buffers_hash)
            *out = direct ? PATH_SYMMETRIC : PATH_STAGING;
    }
    return FSDP_OK;
}

static void *peer_unsharded(const exchange *x, int rank, int64_t buffer)
{
    const uint64_t *table = (const uint64_t *)fsdp__payload_of(x->group, rank);

    return fsdp__from_offset(x->group, table[buffer]);
}

static char *staging_of(const fsdp__symmetric_group *g, int rank, int half)
{
    return (char *)fsdp__arena_staging(g->world->arena, g->index, g->ranks[rank], half);
}

/* ---- pieces through staging ---- */

typedef struct staging {
    fsdp__carrier carrier; /* first */
    const exchange *x;
    fsdp_dtype dtype;
    bool scatters;
    int half;
} staging;

static void *staging_place(fsdp__carrier *carrier, int64_t count)
{
    const staging *s = (const staging *)carrier;

    (void)count;
    return staging_of(s->x->group, carrier->rank, s->half);
}

/* Peers read this half until they come to the meeting of the next piece; the piece after that uses it again. */
static fsdp_status staging_exchange(fsdp__carrier *carrier, int64_t count)
{
    staging *s = (staging *)carrier;

    FSDP_TRY(fsdp__rendezvous(s->x->group, s->x->traffic));
    for (int r = 0; r < carrier->size; r++)
        carrier->parts[r] =
            fsdp__place(staging_of(s->x->group, r, s->half), s->scatters ? carrier->rank * count : 0, s->dtype);
    s->half = !s->half;
    return FSDP_OK;
}

/* A scatter's piece has a part for each rank. */
static staging through_staging(const exchange *x, fsdp_dtype dtype, bool scatters)
{
    fsdp__symmetric_group *g = x->group;
    int64_t room = FSDP__STAGING_BYTES / ((scatters ? g->size : 1) * (int64_t)fsdp_dtype_size(dtype));

    return (staging){.carrier = {.rank = g->rank,
                                 .size = g->size,
                                 .room = room / ALIGN * ALIGN,
                                 .reads_peers = true,
                                 .parts = g->sources,
                                 .operands = g->operands,
                                 .place = staging_place,
                                 .exchange = staging_exchange},
                     .x = x,
                     .dtype = dtype,
                     .scatters = scatters};
}

/* ---- gather ---- */

static fsdp_status place_own_rows(exchange *x)
{
    const fsdp__call *call = x->call;
    fsdp__copies own = {
        .stream = x->stream, .traffic = x->traffic, .src_dtype = call->shard_dtype, .dst_dtype = call->unsharded_dtype};
    int rank = x->group->rank;

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        FSDP_TRY(fsdp__copies_add(&own, fsdp__place(b->unsharded, rank * b->chunk, call->unsharded_dtype), b->shard,
                                  fsdp__sharded_buffer_rows(b, rank)));
    }
    return fsdp__copies_flush(&own);
}

static fsdp_status copy_peers_rows(exchange *x)
{
    const fsdp__call *call = x->call;
    fsdp__copies rows = {.stream = x->stream,
                         .traffic = x->traffic,
                         .src_dtype = call->unsharded_dtype,
                         .dst_dtype = call->unsharded_dtype};

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        for (int p = 1; p < x->group->size; p++) {
            int r = (x->group->rank + p) % x->group->size; /* not all from the same rank at once */
            FSDP_TRY(fsdp__copies_add(&rows, fsdp__place(b->unsharded, r * b->chunk, call->unsharded_dtype),
                                      fsdp__place(peer_unsharded(x, r, i), r * b->chunk, call->unsharded_dtype),
                                      fsdp__sharded_buffer_rows(b, r)));
        }
    }
    return fsdp__copies_flush(&rows);
}

fsdp_status fsdp__symmetric_all_gather_coalesced(void *group, const fsdp__call *call, fsdp_stream *stream,
                                                 fsdp__traffic *traffic)
{
    exchange x = {group, call, stream, traffic};
    bool readable = all_readable(&x);
    staging s = through_staging(&x, call->unsharded_dtype, false);
    path way;

    FSDP_TRY(fsdp__symmetric_open_device(x.group->world, stream));
    if (readable)
        FSDP_TRY(place_own_rows(&x)); /* before the meeting, after which peers read them */
    FSDP_TRY(show_buffers(&x, readable, &way));
    if (way == PATH_SHARED)
        return FSDP_OK;
    if (way == PATH_SYMMETRIC) {
        FSDP_TRY(copy_peers_rows(&x));
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__packed_gather(&s.carrier, call, stream, traffic));
    return FSDP_OK;
}

/* ---- reduce ---- */

/* Peers' rows of buffer i are rounded into this rank's own staging first, which nobody else reads in this call. */
static fsdp_status reduce_rounded(exchange *x, int64_t i, int64_t rows)
{
    const fsdp__call *call = x->call;
    fsdp__symmetric_group *g = x->group;
    const fsdp_sharded_buffer *b = &call->buffers[i];
    int64_t room = FSDP__STAGING_BYTES / (g->size * (int64_t)fsdp_dtype_size(call->wire_dtype));
    fsdp__copies in = {
        .stream = x->stream, .traffic = x->traffic, .src_dtype = call->unsharded_dtype, .dst_dtype = call->wire_dtype};

    for (int64_t at = 0; at < rows; at += room) {
        int64_t n = FSDP__MIN(room, rows - at);

        for (int r = 0; r < g->size; r++) {
            char *rounded = fsdp__place(staging_of(g, g->rank, 0), r * room, call->wire_dtype);
            const void *src = fsdp__place(peer_unsharded(x, r, i), g->rank * b->chunk + at, call->unsharded_dtype);
            FSDP_TRY(fsdp__copies_add(&in, rounded, src, n));
            g->operands[r] = rounded;
        }
        FSDP_TRY(fsdp__copies_flush(&in));
        FSDP_TRY(fsdp__sum_rows(call, x->stream, g->operands, g->size, call->wire_dtype,
                                fsdp__place(b->shard, at, call->shard_dtype), n));
    }
    return FSDP_OK;
}

/* There is no meeting afterwards: the caller keeps `unsharded` as it is until a later call is done (fsdp/comm.h,
 * "Reuse"). */
static fsdp_status reduce_symmetric(exchange *x)
{
    const fsdp__call *call = x->call;
    fsdp__symmetric_group *g = x->group;

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t rows = fsdp__sharded_buffer_rows(b, g->rank);

        if (rows == 0)
            continue;
        if (call->wire_dtype != call->unsharded_dtype) {
            FSDP_TRY(reduce_rounded(x, i, rows));
            continue;
        }
        for (int r = 0; r < g->size; r++)
            g->operands[r] = fsdp__place(peer_unsharded(x, r, i), g->rank * b->chunk, call->unsharded_dtype);
        x->traffic->moved_bytes += (g->size - 1) * rows * (int64_t)fsdp_dtype_size(call->unsharded_dtype);
        FSDP_TRY(fsdp__sum_rows(call, x->stream, g->operands, g->size, call->unsharded_dtype, b->shard, rows));
    }
    return FSDP_OK;
}

fsdp_status fsdp__symmetric_reduce_scatter_coalesced(void *group, const fsdp__call *call, fsdp_stream *stream,
                                                     fsdp__traffic *traffic)
{
    exchange x = {group, call, stream, traffic};
    staging s = through_staging(&x, call->wire_dtype, true);
    path way;

    FSDP_TRY(fsdp__symmetric_open_device(x.group->world, stream));
    FSDP_TRY(show_buffers(&x, all_readable(&x), &way));
    if (way == PATH_SYMMETRIC) {
        FSDP_TRY(reduce_symmetric(&x));
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__packed_reduce(&s.carrier, call, stream, traffic));
    return FSDP_OK;
}
