/* arena_coalesced.c - the coalesced collectives of sharded parameters.
 *
 * gather   shared memory: cast this rank's own rows into place, meet, done. There is no other way: a row of shared
 *          memory has one writer, which may write it again as soon as the others are through.
 *          symmetric memory: the same, then copy the peers' rows from their `unsharded` to the same place in one's own.
 *          other memory: packed (comm/packed.h); pieces travel through the staging halves, where peers read them.
 * reduce   symmetric memory: add the peers' rows where they are, in rank order.
 *          other memory: packed, in the same way.
 * All paths round each element the same number of times in the same order, so the bits are the same. */
#include "comm/transport/arena/arena_coalesced.h"

#include <string.h>

#include "base/compiler.h"
#include "comm/packed.h"
#include "comm/sharded_buffer.h"
#include "comm/transport/arena/devices.h"
#include "comm/transport/arena/rendezvous.h"
#include "comm/transport/arena/shown.h"

enum {
    ALIGN = 64
};

typedef struct exchange {
    fsdp__symmetric_group *group;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
} exchange;

static bool contributes(const exchange *x, int rank, int64_t buffer)
{
    return fsdp__shown_adds(x->group, x->call, rank, buffer);
}

static void *peer_unsharded(const exchange *x, int rank, int64_t buffer)
{
    return fsdp__shown_place(x->group, rank, buffer);
}

static char *staging_of(const fsdp__symmetric_group *g, int rank, int half)
{
    return (char *)fsdp__arena_staging(g->world->arena, g->index, g->ranks[rank], half);
}

/* ---- pieces through staging ---- */

typedef struct staging {
    fsdp__carrier carrier; /* first */
    const exchange *x;
    bool scatters;
    int half;
} staging;

static void *staging_place(fsdp__carrier *carrier, int64_t bytes)
{
    const staging *s = (const staging *)carrier;

    (void)bytes;
    return staging_of(s->x->group, carrier->rank, s->half);
}

/* Meets the others, so that peers can read this half until they come to the meeting of the next piece; the piece after
 * that uses it again. */
static fsdp_status staging_exchange(fsdp__carrier *carrier, int64_t bytes)
{
    staging *s = (staging *)carrier;

    FSDP_TRY(fsdp__rendezvous(s->x->group, s->x->traffic));
    for (int r = 0; r < carrier->size; r++)
        carrier->parts[r] = staging_of(s->x->group, r, s->half) + (s->scatters ? carrier->rank * bytes : 0);
    s->half = !s->half;
    return FSDP_OK;
}

static bool staging_contributes(const fsdp__carrier *carrier, int rank, int64_t buffer)
{
    return contributes(((const staging *)carrier)->x, rank, buffer);
}

/* Sets up a carrier. A scatter's piece has a part for each rank. */
static staging through_staging(const exchange *x, bool scatters)
{
    fsdp__symmetric_group *g = x->group;
    int64_t room = FSDP__STAGING_BYTES / (scatters ? g->size : 1);

    return (staging){.carrier = {.rank = g->rank,
                                 .size = g->size,
                                 .room = room / ALIGN * ALIGN,
                                 .block = g->block,
                                 .reads_peers = true,
                                 .parts = g->sources,
                                 .operands = g->operands,
                                 .place = staging_place,
                                 .exchange = staging_exchange,
                                 .contributes = staging_contributes},
                     .x = x,
                     .scatters = scatters};
}

/* ---- gather ---- */

static fsdp_status copy_peers_rows(exchange *x)
{
    fsdp__copies rows = {.stream = x->stream, .traffic = x->traffic};

    for (int64_t i = 0; i < x->call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &x->call->buffers[i];

        FSDP_TRY(fsdp__copies_set(&rows, b->unsharded_dtype, b->unsharded_dtype));
        for (int p = 1; p < x->group->size; p++) {
            int r = (x->group->rank + p) % x->group->size; /* so that not all read from the same rank at once */

            FSDP_TRY(fsdp__copies_mirror(&rows, b, peer_unsharded(x, r, i), r));
        }
    }
    return fsdp__copies_flush(&rows);
}

fsdp_status fsdp__symmetric_all_gather_coalesced(void *group, const fsdp__call *call, fsdp_stream *stream,
                                                 fsdp__traffic *traffic)
{
    exchange x = {group, call, stream, traffic};
    bool readable = fsdp__shown_is_readable(group, call);
    staging s = through_staging(&x, false);
    fsdp__shown_path way;

    FSDP_TRY(fsdp__symmetric_open_device(x.group->world, stream));
    if (readable)
        FSDP_TRY(fsdp__place_own_rows(x.call, x.group->rank, x.stream,
                                      x.traffic)); /* before the meeting, after which peers read them */
    FSDP_TRY(fsdp__shown_meet(group, call, readable, traffic, &way));
    if (way == FSDP__SHOWN_SHARED)
        return FSDP_OK;
    if (way == FSDP__SHOWN_SYMMETRIC) {
        FSDP_TRY(copy_peers_rows(&x));
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__packed_gather(&s.carrier, call, stream, traffic));
    return FSDP_OK;
}

