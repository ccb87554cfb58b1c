/* reduction.c - batches of rows: added on the machine, exchanged, added over the machines. */
#include "comm/transport/network/reduction.h"

#include <string.h>

#include "base/alloc.h"
#include "comm/transport/arena/rendezvous.h"
#include "comm/transport/arena/shown.h"
#include "comm/transport/network/batches.h"
#include "comm/transport/sharded_buffer.h"

typedef struct batch {
    int count;
    fsdp__batch_piece pieces[FSDP__BATCH_PIECES];
    fsdp__exchange exchange;
} batch;

typedef struct reduction {
    fsdp__network_group *group;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
    /* [columns][buffers]: whether that machine contributes; then [buffers]: whether any does */
    uint8_t *adds;
    int64_t room;            /* bytes of an area */
    char *areas;             /* [2][2][columns]: of the sums made here, and of those that have come; then [locals] */
    const void **srcs;       /* of the columns or the locals */
    int most;                /* segments of a leg */
    fsdp__segment *segments; /* [2][2][columns][most] */
    fsdp__leg *legs;         /* 2 * columns */
    batch batches[2];
} reduction;

static bool adds(const reduction *r, int place, int64_t buffer)
{
    return r->adds[place * r->call->buffer_count + buffer];
}

static bool anyone_adds(const reduction *r, int64_t buffer)
{
    bool any = false;

    for (int p = 0; p < r->group->columns && !any; p++)
        any = adds(r, p, buffer);
    return any;
}

/* Returns the last row of the table. */
static uint8_t *used_of(const reduction *r)
{
    return r->adds + r->group->columns * r->call->buffer_count;
}

static char *area(const reduction *r, int half, bool received, int place)
{
    return r->areas + (((half * 2 + received) * r->group->columns) + place) * r->room;
}

/* ---- who contributes ---- */

static bool local_adds(const reduction *r, int local, int64_t buffer)
{
    return r->group->world->acts->adds(r->group, r->call, local, buffer);
}

static bool fill_own_adds(reduction *r)
{
    const fsdp__network_group *g = r->group;
    bool complete = fsdp__shown_is_complete(r->call);

    memset(r->adds, 1, (size_t)(g->columns * r->call->buffer_count));
    for (int j = 0; j < g->locals && g->local; j++)
        complete = complete && fsdp__entry_of(g->local, j)->complete;
    for (int64_t i = 0; i < r->call->buffer_count && !complete; i++) {
        uint8_t any = 0;

        for (int j = 0; j < g->locals; j++)
            any |= local_adds(r, j, i);
        r->adds[g->place * r->call->buffer_count + i] = any;
    }
    return complete;
}

static fsdp_status meet(reduction *r, bool visible, bool *all)
{
    fsdp__header own = {.complete = fill_own_adds(r), .visible = visible};
    fsdp__meeting meeting;
    bool complete = true;
    fsdp_status status = fsdp__meeting_begin(&meeting, r->group, r->call, &own, NULL);

    if (status == FSDP_OK)
        status = fsdp__meeting_end(&meeting, r->traffic);
    *all = true;
    for (int p = 0; status == FSDP_OK && p < r->group->columns; p++) {
        complete = complete && fsdp__meeting_header(&meeting, p)->complete;
        *all = *all && fsdp__meeting_header(&meeting, p)->visible;
    }
    fsdp__meeting_release(&meeting);
    if (status != FSDP_OK || !*all)
        return status;
    if (!complete) /* only if some rank has nothing to add to some buffer: one byte for each buffer */
        FSDP_TRY(fsdp__exchange_rows(r->group, r->adds, (size_t)r->call->buffer_count, r->traffic));
    for (int64_t i = 0; i < r->call->buffer_count; i++) {
        used_of(r)[i] = anyone_adds(r, i);
        fsdp__contributed(r->call, i, used_of(r)[i], r->group->size, r->traffic);
    }
    return FSDP_OK;
}

/* ---- batches ---- */

/* Returns how many of the piece's rows the rank at a place has. */
static int64_t rows_of(const reduction *r, const fsdp__batch_piece *p, int place)
{
    return fsdp__batch_rows(r->call, p, fsdp__network_member(r->group, place, r->group->local_rank));
}

static int64_t bytes_of(const reduction *r, const fsdp__batch_piece *p, int place)
{
    return fsdp__batch_bytes(r->call, p, fsdp__network_member(r->group, place, r->group->local_rank));
}

