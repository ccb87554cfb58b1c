/* shares.c - makes, sends and adds up batches of shares. */
#include "comm/transport/network/shares.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/transport/sharded_buffer.h"

static int rank_at(const fsdp__crossing *r, const fsdp__sharers *sharers, int place)
{
    return r->group->ranks[sharers->first + place * sharers->stride];
}

/* ---- flags ---- */

static bool is_lacking(const fsdp__crossing *r)
{
    bool lacking = false;

    for (int p = 0; p < r->group->columns; p++)
        lacking = lacking || !fsdp__meeting_header(&r->meeting, p)->complete;
    return lacking;
}

/* Ends the meeting; then, if a flag is not set somewhere, the flags travel. */
static fsdp_status meet_with_flags(fsdp__crossing *r)
{
    const fsdp__network_group *g = r->group;
    size_t count = (size_t)r->call->flag_count;
    FSDP__FREED uint8_t *all = NULL;
    uint8_t *own;

    FSDP_TRY(fsdp__crossing_end_meeting(r));
    if (!is_lacking(r))
        return FSDP_OK;
    if (r->call->lacking)
        *r->call->lacking = true;
    if (count == 0)
        return FSDP_OK;
    FSDP__TRY_NEW(all = fsdp__malloc((size_t)g->columns * count));
    own = all + (size_t)g->place * count;
    memset(own, 1, count); /* for a rank that has no flags */
    if (r->call->flags)
        memcpy(own, r->call->flags, count);
    FSDP_TRY(fsdp__exchange_rows(r->group, all, count, r->traffic));
    for (size_t i = 0; r->call->flags && i < (size_t)g->columns * count; i++)
        r->call->flags[i % count] |= all[i];
    return FSDP_OK;
}

/* ---- batches ---- */

static bool adds(const fsdp__sharing *s, int place, int64_t buffer)
{
    return !s->adds || s->adds[place * s->cut.call->buffer_count + buffer];
}

char *fsdp__sharing_area(const fsdp__sharing *s, int half, bool received, int place)
{
    return s->areas + ((half * 2 + received) * s->sharers.count + place) * s->cut.room;
}

static fsdp__segment *segments_of(const fsdp__sharing *s, int half, bool received, int place)
{
    return s->segments + ((half * 2 + received) * s->sharers.count + place) * s->most;
}

/* Adds to the segments of a leg; adjacent data becomes one segment, and on paper all of it. */
static void add_segment(const fsdp__sharing *s, fsdp__leg *leg, const void *data, int64_t bytes)
{
    fsdp__segment *segments = (fsdp__segment *)(uintptr_t)leg->segments;
    fsdp__segment *last = leg->count > 0 ? &segments[leg->count - 1] : NULL;

    if (last && (fsdp__network_on_paper(s->run->group) || (char *)last->data + last->bytes == data))
        last->bytes += (size_t)bytes;
    else
        segments[leg->count++] = (fsdp__segment){(void *)(uintptr_t)data, (size_t)bytes};
}

/* Makes what this rank has for the sharer at a place, and finds where that one's contributions go. A rank sends nothing
 * to itself. */
static fsdp_status fill_legs(fsdp__sharing *s, int half, int place, fsdp__leg *send, fsdp__leg *receive)
{
    fsdp__shared_batch *b = &s->batches[half];
    int own = s->sharers.place;

    for (int i = 0; i < b->count; i++) {
        const fsdp__batch_piece *one = &b->pieces[i];
        int64_t element = (int64_t)fsdp_dtype_size(fsdp__reduce_dtype(&s->cut.call->buffers[one->buffer]));
        int64_t theirs = s->ops->rows(s, one, place), mine = s->ops->rows(s, one, own);

        if (adds(s, own, one->buffer) && theirs > 0) {
            char *area = fsdp__sharing_area(s, half, false, place) + one->offset;
            const void *data;

            FSDP_TRY(s->ops->contribute(s, one, place, area, &data));
            if (place == own)
                b->own[i] = data;
            else
                add_segment(s, send, data, theirs * element);
        }
        if (adds(s, place, one->buffer) && mine > 0 && place != own)
            add_segment(s, receive, fsdp__sharing_area(s, half, true, place) + one->offset, mine * element);
    }
    return FSDP_OK;
}

/* Makes what a batch sends, and sends it. */
static fsdp_status begin_batch(fsdp__sharing *s, int half)
{
    fsdp__crossing *r = s->run;

    for (int p = 0; p < s->sharers.count; p++) {
        fsdp__leg *send = &r->legs[r->sends++], *receive = &r->legs[r->group->size + r->receives++];

        *send = (fsdp__leg){.rank = rank_at(r, &s->sharers, p), .segments = segments_of(s, half, false, p)};
        *receive = (fsdp__leg){.rank = send->rank, .segments = segments_of(s, half, true, p)};
        FSDP_TRY(fill_legs(s, half, p, send, receive));
    }
    return fsdp__crossing_begin_exchange(r, &s->batches[half].exchange);
}

static fsdp_status add_piece(const fsdp__sharing *s, int half, int i)
{
    const fsdp__batch_piece *one = &s->batches[half].pieces[i];
    int own = s->sharers.place;
    int64_t rows = s->ops->rows(s, one, own);

    if (rows == 0 || fsdp__network_on_paper(s->run->group))
        return FSDP_OK;
    for (int p = 0; p < s->sharers.count; p++)
        s->srcs[p] = !adds(s, p, one->buffer) ? NULL
                     : p == own               ? s->batches[half].own[i]
                                              : fsdp__sharing_area(s, half, true, p) + one->offset;
    return s->ops->add(s, one, rows);
}