/* ---- reduce ---- */

/* Reduces a buffer whose contributions are rounded, or lie in runs: they are first copied to this rank's own staging,
 * which nobody else reads in this call. */
static fsdp_status reduce_copied(exchange *x, int64_t i, int64_t rows)
{
    const fsdp__call *call = x->call;
    fsdp__symmetric_group *g = x->group;
    const fsdp_sharded_buffer *b = &call->buffers[i];
    fsdp_dtype wire = fsdp__wire_dtype(call, b);
    int64_t room = FSDP__STAGING_BYTES / (g->size * (int64_t)fsdp_dtype_size(wire));
    fsdp__copies in = {.stream = x->stream,
                       .traffic = x->traffic,
                       .divisor = call->predivide,
                       .src_dtype = b->unsharded_dtype,
                       .dst_dtype = wire};

    for (int64_t at = 0; at < rows; at += room) {
        int64_t n = FSDP__MIN(room, rows - at);
        fsdp__sum sum = {.srcs = g->operands, .ranks = g->size, .block = g->block, .dtype = wire};

        for (int r = 0; r < g->size; r++) {
            char *copied = contributes(x, r, i) ? fsdp__place(staging_of(g, g->rank, 0), r * room, wire) : NULL;

            if (copied)
                FSDP_TRY(fsdp__copies_collect(&in, b, peer_unsharded(x, r, i), g->rank, at, n, copied));
            fsdp__sum_add(&sum, copied);
        }
        FSDP_TRY(fsdp__copies_flush(&in));
        FSDP_TRY(fsdp__sum_rows(call, x->stream, b, &sum, fsdp__place(b->shard, at, b->shard_dtype), n));
    }
    return FSDP_OK;
}

static fsdp_status reduce_in_place(exchange *x, int64_t i, int64_t rows)
{
    fsdp__symmetric_group *g = x->group;
    const fsdp_sharded_buffer *b = &x->call->buffers[i];
    fsdp__sum sum = {.srcs = g->operands, .ranks = g->size, .block = g->block, .dtype = b->unsharded_dtype};
    int64_t others = 0;

    for (int r = 0; r < g->size; r++) {
        bool there = contributes(x, r, i);

        fsdp__sum_add(&sum,
                      there ? fsdp__place(peer_unsharded(x, r, i), g->rank * b->chunk, b->unsharded_dtype) : NULL);
        others += there && r != g->rank;
    }
    x->traffic->moved_bytes += others * rows * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
    FSDP_TRY(fsdp__sum_rows(x->call, x->stream, b, &sum, b->shard, rows));
    return FSDP_OK;
}

static bool anyone_contributes(const exchange *x, int64_t buffer)
{
    bool any = false;

    for (int r = 0; r < x->group->size && !any; r++)
        any = contributes(x, r, buffer);
    return any;
}

/* Reduces directly. There is no meeting afterwards: the caller keeps `unsharded` as it is until a later call is done
 * (fsdp/comm.h, "Reuse"). */
static fsdp_status reduce_symmetric(exchange *x)
{
    const fsdp__call *call = x->call;
    int rank = x->group->rank;

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t rows = fsdp__part_numel(b, rank);
        bool any = anyone_contributes(x, i), as_it_lies = b->outer <= 1 && call->predivide == 1.0f;

        fsdp__contributed(call, i, any, x->group->size, x->traffic);
        if (rows == 0 || !any)
            continue;
        if (as_it_lies && fsdp__wire_dtype(call, b) == b->unsharded_dtype)
            FSDP_TRY(reduce_in_place(x, i, rows));
        else
            FSDP_TRY(reduce_copied(x, i, rows));
    }
    return FSDP_OK;
}

fsdp_status fsdp__symmetric_reduce_scatter_coalesced(void *group, const fsdp__call *call, fsdp_stream *stream,
                                                     fsdp__traffic *traffic)
{
    exchange x = {group, call, stream, traffic};
    staging s = through_staging(&x, true);
    fsdp__shown_path way;

    FSDP_TRY(fsdp__symmetric_open_device(x.group->world, stream));
    FSDP_TRY(fsdp__shown_meet(group, call, fsdp__shown_is_readable(group, call), traffic, &way));
    if (way == FSDP__SHOWN_SYMMETRIC) {
        FSDP_TRY(reduce_symmetric(&x));
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__packed_reduce(&s.carrier, call, stream, traffic));
    return FSDP_OK;
}
