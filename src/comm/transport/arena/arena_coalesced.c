/* arena_coalesced.c - exchanges of rows: what all collectives of an arena are made of.
 *
 * gather   shared memory, of the host or of a device: cast this rank's own rows into place, meet, done. There is no
 *          other way: a row of shared memory has one writer, which may write again when the others are through.
 *          memory that peers see: the same, then copy the peers' rows from their `unsharded` to the same place in one's
 *          own.
 *          other memory: packed (comm/transport/packed.h); pieces travel through the staging halves, where peers read
 *          what others have packed.
 *
 * reduce   memory that peers see: add the peers' rows where they are, in rank order.
 *          other memory: packed, in the same way.
 *
 * swap     as reduce, but nothing is added.
 *
 * Peers see symmetric memory, and of plain calls also what they are lent (lent.h): a plain call ends with one more
 * meeting, after which nobody reads. What is small in a plain call is packed into the payload: one meeting in all. All
 * paths round each element the same number of times in the same order, so the bits are the same. */
#include "comm/transport/arena/arena_coalesced.h"

#include "base/compiler.h"
#include "comm/transport/arena/devices.h"
#include "comm/transport/arena/lent.h"
#include "comm/transport/arena/peer.h"
#include "comm/transport/arena/rendezvous.h"
#include "comm/transport/arena/shown.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"

enum {
    ALIGN = 64,
    SMALL_BYTES = 4096 /* what a rank gives in a plain call travels as payload up to this size */
};

static bool scatters(const fsdp__rows *x)
{
    return x->pattern != FSDP__GATHERS;
}

/* Returns the group's rank that counts as `number`. */
static int rank_at(const fsdp__rows *x, int number)
{
    return (number + x->first) % x->group->size;
}

static bool contributes(const fsdp__rows *x, int number, int64_t buffer)
{
    return x->call->plain || fsdp__shown_adds(x->group, x->call, rank_at(x, number), buffer);
}

static void *peer_unsharded(const fsdp__rows *x, int number, int64_t buffer)
{
    return fsdp__shown_place(x->group, rank_at(x, number), buffer);
}

static char *staging_of(const fsdp__arena_group *g, int rank, int half)
{
    return (char *)fsdp__arena_staging(g->world->arena, g->index, g->ranks[rank], half);
}

/* ---- pieces through the payload, or through staging ---- */

typedef struct passage {
    fsdp__mover mover; /* first */
    fsdp__rows *x;
    bool small; /* through the payload */
} passage;

static void *passage_place(fsdp__mover *mover, int64_t bytes)
{
    const passage *s = (const passage *)mover;

    (void)bytes;
    if (s->x->traffic->carried)
        return fsdp__peer_next_half(s->x->group);
    return s->small ? (char *)fsdp__payload_to_show(s->x->group)
                    : staging_of(s->x->group, s->x->group->rank, s->x->half);
}

/* Returns what a rank has packed for the piece that all have met for. */
static char *packed_by(const passage *s, int rank)
{
    const fsdp__rows *x = s->x;

    return x->traffic->carried ? fsdp__peer_half(x->group, rank)
           : s->small          ? (char *)fsdp__payload_of(x->group, rank)
                               : staging_of(x->group, rank, x->half);
}

/* Meets the others. Peers can read the payload until the next one is shown, and a half of staging until they come to
 * the meeting of the next piece; the piece after that uses it again ([Note: parity]). */
static fsdp_status passage_exchange(fsdp__mover *mover, int64_t bytes)
{
    passage *s = (passage *)mover;
    fsdp__rows *x = s->x;
    fsdp__entry entry = {0};

    if (x->traffic->carried) {
        FSDP_TRY(fsdp__peer_meet(x->group, x->traffic));
    } else if (s->small) {
        entry.complete = fsdp__shown_is_complete(x->call);
        FSDP_TRY(fsdp__show(x->group, x->call, &entry, x->traffic));
    } else {
        FSDP_TRY(fsdp__rendezvous(x->group, x->traffic));
    }
    for (int r = 0; r < mover->size; r++) {
        mover->parts[r] = packed_by(s, rank_at(x, r)) + (scatters(x) ? x->self * bytes : 0);
    }
    x->half = !x->half;
    return FSDP_OK;
}

static bool passage_contributes(const fsdp__mover *mover, int number, int64_t buffer)
{
    return contributes(((const passage *)mover)->x, number, buffer);
}

static bool is_small(const fsdp__rows *x)
{
    int64_t bytes = 0;

    if (!x->call->plain)
        return false;
    for (int64_t i = 0; i < x->call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &x->call->buffers[i];
        int64_t numel = scatters(x) ? fsdp__unsharded_numel(b) : fsdp__chunk_numel(b);

        bytes += numel * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
    }
    return bytes <= SMALL_BYTES;
}