static fsdp_status end_batch(fsdp__sharing *s, int half)
{
    fsdp__shared_batch *b = &s->batches[half];

    FSDP_TRY(fsdp__exchange_end(&b->exchange, s->run->traffic));
    for (int i = 0; i < b->count; i++)
        FSDP_TRY(add_piece(s, half, i));
    return FSDP_OK;
}

static bool next_batch(fsdp__sharing *s, int half)
{
    s->batches[half].count = fsdp__batches_next(&s->cut, s->batches[half].pieces);
    return s->batches[half].count > 0;
}

/* Runs at least one batch, with which a meeting may go. */
static fsdp_status run_batches(fsdp__sharing *s)
{
    int half = 0;

    (void)next_batch(s, half);
    FSDP_TRY(begin_batch(s, half));
    if (s->run->meets == FSDP__MEETING_BEGUN)
        FSDP_TRY(meet_with_flags(s->run));
    for (; next_batch(s, !half); half = !half) {
        FSDP_TRY(begin_batch(s, !half));
        FSDP_TRY(end_batch(s, half));
    }
    return end_batch(s, half);
}

static bool take_memory(fsdp__sharing *s, int areas)
{
    fsdp__network_group *g = s->run->group;
    size_t sharers = (size_t)s->sharers.count;

    s->most = fsdp__network_on_paper(g) ? 1 : (int)FSDP__MIN(s->cut.call->buffer_count + 1, FSDP__BATCH_PIECES);
    s->areas = fsdp__network_scratch(g, (size_t)((4 * s->sharers.count + areas) * s->cut.room));
    s->srcs = fsdp__malloc((sharers + (size_t)areas) * sizeof *s->srcs);
    s->segments = fsdp__malloc(4 * sharers * (size_t)s->most * sizeof *s->segments);
    s->batches = fsdp__malloc(2 * sizeof *s->batches);
    if (s->batches)
        s->batches[0].exchange = s->batches[1].exchange = (fsdp__exchange){0}; /* nothing is begun */
    return s->areas && s->srcs && s->segments && s->batches;
}

fsdp_status fsdp__share_out(fsdp__sharing *s, int areas)
{
    fsdp_status status = take_memory(s, areas) ? FSDP_OK : FSDP_NO_MEMORY;
    bool runs = status == FSDP_OK;

    if (runs)
        status = run_batches(s);
    for (int half = 0; half < 2 && runs && status != FSDP_OK; half++)
        fsdp__exchange_give_up(&s->batches[half].exchange);
    FSDP__FREE_ALL(s->batches, s->segments, s->srcs);
    return status;
}

/* ---- plain ones: the rows of one buffer ---- */

typedef struct plain {
    fsdp__sharing sharing; /* first */
    const fsdp__share *shares;
    fsdp__reduce_ranks_args how;
    char *dst;
} plain;

static int64_t plain_rows(const fsdp__sharing *s, const fsdp__batch_piece *one, int place)
{
    return FSDP__MAX(FSDP__MIN(((const plain *)s)->shares[place].count - one->at, one->numel), 0);
}

static fsdp_status plain_contribute(const fsdp__sharing *s, const fsdp__batch_piece *one, int place, char *area,
                                    const void **out)
{
    fsdp__crossing *r = s->run;
    size_t bytes = (size_t)plain_rows(s, one, place) * r->element;

    (void)area;
    *out = fsdp__crossing_at(r, ((const plain *)s)->shares[place].data, one->at);
    return place == s->sharers.place ? FSDP_OK : fsdp__crossing_uses(r, *out, bytes, FSDP__READS);
}

static fsdp_status plain_add(const fsdp__sharing *s, const fsdp__batch_piece *one, int64_t rows)
{
    const plain *d = (const plain *)s;
    fsdp__reduce_ranks_args args = d->how;

    args.srcs = s->srcs;
    args.count = s->sharers.count;
    args.dst = fsdp__crossing_at(s->run, d->dst, one->at);
    args.numel = rows;
    return fsdp__run_kernel(s->run->traffic->stream, FSDP__KERNEL_REDUCE_RANKS, &args);
}

fsdp_status fsdp__shares_reduce(fsdp__crossing *r, const fsdp__sharers *sharers, const fsdp__share *shares,
                                fsdp__reduce_ranks_args how, void *dst)
{
    static const fsdp__sharing_ops ops = {plain_rows, plain_contribute, plain_add};
    static const uint8_t used = 1;
    int64_t most = 0, room = fsdp__batches_room(sharers->count, r->group->locals);
    fsdp_sharded_buffer one;
    fsdp__call rows;
    plain d = {.shares = shares, .how = how, .dst = dst};

    for (int p = 0; p < sharers->count; p++)
        most = FSDP__MAX(most, shares[p].count);
    one = fsdp__plain_buffer(r->call, NULL, dst, most, most);
    rows = fsdp__call_by_rows(r->call, &one, 1);
    d.sharing = (fsdp__sharing){
        .run = r,
        .ops = &ops,
        .sharers = *sharers,
        .cut = {.call = &rows, .used = &used, .room = FSDP__MIN(room, FSDP__MAX(most, 1) * (int64_t)r->element)}};
    return fsdp__share_out(&d.sharing, 0);
}

fsdp_status fsdp__shares_gather(fsdp__crossing *r, const fsdp__sharers *sharers, const fsdp__share *shares)
{
    const fsdp__share *own = &shares[sharers->place];

    for (int p = 0; p < sharers->count; p++) {
        int rank = rank_at(r, sharers, p);

        if (p == sharers->place)
            continue;
        FSDP_TRY(fsdp__crossing_send(r, rank, own->data, own->count));
        FSDP_TRY(fsdp__crossing_receive(r, rank, shares[p].data, shares[p].count));
    }
    return fsdp__crossing_exchange(r);
}
