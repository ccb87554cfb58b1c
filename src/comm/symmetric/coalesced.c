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

#include <string.h>

#include "base/compiler.h"
#include "comm/packed.h"
#include "comm/sharded_buffer.h"
#include "comm/symmetric/devices.h"
#include "comm/symmetric/rendezvous.h"

enum {
    TABLE_BUFFERS = FSDP__PAYLOAD_BYTES / (int)sizeof(uint64_t), /* addresses a rank can show */
    BITS_BUFFERS = FSDP__PAYLOAD_BYTES * 8,
    ALIGN = 64
};

/* In the place of an address, in a reduction: this rank has nothing to add. */
static const uint64_t nothing = UINT64_MAX;

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
        size_t bytes = (size_t)fsdp__unsharded_numel(b) * fsdp_dtype_size(b->unsharded_dtype);

        if (bytes > 0 && b->unsharded && !fsdp__arena_holds(x->group->world->arena, b->unsharded, bytes))
            return false;
    }
    return true;
}

static bool is_complete(const fsdp__call *call)
{
    bool reduces = call->name == FSDP__CALL_REDUCE_SCATTER_COALESCED, complete = true;

    for (int64_t i = 0; reduces && i < call->buffer_count; i++)
        complete = complete && call->buffers[i].unsharded;
    return complete;
}

typedef enum path {
    PATH_STAGING,
    PATH_SYMMETRIC,
    PATH_SHARED
} path;

/* Where the buffers are, and which of them have nothing to add. Where they do not all find a place only the latter is
 * shown, as bits. */
static fsdp_status fill_payload(const exchange *x, fsdp__entry *entry)
{
    const fsdp__call *call = x->call;
    unsigned char *bits = fsdp__payload_to_show(x->group);
    uint64_t *table = (uint64_t *)bits;
    bool fits = call->buffer_count <= TABLE_BUFFERS;

    if (!fits && !entry->complete && call->buffer_count > BITS_BUFFERS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "reduction of %lld buffers in group '%s': of more than %d none may be NULL",
                         (long long)call->buffer_count, x->group->name, BITS_BUFFERS);
    if (!fits && !entry->complete)
        memset(bits, 0, FSDP__PAYLOAD_BYTES);
    for (int64_t i = 0; (entry->readable || !entry->complete) && i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        uint64_t offset = b->numel == 0 ? 0 : fsdp__to_offset(x->group, b->unsharded);

        offset = !entry->complete && !b->unsharded ? nothing : offset;
        if (fits)
            table[i] = offset;
        else if (!entry->complete && b->unsharded)
            bits[i / 8] |= (unsigned char)(1 << i % 8);
        entry->buffers_hash = fsdp__mix(entry->buffers_hash, offset);
    }
    return FSDP_OK;
}

/* The entry of the call: what can be done depends on the memory of all ranks. */
static fsdp_status show_buffers(exchange *x, bool readable, path *out)
{
    fsdp__symmetric_group *g = x->group;
    bool direct = !x->call->force_copy && x->call->buffer_count <= TABLE_BUFFERS;
    fsdp__entry entry = {.readable = readable, .complete = is_complete(x->call)};
    const fsdp__entry *first;

    FSDP_TRY(fill_payload(x, &entry));
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

static bool contributes(const exchange *x, int rank, int64_t buffer)
{
    const unsigned char *bits = fsdp__payload_of(x->group, rank);

    if (fsdp__entry_of(x->group, rank)->complete)
        return true;
    if (x->call->buffer_count <= TABLE_BUFFERS)
        return ((const uint64_t *)bits)[buffer] != nothing;
    return bits[buffer / 8] >> buffer % 8 & 1;
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

/* Peers read this half until they come to the meeting of the next piece; the piece after that uses it again. */
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

/* A scatter's piece has a part for each rank. */
static staging through_staging(const exchange *x, bool scatters)
{
    fsdp__symmetric_group *g = x->group;
    int64_t room = FSDP__STAGING_BYTES / (scatters ? g->size : 1);

    return (staging){.carrier = {.rank = g->rank,
                                 .size = g->size,
                                 .room = room / ALIGN * ALIGN,
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

static fsdp_status place_own_rows(exchange *x)
{
    fsdp__copies own = {.stream = x->stream, .traffic = x->traffic};
    int rank = x->group->rank;

    for (int64_t i = 0; i < x->call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &x->call->buffers[i];

        FSDP_TRY(fsdp__copies_set(&own, b->shard_dtype, b->unsharded_dtype));
        FSDP_TRY(fsdp__copies_spread(&own, b, rank, 0, fsdp__part_numel(b, rank), b->shard));
    }
    return fsdp__copies_flush(&own);
}

static fsdp_status copy_peers_rows(exchange *x)
{
    fsdp__copies rows = {.stream = x->stream, .traffic = x->traffic};

    for (int64_t i = 0; i < x->call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &x->call->buffers[i];

        FSDP_TRY(fsdp__copies_set(&rows, b->unsharded_dtype, b->unsharded_dtype));
        for (int p = 1; p < x->group->size; p++) {
            int r = (x->group->rank + p) % x->group->size; /* not all from the same rank at once */

            FSDP_TRY(fsdp__copies_mirror(&rows, b, peer_unsharded(x, r, i), r));
        }
    }
    return fsdp__copies_flush(&rows);
}

fsdp_status fsdp__symmetric_all_gather_coalesced(void *group, const fsdp__call *call, fsdp_stream *stream,
                                                 fsdp__traffic *traffic)
{
    exchange x = {group, call, stream, traffic};
    bool readable = all_readable(&x);
    staging s = through_staging(&x, false);
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

/* Contributions that are rounded, or lie in runs, are copied to this rank's own staging first, which nobody else reads
 * in this call. */
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
        int count = 0;

        for (int r = 0; r < g->size; r++) {
            char *copied = fsdp__place(staging_of(g, g->rank, 0), count * room, wire);

            if (!contributes(x, r, i))
                continue;
            FSDP_TRY(fsdp__copies_collect(&in, b, peer_unsharded(x, r, i), g->rank, at, n, copied));
            g->operands[count++] = copied;
        }
        FSDP_TRY(fsdp__copies_flush(&in));
        FSDP_TRY(fsdp__sum_rows(call, x->stream, g->operands, count, g->size, wire,
                                fsdp__place(b->shard, at, b->shard_dtype), b->shard_dtype, n));
    }
    return FSDP_OK;
}

static fsdp_status reduce_in_place(exchange *x, int64_t i, int64_t rows)
{
    fsdp__symmetric_group *g = x->group;
    const fsdp_sharded_buffer *b = &x->call->buffers[i];
    int64_t others = 0;
    int count = 0;

    for (int r = 0; r < g->size; r++) {
        if (!contributes(x, r, i))
            continue;
        g->operands[count++] = fsdp__place(peer_unsharded(x, r, i), g->rank * b->chunk, b->unsharded_dtype);
        others += r != g->rank;
    }
    x->traffic->moved_bytes += others * rows * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
    FSDP_TRY(fsdp__sum_rows(x->call, x->stream, g->operands, count, g->size, b->unsharded_dtype, b->shard,
                            b->shard_dtype, rows));
    return FSDP_OK;
}

static bool anyone_contributes(const exchange *x, int64_t buffer)
{
    bool any = false;

    for (int r = 0; r < x->group->size && !any; r++)
        any = contributes(x, r, buffer);
    return any;
}

/* There is no meeting afterwards: the caller keeps `unsharded` as it is until a later call is done (fsdp/comm.h,
 * "Reuse"). */
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