/* ---- the machine's sum ---- */

static const void *unsharded_of(const reduction *r, int local, int64_t buffer)
{
    return local == r->group->local_rank ? r->call->buffers[buffer].unsharded
                                         : fsdp__shown_place(r->group->local, local, buffer);
}

/* Finds the local ranks' contributions to rows of the member, in place or as copies (converted, collected). `*count` is
 * how many there are. */
static fsdp_status find_contributions(reduction *r, const fsdp__batch_piece *p, int member, int64_t rows, int *count)
{
    const fsdp_sharded_buffer *b = &r->call->buffers[p->buffer];
    fsdp_dtype wire = fsdp__wire_dtype(r->call, b);
    bool as_it_lies = b->outer <= 1 && r->call->predivide == 1.0f && wire == b->unsharded_dtype;
    fsdp__copies in = {.stream = r->stream,
                       .traffic = r->traffic,
                       .divisor = r->call->predivide,
                       .src_dtype = b->unsharded_dtype,
                       .dst_dtype = wire};

    *count = 0;
    for (int j = 0; j < r->group->locals; j++) {
        char *copied = area(r, 2, false, 0) + j * r->room;
        const void *theirs = local_adds(r, j, p->buffer) ? unsharded_of(r, j, p->buffer) : NULL;

        if (!theirs)
            continue;
        r->srcs[(*count)++] = as_it_lies ? fsdp__place(theirs, member * b->chunk + p->at, b->unsharded_dtype) : copied;
        if (!as_it_lies)
            FSDP_TRY(fsdp__copies_collect(&in, b, theirs, member, p->at, rows, copied));
        else if (j != r->group->local_rank)
            r->traffic->moved_bytes += rows * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
    }
    return fsdp__copies_flush(&in);
}

static fsdp_status add_locally(reduction *r, const fsdp__batch_piece *p, int place, char *dst)
{
    const fsdp_sharded_buffer *b = &r->call->buffers[p->buffer];
    fsdp__reduce_ranks_args args = {.srcs = r->srcs,
                                    .dst = dst,
                                    .numel = rows_of(r, p, place),
                                    .src_dtype = fsdp__wire_dtype(r->call, b),
                                    .dst_dtype = fsdp__reduce_dtype(b),
                                    .op = FSDP__RANK_SUM};
    int member = fsdp__network_member(r->group, place, r->group->local_rank);

    if (fsdp__network_on_paper(r->group))
        return FSDP_OK;
    FSDP_TRY(find_contributions(r, p, member, args.numel, &args.count));
    FSDP_TRY(fsdp__run_kernel(r->stream, FSDP__KERNEL_REDUCE_RANKS, &args));
    return FSDP_OK;
}

/* Adds to the segments of a leg; adjacent data becomes one segment, and on paper all of it. */
static void add_segment(const reduction *r, fsdp__leg *leg, fsdp__segment *segments, char *data, int64_t bytes)
{
    fsdp__segment *last = leg->count > 0 ? &segments[leg->count - 1] : NULL;

    leg->segments = segments;
    if (last && (fsdp__network_on_paper(r->group) || (char *)last->data + last->bytes == data))
        last->bytes += (size_t)bytes;
    else
        segments[leg->count++] = (fsdp__segment){data, (size_t)bytes};
}

static fsdp__segment *segments_of(const reduction *r, int half, bool received, int place)
{
    return r->segments + ((half * 2 + received) * r->group->columns + place) * r->most;
}

/* Makes the sums of a batch, and sends them. */
static fsdp_status begin_batch(reduction *r, int half)
{
    const fsdp__network_group *g = r->group;
    batch *b = &r->batches[half];

    memset(r->legs, 0, 2 * (size_t)g->columns * sizeof *r->legs);
    for (int p = 0; p < g->columns; p++) {
        fsdp__leg *send = &r->legs[p], *receive = &r->legs[g->columns + p];

        send->rank = receive->rank = g->column[p];
        for (int i = 0; i < b->count; i++) {
            const fsdp__batch_piece *one = &b->pieces[i];
            int64_t theirs = bytes_of(r, one, p), mine = bytes_of(r, one, g->place);
            char *sum = area(r, half, false, p) + one->offset;

            if (adds(r, g->place, one->buffer) && theirs > 0) {
                FSDP_TRY(add_locally(r, one, p, sum));
                if (p != g->place)
                    add_segment(r, send, segments_of(r, half, false, p), sum, theirs);
            }
            if (adds(r, p, one->buffer) && mine > 0 && p != g->place)
                add_segment(r, receive, segments_of(r, half, true, p), area(r, half, true, p) + one->offset, mine);
        }
    }
    FSDP_TRY(fsdp__exchange_begin(&b->exchange, r->group, FSDP__TAG_DATA, r->legs, g->columns, r->legs + g->columns,
                                  g->columns));
    return FSDP_OK;
}

