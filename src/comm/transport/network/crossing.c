/* crossing.c - the legs of a collective over machines, and what all such collectives share. */
#include "comm/transport/network/crossing.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/transport/arena/lent.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"

enum {
    LINE = 64
};

fsdp_status fsdp__crossing_begin(fsdp__crossing *r, void *group, const fsdp__call *call, fsdp__traffic *traffic,
                                 size_t segments)
{
    fsdp__network_group *g = group;
    size_t ranks = (size_t)g->size;

    *r = (fsdp__crossing){.group = g,
                          .call = call,
                          .traffic = traffic,
                          .element = fsdp_dtype_size(call->dtype),
                          .segments = fsdp__malloc((segments + 1) * sizeof *r->segments),
                          .legs = fsdp__malloc(2 * ranks * sizeof *r->legs),
                          .buffers = fsdp__malloc((size_t)g->columns * sizeof *r->buffers)};
    return r->segments && r->legs && r->buffers ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__crossing_end(fsdp__crossing *r, fsdp_status status)
{
    fsdp__meeting_release(&r->meeting);
    if (status != FSDP_OK && r->memory && r->group->local) { /* ranks of this machine may be reading it */
        fsdp__link_fail(&r->group->world->link);
        fsdp__lent_settle(r->group->local);
    }
    FSDP__FREE_ALL(r->memory, r->buffers, r->legs, r->segments);
    return status;
}

char *fsdp__crossing_scratch(fsdp__crossing *r, int64_t count)
{
    r->memory = r->group->world->acts->take((size_t)count * r->element + LINE);
    return r->memory;
}

fsdp_status fsdp__crossing_copy(fsdp__crossing *r, void *dst, const void *src, int64_t count)
{
    fsdp__copies one = {.traffic = r->traffic, .src_dtype = r->call->dtype, .dst_dtype = r->call->dtype};

    if (fsdp__network_on_paper(r->group))
        return FSDP_OK;
    FSDP_TRY(fsdp__copies_add(&one, dst, src, count));
    return fsdp__copies_flush(&one);
}

/* ---- messages ---- */

fsdp_status fsdp__crossing_uses(fsdp__crossing *r, const void *data, size_t bytes, fsdp__access access)
{
    return bytes == 0 || fsdp__network_on_paper(r->group)
               ? FSDP_OK
               : fsdp__stream_uses(r->traffic->stream, data, bytes, access, "message");
}

static fsdp_status add_leg(fsdp__crossing *r, bool sends, int rank, void *data, int64_t count)
{
    int i = sends ? r->sends++ : r->group->size + r->receives++;
    size_t bytes = (size_t)count * r->element;
    fsdp__segment *segment = &r->segments[i];

    *segment = (fsdp__segment){data, bytes};
    r->legs[i] = (fsdp__leg){rank, segment, 1, false};
    return fsdp__crossing_uses(r, data, bytes, sends ? FSDP__READS : FSDP__WRITES);
}

fsdp_status fsdp__crossing_send(fsdp__crossing *r, int rank, const void *data, int64_t count)
{
    return add_leg(r, true, rank, (void *)(uintptr_t)data, count);
}

fsdp_status fsdp__crossing_receive(fsdp__crossing *r, int rank, void *data, int64_t count)
{
    return add_leg(r, false, rank, data, count);
}

/* ---- rows ---- */

size_t fsdp__crossing_segments(const fsdp__network_group *group, const fsdp__call *rows)
{
    int64_t runs = 1;

    for (int64_t i = 0; i < rows->buffer_count && !fsdp__network_on_paper(group); i++)
        runs += FSDP__MAX(rows->buffers[i].outer, 1);
    return (size_t)(group->columns * runs);
}

/* Makes a leg on paper of all rows of a member. */
static void add_up_rows(const fsdp__call *rows, int member, fsdp__segment *all)
{
    *all = (fsdp__segment){0};
    for (int64_t i = 0; i < rows->buffer_count; i++)
        all->bytes +=
            (size_t)fsdp__part_numel(&rows->buffers[i], member) * fsdp_dtype_size(rows->buffers[i].unsharded_dtype);
}

/* Finds all rows of the member at a place, where they lie, as segments from `first` on. `*count` is how many. `part`:
 * they lie there, one after the other; NULL: in their places. */
static fsdp_status find_rows(fsdp__crossing *r, const fsdp__call *rows, int place, const void *part,
                             fsdp__segment *first, int *count)
{
    int member = fsdp__network_member(r->group, place, r->group->local_rank);
    fsdp__access access = place == r->group->place ? FSDP__READS : FSDP__WRITES;

    *count = 1;
    if (fsdp__network_on_paper(r->group)) {
        add_up_rows(rows, member, first);
        return FSDP_OK;
    }
    *count = 0;
    for (int64_t i = 0; i < rows->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &rows->buffers[i];
        int64_t numel = fsdp__part_numel(b, member);

        for (int64_t at = 0, index, n; at < numel; at += n) {
            size_t bytes;
            char *data;

            n = fsdp__part_run(b, member, at, numel - at, &index);
            bytes = (size_t)n * fsdp_dtype_size(b->unsharded_dtype);
            data = fsdp__place(part ? part : b->unsharded, part ? at : index, b->unsharded_dtype);
            first[(*count)++] = (fsdp__segment){data, bytes};
            FSDP_TRY(fsdp__crossing_uses(r, data, bytes, access));
        }
    }
    return FSDP_OK;
}

fsdp_status fsdp__crossing_gather(fsdp__crossing *r, const fsdp__call *rows, const void *own)
{
    const fsdp__network_group *g = r->group;
    size_t runs = fsdp__crossing_segments(g, rows) / (size_t)g->columns;
    fsdp__leg mine = {.segments = r->segments + (size_t)g->place * runs};

    FSDP_TRY(find_rows(r, rows, g->place, own, r->segments + (size_t)g->place * runs, &mine.count));
    for (int p = 0; p < g->columns; p++) {
        fsdp__leg *send = &r->legs[r->sends], *receive = &r->legs[g->size + r->receives];

        if (p == g->place)
            continue;
        *send = mine;
        *receive = (fsdp__leg){.segments = r->segments + (size_t)p * runs};
        send->rank = receive->rank = g->column[p];
        FSDP_TRY(find_rows(r, rows, p, NULL, r->segments + (size_t)p * runs, &receive->count));
        r->sends++;
        r->receives++;
    }
    return FSDP_OK;
}

/* ---- meeting and exchanging ---- */

void fsdp__crossing_meet(fsdp__crossing *r, bool complete)
{
    r->meets = FSDP__MEETING_DUE;
    r->complete = complete;
}

static fsdp_status begin_meeting(fsdp__crossing *r)
{
    fsdp__header own = {.complete = r->complete};
    fsdp__legs legs = {r->legs, r->legs + r->group->size, r->sends, r->receives, r->parts};

    r->meets = FSDP__MEETING_BEGUN;
    return fsdp__meeting_begin(&r->meeting, r->group, r->call, &own, &legs);
}

fsdp_status fsdp__crossing_begin_exchange(fsdp__crossing *r, fsdp__exchange *x)
{
    *x = (fsdp__exchange){0};
    if (r->meets == FSDP__MEETING_DUE)
        FSDP_TRY(begin_meeting(r));
    FSDP_TRY(
        fsdp__exchange_begin(x, r->group, FSDP__TAG_DATA, r->legs, r->sends, r->legs + r->group->size, r->receives));
    r->sends = r->receives = 0;
    return FSDP_OK;
}

fsdp_status fsdp__crossing_end_meeting(fsdp__crossing *r)
{
    bool meets = r->meets == FSDP__MEETING_BEGUN;

    r->meets = FSDP__NO_MEETING;
    return meets ? fsdp__meeting_end(&r->meeting, r->traffic) : FSDP_OK;
}

fsdp_status fsdp__crossing_end_exchange(fsdp__crossing *r, fsdp__exchange *x, fsdp_status status)
{
    if (status == FSDP_OK)
        status = fsdp__crossing_end_meeting(r);
    if (status == FSDP_OK)
        return fsdp__exchange_end(x, r->traffic);
    fsdp__exchange_give_up(x);
    return status;
}

fsdp_status fsdp__crossing_exchange(fsdp__crossing *r)
{
    fsdp__exchange x;
    fsdp_status status = fsdp__crossing_begin_exchange(r, &x);

    return fsdp__crossing_end_exchange(r, &x, status);
}

fsdp_status fsdp__crossing_meet_and_exchange(fsdp__crossing *r)
{
    fsdp__crossing_meet(r, true);
    return fsdp__crossing_exchange(r);
}

fsdp_status fsdp__crossing_local(fsdp__crossing *r, fsdp__pattern pattern, int count)
{
    fsdp__call by_rows = fsdp__call_by_rows(r->call, r->buffers, count);
    fsdp__rows rows;

    if (!r->group->local)
        return FSDP_OK;
    by_rows.op = by_rows.op == FSDP_AVG ? FSDP_SUM : by_rows.op; /* the quotient is taken of all machines' sum */
    rows = fsdp__rows_of(r->group->local, &by_rows, pattern, r->traffic);
    return fsdp__rows_exchange(&rows);
}

/* ---- devices whose memory the host may not follow ---- */

/* Runs the collective on host memory. `sent` and `received` are the elements that this rank gives and gets. */
static fsdp_status through_host(fsdp__collective collective, fsdp__crossing *r, int64_t sent, int64_t received)
{
    fsdp_stream *stream = r->traffic->stream;
    fsdp_stream *host = fsdp__host_stream(fsdp_device_context(fsdp__stream_device(stream)));
    size_t send_bytes = (size_t)sent * r->element, recv_bytes = (size_t)received * r->element;
    char *memory = fsdp__crossing_scratch(r, sent + received + LINE);
    fsdp__call call = *r->call;
    fsdp_status status;

    if (!memory || !host)
        return fsdp_last_status();
    call.send = memory;
    call.recv = memory + FSDP__ROUND_UP(send_bytes, LINE);
    if (call.name == FSDP__CALL_BROADCAST)
        call.recv = memory;
    FSDP_TRY(fsdp__run_copy_to_host(stream, memory, r->call->send, send_bytes));
    r->traffic->stream = host;
    status = collective(r->group, &call, r->traffic);
    r->traffic->stream = stream;
    FSDP_TRY(status);
    return fsdp__run_copy_to_device(stream, r->call->recv, call.recv, recv_bytes);
}

fsdp_status fsdp__crossing_over(fsdp__collective self, fsdp__collective local, fsdp_status (*over)(fsdp__crossing *),
                                void *group, const fsdp__call *call, fsdp__traffic *traffic, int64_t sent,
                                int64_t received)
{
    fsdp__network_group *g = group;
    fsdp_status status;
    fsdp__crossing r;

    if (fsdp__network_is_local(g))
        return local(g->local, call, traffic);
    status = fsdp__crossing_begin(&r, group, call, traffic, 2 * (size_t)g->size);
    if (status == FSDP_OK)
        status = fsdp__network_on_paper(g) || fsdp__device_host_access(fsdp__stream_device(traffic->stream))
                     ? over(&r)
                     : through_host(self, &r, sent, received);
    return fsdp__crossing_end(&r, status);
}
