/* arena_plain.c - collectives over contiguous parts.
 *
 * Each rank's contribution is read by its peers in one of three places:
 *   payload  small ones are copied to the rank's payload: one barrier in all
 *   direct   all parts are in memory that peers see, and are read in place: one barrier before and one after
 *   staging  all others go piece by piece through the rank's two staging halves: one barrier for each piece
 * The reading code is the same. It sees a piece as `sources[r]`, where part b of rank r's contribution begins at
 * element b * stride. Cost per rank of a reduction of n bytes over W ranks: it reads n bytes, once. */
#include "comm/transport/arena/arena_plain.h"

#include <string.h>

#include "base/compiler.h"
#include "comm/sharded_buffer.h"
#include "comm/transport/arena/devices.h"
#include "comm/transport/arena/lent.h"
#include "comm/transport/arena/rendezvous.h"
#include "device/device.h"
#include "device/kernels.h"
#include "device/races.h"

enum {
    SMALL_BYTES = 4096,        /* contributions up to this size travel as payload */
    PARALLEL_BYTES = 256 << 10 /* copies from this size on use all threads of the rank */
};

typedef struct exchange exchange;

/* Reads elements [first, first + count) of every part. */
typedef fsdp_status (*consumer)(exchange *x, int64_t first, int64_t count);

struct exchange {
    fsdp__symmetric_group *group;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
    size_t element;
    int64_t parts; /* number of parts in a contribution */
    bool contributes;
    int64_t stride;
    void **sources;
};

/* ---- moving ---- */

static fsdp_status copy(exchange *x, void *dst, const void *src, size_t bytes)
{
    fsdp__span span = {src, dst, (int64_t)bytes};
    fsdp__cast_spans_args args = {&span, 1, FSDP_U8, FSDP_U8};

    if (dst == src || bytes == 0)
        return FSDP_OK;
    x->traffic->moved_bytes += (int64_t)bytes;
    if (bytes >= PARALLEL_BYTES || !fsdp__device_host_access(fsdp__stream_device(x->stream))) {
        FSDP_TRY(fsdp__run_kernel(x->stream, FSDP__KERNEL_CAST_SPANS, &args));
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__races_use(x->stream, src, bytes, FSDP__READS, "copy"));
    FSDP_TRY(fsdp__races_use(x->stream, dst, bytes, FSDP__WRITES, "copy"));
    memcpy(dst, src, bytes);
    return FSDP_OK;
}

static const char *source_at(const exchange *x, int rank, int64_t part, int64_t offset)
{
    return (const char *)x->sources[rank] + (size_t)(part * x->stride + offset) * x->element;
}

static char *recv_at(const exchange *x, int64_t offset)
{
    return (char *)x->call->recv + (size_t)offset * x->element;
}

/* Computes dst = op over all ranks of the `count` elements at (part, offset) of their contributions. */
static fsdp_status reduce(exchange *x, int64_t part, int64_t offset, void *dst, int64_t count)
{
    fsdp__symmetric_group *g = x->group;
    fsdp__reduce_ranks_args args = fsdp__call_reduction(x->call, g->size, g->block);

    if (count <= 0)
        return FSDP_OK;
    args.srcs = g->operands;
    args.count = g->size;
    args.dst = dst;
    args.numel = count;
    for (int r = 0; r < g->size; r++)
        g->operands[r] = source_at(x, r, part, offset);
    x->traffic->moved_bytes += (g->size - 1) * count * (int64_t)x->element;
    FSDP_TRY(fsdp__run_kernel(x->stream, FSDP__KERNEL_REDUCE_RANKS, &args));
    return FSDP_OK;
}

/* ---- flags ---- */

static bool all_set(const fsdp__call *call)
{
    return !call->flags || !memchr(call->flags, 0, (size_t)call->flag_count);
}

/* Exchanges flags, after the exchange whose entries say which ranks have flags that are not set: other ranks may have
 * set them. */
