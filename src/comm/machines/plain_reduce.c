/* plain_reduce.c - reductions of contiguous parts: the machine's sums travel, in batches. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/machines/batches.h"
#include "comm/machines/plain.h"
#include "comm/machines/plain_run.h"
#include "comm/sharded_buffer.h"
#include "comm/symmetric/plain.h"
#include "device/kernels.h"

/* ---- flags ---- */

static bool is_lacking(const fsdp__plain_run *r)
{
    bool lacking = false;

    for (int p = 0; p < r->group->columns; p++)
        lacking = lacking || !fsdp__meeting_header(&r->meeting, p)->complete;
    return lacking;
}

/* Ends the meeting; then flags travel where one is not set anywhere. */
static fsdp_status meet_with_flags(fsdp__plain_run *r)
{
    const fsdp__machines_group *g = r->group;
    size_t count = (size_t)r->call->flag_count;
    uint8_t *all, *own;
    fsdp_status status;

    FSDP_TRY(fsdp__plain_end_meeting(r));
    if (!is_lacking(r))
        return FSDP_OK;
    if (r->call->lacking)
        *r->call->lacking = true;
    if (count == 0)
        return FSDP_OK;
    all = fsdp__malloc((size_t)g->columns * count);
    if (!all)
        return FSDP_NO_MEMORY;
    own = all + (size_t)g->place * count;
    memset(own, 1, count); /* of a rank that has no flags */
    if (r->call->flags)
        memcpy(own, r->call->flags, count);
    status = fsdp__exchange_rows(r->group, FSDP__TAG_DATA, all, count, r->traffic);
    for (size_t i = 0; status == FSDP_OK && r->call->flags && i < (size_t)g->columns * count; i++)
        r->call->flags[i % count] |= all[i];
    fsdp__free(all);
    return status;
}

/* ---- in batches ---- */

/* What is sent to a place: of this machine's sums. */
typedef struct share {
    const char *data;
    int64_t count;
} share;

/* Shares, in batches: while one is on its way the one before it is added up. */
typedef struct reduction {
    fsdp__plain_run *run;
    const share *shares; /* by place */
    char *areas;         /* [2][columns - 1]: what has come, of `room` elements each */
    const void **srcs;   /* columns */
    int64_t room;
    char *dst;
    fsdp__exchange exchanges[2];
} reduction;

static char *area(const reduction *d, int half, int place)
{
    const fsdp__machines_group *g = d->run->group;
    int others = g->columns - 1, other = place - (place > g->place);

    return fsdp__plain_at(d->run, d->areas, (half * others + other) * d->room);
}

static int64_t in_batch(const reduction *d, int place, int64_t from)
{
    return FSDP__MAX(FSDP__MIN(d->shares[place].count - from, d->room), 0);
}

static fsdp_status begin_batch(reduction *d, int64_t from, int half)
{
    fsdp__plain_run *r = d->run;
    const fsdp__machines_group *g = r->group;

    r->half = half;
    for (int p = 0; p < g->columns; p++) {
        if (p == g->place)
            continue;
        FSDP_TRY(fsdp__plain_send(r, g->column[p], fsdp__plain_at(r, d->shares[p].data, from), in_batch(d, p, from)));
        FSDP_TRY(fsdp__plain_receive(r, g->column[p], area(d, half, p), in_batch(d, g->place, from)));
    }
    return fsdp__plain_begin_exchange(r, &d->exchanges[half]);
}

/* dst = op over the places, in order. */
static fsdp_status end_batch(reduction *d, int64_t from, int half)
{
    fsdp__plain_run *r = d->run;
    const fsdp__machines_group *g = r->group;
    fsdp__reduce_ranks_args args = fsdp__call_reduction(r->call, g->size, g->block);

    args.srcs = d->srcs;
    args.count = g->columns;
    args.dst = fsdp__plain_at(r, d->dst, from);
    args.numel = in_batch(d, g->place, from);
    FSDP_TRY(fsdp__exchange_end(&d->exchanges[half], r->traffic));
    for (int p = 0; p < g->columns; p++)
        d->srcs[p] = p == g->place ? fsdp__plain_at(r, d->shares[p].data, from) : area(d, half, p);
    return args.numel > 0 ? fsdp__run_kernel(r->stream, FSDP__KERNEL_REDUCE_RANKS, &args) : FSDP_OK;
}

static fsdp_status run_batches(reduction *d, int64_t count)
{
    int half = 0;

    FSDP_TRY(begin_batch(d, 0, 0));
    FSDP_TRY(meet_with_flags(d->run));
    for (int64_t from = d->room; from < count; from += d->room, half = !half) {
        FSDP_TRY(begin_batch(d, from, !half));
        FSDP_TRY(end_batch(d, from - d->room, half));
    }
    return end_batch(d, (FSDP__MAX(count, 1) - 1) / d->room * d->room, half);
}

/* dst: the sum over the machines of this place's share. */
static fsdp_status reduce_shares(fsdp__plain_run *r, const share *shares, void *dst)
{
    const fsdp__machines_group *g = r->group;
    reduction d = {.run = r,
                   .shares = shares,
                   .room = fsdp__batches_room(g->columns, g->locals) / (int64_t)r->element,
                   .srcs = fsdp__calloc((size_t)g->columns, sizeof *d.srcs),
                   .dst = dst};
    int64_t most = 0;
    fsdp_status status = FSDP_NO_MEMORY;

    for (int p = 0; p < g->columns; p++)
        most = FSDP__MAX(most, shares[p].count);
    d.room = FSDP__MIN(d.room, FSDP__MAX(most, 1));
    d.areas = fsdp__machines_scratch(r->group, (size_t)(2 * (g->columns - 1) * d.room) * r->element);
    if (d.areas && d.srcs)
        status = run_batches(&d, most);
    for (int half = 0; half < 2 && status != FSDP_OK; half++)
        fsdp__exchange_give_up(&d.exchanges[half]);
    fsdp__free(d.srcs);
    return status;
}

