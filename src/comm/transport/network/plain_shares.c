/* plain_shares.c - sends shares in batches: while one batch is on its way, the one before it is added up. */
#include "comm/transport/network/plain_shares.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/transport/network/batches.h"
#include "comm/transport/sharded_buffer.h"

static int rank_at(const fsdp__plain_run *r, const fsdp__sharers *sharers, int place)
{
    return r->group->ranks[sharers->first + place * sharers->stride];
}

/* ---- flags ---- */

static bool is_lacking(const fsdp__plain_run *r)
{
    bool lacking = false;

    for (int p = 0; p < r->group->columns; p++)
        lacking = lacking || !fsdp__meeting_header(&r->meeting, p)->complete;
    return lacking;
}

/* Ends the meeting; then, if a flag is not set somewhere, the flags travel. */
static fsdp_status meet_with_flags(fsdp__plain_run *r)
{
    const fsdp__network_group *g = r->group;
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
    memset(own, 1, count); /* for a rank that has no flags */
    if (r->call->flags)
        memcpy(own, r->call->flags, count);
    status = fsdp__exchange_rows(r->group, all, count, r->traffic);
    for (size_t i = 0; status == FSDP_OK && r->call->flags && i < (size_t)g->columns * count; i++)
        r->call->flags[i % count] |= all[i];
    fsdp__free(all);
    return status;
}

/* ---- in batches ---- */

typedef struct reduction {
    fsdp__plain_run *run;
    const fsdp__sharers *sharers;
    const fsdp__share *shares;
    fsdp__reduce_ranks_args how;
    char *areas;       /* [2][sharers - 1]: where contributions arrive, of `room` elements each */
    const void **srcs; /* by place */
    int64_t room;
    char *dst;
    fsdp__exchange exchanges[2];
} reduction;

static char *area(const reduction *d, int half, int place)
{
    int others = d->sharers->count - 1, other = place - (place > d->sharers->place);

    return fsdp__plain_at(d->run, d->areas, (half * others + other) * d->room);
}

static int64_t in_batch(const reduction *d, int place, int64_t from)
{
    return FSDP__MAX(FSDP__MIN(d->shares[place].count - from, d->room), 0);
}

static fsdp_status begin_batch(reduction *d, int64_t from, int half)
{
    fsdp__plain_run *r = d->run;
    int own = d->sharers->place;

    r->half = half;
    for (int p = 0; p < d->sharers->count; p++) {
        int rank = rank_at(r, d->sharers, p);

        if (p == own)
            continue;
        FSDP_TRY(fsdp__plain_send(r, rank, fsdp__plain_at(r, d->shares[p].data, from), in_batch(d, p, from)));
        FSDP_TRY(fsdp__plain_receive(r, rank, area(d, half, p), in_batch(d, own, from)));
    }
    return fsdp__plain_begin_exchange(r, &d->exchanges[half]);
}

/* Computes dst = op over the places, in order. */
static fsdp_status end_batch(reduction *d, int64_t from, int half)
{
    fsdp__plain_run *r = d->run;
    int own = d->sharers->place;
    fsdp__reduce_ranks_args args = d->how;

    args.srcs = d->srcs;
    args.count = d->sharers->count;
    args.dst = fsdp__plain_at(r, d->dst, from);
    args.numel = in_batch(d, own, from);
    FSDP_TRY(fsdp__exchange_end(&d->exchanges[half], r->traffic));
    for (int p = 0; p < d->sharers->count; p++)
        d->srcs[p] = p == own ? fsdp__plain_at(r, d->shares[p].data, from) : area(d, half, p);
    return args.numel > 0 && !fsdp__network_on_paper(r->group)
               ? fsdp__run_kernel(r->stream, FSDP__KERNEL_REDUCE_RANKS, &args)
               : FSDP_OK;
}

static fsdp_status run_batches(reduction *d, int64_t count)
{
    int half = 0;

    FSDP_TRY(begin_batch(d, 0, 0));
    if (d->run->meets == FSDP__MEETING_BEGUN)
        FSDP_TRY(meet_with_flags(d->run));
    for (int64_t from = d->room; from < count; from += d->room, half = !half) {
        FSDP_TRY(begin_batch(d, from, !half));
        FSDP_TRY(end_batch(d, from - d->room, half));
    }
    return end_batch(d, (FSDP__MAX(count, 1) - 1) / d->room * d->room, half);
}

fsdp_status fsdp__shares_reduce(fsdp__plain_run *r, const fsdp__sharers *sharers, const fsdp__share *shares,
                                fsdp__reduce_ranks_args how, void *dst)
{
    reduction d = {.run = r,
                   .sharers = sharers,
                   .shares = shares,
                   .how = how,
                   .room = fsdp__batches_room(sharers->count, r->group->locals) / (int64_t)r->element,
                   .srcs = fsdp__calloc((size_t)sharers->count, sizeof *d.srcs),
                   .dst = dst};
    int64_t most = 0;
    fsdp_status status = FSDP_NO_MEMORY;

    for (int p = 0; p < sharers->count; p++)
        most = FSDP__MAX(most, shares[p].count);
    d.room = FSDP__MIN(d.room, FSDP__MAX(most, 1));
    d.areas = fsdp__network_scratch(r->group, (size_t)(2 * (sharers->count - 1) * d.room) * r->element);
    if (d.areas && d.srcs)
        status = run_batches(&d, most);
    for (int half = 0; half < 2 && status != FSDP_OK; half++)
        fsdp__exchange_give_up(&d.exchanges[half]);
    fsdp__free(d.srcs);
    return status;
}

fsdp_status fsdp__shares_gather(fsdp__plain_run *r, const fsdp__sharers *sharers, const fsdp__share *shares)
{
    const fsdp__share *own = &shares[sharers->place];

    for (int p = 0; p < sharers->count; p++) {
        int rank = rank_at(r, sharers, p);

        if (p == sharers->place)
            continue;
        FSDP_TRY(fsdp__plain_send(r, rank, own->data, own->count));
        FSDP_TRY(fsdp__plain_receive(r, rank, shares[p].data, shares[p].count));
    }
    return fsdp__plain_exchange(r);
}