/* Sets up a mover. A scatter's piece has a part for each rank. */
static passage passage_of(fsdp__rows *x)
{
    fsdp__arena_group *g = x->group;
    bool small = !x->traffic->carried && is_small(x);
    int64_t half = x->traffic->carried ? fsdp__peer_half_bytes(g) : FSDP__STAGING_BYTES;
    int64_t room = small ? SMALL_BYTES : half / (scatters(x) ? g->size : 1);

    return (passage){.mover = {.rank = x->self,
                               .size = g->size,
                               .room = room / ALIGN * ALIGN,
                               .block = g->block,
                               .reads_peers = true,
                               .parts = g->sources,
                               .operands = g->operands,
                               .place = passage_place,
                               .exchange = passage_exchange,
                               .contributes = passage_contributes},
                     .x = x,
                     .small = small};
}

/* ---- in place ---- */

/* Copies what the peers have of a gather, or of what each has for this rank. */
static fsdp_status copy_peers_rows(const fsdp__rows *x)
{
    bool swaps = x->pattern == FSDP__SWAPS;
    fsdp__copies rows;

    fsdp__copies_begin(&rows, x->traffic);
    for (int64_t i = 0; i < x->call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &x->call->buffers[i];

        FSDP_TRY(fsdp__copies_set(&rows, b->unsharded_dtype, b->unsharded_dtype));
        for (int p = !swaps; p < x->group->size; p++) {
            int r = (x->self + p) % x->group->size; /* so that not all read from the same rank at once */
            const void *theirs = peer_unsharded(x, r, i);

            FSDP_TRY(swaps ? fsdp__copies_collect(&rows, b, theirs, x->self, 0, fsdp__part_numel(b, x->self),
                                                  fsdp__place(b->shard, r * b->chunk, b->shard_dtype))
                           : fsdp__copies_mirror(&rows, b, theirs, r));
        }
    }
    return fsdp__copies_flush(&rows);
}

/* Reduces a buffer whose contributions are rounded, or lie in runs: they are first copied to this rank's own staging,
 * which nobody else reads in this call. */
static fsdp_status reduce_copied(const fsdp__rows *x, int64_t i, int64_t rows)
{
    const fsdp__call *call = x->call;
    fsdp__arena_group *g = x->group;
    const fsdp_sharded_buffer *b = &call->buffers[i];
    fsdp_dtype wire = fsdp__wire_dtype(call, b);
    int64_t room = FSDP__STAGING_BYTES / (g->size * (int64_t)fsdp_dtype_size(wire));
    fsdp__copies in = {
        .traffic = x->traffic, .divisor = call->predivide, .src_dtype = b->unsharded_dtype, .dst_dtype = wire};

    for (int64_t at = 0; at < rows; at += room) {
        int64_t n = FSDP__MIN(room, rows - at);
        fsdp__sum sum = {.srcs = g->operands, .ranks = g->size, .block = g->block, .dtype = wire};

        for (int r = 0; r < g->size; r++) {
            char *copied = contributes(x, r, i) ? fsdp__place(staging_of(g, g->rank, 0), r * room, wire) : NULL;

            if (copied)
                FSDP_TRY(fsdp__copies_collect(&in, b, peer_unsharded(x, r, i), x->self, at, n, copied));
            fsdp__sum_add(&sum, copied);
        }
        FSDP_TRY(fsdp__copies_flush(&in));
        FSDP_TRY(fsdp__sum_rows(call, x->traffic->stream, b, &sum, fsdp__place(b->shard, at, b->shard_dtype), n));
    }
    return FSDP_OK;
}

static fsdp_status reduce_in_place(const fsdp__rows *x, int64_t i, int64_t rows)
{
    fsdp__arena_group *g = x->group;
    const fsdp_sharded_buffer *b = &x->call->buffers[i];
    fsdp__sum sum = {.srcs = g->operands, .ranks = g->size, .block = g->block, .dtype = b->unsharded_dtype};
    int64_t others = 0;

    for (int r = 0; r < g->size; r++) {
        bool there = contributes(x, r, i);

        fsdp__sum_add(&sum,
                      there ? fsdp__place(peer_unsharded(x, r, i), x->self * b->chunk, b->unsharded_dtype) : NULL);
        others += there && r != x->self;
    }
    x->traffic->moved_bytes += others * rows * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
    return fsdp__sum_rows(x->call, x->traffic->stream, b, &sum, b->shard, rows);
}