static fsdp_status reduce_scatter_over(fsdp__plain_run *r)
{
    fsdp__machines_group *g = r->group;
    const fsdp__call *call = r->call;
    int64_t part = call->count;
    char *sums = fsdp__plain_scratch(r, g->locals > 1 ? g->columns * part : 0);
    share *shares = fsdp__calloc((size_t)g->columns, sizeof *shares);
    fsdp_status status = sums && shares ? FSDP_OK : FSDP_NO_MEMORY;

    for (int p = 0; p < g->columns && status == FSDP_OK; p++) {
        shares[p] = (share){fsdp__plain_at(r, g->locals > 1 ? sums : call->send, p * part), part};
        if (g->locals > 1)
            status = fsdp__plain_local(r, fsdp__symmetric_reduce_scatter,
                                       fsdp__plain_at(r, call->send, fsdp__machines_member(g, p, 0) * part),
                                       fsdp__plain_at(r, sums, p * part), part);
    }
    fsdp__plain_meet(r, true);
    if (status == FSDP_OK)
        status = reduce_shares(r, shares, call->recv);
    fsdp__free(shares);
    return status;
}

fsdp_status fsdp__machines_reduce_scatter(void *group, const fsdp__call *call, fsdp_stream *stream,
                                          fsdp__traffic *traffic)
{
    const fsdp__machines_group *g = group;

    return fsdp__plain_over(fsdp__machines_reduce_scatter, fsdp__symmetric_reduce_scatter, reduce_scatter_over, group,
                            call, stream, traffic, g->size * call->count, call->count);
}

/* ---- all_reduce ---- */

static int64_t share_of(const fsdp__plain_run *r, int local, int place, int64_t *length)
{
    return fsdp__share_of(r->group->columns, r->group->locals, r->call->count, r->element, local, place, length);
}

/* Each rank adds its share, and sends the result to its counterparts. */
static fsdp_status gather_shares(fsdp__plain_run *r)
{
    fsdp__machines_group *g = r->group;
    int64_t length, own, start = share_of(r, g->local_rank, g->place, &own);

    for (int p = 0; p < g->columns; p++) {
        int64_t theirs = share_of(r, g->local_rank, p, &length);

        if (p == g->place)
            continue;
        FSDP_TRY(fsdp__plain_send(r, g->column[p], fsdp__plain_at(r, r->call->recv, start), own));
        FSDP_TRY(fsdp__plain_receive(r, g->column[p], fsdp__plain_at(r, r->call->recv, theirs), length));
    }
    return fsdp__plain_exchange(r);
}

/* `sums`: the machine's sum of everything. What is small each rank adds up whole, else its share of it. */
static fsdp_status reduce_sums(fsdp__plain_run *r, const char *sums, bool at_once)
{
    const fsdp__machines_group *g = r->group;
    share *shares = fsdp__calloc((size_t)g->columns, sizeof *shares);
    fsdp_status status;

    if (!shares)
        return FSDP_NO_MEMORY;
    for (int p = 0; p < g->columns; p++) {
        shares[p] = (share){sums, r->call->count};
        if (!at_once)
            shares[p].data = fsdp__plain_at(r, sums, share_of(r, g->local_rank, p, &shares[p].count));
    }
    status = reduce_shares(r, shares, (char *)r->call->recv + (shares[g->place].data - sums));
    fsdp__free(shares);
    return status;
}

/* What the local ranks have each. */
static fsdp_status spread_shares(fsdp__plain_run *r)
{
    fsdp__machines_group *g = r->group;

    for (int j = 0; j < g->locals; j++) {
        int64_t length, start = share_of(r, j, 0, &length), last = share_of(r, j, g->columns - 1, &length);
        fsdp__call call = *r->call;

        call.send = call.recv = fsdp__plain_at(r, call.recv, start);
        call.count = last + length - start;
        call.root = j;
        call.flags = NULL;
        if (call.count > 0)
            FSDP_TRY(fsdp__symmetric_broadcast(g->local, &call, r->stream, r->traffic));
    }
    return FSDP_OK;
}

static fsdp_status all_reduce_over(fsdp__plain_run *r)
{
    fsdp__machines_group *g = r->group;
    const fsdp__call *call = r->call;
    bool lacking = call->flags && memchr(call->flags, 0, (size_t)call->flag_count);
    const char *sums = g->locals == 1 ? call->send : call->recv;

    if (g->locals > 1) {
        fsdp__call local = *call;

        local.op = call->op == FSDP_AVG ? FSDP_SUM : call->op;
        local.lacking = &lacking;
        FSDP_TRY(fsdp__symmetric_all_reduce(g->local, &local, r->stream, r->traffic));
    }
    fsdp__plain_meet(r, !lacking);
    if ((size_t)call->count * r->element <= FSDP__AT_ONCE_BYTES)
        return reduce_sums(r, sums, true);
    FSDP_TRY(reduce_sums(r, sums, false));
    FSDP_TRY(gather_shares(r));
    return g->locals > 1 ? spread_shares(r) : FSDP_OK;
}

fsdp_status fsdp__machines_all_reduce(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    return fsdp__plain_over(fsdp__machines_all_reduce, fsdp__symmetric_all_reduce, all_reduce_over, group, call, stream,
                            traffic, call->count, call->count);
}