static fsdp_status join_flags(exchange *x)
{
    fsdp__symmetric_group *g = x->group;
    fsdp__entry entry = {0};
    uint8_t *flags = x->call->flags;
    bool set = true;

    for (int r = 0; r < g->size; r++)
        set = set && fsdp__entry_of(g, r)->complete;
    if (!set && x->call->lacking)
        *x->call->lacking = true;
    for (int64_t at = 0, n; !set && at < x->call->flag_count; at += n) {
        n = FSDP__MIN(x->call->flag_count - at, FSDP__PAYLOAD_BYTES);
        if (flags)
            memcpy(fsdp__payload_to_show(g), flags + at, (size_t)n);
        else
            memset(fsdp__payload_to_show(g), 1, (size_t)n);
        FSDP_TRY(fsdp__show(g, x->call, &entry, x->traffic));
        for (int r = 0; r < g->size && flags; r++)
            for (int64_t i = 0; i < n; i++)
                flags[at + i] |= fsdp__payload_of(g, r)[i];
    }
    return FSDP_OK;
}

/* ---- the three places ---- */

/* Copies elements [first, first + count) of every part of this rank's contribution to `dst`. */
static fsdp_status stage(exchange *x, unsigned char *dst, int64_t first, int64_t count)
{
    for (int64_t b = 0; x->contributes && b < x->parts; b++)
        FSDP_TRY(copy(x, dst + (size_t)(b * count) * x->element,
                      (const char *)x->call->send + (size_t)(b * x->call->count + first) * x->element,
                      (size_t)count * x->element));
    return FSDP_OK;
}

static fsdp_status through_payload(exchange *x, consumer consume)
{
    fsdp__symmetric_group *g = x->group;
    fsdp__entry entry = {.complete = all_set(x->call)};

    FSDP_TRY(stage(x, fsdp__payload_to_show(g), 0, x->call->count));
    FSDP_TRY(fsdp__show(g, x->call, &entry, x->traffic));
    for (int r = 0; r < g->size; r++)
        x->sources[r] = fsdp__payload_of(g, r);
    x->stride = x->call->count;
    FSDP_TRY(consume(x, 0, x->call->count));
    return FSDP_OK;
}

static fsdp_status through_staging(exchange *x, consumer consume)
{
    fsdp__symmetric_group *g = x->group;
    int64_t most = FSDP__STAGING_BYTES / (int64_t)(x->element * (size_t)x->parts), count = x->call->count;
    int half = 0;

    /* Make parts of a piece begin on cache lines. */
    if (most > 64)
        most -= most % 64;
    for (int64_t first = 0; first < count; first += most, half = !half) {
        int64_t n = FSDP__MIN(most, count - first);

        for (int r = 0; r < g->size; r++)
            x->sources[r] = fsdp__arena_staging(g->world->arena, g->index, g->ranks[r], half);
        x->stride = n;
        FSDP_TRY(stage(x, fsdp__arena_staging(g->world->arena, g->index, g->ranks[g->rank], half), first, n));
        FSDP_TRY(fsdp__rendezvous(g, x->traffic));
        /* No meeting follows: this half is written again only after the meeting of the next piece, or of the next call,
         * to which peers come when they have read it ([Note: parity]). */
        FSDP_TRY(consume(x, first, n));
    }
    return FSDP_OK;
}

static bool peers_see(const exchange *x, const void *pointer, int64_t count)
{
    const fsdp__symmetric *world = x->group->world;

    return (world->all_readable && fsdp__device_host_access(fsdp__stream_device(x->stream))) ||
           fsdp__arena_holds(world->arena, pointer, (size_t)count * x->element);
}

