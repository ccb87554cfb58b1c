/* clique_gather.c - collectives that only move bytes.
 *
 * A gather of buffers is one call of NCCL's for all: each rank's rows go straight to their places. Where ranks have
 * unequal parts, each broadcasts its own. Buffers of several runs (a later dimension is sharded) are packed, and so are
 * all where they go through memory that NCCL is shown. */
#include "comm/clique/clique_memory.h"

#include <sched.h>
#include <time.h>

#include "base/alloc.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"

enum {
    QUICK_LOOKS = 20, /* for NCCL to issue what it was given, before the thread sleeps in between */
    NAP_NS = 20000
};

/* ---- to issue ---- */

/* Counts what a call of `bytes` for each rank must send to other machines, and get from there. NCCL does not say what
 * it sends, and by which ranks: it is the least, divided among the ranks of a machine. An all-to-all sends just that.
 */
static void count_network(const fsdp__clique_group *g, const fsdp__clique_call *k, int64_t bytes,
                          fsdp__traffic *traffic)
{
    int64_t away = g->size - g->here, others = g->machines - 1;

    switch (k->kind) {
    case FSDP__CLIQUE_GATHER:
        traffic->network_sent += bytes * others;
        traffic->network_received += bytes * away / g->here;
        break;
    case FSDP__CLIQUE_SCATTER:
        traffic->network_sent += bytes * away / g->here;
        traffic->network_received += bytes * others;
        break;
    case FSDP__CLIQUE_REDUCE:
        traffic->network_sent += 2 * bytes * others / g->size;
        traffic->network_received += 2 * bytes * others / g->size;
        break;
    case FSDP__CLIQUE_BROADCAST:
        traffic->network_sent += k->root == g->rank ? bytes * others : 0;
        traffic->network_received += k->root < g->first || k->root >= g->first + g->here ? bytes / g->here : 0;
        break;
    default:
        traffic->network_sent += bytes * away;
        traffic->network_received += bytes * away;
    }
}

/* Tells what the device reads and writes, for those who watch; counts what comes from peers. */
static fsdp_status announce(const fsdp__clique_group *g, const fsdp__clique_call *k, fsdp__traffic *traffic)
{
    size_t bytes = (size_t)k->count * fsdp_dtype_size(k->dtype), all = bytes * (size_t)g->size;
    bool parts = k->kind == FSDP__CLIQUE_SCATTER || k->kind == FSDP__CLIQUE_ALL_TO_ALL,
         gathers = k->kind == FSDP__CLIQUE_GATHER || k->kind == FSDP__CLIQUE_ALL_TO_ALL,
         sends = k->kind != FSDP__CLIQUE_BROADCAST || k->root == g->rank;

    if (sends)
        FSDP_TRY(fsdp__stream_uses(traffic->stream, k->send, parts ? all : bytes, FSDP__READS, g->ops->library));
    if (k->kind != FSDP__CLIQUE_BROADCAST || !sends)
        FSDP_TRY(fsdp__stream_uses(traffic->stream, k->recv, gathers ? all : bytes, FSDP__WRITES, g->ops->library));
    if (k->kind == FSDP__CLIQUE_BROADCAST)
        traffic->moved_bytes += sends ? 0 : (int64_t)bytes;
    else
        traffic->moved_bytes += (int64_t)(all - bytes);
    count_network(g, k, (int64_t)bytes, traffic);
    return FSDP_OK;
}

