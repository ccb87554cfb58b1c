/* reduction.c - rows are added on the machine, exchanged, and added over the machines. */
#include "comm/transport/network/reduction.h"

#include <string.h>

#include "base/alloc.h"
#include "comm/transport/arena/rendezvous.h"
#include "comm/transport/arena/shown.h"
#include "comm/transport/network/shares.h"
#include "comm/transport/sharded_buffer.h"

typedef struct reduction {
    fsdp__sharing sharing; /* first */
    fsdp__crossing run;
    uint8_t *adds; /* [columns][buffers]: whether that machine contributes; then [buffers]: whether any does */
} reduction;

static bool adds(const reduction *r, int place, int64_t buffer)
{
    return r->adds[place * r->run.call->buffer_count + buffer];
}

static bool anyone_adds(const reduction *r, int64_t buffer)
{
    bool any = false;

    for (int p = 0; p < r->run.group->columns && !any; p++)
        any = adds(r, p, buffer);
    return any;
}

/* Returns the last row of the table. */
static uint8_t *used_of(const reduction *r)
{
    return r->adds + r->run.group->columns * r->run.call->buffer_count;
}

/* ---- who contributes ---- */

static bool local_adds(const reduction *r, int local, int64_t buffer)
{
    return r->run.group->world->acts->adds(r->run.group, r->run.call, local, buffer);
}

static bool fill_own_adds(reduction *r)
{
    const fsdp__network_group *g = r->run.group;
    bool complete = fsdp__shown_is_complete(r->run.call);

    memset(r->adds, 1, (size_t)(g->columns * r->run.call->buffer_count));
    for (int j = 0; j < g->locals && g->local; j++)
        complete = complete && fsdp__entry_of(g->local, j)->complete;
    for (int64_t i = 0; i < r->run.call->buffer_count && !complete; i++) {
        uint8_t any = 0;

        for (int j = 0; j < g->locals; j++)
            any |= local_adds(r, j, i);
        r->adds[g->place * r->run.call->buffer_count + i] = any;
    }
    return complete;
}

static fsdp_status meet(reduction *r, bool visible, bool *all)
{
    fsdp__header own = {.complete = fill_own_adds(r), .visible = visible};
    FSDP__SCOPED(fsdp__meeting_release) fsdp__meeting meeting = {0};
    bool complete = true;

    FSDP_TRY(fsdp__meeting_begin(&meeting, r->run.group, r->run.call, &own, NULL));
    FSDP_TRY(fsdp__meeting_end(&meeting, r->run.traffic));
    *all = true;
    for (int p = 0; p < r->run.group->columns; p++) {
        complete = complete && fsdp__meeting_header(&meeting, p)->complete;
        *all = *all && fsdp__meeting_header(&meeting, p)->visible;
    }
    if (!*all)
        return FSDP_OK;
    if (!complete) /* only if some rank has nothing to add to some buffer: one byte for each buffer */
        FSDP_TRY(fsdp__exchange_rows(r->run.group, r->adds, (size_t)r->run.call->buffer_count, r->run.traffic));
    for (int64_t i = 0; i < r->run.call->buffer_count; i++) {
        used_of(r)[i] = anyone_adds(r, i);
        fsdp__contributed(r->run.call, i, used_of(r)[i], r->run.group->size, r->run.traffic);
    }
    return FSDP_OK;
}

/* ---- the machine's sum ---- */

static int64_t rows_of(const fsdp__sharing *s, const fsdp__batch_piece *p, int place)
{
    const fsdp__network_group *g = s->run->group;

    return fsdp__batch_rows(s->cut.call, p, fsdp__network_member(g, place, g->local_rank));
}

static const void *unsharded_of(const reduction *r, int local, int64_t buffer)
{
    return local == r->run.group->local_rank ? r->run.call->buffers[buffer].unsharded
                                             : fsdp__shown_place(r->run.group->local, local, buffer);
}

/* Finds the local ranks' contributions to rows of the member, in place or as copies (converted, collected). `*count` is
 * how many there are. */