/* Shows where this rank's parts are. `*direct` tells whether all ranks' parts can be read in place. */
static fsdp_status show_buffers(exchange *x, bool recv_too, bool *direct)
{
    fsdp__symmetric_group *g = x->group;
    const fsdp__call *call = x->call;
    fsdp__entry entry = {
        .send = fsdp__to_offset(g, call->send),
        .recv = fsdp__to_offset(g, call->recv),
        .readable = (!x->contributes || peers_see(x, call->send, x->parts * call->count)) &&
                    (!recv_too || peers_see(x, call->recv, call->count)),
        .complete = all_set(call),
    };

    fsdp__lent_begin(g);
    FSDP_TRY(fsdp__show(g, call, &entry, x->traffic));
    /* Decide from what all ranks have shown, so that all take the same path. */
    *direct = !call->force_copy;
    for (int r = 0; r < g->size; r++)
        *direct = *direct && fsdp__entry_of(g, r)->readable;
    if (!*direct)
        fsdp__lent_end(g);
    return FSDP_OK;
}

static fsdp_status exchange_all(exchange *x, consumer consume)
{
    fsdp__symmetric_group *g = x->group;
    bool direct;

    FSDP_TRY(fsdp__symmetric_open_device(g->world, x->stream));
    if ((size_t)(x->parts * x->call->count) * x->element <= SMALL_BYTES)
        return through_payload(x, consume);
    FSDP_TRY(show_buffers(x, false, &direct));
    if (!direct)
        return through_staging(x, consume);
    for (int r = 0; r < g->size; r++)
        x->sources[r] = fsdp__from_offset(g, fsdp__entry_of(g, r)->send);
    x->stride = x->call->count;
    FSDP_TRY(consume(x, 0, x->call->count));
    FSDP_TRY(fsdp__rendezvous(g, x->traffic)); /* after this nobody reads the parts any more */
    fsdp__lent_end(g);
    return FSDP_OK;
}

static exchange begin(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic, bool scatters)
{
    fsdp__symmetric_group *g = group;

    return (exchange){.group = g,
                      .call = call,
                      .stream = stream,
                      .traffic = traffic,
                      .element = fsdp_dtype_size(call->dtype),
                      .parts = scatters ? g->size : 1,
                      .contributes = true,
                      .sources = g->sources};
}

/* ---- the collectives ---- */

static fsdp_status consume_gather(exchange *x, int64_t first, int64_t count)
{
    const fsdp__symmetric_group *g = x->group;
    size_t bytes = (size_t)count * x->element;

    for (int i = 0; i < g->size; i++) {
        int r = (g->rank + i) % g->size; /* so that not all read from the same rank at once */
        const char *src =
            r == g->rank ? (const char *)x->call->send + (size_t)first * x->element : source_at(x, r, 0, 0);
        FSDP_TRY(copy(x, recv_at(x, r * x->call->count + first), src, bytes));
    }
    return FSDP_OK;
}

fsdp_status fsdp__symmetric_all_gather(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    exchange x = begin(group, call, stream, traffic, false);

    return exchange_all(&x, consume_gather);
}

static fsdp_status consume_reduce_scatter(exchange *x, int64_t first, int64_t count)
{
    return reduce(x, x->group->rank, 0, recv_at(x, first), count);
}

fsdp_status fsdp__symmetric_reduce_scatter(void *group, const fsdp__call *call, fsdp_stream *stream,
                                           fsdp__traffic *traffic)
{
    exchange x = begin(group, call, stream, traffic, true);

    return exchange_all(&x, consume_reduce_scatter);
}

static fsdp_status consume_broadcast(exchange *x, int64_t first, int64_t count)
{
    if (x->contributes)
        return FSDP_OK;
    return copy(x, recv_at(x, first), source_at(x, x->call->root, 0, 0), (size_t)count * x->element);
}

fsdp_status fsdp__symmetric_broadcast(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    exchange x = begin(group, call, stream, traffic, false);

    x.contributes = x.group->rank == call->root;
    return exchange_all(&x, consume_broadcast);
}

static fsdp_status consume_all_to_all(exchange *x, int64_t first, int64_t count)
{
    const fsdp__symmetric_group *g = x->group;

    for (int i = 0; i < g->size; i++) {
        int r = (g->rank + i) % g->size;
        FSDP_TRY(
            copy(x, recv_at(x, r * x->call->count + first), source_at(x, r, g->rank, 0), (size_t)count * x->element));
    }
    return FSDP_OK;
}

