/* plain_reduce.c - reductions of contiguous parts: in a regular group each machine's sums travel. */
#include <string.h>

#include "base/alloc.h"
#include "comm/transport/arena/arena_plain.h"
#include "comm/transport/network/network_calls.h"
#include "comm/transport/network/shares.h"
#include "comm/transport/sharded_buffer.h"

/* Returns the reduction over all ranks of the group, whether or not each machine has added first. */
static fsdp__reduce_ranks_args over_all(const fsdp__crossing *r)
{
    return fsdp__call_reduction(r->call, r->group->size, r->group->block);
}

/* Makes the share of each of `places` places all `count` elements, which lie at `base`. */
static void share_whole(fsdp__share *shares, int places, const void *base, int64_t count)
{
    for (int p = 0; p < places; p++)
        shares[p] = (fsdp__share){(char *)(uintptr_t)base, count};
}

/* ---- reduce_scatter ---- */

static fsdp_status reduce_scatter_over(fsdp__crossing *r)
{
    fsdp__network_group *g = r->group;
    const fsdp__call *call = r->call;
    const fsdp__sharers column = {g->local_rank, g->locals, g->columns, g->place};
    int64_t part = call->count;
    char *sums = fsdp__crossing_scratch(r, g->locals > 1 ? g->columns * part : 0);
    FSDP__FREED fsdp__share *shares = fsdp__calloc((size_t)g->columns, sizeof *shares);
    fsdp_status status = sums && shares ? FSDP_OK : FSDP_NO_MEMORY;

    for (int p = 0; p < g->columns && status == FSDP_OK; p++) {
        const char *from = fsdp__crossing_at(r, call->send, fsdp__network_member(g, p, 0) * part);

        shares[p] = (fsdp__share){fsdp__crossing_at(r, g->locals > 1 ? sums : call->send, p * part), part};
        r->buffers[p] = fsdp__plain_buffer(call, from, shares[p].data, g->locals * part, part);
    }
    if (status == FSDP_OK && g->locals > 1)
        status = fsdp__crossing_local(r, FSDP__REDUCES, g->columns);
    r->parts = FSDP__EQUAL_PARTS;
    fsdp__crossing_meet(r, true);
    if (status == FSDP_OK)
        status = fsdp__shares_reduce(r, &column, shares, over_all(r), call->recv);
    return status;
}

fsdp_status fsdp__network_reduce_scatter(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__network_group *g = group;

    return fsdp__crossing_over(fsdp__network_reduce_scatter, fsdp__arena_reduce_scatter, reduce_scatter_over, group,
                               call, traffic, g->size * call->count, call->count);
}

/* ---- all_reduce ---- */

/* An all_reduce of `locals` ranks on each of `columns` machines: each rank has a share, and the ranks of one machine
 * together have the shares of their places. */
typedef struct split {
    fsdp__crossing *run;
    int columns, locals, place, local_rank;
    fsdp__share *shares; /* [columns], then [locals] */
} split;

/* Returns, by place, which elements of the buffer at `base` local rank `local` adds up. */
static const fsdp__share *shares_of(const split *s, const void *base, int local)
{
    for (int p = 0; p < s->columns; p++) {
        int64_t start =
            fsdp__share_of(s->columns, s->locals, s->run->call->count, s->run->element, local, p, &s->shares[p].count);

        s->shares[p].data = fsdp__crossing_at(s->run, base, start);
    }
    return s->shares;
}

/* Returns what that local rank adds up, on all machines together. */
static fsdp__share share_of_local(const split *s, const void *base, int local)
{
    int64_t length, count = s->run->call->count;
    int64_t start = fsdp__share_of(s->columns, s->locals, count, s->run->element, local, 0, &length);
    int64_t last = fsdp__share_of(s->columns, s->locals, count, s->run->element, local, s->columns - 1, &length);

    return (fsdp__share){fsdp__crossing_at(s->run, base, start), last + length - start};
}

/* Returns the same for each local rank, as shares. */
static const fsdp__share *shares_of_locals(const split *s, const void *base)
{
    fsdp__share *all = s->shares + s->columns;

    for (int j = 0; j < s->locals; j++)
        all[j] = share_of_local(s, base, j);
    return all;
}

/* Returns the sharers that are the same local rank of each machine. */
static fsdp__sharers counterparts(const split *s)
{
    return (fsdp__sharers){.first = s->local_rank, .stride = s->locals, .count = s->columns, .place = s->place};
}

/* Adds the machines' sums, of which each machine has its own at `sums`, share by share. */
static fsdp_status add_machines(const split *s, const void *sums, fsdp__reduce_ranks_args how)
{
    fsdp__crossing *r = s->run;
    const fsdp__sharers among = counterparts(s);
    const fsdp__share *shares = shares_of(s, sums, s->local_rank);
    ptrdiff_t own = shares[s->place].data - (const char *)sums;

    FSDP_TRY(fsdp__shares_reduce(r, &among, shares, how, (char *)r->call->recv + own));
    return fsdp__shares_gather(r, &among, shares_of(s, r->call->recv, s->local_rank));
}

