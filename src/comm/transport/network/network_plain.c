/* network_plain.c - a machine's part is done by its group in the arena, the rest between a rank and its counterparts.
 *
 * With M machines of k ranks, and n bytes in the whole buffer, a machine receives
 *   all_gather       (M-1)/M n: each rank the parts of its counterparts, which the ranks of the machine then pass on
 *   reduce_scatter   (M-1)/M n: each machine adds first, and sends sums
 *   all_reduce       2 (M-1)/M n: both; k (M-1) n where n is small, in one exchange instead of two
 *   broadcast        n, except the root's machine
 *   all_to_all       each part once: k parts for each rank elsewhere
 * In a flat group each rank counts as a machine; but in an all_reduce of more than 4 KiB the ranks of each machine,
 * where they are equally many, first add up what they have, over the network. Each call is a meeting of headers, which
 * takes along what is small. */
#include "comm/transport/network/network_calls.h"

#include "comm/transport/arena/arena_plain.h"
#include "comm/transport/network/crossing.h"
#include "comm/transport/sharded_buffer.h"

/* ---- all_gather ---- */

/* Copies the rank's own part, while the others' are on their way. */
static fsdp_status meet_and_copy(fsdp__crossing *r, void *dst, const void *src, int64_t count)
{
    fsdp__exchange x;
    fsdp_status status;

    fsdp__crossing_meet(r, true);
    status = fsdp__crossing_begin_exchange(r, &x);
    if (status == FSDP_OK)
        status = fsdp__crossing_copy(r, dst, src, count);
    return fsdp__crossing_end_exchange(r, &x, status);
}

static fsdp_status all_gather_over(fsdp__crossing *r)
{
    fsdp__network_group *g = r->group;
    const fsdp__call *call = r->call;
    int64_t part = call->count;
    fsdp_sharded_buffer one = fsdp__plain_buffer(call, call->recv, call->send, g->size * part, part);
    fsdp__call rows = fsdp__call_by_rows(call, &one, 1);

    r->parts = FSDP__SAME_PARTS;
    FSDP_TRY(fsdp__crossing_gather(r, &rows, call->send));
    if (g->locals == 1)
        return meet_and_copy(r, fsdp__crossing_at(r, call->recv, g->rank * part), call->send, part);
    FSDP_TRY(fsdp__crossing_meet_and_exchange(r));
    for (int p = 0; p < g->columns; p++) {
        const char *mine = fsdp__crossing_at(r, call->recv, fsdp__network_member(g, p, g->local_rank) * part);
        const char *all = fsdp__crossing_at(r, call->recv, fsdp__network_member(g, p, 0) * part);

        r->buffers[p] = fsdp__plain_buffer(call, all, p == g->place ? call->send : mine, g->locals * part, part);
    }
    return fsdp__crossing_local(r, FSDP__GATHERS, g->columns);
}

fsdp_status fsdp__network_all_gather(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__network_group *g = group;

    return fsdp__crossing_over(fsdp__network_all_gather, fsdp__arena_all_gather, all_gather_over, group, call, traffic,
                               call->count, g->size * call->count);
}

/* ---- broadcast ---- */

static fsdp_status broadcast_over(fsdp__crossing *r)
{
    fsdp__network_group *g = r->group;
    const fsdp__call *call = r->call;
    int from = call->root / g->locals, local_root = call->root % g->locals;
    fsdp__call local = *call;

    for (int p = 0; p < g->columns && g->local_rank == local_root; p++) {
        if (p == g->place)
            continue;
        if (g->place == from)
            FSDP_TRY(fsdp__crossing_send(r, g->column[p], call->send, call->count));
        else if (p == from)
            FSDP_TRY(fsdp__crossing_receive(r, g->column[p], call->recv, call->count));
    }
    FSDP_TRY(fsdp__crossing_meet_and_exchange(r));
    if (!g->local)
        return FSDP_OK;
    local.root = local_root;
    return fsdp__arena_broadcast(g->local, &local, r->traffic);
}

fsdp_status fsdp__network_broadcast(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__network_group *g = group;
    bool sends = g->rank == call->root;

    return fsdp__crossing_over(fsdp__network_broadcast, fsdp__arena_broadcast, broadcast_over, group, call, traffic,
                               sends ? call->count : 0, sends ? 0 : call->count);
}

/* ---- all_to_all ---- */

static fsdp_status all_to_all_over(fsdp__crossing *r)
{
    fsdp__network_group *g = r->group;
    const fsdp__call *call = r->call;
    int64_t part = call->count, first = fsdp__network_member(g, g->place, 0) * part;

    /* When both meetings are over, the ranks that are no counterparts are known to have made this call, too. */
    FSDP_TRY(fsdp__meet(g, call, r->traffic));
    r->buffers[0] = fsdp__plain_buffer(call, fsdp__crossing_at(r, call->send, first),
                                       fsdp__crossing_at(r, call->recv, first), g->locals * part, part);
    FSDP_TRY(g->flat ? fsdp__crossing_copy(r, r->buffers[0].shard, r->buffers[0].unsharded, part)
                     : fsdp__crossing_local(r, FSDP__SWAPS, 1));
    for (int i = 0; i < g->size; i++) {
        if (i / g->locals == g->place)
            continue;
        FSDP_TRY(fsdp__crossing_send(r, g->ranks[i], fsdp__crossing_at(r, call->send, i * part), part));
        FSDP_TRY(fsdp__crossing_receive(r, g->ranks[i], fsdp__crossing_at(r, call->recv, i * part), part));
    }
    return fsdp__crossing_exchange(r);
}

fsdp_status fsdp__network_all_to_all(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__network_group *g = group;
    int64_t all = g->size * call->count;

    return fsdp__crossing_over(fsdp__network_all_to_all, fsdp__arena_all_to_all, all_to_all_over, group, call, traffic,
                               all, all);
}

/* ---- barrier ---- */

fsdp_status fsdp__network_barrier(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__network_group *g = group;

    /* A rank sends its header to its counterparts only when its whole machine has come. */
    if (g->local)
        FSDP_TRY(fsdp__arena_barrier(g->local, call, traffic));
    if (g->columns > 1)
        FSDP_TRY(fsdp__meet(g, call, traffic));
    return FSDP_OK;
}
