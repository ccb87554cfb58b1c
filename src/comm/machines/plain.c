/* plain.c - a machine's part by its group in the arena, the rest between a rank and its counterparts.
 *
 * With M machines of k ranks, and n bytes in the whole buffer, a machine receives
 *   all_gather       (M-1)/M n: each rank the parts of its counterparts, which the ranks of the machine then pass on
 *   reduce_scatter   (M-1)/M n: each machine adds first, and sends sums
 *   all_reduce       2 (M-1)/M n: both; k (M-1) n where n is small, in one exchange and not two
 *   broadcast        n, but for the root's
 *   all_to_all       each part once: k parts for each rank elsewhere
 * In a flat group each rank counts as a machine. Each call is one meeting of headers more. */
#include "comm/machines/plain.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/sharded_buffer.h"
#include "comm/symmetric/plain.h"
#include "device/device.h"
#include "device/races.h"

enum {
    LINE = 64
};

/* A call that is being run. */
typedef struct run {
    fsdp__machines_group *group;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
    size_t element;
    /* Scratch: a segment and a leg for each rank of the group, in both directions. */
    fsdp__segment *segments;
    fsdp__leg *legs;
    int sends, receives;
    void *memory;
} run;

static fsdp_status begin(run *r, void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    fsdp__machines_group *g = group;
    size_t ranks = (size_t)g->size;

    *r = (run){.group = g,
               .call = call,
               .stream = stream,
               .traffic = traffic,
               .element = fsdp_dtype_size(call->dtype),
               .segments = fsdp__calloc(2 * ranks, sizeof *r->segments),
               .legs = fsdp__calloc(2 * ranks, sizeof *r->legs)};
    return r->segments && r->legs ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status end(run *r, fsdp_status status)
{
    fsdp__free(r->memory);
    fsdp__free(r->legs);
    fsdp__free(r->segments);
    return status;
}

/* Host memory of `count` elements, once a call. */
static char *scratch(run *r, int64_t count)
{
    r->memory = fsdp__malloc((size_t)count * r->element + LINE);
    return r->memory;
}

static char *at(const run *r, const void *base, int64_t index)
{
    return (char *)(uintptr_t)base + (size_t)index * r->element;
}

static fsdp_status copy(run *r, void *dst, const void *src, int64_t count)
{
    fsdp__copies one = {
        .stream = r->stream, .traffic = r->traffic, .src_dtype = r->call->dtype, .dst_dtype = r->call->dtype};

    FSDP_TRY(fsdp__copies_add(&one, dst, src, count));
    return fsdp__copies_flush(&one);
}

/* ---- legs ---- */

static fsdp_status add_leg(run *r, bool sends, int rank, void *data, int64_t count)
{
    int i = sends ? r->sends++ : r->group->size + r->receives++;
    size_t bytes = (size_t)count * r->element;

    r->segments[i] = (fsdp__segment){data, bytes};
    r->legs[i] = (fsdp__leg){rank, &r->segments[i], 1};
    if (bytes > 0)
        FSDP_TRY(fsdp__races_use(r->stream, data, bytes, sends ? FSDP__READS : FSDP__WRITES, "message"));
    return FSDP_OK;
}

static fsdp_status send_to(run *r, int rank, const void *data, int64_t count)
{
    return add_leg(r, true, rank, (void *)(uintptr_t)data, count);
}

static fsdp_status receive_from(run *r, int rank, void *data, int64_t count)
{
    return add_leg(r, false, rank, data, count);
}

static fsdp_status begin_exchange(run *r, fsdp__exchange *x)
{
    FSDP_TRY(
        fsdp__exchange_begin(x, r->group, FSDP__TAG_DATA, r->legs, r->sends, r->legs + r->group->size, r->receives));
    r->sends = r->receives = 0;
    return FSDP_OK;
}

static fsdp_status exchange(run *r)
{
    fsdp__exchange x;

    FSDP_TRY(begin_exchange(r, &x));
    return fsdp__exchange_end(&x, r->traffic);
}

/* The legs' bytes, on their way while headers are compared. */
static fsdp_status meet_and_exchange(run *r)
{
    fsdp__header own = {.complete = true};
    fsdp__meeting meeting;
    fsdp__exchange x = {0};
    fsdp_status status = fsdp__meeting_begin(&meeting, r->group, r->call, &own);

    if (status == FSDP_OK)
        status = begin_exchange(r, &x);
    if (status == FSDP_OK)
        status = fsdp__meeting_end(&meeting, r->traffic);
    if (status == FSDP_OK)
        status = fsdp__exchange_end(&x, r->traffic);
    else
        fsdp__exchange_give_up(&x);
    fsdp__meeting_release(&meeting);
    return status;
}

/* The same call among the ranks of this machine. */
static fsdp_status run_local(run *r, fsdp__collective local, const void *send, void *recv, int64_t count)
{
    fsdp__call call = *r->call;

    call.send = send;
    call.recv = recv;
    call.count = count;
    call.op = call.op == FSDP_AVG ? FSDP_SUM : call.op; /* the quotient is that of all machines' sum */
    return local(r->group->local, &call, r->stream, r->traffic);
}

/* ---- devices whose memory the host may not follow ---- */

/* `sent` and `received`: elements that this rank gives and gets. */
static fsdp_status through_host(fsdp__collective collective, run *r, int64_t sent, int64_t received)
{
    fsdp_stream *host = fsdp__host_stream(fsdp_device_context(fsdp__stream_device(r->stream)));
    size_t send_bytes = (size_t)sent * r->element, recv_bytes = (size_t)received * r->element;
    char *memory = scratch(r, sent + received + LINE);
    fsdp__call call = *r->call;

    if (!memory || !host)
        return fsdp_last_status();
    call.send = memory;
    call.recv = memory + (send_bytes + LINE - 1) / LINE * LINE;
    if (call.name == FSDP__CALL_BROADCAST)
        call.recv = memory;
    FSDP_TRY(fsdp__run_copy_to_host(r->stream, memory, r->call->send, send_bytes));
    FSDP_TRY(collective(r->group, &call, host, r->traffic));
    FSDP_TRY(fsdp__run_copy_to_device(r->stream, r->call->recv, call.recv, recv_bytes));
    return FSDP_OK;
}

/* A collective: wholly of one machine, through the host, or `over` machines. */
static fsdp_status run_over(fsdp__collective self, fsdp__collective local, fsdp_status (*over)(run *), void *group,
                            const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic, int64_t sent,
                            int64_t received)
{
    fsdp__machines_group *g = group;
    fsdp_status status;
    run r;

    if (fsdp__machines_is_local(g))
        return local(g->local, call, stream, traffic);
    status = begin(&r, group, call, stream, traffic);
    if (status == FSDP_OK)
        status =
            fsdp__device_host_access(fsdp__stream_device(stream)) ? over(&r) : through_host(self, &r, sent, received);
    return end(&r, status);
}

/* ---- all_gather ---- */

static fsdp_status all_gather_over(run *r)
{
    fsdp__machines_group *g = r->group;
    const fsdp__call *call = r->call;
    int64_t part = call->count;

    for (int p = 0; p < g->columns; p++) {
        if (p == g->place)
            continue;
        FSDP_TRY(send_to(r, g->column[p], call->send, part));
        FSDP_TRY(
            receive_from(r, g->column[p], at(r, call->recv, fsdp__machines_member(g, p, g->local_rank) * part), part));
    }
    FSDP_TRY(meet_and_exchange(r));
    if (g->flat)
        return copy(r, at(r, call->recv, g->rank * part), call->send, part);
    for (int p = 0; p < g->columns; p++) {
        const char *mine = at(r, call->recv, fsdp__machines_member(g, p, g->local_rank) * part);

        FSDP_TRY(run_local(r, fsdp__symmetric_all_gather, p == g->place ? call->send : mine,
                           at(r, call->recv, fsdp__machines_member(g, p, 0) * part), part));
    }
    return FSDP_OK;
}

fsdp_status fsdp__machines_all_gather(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    const fsdp__machines_group *g = group;

    return run_over(fsdp__machines_all_gather, fsdp__symmetric_all_gather, all_gather_over, group, call, stream,
                    traffic, call->count, g->size * call->count);
}

/* ---- broadcast ---- */

static fsdp_status broadcast_over(run *r)
{
    fsdp__machines_group *g = r->group;
    const fsdp__call *call = r->call;
    int from = call->root / g->locals, local_root = call->root % g->locals;
    fsdp__call local = *call;

    for (int p = 0; p < g->columns && g->local_rank == local_root; p++) {
        if (p == g->place)
            continue;
        if (g->place == from)
            FSDP_TRY(send_to(r, g->column[p], call->send, call->count));
        else if (p == from)
            FSDP_TRY(receive_from(r, g->column[p], call->recv, call->count));
    }
    FSDP_TRY(meet_and_exchange(r));
    if (g->flat)
        return FSDP_OK;
    local.root = local_root;
    return fsdp__symmetric_broadcast(g->local, &local, r->stream, r->traffic);
}

fsdp_status fsdp__machines_broadcast(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    const fsdp__machines_group *g = group;
    bool sends = g->rank == call->root;

    return run_over(fsdp__machines_broadcast, fsdp__symmetric_broadcast, broadcast_over, group, call, stream, traffic,
                    sends ? call->count : 0, sends ? 0 : call->count);
}

/* ---- all_to_all ---- */

static fsdp_status all_to_all_over(run *r)
{
    fsdp__machines_group *g = r->group;
    const fsdp__call *call = r->call;
    int64_t part = call->count, first = fsdp__machines_member(g, g->place, 0) * part;

    /* Those who are no counterparts are known to have made this call when both meetings are over. */
    FSDP_TRY(fsdp__meet(g, call, r->traffic));
    FSDP_TRY(g->flat
                 ? copy(r, at(r, call->recv, first), at(r, call->send, first), part)
                 : run_local(r, fsdp__symmetric_all_to_all, at(r, call->send, first), at(r, call->recv, first), part));
    for (int i = 0; i < g->size; i++) {
        if (i / g->locals == g->place)
            continue;
        FSDP_TRY(send_to(r, g->ranks[i], at(r, call->send, i * part), part));
        FSDP_TRY(receive_from(r, g->ranks[i], at(r, call->recv, i * part), part));
    }
    return exchange(r);
}

fsdp_status fsdp__machines_all_to_all(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    const fsdp__machines_group *g = group;
    int64_t all = g->size * call->count;

    return run_over(fsdp__machines_all_to_all, fsdp__symmetric_all_to_all, all_to_all_over, group, call, stream,
                    traffic, all, all);
}

/* ---- barrier ---- */

fsdp_status fsdp__machines_barrier(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    fsdp__machines_group *g = group;

    /* Counterparts send their headers when their whole machine has come. */
    if (g->local)
        FSDP_TRY(fsdp__symmetric_barrier(g->local, call, stream, traffic));
    if (g->columns > 1)
        FSDP_TRY(fsdp__meet(g, call, traffic));
    return FSDP_OK;
}

/* ---- reductions ---- */

/* dst = op over the places of `count` elements: `own`, and what lies in `others` for each other place, in order. */
static fsdp_status reduce_places(run *r, const void *own, const char *others, int64_t count, void *dst)
{
    static const fsdp__rank_op ops[] = {[FSDP_SUM] = FSDP__RANK_SUM,
                                        [FSDP_AVG] = FSDP__RANK_SUM,
                                        [FSDP_MAX] = FSDP__RANK_MAX,
                                        [FSDP_MIN] = FSDP__RANK_MIN};
    const fsdp__machines_group *g = r->group;
    const void **srcs = fsdp__calloc((size_t)g->columns, sizeof *srcs);
    fsdp__reduce_ranks_args args = {.srcs = srcs,
                                    .count = g->columns,
                                    .dst = dst,
                                    .numel = count,
                                    .src_dtype = r->call->dtype,
                                    .dst_dtype = r->call->dtype,
                                    .op = ops[r->call->op],
                                    .divisor = r->call->op == FSDP_AVG ? (float)g->size : 1.0f,
                                    .block = g->block,
                                    .block_dtype = r->call->dtype};
    fsdp_status status = FSDP_OK;

    if (!srcs)
        return FSDP_NO_MEMORY;
    for (int p = 0; p < g->columns; p++)
        srcs[p] = p == g->place ? own : at(r, others, (p - (p > g->place)) * count);
    if (count > 0)
        status = fsdp__run_kernel(r->stream, FSDP__KERNEL_REDUCE_RANKS, &args);
    fsdp__free(srcs);
    return status;
}

static fsdp_status reduce_scatter_over(run *r)
{
    fsdp__machines_group *g = r->group;
    const fsdp__call *call = r->call;
    int64_t part = call->count;
    char *others = scratch(r, (g->columns - 1 + (g->flat ? 0 : g->columns)) * part), *sums;
    const char *own = at(r, call->send, g->rank * part);

    if (!others)
        return FSDP_NO_MEMORY;
    sums = at(r, others, (g->columns - 1) * part);
    for (int p = 0, other = 0; p < g->columns; p++) {
        const char *sum = g->flat ? at(r, call->send, p * part) : at(r, sums, p * part);

        if (!g->flat)
            FSDP_TRY(run_local(r, fsdp__symmetric_reduce_scatter,
                               at(r, call->send, fsdp__machines_member(g, p, 0) * part), at(r, sums, p * part), part));
        if (p == g->place) {
            own = sum;
            continue;
        }
        FSDP_TRY(send_to(r, g->column[p], sum, part));
        FSDP_TRY(receive_from(r, g->column[p], at(r, others, other++ * part), part));
    }
    FSDP_TRY(meet_and_exchange(r));
    return reduce_places(r, own, others, part, call->recv);
}

fsdp_status fsdp__machines_reduce_scatter(void *group, const fsdp__call *call, fsdp_stream *stream,
                                          fsdp__traffic *traffic)
{
    const fsdp__machines_group *g = group;

    return run_over(fsdp__machines_reduce_scatter, fsdp__symmetric_reduce_scatter, reduce_scatter_over, group, call,
                    stream, traffic, g->size * call->count, call->count);
}

/* ---- all_reduce ---- */

static int64_t share_of(const run *r, int local, int place, int64_t *length)
{
    return fsdp__share_of(r->group->columns, r->group->locals, r->call->count, r->element, local, place, length);
}

/* `sums`: the machine's sum of everything. In one exchange. */
static fsdp_status reduce_at_once(run *r, const char *sums)
{
    fsdp__machines_group *g = r->group;
    int64_t count = r->call->count;
    char *others = scratch(r, (g->columns - 1) * count);

    if (!others)
        return FSDP_NO_MEMORY;
    for (int p = 0, other = 0; p < g->columns; p++) {
        if (p == g->place)
            continue;
        FSDP_TRY(send_to(r, g->column[p], sums, count));
        FSDP_TRY(receive_from(r, g->column[p], at(r, others, other++ * count), count));
    }
    FSDP_TRY(exchange(r));
    return reduce_places(r, sums, others, count, r->call->recv);
}

/* Each rank adds its share, and sends the result to its counterparts. */
static fsdp_status reduce_by_shares(run *r, const char *sums)
{
    fsdp__machines_group *g = r->group;
    int64_t length, own, start = share_of(r, g->local_rank, g->place, &own);
    char *others = scratch(r, (g->columns - 1) * own);

    if (!others)
        return FSDP_NO_MEMORY;
    for (int p = 0, other = 0; p < g->columns; p++) {
        int64_t theirs = share_of(r, g->local_rank, p, &length);

        if (p == g->place)
            continue;
        FSDP_TRY(send_to(r, g->column[p], at(r, sums, theirs), length));
        FSDP_TRY(receive_from(r, g->column[p], at(r, others, other++ * own), own));
    }
    FSDP_TRY(exchange(r));
    FSDP_TRY(reduce_places(r, at(r, sums, start), others, own, at(r, r->call->recv, start)));
    for (int p = 0; p < g->columns; p++) {
        int64_t theirs = share_of(r, g->local_rank, p, &length);

        if (p == g->place)
            continue;
        FSDP_TRY(send_to(r, g->column[p], at(r, r->call->recv, start), own));
        FSDP_TRY(receive_from(r, g->column[p], at(r, r->call->recv, theirs), length));
    }
    return exchange(r);
}

/* What the local ranks have each. */
static fsdp_status spread_shares(run *r)
{
    fsdp__machines_group *g = r->group;

    for (int j = 0; j < g->locals && !g->flat; j++) {
        int64_t length, start = share_of(r, j, 0, &length), last = share_of(r, j, g->columns - 1, &length);
        fsdp__call call = *r->call;

        call.send = call.recv = at(r, call.recv, start);
        call.count = last + length - start;
        call.root = j;
        call.flags = NULL;
        if (call.count > 0)
            FSDP_TRY(fsdp__symmetric_broadcast(g->local, &call, r->stream, r->traffic));
    }
    return FSDP_OK;
}

/* Headers, and flags where one is not set anywhere. `lacking`: of this machine. */
static fsdp_status meet_with_flags(run *r, bool lacking)
{
    fsdp__machines_group *g = r->group;
    size_t count = (size_t)r->call->flag_count;
    fsdp__header own = {.complete = !lacking};
    fsdp__meeting meeting;
    uint8_t *theirs = NULL;
    fsdp_status status = fsdp__meeting_begin(&meeting, g, r->call, &own);

    FSDP_TRY_GOTO(status, status, out);
    FSDP_TRY_GOTO(status, fsdp__meeting_end(&meeting, r->traffic), out);
    for (int p = 0; p < g->columns; p++)
        lacking = lacking || !meeting.headers[p].complete;
    if (lacking && r->call->lacking)
        *r->call->lacking = true;
    if (!lacking || count == 0)
        goto out;
    theirs = fsdp__malloc((size_t)(g->columns + 1) * count);
    if (!theirs) {
        status = FSDP_NO_MEMORY;
        goto out;
    }
    memset(theirs + (size_t)g->place * count, 1, count);
    if (r->call->flags)
        memcpy(theirs + (size_t)g->place * count, r->call->flags, count);
    for (int p = 0; p < g->columns; p++) {
        if (p == g->place)
            continue;
        r->segments[p] = (fsdp__segment){theirs + (size_t)p * count, count};
        r->segments[g->place] = (fsdp__segment){theirs + (size_t)g->place * count, count};
        r->legs[r->sends++] = (fsdp__leg){g->column[p], &r->segments[g->place], 1};
        r->legs[g->size + r->receives++] = (fsdp__leg){g->column[p], &r->segments[p], 1};
    }
    FSDP_TRY_GOTO(status, exchange(r), out);
    for (size_t i = 0; r->call->flags && i < (size_t)g->columns * count; i++)
        r->call->flags[i % count] |= theirs[i];
out:
    fsdp__free(theirs);
    fsdp__meeting_release(&meeting);
    return status;
}

static fsdp_status all_reduce_over(run *r)
{
    fsdp__machines_group *g = r->group;
    const fsdp__call *call = r->call;
    bool lacking = call->flags && memchr(call->flags, 0, (size_t)call->flag_count);
    const char *sums = g->flat ? call->send : call->recv;

    if (!g->flat) {
        fsdp__call local = *call;

        local.op = call->op == FSDP_AVG ? FSDP_SUM : call->op;
        local.lacking = &lacking;
        FSDP_TRY(fsdp__symmetric_all_reduce(g->local, &local, r->stream, r->traffic));
    }
    FSDP_TRY(meet_with_flags(r, lacking));
    if ((size_t)call->count * r->element <= FSDP__AT_ONCE_BYTES)
        return reduce_at_once(r, sums);
    FSDP_TRY(reduce_by_shares(r, sums));
    return spread_shares(r);
}

fsdp_status fsdp__machines_all_reduce(void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    return run_over(fsdp__machines_all_reduce, fsdp__symmetric_all_reduce, all_reduce_over, group, call, stream,
                    traffic, call->count, call->count);
}
