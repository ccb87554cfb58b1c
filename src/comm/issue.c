/* issue.c - the path of every collective: it is checked, numbered and run in its turn, and its failure breaks the
 * world. */
#include "comm/issue.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/probe.h"
#include "comm/counters.h"
#include "comm/group_calls.h"
#include "comm/health/failure.h"
#include "comm/transport/sharded_buffer.h"
#include "comm/turns.h"
#include "device/device.h"

/* Holds what travels through a stream. When a job is copied its buffers lie behind it. */
typedef struct job {
    fsdp_process_group *group;
    fsdp__collective run;
    fsdp_collective kind;
    void *carrier;   /* that takes the call; NULL: the transport */
    uint64_t number; /* among the calls of carriers */
    fsdp__call call;
} job;

fsdp_status fsdp__comm_enter(fsdp_process_group *group, fsdp__call_name name)
{
    fsdp_status status;

    if (!group)
        return FSDP_FAIL(FSDP_INVALID, "cannot %s: the group is NULL", fsdp__call_text(name));
    if (fsdp__comm_is_broken(group))
        return fsdp__comm_fail_broken(group);
    status = FSDP__ASK(COLLECTIVE_CALLED, .object = group);
    if (status != FSDP_OK) {
        (void)fsdp_fail_prefix(status, "cannot %s in group '%s'", fsdp__call_text(name), group->name);
        fsdp__comm_break(group->comm, status, fsdp_last_error());
    }
    return status;
}

/* Sets the bytes of the call's larger side and the dtype in which they travel: FSDP_U8 where buffers differ. */
static void weigh(const fsdp_process_group *group, fsdp_collective kind, const fsdp__call *call, fsdp__probe_event *e)
{
    bool one_side = kind == FSDP_ALL_REDUCE || kind == FSDP_BROADCAST;

    e->dtype = call->dtype;
    e->bytes = (size_t)(call->count * (one_side ? 1 : group->size)) * fsdp_dtype_size(call->dtype);
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        fsdp_dtype sent = kind == FSDP_REDUCE_SCATTER ? fsdp__reduce_dtype(b) : b->unsharded_dtype;

        e->dtype = i == 0 || e->dtype == sent ? sent : FSDP_U8;
        e->bytes += (size_t)(fsdp__chunk_numel(b) * group->size) * fsdp_dtype_size(sent);
    }
}

static void tell(const fsdp_process_group *group, fsdp_collective kind, const fsdp__call *call, fsdp_stream *stream,
                 fsdp__point point)
{
    fsdp__probe_event e = {.point = point,
                           .context = group->comm->context,
                           .stream = stream,
                           .object = group,
                           .kind = (int)kind,
                           .word = fsdp_collective_name(kind),
                           .group = group->name,
                           .ranks = group->size,
                           .name = fsdp__call_text(call->name),
                           .label = call->label,
                           .number = call->sequence,
                           .ns = fsdp__clock_ns()};

    if (kind < FSDP_BARRIER)
        weigh(group, kind, call, &e);
    (void)fsdp__probe(&e);
}

/* Tells the probes and the transport how far a call is. */
static void note(const fsdp_process_group *group, fsdp_collective kind, const fsdp__call *call, fsdp_stream *stream,
                 fsdp__moment moment)
{
    static const fsdp__point points[] = {
        [FSDP__CALL_ISSUED] = FSDP__POINT_COLLECTIVE_ISSUED,
        [FSDP__CALL_BEGUN] = FSDP__POINT_COLLECTIVE_BEGUN,
        [FSDP__CALL_DONE] = FSDP__POINT_COLLECTIVE_DONE,
    };

    if (fsdp__is_probed(points[moment]))
        tell(group, kind, call, stream, points[moment]);
    if (group->ops->health)
        group->ops->health->note(group->transport_group, call, moment);
}

static fsdp_status run_call(const job *j, fsdp_stream *stream)
{
    fsdp_process_group *group = j->group;
    fsdp__traffic traffic = {.stream = stream, .carried = j->carrier};
    int64_t start;
    fsdp_status status;

    fsdp__comm_wait_done(group, j->call.sequence - 1, stream);
    if (j->carrier)
        fsdp__carried_wait_done(group->comm, j->number - 1);
    note(group, j->kind, &j->call, stream, FSDP__CALL_BEGUN);
    /* The time starts here: the wait for its turn is the time of the calls before. */
    start = fsdp__clock_ns();
    if (fsdp__comm_is_broken(group)) {
        status = fsdp__comm_fail_broken(group);
    } else {
        status = j->run(j->carrier ? j->carrier : group->transport_group, &j->call, &traffic);
        /* Peers hear through the host that it is done; a rank that is alone tells nobody, and a carrier's device tells
         * the others' devices. */
        if (status == FSDP_OK && group->size > 1 && !j->carrier)
            status = fsdp__stream_settle(stream);
        fsdp__comm_account(group, j->kind, &traffic, start);
        if (status != FSDP_OK && j->carrier && fsdp__comm_is_broken(group)) /* it was interrupted for that */
            status = fsdp__comm_fail_broken(group);
        if (status != FSDP_OK)
            fsdp__comm_break(group->comm, status, fsdp_last_error());
    }
    note(group, j->kind, &j->call, stream, FSDP__CALL_DONE);
    fsdp__context_beat(group->comm->context);
    /* End the turn whatever the result: calls on other streams wait for it, and then fail by themselves. */
    if (j->carrier)
        fsdp__carried_turn_end(group->comm);
    fsdp__turn_end(group, stream);
    return status;
}