fsdp_status fsdp__clique_issue(fsdp__clique_group *g, fsdp__clique_way way, const fsdp__clique_call *calls, int count,
                               fsdp__traffic *traffic)
{
    bool idle = false;

    for (int i = 0; i < count; i++)
        FSDP_TRY(announce(g, &calls[i], traffic));
    FSDP_TRY(g->ops->issue(g->cliques[way], calls, count, traffic->stream));
    for (int looks = 0;; looks++) {
        FSDP_TRY(g->ops->look(g->cliques[way], &idle));
        if (idle)
            return FSDP_OK;
        if (looks < QUICK_LOOKS)
            (void)sched_yield();
        else
            (void)nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}

/* ---- plain calls ---- */

fsdp_status fsdp__clique_all_gather(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__clique_call k = {.kind = FSDP__CLIQUE_GATHER,
                                 .send = call->send,
                                 .recv = call->recv,
                                 .count = call->count,
                                 .dtype = call->dtype};

    return fsdp__clique_issue(group, FSDP__CLIQUE_FOR_GATHERS, &k, 1, traffic);
}

fsdp_status fsdp__clique_broadcast(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__clique_call k = {.kind = FSDP__CLIQUE_BROADCAST,
                                 .send = call->recv,
                                 .recv = call->recv,
                                 .count = call->count,
                                 .dtype = call->dtype,
                                 .root = call->root};

    return fsdp__clique_issue(group, FSDP__CLIQUE_FOR_GATHERS, &k, 1, traffic);
}

fsdp_status fsdp__clique_all_to_all(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__clique_call k = {.kind = FSDP__CLIQUE_ALL_TO_ALL,
                                 .send = call->send,
                                 .recv = call->recv,
                                 .count = call->count,
                                 .dtype = call->dtype};

    return fsdp__clique_issue(group, FSDP__CLIQUE_FOR_SUMS, &k, 1, traffic);
}

/* ---- gathers of buffers ---- */

/* Returns whether all ranks' parts are equally long, so that one call gathers them. */
static bool is_even(const fsdp__clique_group *g, const fsdp_sharded_buffer *b)
{
    return b->numel == g->size * b->chunk;
}

/* Returns whether a rank's part lies in one piece. */
static bool is_whole(const fsdp_sharded_buffer *b)
{
    return b->outer <= 1;
}

/* Adds the calls that gather a buffer; returns how many. */
static int add_calls(const fsdp__clique_group *g, const fsdp_sharded_buffer *b, fsdp__clique_call *out)
{
    int count = 0;

    if (is_even(g, b)) {
        *out = (fsdp__clique_call){.kind = FSDP__CLIQUE_GATHER,
                                   .send = fsdp__place(b->unsharded, g->rank * b->chunk, b->unsharded_dtype),
                                   .recv = b->unsharded,
                                   .count = b->chunk,
                                   .dtype = b->unsharded_dtype};
        return 1;
    }
    for (int r = 0; r < g->size; r++) {
        void *place = fsdp__place(b->unsharded, r * b->chunk, b->unsharded_dtype);
        int64_t numel = fsdp__part_numel(b, r);

        if (numel > 0)
            out[count++] = (fsdp__clique_call){.kind = FSDP__CLIQUE_BROADCAST,
                                               .send = place,
                                               .recv = place,
                                               .count = numel,
                                               .dtype = b->unsharded_dtype,
                                               .root = r};
    }
    return count;
}

fsdp_status fsdp__clique_gather_rows(fsdp__clique_group *g, fsdp__clique_way way, const fsdp_sharded_buffer *buffers,
                                     int64_t count, fsdp__traffic *traffic)
{
    FSDP__FREED fsdp__clique_call *calls = fsdp__calloc((size_t)(count * g->size), sizeof *calls);
    int added = 0;

    FSDP__TRY_NEW(calls);
    for (int64_t i = 0; i < count; i++)
        if (buffers[i].numel > 0)
            added += add_calls(g, &buffers[i], calls + added);
    return added > 0 ? fsdp__clique_issue(g, way, calls, added, traffic) : FSDP_OK;
}

/* Sorts the buffers into those whose rows go straight to their places, and behind them those that are packed: where
 * there is memory for what gathers, all are. */
static int64_t sort_buffers(const fsdp__clique_group *g, const fsdp__call *call, fsdp_sharded_buffer *out)
{
    bool pack = g->shown[FSDP__CLIQUE_FOR_GATHERS] != NULL;
    int64_t whole = 0, at = 0;

    for (int64_t i = 0; i < call->buffer_count && !pack; i++)
        if (is_whole(&call->buffers[i]))
            out[whole++] = call->buffers[i];
    at = whole;
    for (int64_t i = 0; i < call->buffer_count; i++)
        if (pack || !is_whole(&call->buffers[i]))
            out[at++] = call->buffers[i];
    return whole;
}

fsdp_status fsdp__clique_all_gather_coalesced(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__clique_group *g = group;
    fsdp__plain_way packed = {.group = g,
                              .rank = g->rank,
                              .size = g->size,
                              .piece_bytes = FSDP__CLIQUE_PIECE_BYTES,
                              .all_gather = fsdp__clique_all_gather,
                              .all_to_all = fsdp__clique_all_to_all};
    FSDP__FREED fsdp_sharded_buffer *buffers = fsdp__malloc((size_t)call->buffer_count * sizeof *buffers);
    fsdp__call part = *call;

    FSDP__TRY_NEW(buffers);
    part.buffers = buffers;
    part.buffer_count = sort_buffers(g, call, buffers);
    FSDP_TRY(fsdp__place_own_rows(&part, g->rank, traffic));
    FSDP_TRY(fsdp__clique_gather_rows(g, FSDP__CLIQUE_FOR_GATHERS, buffers, part.buffer_count, traffic));
    part.buffers = buffers + part.buffer_count;
    part.buffer_count = call->buffer_count - part.buffer_count;
    return part.buffer_count > 0 ? fsdp__clique_packed(g, FSDP__CLIQUE_FOR_GATHERS, &packed, &part, traffic) : FSDP_OK;
}