/* ---- the sum of the machines' sums ---- */

static fsdp_status add_machines(reduction *r, const fsdp__batch_piece *one, int half)
{
    const fsdp__network_group *g = r->group;
    const fsdp_sharded_buffer *b = &r->call->buffers[one->buffer];
    int64_t rows = rows_of(r, one, g->place);
    fsdp__sum sum = {.srcs = r->srcs, .ranks = g->size, .dtype = fsdp__reduce_dtype(b)};

    if (rows == 0 || fsdp__network_on_paper(g))
        return FSDP_OK;
    for (int p = 0; p < g->columns; p++)
        fsdp__sum_add(&sum, adds(r, p, one->buffer) ? area(r, half, p != g->place, p) + one->offset : NULL);
    return fsdp__sum_rows(r->call, r->stream, b, &sum, fsdp__place(b->shard, one->at, b->shard_dtype), rows);
}

static fsdp_status end_batch(reduction *r, int half)
{
    batch *b = &r->batches[half];

    FSDP_TRY(fsdp__exchange_end(&b->exchange, r->traffic));
    for (int i = 0; i < b->count; i++)
        FSDP_TRY(add_machines(r, &b->pieces[i], half));
    return FSDP_OK;
}

static bool next_batch(fsdp__batches *cut, batch *out)
{
    out->count = fsdp__batches_next(cut, out->pieces);
    return out->count > 0;
}

static fsdp_status run_batches(reduction *r)
{
    fsdp__batches cut = {.call = r->call, .used = used_of(r), .room = r->room};
    int half = 0;

    for (bool behind = false; next_batch(&cut, &r->batches[half]); half = !half, behind = true) {
        FSDP_TRY(begin_batch(r, half));
        if (behind)
            FSDP_TRY(end_batch(r, !half));
        r->batches[!half].count = 0;
    }
    if (r->batches[!half].count > 0)
        FSDP_TRY(end_batch(r, !half));
    return FSDP_OK;
}

/* ---- memory ---- */

static fsdp_status take_memory(reduction *r)
{
    fsdp__network_group *g = r->group;
    size_t columns = (size_t)g->columns, buffers = (size_t)r->call->buffer_count;
    int64_t areas = 4 * g->columns + g->locals;

    r->room = fsdp__batches_room(g->columns, g->locals);
    r->areas = fsdp__network_scratch(g, (size_t)(areas * r->room));
    r->adds = fsdp__calloc(columns + 1, buffers + 1);
    r->srcs = fsdp__calloc(columns + (size_t)g->locals, sizeof *r->srcs);
    r->most = fsdp__network_on_paper(g) ? 1 : FSDP__BATCH_PIECES;
    r->segments = fsdp__calloc(4 * columns * (size_t)r->most, sizeof *r->segments);
    r->legs = fsdp__calloc(2 * columns, sizeof *r->legs);
    return r->areas && r->adds && r->srcs && r->segments && r->legs ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__network_reduce(fsdp__network_group *group, const fsdp__call *call, fsdp_stream *stream,
                                 fsdp__traffic *traffic, bool visible, bool *done)
{
    reduction *r = fsdp__calloc(1, sizeof *r);
    fsdp_status status;

    if (!r)
        return FSDP_NO_MEMORY;
    *r = (reduction){.group = group, .call = call, .stream = stream, .traffic = traffic};
    status = take_memory(r);
    if (status == FSDP_OK)
        status = meet(r, visible, done);
    if (status == FSDP_OK && *done)
        status = run_batches(r);
    for (int half = 0; half < 2 && status != FSDP_OK; half++)
        fsdp__exchange_give_up(&r->batches[half].exchange);
    fsdp__free(r->legs);
    fsdp__free(r->segments);
    fsdp__free(r->srcs);
    fsdp__free(r->adds);
    fsdp__free(r);
    return status;
}