/* Adds up all elements, which lie at `base`, over all sharers. */
static fsdp_status add_whole(const split *s, const fsdp__sharers *sharers, const void *base,
                             fsdp__reduce_ranks_args how)
{
    const fsdp__call *call = s->run->call;

    share_whole(s->shares, sharers->count, base, call->count);
    return fsdp__shares_reduce(s->run, sharers, s->shares, how, call->recv);
}

/* Reduces in a flat group with the same number of ranks on each machine: first adds what the machine's ranks have, so
 * that each machine sends only sums. */
static fsdp_status reduce_by_machine(const split *s)
{
    fsdp__crossing *r = s->run;
    const fsdp__call *call = r->call;
    const fsdp__sharers neighbours = {s->place * s->locals, 1, s->locals, s->local_rank};
    const fsdp__sharers machines = counterparts(s);
    fsdp__reduce_ranks_args first = over_all(r), then = over_all(r);
    void *own;

    first.divisor = 1.0f;
    first.block = then.block = 0;
    if (call->count * (int64_t)r->element <= FSDP__WHOLE_BYTES) {
        FSDP_TRY(add_whole(s, &neighbours, call->send, first));
        return add_whole(s, &machines, call->recv, then);
    }
    own = share_of_local(s, call->recv, s->local_rank).data;
    FSDP_TRY(fsdp__shares_reduce(r, &neighbours, shares_of_locals(s, call->send), first, own));
    FSDP_TRY(add_machines(s, call->recv, then));
    return fsdp__shares_gather(r, &neighbours, shares_of_locals(s, call->recv));
}

/* Exchanges what the local ranks add up: reduces the buffer at `from` to that, or gathers it there. */
static fsdp_status exchange_locally(const split *s, fsdp__pattern pattern, const void *from)
{
    fsdp__crossing *r = s->run;
    int64_t count = r->call->count, chunk = s->columns * fsdp__even_chunk(count, s->columns * s->locals, r->element);

    if (s->locals == 1)
        return FSDP_OK;
    r->buffers[0] =
        fsdp__plain_buffer(r->call, from, share_of_local(s, r->call->recv, s->local_rank).data, count, chunk);
    return fsdp__crossing_local(r, pattern, 1);
}

/* Reduces the sums over the machines. `sums` are those of the rank's machine, or in a flat group its own. */
static fsdp_status reduce_sums(const split *s, const void *sums)
{
    FSDP_TRY(add_machines(s, sums, over_all(s->run)));
    return exchange_locally(s, FSDP__GATHERS, s->run->call->recv);
}

/* Reduces a small buffer: each rank adds up all of it. */
static fsdp_status reduce_at_once(const split *s, const void *sums)
{
    const fsdp__sharers all = counterparts(s);

    s->run->parts = FSDP__SAME_PARTS;
    return add_whole(s, &all, sums, over_all(s->run));
}

/* Adds up what the ranks of the machine have, so that only sums travel; an average is divided at the end, for all. */
static fsdp_status add_locally(const split *s, bool at_once, bool *lacking)
{
    fsdp__crossing *r = s->run;
    fsdp__arena_group *local = r->group->local;
    fsdp__call call = *r->call;

    if (s->locals == 1 || !local)
        return FSDP_OK;
    call.plain = r->call;
    call.op = call.op == FSDP_AVG ? FSDP_SUM : call.op;
    call.lacking = lacking;
    if (at_once)
        return fsdp__arena_all_reduce(local, &call, r->traffic);
    FSDP_TRY(exchange_locally(s, FSDP__REDUCES, call.send));
    return fsdp__arena_join_flags(local, &call, r->traffic);
}

static fsdp_status all_reduce_over(fsdp__crossing *r)
{
    fsdp__network_group *g = r->group;
    const fsdp__call *call = r->call;
    int64_t bytes = call->count * (int64_t)r->element;
    bool lacking = call->flags && memchr(call->flags, 0, (size_t)call->flag_count);
    bool by_machine = fsdp__reduces_by_machine(g->block, bytes);
    const void *sums = g->locals == 1 ? call->send : call->recv;
    split s = {r, g->columns, g->locals, g->place, g->local_rank, NULL};
    fsdp_status status;

    FSDP_TRY(add_locally(&s, bytes <= FSDP__AT_ONCE_BYTES, &lacking));
    if (by_machine) {
        const fsdp__group_shape shape = fsdp__group_by_machine(g->rank, g->size, g->block);

        s = (split){r, shape.columns, shape.locals, shape.place, shape.local_rank, NULL};
    }
    FSDP__TRY_NEW(s.shares = fsdp__calloc((size_t)(s.columns + s.locals), sizeof *s.shares));
    fsdp__crossing_meet(r, !lacking);
    status = bytes <= FSDP__AT_ONCE_BYTES ? reduce_at_once(&s, sums)
             : by_machine                 ? reduce_by_machine(&s)
                                          : reduce_sums(&s, sums);
    fsdp__free(s.shares);
    return status;
}

fsdp_status fsdp__network_all_reduce(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return fsdp__crossing_over(fsdp__network_all_reduce, fsdp__arena_all_reduce, all_reduce_over, group, call, traffic,
                               call->count, call->count);
}