static fsdp_status find_contributions(const reduction *r, const fsdp__batch_piece *p, int member, int64_t rows,
                                      int *count)
{
    const fsdp_sharded_buffer *b = &r->run.call->buffers[p->buffer];
    fsdp_dtype wire = fsdp__wire_dtype(r->run.call, b);
    bool as_it_lies = b->outer <= 1 && r->run.call->predivide == 1.0f && wire == b->unsharded_dtype;
    fsdp__copies in = {.traffic = r->run.traffic,
                       .divisor = r->run.call->predivide,
                       .src_dtype = b->unsharded_dtype,
                       .dst_dtype = wire};

    *count = 0;
    for (int j = 0; j < r->run.group->locals; j++) {
        char *copied = fsdp__sharing_area(&r->sharing, 2, false, j);
        const void *theirs = local_adds(r, j, p->buffer) ? unsharded_of(r, j, p->buffer) : NULL;

        if (!theirs)
            continue;
        r->sharing.srcs[(*count)++] =
            as_it_lies ? fsdp__place(theirs, member * b->chunk + p->at, b->unsharded_dtype) : copied;
        if (!as_it_lies)
            FSDP_TRY(fsdp__copies_collect(&in, b, theirs, member, p->at, rows, copied));
        else if (j != r->run.group->local_rank)
            r->run.traffic->moved_bytes += rows * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
    }
    return fsdp__copies_flush(&in);
}

static fsdp_status add_locally(const fsdp__sharing *s, const fsdp__batch_piece *p, int place, char *area,
                               const void **out)
{
    const reduction *r = (const reduction *)s;
    const fsdp_sharded_buffer *b = &r->run.call->buffers[p->buffer];
    fsdp__reduce_ranks_args args = {.srcs = s->srcs,
                                    .dst = area,
                                    .numel = rows_of(s, p, place),
                                    .src_dtype = fsdp__wire_dtype(r->run.call, b),
                                    .dst_dtype = fsdp__reduce_dtype(b),
                                    .op = FSDP__RANK_SUM};
    int member = fsdp__network_member(r->run.group, place, r->run.group->local_rank);

    *out = area;
    if (fsdp__network_on_paper(r->run.group))
        return FSDP_OK;
    FSDP_TRY(find_contributions(r, p, member, args.numel, &args.count));
    return fsdp__run_kernel(r->run.traffic->stream, FSDP__KERNEL_REDUCE_RANKS, &args);
}

/* ---- the sum of the machines' sums ---- */

static fsdp_status add_machines(const fsdp__sharing *s, const fsdp__batch_piece *p, int64_t rows)
{
    const reduction *r = (const reduction *)s;
    const fsdp_sharded_buffer *b = &r->run.call->buffers[p->buffer];
    fsdp__sum sum = {.srcs = s->srcs, .ranks = r->run.group->size, .dtype = fsdp__reduce_dtype(b)};

    for (int i = 0; i < s->sharers.count; i++)
        fsdp__sum_add(&sum, s->srcs[i]);
    return fsdp__sum_rows(r->run.call, r->run.traffic->stream, b, &sum, fsdp__place(b->shard, p->at, b->shard_dtype),
                          rows);
}

static fsdp_status share_out(reduction *r)
{
    static const fsdp__sharing_ops ops = {rows_of, add_locally, add_machines};
    const fsdp__network_group *g = r->run.group;

    r->sharing = (fsdp__sharing){
        .run = &r->run,
        .ops = &ops,
        .sharers = {g->local_rank, g->locals, g->columns, g->place},
        .adds = r->adds,
        .cut = {.call = r->run.call, .used = used_of(r), .room = fsdp__batches_room(g->columns, g->locals)}};
    return fsdp__share_out(&r->sharing, g->locals);
}

fsdp_status fsdp__network_reduce(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic,
                                 bool visible, bool *done)
{
    FSDP__FREED uint8_t *adds = fsdp__calloc((size_t)group->columns + 1, (size_t)call->buffer_count + 1);
    reduction r;
    fsdp_status status = fsdp__crossing_begin(&r.run, group, call, traffic, 0);

    r.adds = adds;
    if (!adds)
        status = FSDP_NO_MEMORY;
    if (status == FSDP_OK)
        status = meet(&r, visible, done);
    if (status == FSDP_OK && *done)
        status = share_out(&r);
    return fsdp__crossing_end(&r.run, status);
}