static bool anyone_contributes(const fsdp__rows *x, int64_t buffer)
{
    bool any = false;

    for (int r = 0; r < x->group->size && !any; r++)
        any = contributes(x, r, buffer);
    return any;
}

/* Reduces directly. After a coalesced call there is no meeting: the caller keeps `unsharded` as it is until a later
 * call is done (fsdp/comm.h, "Reuse"). */
static fsdp_status reduce_peers_rows(const fsdp__rows *x)
{
    const fsdp__call *call = x->call;

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t rows = fsdp__part_numel(b, x->self);
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

/* ---- an exchange ---- */

/* Ends an exchange: after this nobody reads what was lent. */
static fsdp_status end(const fsdp__rows *x, bool in_place)
{
    if (!x->call->plain || x->goes_on)
        return FSDP_OK;
    if (in_place)
        FSDP_TRY(fsdp__rendezvous(x->group, x->traffic));
    fsdp__lent_end(x->group);
    return FSDP_OK;
}

fsdp__rows fsdp__rows_of(void *group, const fsdp__call *call, fsdp__pattern pattern, fsdp__traffic *traffic)
{
    fsdp__arena_group *g = group;

    return (fsdp__rows){.group = g, .call = call, .traffic = traffic, .pattern = pattern, .self = g->rank};
}

static fsdp_status exchange_on_host(fsdp__rows *x)
{
    static fsdp_status (*const in_place[])(const fsdp__rows *) = {
        [FSDP__GATHERS] = copy_peers_rows, [FSDP__REDUCES] = reduce_peers_rows, [FSDP__SWAPS] = copy_peers_rows};
    bool readable =
        fsdp__shown_is_readable(x->group, x->call, fsdp__device_host_access(fsdp__stream_device(x->traffic->stream)));
    passage s = passage_of(x);
    fsdp__shown_path way = FSDP__SHOWN_STAGING;

    FSDP_TRY(fsdp__arena_open_device(x->group->world, x->traffic->stream));
    if (!s.small && !x->staged) {
        if (readable && x->pattern == FSDP__GATHERS) /* before the meeting, after which peers read them */
            FSDP_TRY(fsdp__place_own_rows(x->call, x->self, x->traffic));
        if (x->call->plain)
            fsdp__lent_begin(x->group);
        FSDP_TRY(fsdp__shown_meet(x->group, x->call, readable, x->traffic, &way));
    }
    if (way == FSDP__SHOWN_STAGING)
        FSDP_TRY(fsdp__packed_run(&s.mover, x->call, x->pattern, x->traffic));
    else if (way == FSDP__SHOWN_IN_PLACE)
        FSDP_TRY(in_place[x->pattern](x));
    x->staged = x->goes_on && way == FSDP__SHOWN_STAGING;
    return end(x, way == FSDP__SHOWN_IN_PLACE);
}

/* Gathers in memory that the ranks' devices have in common: casts own rows into place, if they are not there, and lets
 * the streams meet. */
static fsdp_status gather_in_common(const fsdp__rows *x)
{
    FSDP_TRY(fsdp__place_own_rows(x->call, x->self, x->traffic));
    return fsdp__peer_meet(x->group, x->traffic);
}

/* Exchanges through the devices' memory. The hosts compare the call, and tell each other who contributes. */
static fsdp_status exchange_carried(fsdp__rows *x)
{
    passage s = passage_of(x);
    fsdp__shown_path way;
    fsdp_status status = FSDP_OK;

    if (!x->staged) {
        FSDP_TRY(fsdp__shown_meet(x->group, x->call, false, x->traffic, &way));
        status = fsdp__peer_begin(x->group, x->traffic->stream);
    }
    if (status == FSDP_OK)
        status = x->call->shared ? gather_in_common(x) : fsdp__packed_run(&s.mover, x->call, x->pattern, x->traffic);
    if (status == FSDP_OK && !x->goes_on)
        status = fsdp__peer_end(x->group, x->traffic->stream);
    if (status != FSDP_OK)
        fsdp__peer_tear(x->group);
    x->staged = x->goes_on;
    return status;
}

fsdp_status fsdp__rows_exchange(fsdp__rows *x)
{
    if (x->traffic->carried)
        return exchange_carried(x);
    return exchange_on_host(x);
}

/* ---- the coalesced collectives ---- */

fsdp_status fsdp__arena_all_gather_coalesced(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__rows x = fsdp__rows_of(group, call, FSDP__GATHERS, traffic);

    return fsdp__rows_exchange(&x);
}

fsdp_status fsdp__arena_reduce_scatter_coalesced(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__rows x = fsdp__rows_of(group, call, FSDP__REDUCES, traffic);

    return fsdp__rows_exchange(&x);
}
