/* plain_run.c - the legs of a plain collective, and what all plain collectives share. */
#include "comm/transport/network/plain_run.h"

#include "base/alloc.h"
#include "comm/transport/arena/lent.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"
#include "device/kernels.h"

enum {
    LINE = 64
};

static fsdp_status begin(fsdp__plain_run *r, void *group, const fsdp__call *call, fsdp_stream *stream,
                         fsdp__traffic *traffic)
{
    fsdp__network_group *g = group;
    size_t ranks = (size_t)g->size;

    *r = (fsdp__plain_run){.group = g,
                           .call = call,
                           .stream = stream,
                           .traffic = traffic,
                           .element = fsdp_dtype_size(call->dtype),
                           .segments = fsdp__malloc(4 * ranks * sizeof *r->segments),
                           .legs = fsdp__malloc(2 * ranks * sizeof *r->legs),
                           .buffers = fsdp__malloc((size_t)g->columns * sizeof *r->buffers)};
    return r->segments && r->legs && r->buffers ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status end(fsdp__plain_run *r, fsdp_status status)
{
    fsdp__meeting_release(&r->meeting);
    if (status != FSDP_OK && r->memory && r->group->local) { /* ranks of this machine may be reading it */
        fsdp__link_fail(&r->group->world->link);
        fsdp__lent_settle(r->group->local);
    }
    fsdp__free(r->memory);
    fsdp__free(r->buffers);
    fsdp__free(r->legs);
    fsdp__free(r->segments);
    return status;
}

char *fsdp__plain_scratch(fsdp__plain_run *r, int64_t count)
{
    r->memory = r->group->world->acts->take((size_t)count * r->element + LINE);
    return r->memory;
}

fsdp_status fsdp__plain_copy(fsdp__plain_run *r, void *dst, const void *src, int64_t count)
{
    fsdp__copies one = {
        .stream = r->stream, .traffic = r->traffic, .src_dtype = r->call->dtype, .dst_dtype = r->call->dtype};

    if (fsdp__network_on_paper(r->group))
        return FSDP_OK;
    FSDP_TRY(fsdp__copies_add(&one, dst, src, count));
    return fsdp__copies_flush(&one);
}

/* ---- messages ---- */

static fsdp_status add_leg(fsdp__plain_run *r, bool sends, int rank, void *data, int64_t count)
{
    int i = sends ? r->sends++ : r->group->size + r->receives++;
    size_t bytes = (size_t)count * r->element;
    fsdp__segment *segment = &r->segments[r->half * 2 * r->group->size + i];

    *segment = (fsdp__segment){data, bytes};
    r->legs[i] = (fsdp__leg){rank, segment, 1, false};
    if (bytes > 0 && !fsdp__network_on_paper(r->group))
        FSDP_TRY(fsdp__stream_uses(r->stream, data, bytes, sends ? FSDP__READS : FSDP__WRITES, "message"));
    return FSDP_OK;
}

fsdp_status fsdp__plain_send(fsdp__plain_run *r, int rank, const void *data, int64_t count)
{
    return add_leg(r, true, rank, (void *)(uintptr_t)data, count);
}

fsdp_status fsdp__plain_receive(fsdp__plain_run *r, int rank, void *data, int64_t count)
{
    return add_leg(r, false, rank, data, count);
}

void fsdp__plain_meet(fsdp__plain_run *r, bool complete)
{
    r->meets = FSDP__MEETING_DUE;
    r->complete = complete;
}

static fsdp_status begin_meeting(fsdp__plain_run *r)
{
    fsdp__header own = {.complete = r->complete};
    fsdp__legs legs = {r->legs, r->legs + r->group->size, r->sends, r->receives, r->parts};

    r->meets = FSDP__MEETING_BEGUN;
    return fsdp__meeting_begin(&r->meeting, r->group, r->call, &own, &legs);
}

fsdp_status fsdp__plain_begin_exchange(fsdp__plain_run *r, fsdp__exchange *x)
{
    *x = (fsdp__exchange){0};
    if (r->meets == FSDP__MEETING_DUE)
        FSDP_TRY(begin_meeting(r));
    FSDP_TRY(
        fsdp__exchange_begin(x, r->group, FSDP__TAG_DATA, r->legs, r->sends, r->legs + r->group->size, r->receives));
    r->sends = r->receives = 0;
    return FSDP_OK;
}

fsdp_status fsdp__plain_end_meeting(fsdp__plain_run *r)
{
    bool meets = r->meets == FSDP__MEETING_BEGUN;

    r->meets = FSDP__NO_MEETING;
    return meets ? fsdp__meeting_end(&r->meeting, r->traffic) : FSDP_OK;
}

fsdp_status fsdp__plain_end_exchange(fsdp__plain_run *r, fsdp__exchange *x, fsdp_status status)
{
    if (status == FSDP_OK)
        status = fsdp__plain_end_meeting(r);
    if (status == FSDP_OK)
        return fsdp__exchange_end(x, r->traffic);
    fsdp__exchange_give_up(x);
    return status;
}

fsdp_status fsdp__plain_exchange(fsdp__plain_run *r)
{
    fsdp__exchange x;
    fsdp_status status = fsdp__plain_begin_exchange(r, &x);

    return fsdp__plain_end_exchange(r, &x, status);
}

fsdp_status fsdp__plain_meet_and_exchange(fsdp__plain_run *r)
{
    fsdp__plain_meet(r, true);
    return fsdp__plain_exchange(r);
}

fsdp_status fsdp__plain_local(fsdp__plain_run *r, fsdp__pattern pattern, int count)
{
    fsdp__call by_rows = fsdp__call_by_rows(r->call, r->buffers, count);
    fsdp__rows rows;

    if (!r->group->local)
        return FSDP_OK;
    by_rows.op = by_rows.op == FSDP_AVG ? FSDP_SUM : by_rows.op; /* the quotient is taken of all machines' sum */
    rows = fsdp__rows_of(r->group->local, &by_rows, pattern, r->stream, r->traffic);
    return fsdp__rows_exchange(&rows);
}

/* ---- devices whose memory the host may not follow ---- */

/* Runs the collective on host memory. `sent` and `received` are the elements that this rank gives and gets. */
static fsdp_status through_host(fsdp__collective collective, fsdp__plain_run *r, int64_t sent, int64_t received)
{
    fsdp_stream *host = fsdp__host_stream(fsdp_device_context(fsdp__stream_device(r->stream)));
    size_t send_bytes = (size_t)sent * r->element, recv_bytes = (size_t)received * r->element;
    char *memory = fsdp__plain_scratch(r, sent + received + LINE);
    fsdp__call call = *r->call;
    fsdp_status status;

    if (!memory || !host)
        return fsdp_last_status();
    call.send = memory;
    call.recv = memory + (send_bytes + LINE - 1) / LINE * LINE;
    if (call.name == FSDP__CALL_BROADCAST)
        call.recv = memory;
    FSDP_TRY(fsdp__run_copy_to_host(r->stream, memory, r->call->send, send_bytes));
    r->traffic->stream = host; /* the stream on which uses of memory are ordered */
    status = collective(r->group, &call, host, r->traffic);
    r->traffic->stream = r->stream;
    FSDP_TRY(status);
    FSDP_TRY(fsdp__run_copy_to_device(r->stream, r->call->recv, call.recv, recv_bytes));
    return FSDP_OK;
}

fsdp_status fsdp__plain_over(fsdp__collective self, fsdp__collective local, fsdp_status (*over)(fsdp__plain_run *),
                             void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic,
                             int64_t sent, int64_t received)
{
    fsdp__network_group *g = group;
    fsdp_status status;
    fsdp__plain_run r;

    if (fsdp__network_is_local(g))
        return local(g->local, call, stream, traffic);
    status = begin(&r, group, call, stream, traffic);
    if (status == FSDP_OK)
        status = fsdp__network_on_paper(g) || fsdp__device_host_access(fsdp__stream_device(stream))
                     ? over(&r)
                     : through_host(self, &r, sent, received);
    return end(&r, status);
}