fsdp_status fsdp__symmetric_all_to_all(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    exchange x = begin(group, call, stream, traffic, true);

    return exchange_all(&x, consume_all_to_all);
}

fsdp_status fsdp__symmetric_barrier(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    fsdp__entry entry = {0};

    (void)stream;
    FSDP_TRY(fsdp__show(group, call, &entry, traffic));
    return FSDP_OK;
}

/* ---- all-reduce: each rank reduces its part of all contributions, then all copy the parts' results ---- */

/* Returns the start of rank r's part of `count` elements: [start, start + *length). Parts begin on cache lines. */
static int64_t part_of(const exchange *x, int64_t count, int rank, int64_t *length)
{
    int64_t line = 64 / (int64_t)x->element, size = x->group->size;
    int64_t part = ((count + size - 1) / size + line - 1) / line * line;
    int64_t start = FSDP__MIN(rank * part, count);

    *length = FSDP__MIN(part, count - start);
    return start;
}

/* Reduces in parts. `results[r]` is where rank r puts the results of its part, at the part's own offset. */
static fsdp_status reduce_in_parts(exchange *x, void *const *results, int64_t first, int64_t count)
{
    const fsdp__symmetric_group *g = x->group;
    int64_t length, start = part_of(x, count, g->rank, &length);

    FSDP_TRY(reduce(x, 0, start, (char *)results[g->rank] + (size_t)start * x->element, length));
    /* Now all results are there, and all contributions have been read: the copies may overwrite what was sent in
     * place. */
    FSDP_TRY(fsdp__rendezvous(x->group, x->traffic));
    for (int i = 0; i < g->size; i++) {
        int r = (g->rank + i) % g->size;

        start = part_of(x, count, r, &length);
        FSDP_TRY(copy(x, recv_at(x, first + start), (const char *)results[r] + (size_t)start * x->element,
                      (size_t)length * x->element));
    }
    return FSDP_OK;
}

/* Reduces everything, as every rank does. */
static fsdp_status consume_all_reduce(exchange *x, int64_t first, int64_t count)
{
    return reduce(x, 0, 0, recv_at(x, first), count);
}

/* Reduces a piece in parts. A part's results overwrite the part in the owner's staging: nobody else reads it in this
 * phase. */
static fsdp_status consume_all_reduce_piece(exchange *x, int64_t first, int64_t count)
{
    return reduce_in_parts(x, x->sources, first, count);
}

static fsdp_status all_reduce_direct(exchange *x)
{
    fsdp__symmetric_group *g = x->group;
    fsdp_status status;
    void **results = g->results;

    for (int r = 0; r < g->size; r++) {
        const fsdp__entry *entry = fsdp__entry_of(g, r);
        x->sources[r] = fsdp__from_offset(g, entry->send);
        results[r] = fsdp__from_offset(g, entry->recv);
    }
    x->stride = x->call->count;
    status = reduce_in_parts(x, results, 0, x->call->count);
    /* Peers copy results from this rank's recv, which belongs to the caller again after the call: wait for them. */
    if (status == FSDP_OK)
        status = fsdp__rendezvous(g, x->traffic);
    if (status == FSDP_OK)
        fsdp__lent_end(g);
    return status;
}

fsdp_status fsdp__symmetric_all_reduce(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    exchange x = begin(group, call, stream, traffic, false);
    bool direct;

    FSDP_TRY(fsdp__symmetric_open_device(x.group->world, stream));
    if ((size_t)call->count * x.element <= SMALL_BYTES) {
        FSDP_TRY(through_payload(&x, consume_all_reduce));
    } else {
        FSDP_TRY(show_buffers(&x, true, &direct));
        FSDP_TRY(direct ? all_reduce_direct(&x) : through_staging(&x, consume_all_reduce_piece));
    }
    return join_flags(&x);
}