static fsdp_status run_job(fsdp_stream *stream, const void *argument)
{
    job copy = *(const job *)argument;

    /* The queue has copied the bytes to another place, and the pointer among them still names the old one. */
    copy.call.buffers = (const fsdp_sharded_buffer *)((const char *)argument + sizeof copy);
    return run_call(&copy, stream);
}

/* Queues a copy of the job and its buffers in one piece, which the queue copies. */
static fsdp_status enqueue(fsdp_stream *stream, const job *j)
{
    size_t buffers_bytes = (size_t)j->call.buffer_count * sizeof(fsdp_sharded_buffer),
           bytes = sizeof *j + buffers_bytes;
    FSDP__FREED char *bundle = NULL;

    if (buffers_bytes == 0)
        return fsdp__stream_enqueue(stream, run_job, j, bytes);
    FSDP__TRY_NEW(bundle = fsdp__malloc(bytes));
    memcpy(bundle, j, sizeof *j);
    memcpy(bundle + sizeof *j, j->call.buffers, buffers_bytes);
    return fsdp__stream_enqueue(stream, run_job, bundle, bytes);
}

fsdp_status fsdp__comm_issue(fsdp_process_group *group, fsdp_collective kind, fsdp__collective run,
                             const fsdp__call *call, fsdp_stream *stream)
{
    job j = {.group = group, .run = run, .kind = kind, .call = *call};
    fsdp_status status;

    /* Return before the call has a number: one that never runs would hold up all later ones. */
    if (fsdp_device_is_meta(fsdp__stream_device(stream)))
        return FSDP_OK;
    j.call.sequence = ++group->issued;
    j.call.force_copy = group->force_copy;
    j.carrier = fsdp__is_carried(group, stream) ? group->carriage.state : NULL;
    j.number = j.carrier ? ++group->comm->carried_issued : 0;
    note(group, kind, &j.call, stream, FSDP__CALL_ISSUED);
    if (fsdp__stream_is_inline(stream)) {
        fsdp__process_group_host_waits(group, NULL, true);
        status = run_call(&j, stream);
        fsdp__process_group_host_waits(group, NULL, false);
        /* It ran in its turn, so all before it have run, too. */
        group->known_done = group->issued;
        return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    status = enqueue(stream, &j);
    if (status != FSDP_OK) {
        /* Peers wait for this call, and later calls of this rank would wait for its turn. */
        group->issued--;
        group->comm->carried_issued -= j.carrier != NULL;
        fsdp__comm_break(group->comm, status, fsdp_last_error());
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    return FSDP_OK;
}

fsdp_stream *fsdp__process_group_host_stream(fsdp_process_group *group)
{
    fsdp_stream *host = fsdp__host_stream(group->comm->context);

    if (!host && group->size > 1)
        fsdp__comm_break(group->comm, fsdp_last_status(), fsdp_last_error());
    return host;
}

fsdp_status fsdp__comm_issue_host(fsdp_process_group *group, fsdp_collective kind, fsdp__collective run,
                                  const fsdp__call *call)
{
    fsdp_stream *host = fsdp__process_group_host_stream(group);

    if (!host)
        return fsdp_fail_hop(fsdp_last_status(), __FILE__, __LINE__);
    FSDP_TRY(fsdp__comm_issue(group, kind, run, call, host));
    if (!fsdp__stream_is_inline(host)) {
        fsdp_status status;

        fsdp__process_group_host_waits(group, NULL, true);
        status = fsdp_stream_synchronize(host);
        fsdp__process_group_host_waits(group, NULL, false);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status fsdp__comm_issue_alloc(fsdp_process_group *group, fsdp__call *call, void **out)
{
    fsdp__traffic traffic = {0};
    int64_t start;
    fsdp_status status;

    /* This call runs on the host, without a stream: calls on workers may still be running, and it takes its turn behind
     * them. */
    call->sequence = ++group->issued;
    note(group, FSDP_COLLECTIVES, call, NULL, FSDP__CALL_ISSUED);
    fsdp__process_group_host_waits(group, NULL, true);
    fsdp__comm_wait_done(group, call->sequence - 1, NULL);
    note(group, FSDP_COLLECTIVES, call, NULL, FSDP__CALL_BEGUN);
    start = fsdp__clock_ns();
    status = fsdp__comm_is_broken(group)
                 ? fsdp__comm_fail_broken(group)
                 : group->ops->memory->alloc_shared(group->transport_group, call, &traffic, out);
    fsdp__comm_account(group, FSDP_COLLECTIVES, &traffic, start);
    note(group, FSDP_COLLECTIVES, call, NULL, FSDP__CALL_DONE);
    fsdp__process_group_host_waits(group, NULL, false);
    fsdp__turn_end(group, NULL);
    group->known_done = group->issued;
    return status;
}
