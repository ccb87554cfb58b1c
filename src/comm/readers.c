/* readers.c - keeps track of who still reads shared memory, and makes writers wait for them.
 *
 * A rank publishes how far it has read in shared memory and goes on; only a writer looks, and waits for the ranks that
 * lag. Ranks that make the same calls in the same order never wait for each other in a circle: a rank in a later call
 * has ended the read before it. Others get an error: [Note: a wait that cannot end] in health/waits.h.
 *
 * In memory of a device the device does both: its stream counts a read as over, and waits. What it is given for that
 * takes a turn among the calls of carriers ([Note: one order on a device] in turns.h). */
#include "base/clock.h"
#include "base/context.h"
#include "base/lock.h"
#include "base/probe.h"
#include "comm/health/failure.h"
#include "comm/process_group.h"
#include "comm/shared_memory.h"
#include "comm/turns.h"
#include "device/device.h"

/* Holds what travels through a stream. */
typedef struct reading {
    fsdp_process_group *group;
    fsdp__stream_work work;
    void *shared;
    uint64_t number, issued;
    uint64_t turn; /* of memory on a device: among the calls of carriers */
} reading;

static bool has_readers(const fsdp_process_group *group, const void *shared)
{
    return group && shared && group->size > 1 && group->ops->readers;
}

static void *group_of(const fsdp_process_group *group)
{
    return group->ops->reader_group ? group->ops->reader_group(group->transport_group) : group->transport_group;
}

void fsdp__process_group_begin_read(fsdp_process_group *group, void *shared)
{
    if (has_readers(group, shared))
        group->ops->readers->read_begin(group_of(group), shared);
}

/* ---- in queues ---- */

static void count_queued(fsdp_process_group *group, int change)
{
    FSDP__HELD(&group->mutex);
    group->readings += change;
    pthread_cond_broadcast(&group->moved);
}

void fsdp__readers_wait_counted(fsdp_process_group *group)
{
    FSDP__HELD(&group->mutex);
    while (group->readings > 0)
        pthread_cond_wait(&group->moved, &group->mutex);
}

static fsdp_status run_queued(fsdp_stream *stream, const void *argument)
{
    const reading *r = argument;
    fsdp_status status = r->work(stream, r);

    count_queued(r->group, -1);
    return status;
}

/* Does the work when the stream gets there; the group stays until then. */
static fsdp_status enqueue(fsdp_stream *stream, fsdp__stream_work work, reading *r)
{
    fsdp_status status;

    if (fsdp__stream_is_inline(stream))
        return fsdp__stream_enqueue(stream, work, r, sizeof *r);
    r->work = work;
    count_queued(r->group, 1);
    status = fsdp__stream_enqueue(stream, run_queued, r, sizeof *r);
    if (status != FSDP_OK)
        count_queued(r->group, -1);
    return status;
}

/* ---- on the host ---- */

static fsdp_status publish_done(fsdp_stream *stream, const void *argument)
{
    const reading *r = argument;
    fsdp_status status = fsdp__stream_settle(stream);

    if (status != FSDP_OK) {
        fsdp__comm_break(r->group->comm, status, fsdp_last_error());
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    FSDP__TELL(ORDER_PUBLISHED, .context = r->group->comm->context, .stream = stream, .object = r->shared,
               .number = r->number);
    r->group->ops->readers->read_done(group_of(r->group), r->shared, r->number);
    return FSDP_OK;
}

/* ---- on a device ---- */

/* Does the work in its turn, now or when the stream gets there. */
static fsdp_status in_turn(fsdp_stream *stream, fsdp__stream_work work, reading *r)
{
    fsdp__comm *comm = r->group->comm;
    fsdp_status status;

    r->turn = ++comm->carried_issued;
    if (fsdp__carried_is_done(comm, r->turn - 1) && fsdp__stream_enter(stream)) {
        status = work(stream, r);
        fsdp__stream_leave(stream);
        return status;
    }
    status = enqueue(stream, work, r);
    if (status == FSDP_OK)
        return FSDP_OK;
    comm->carried_issued--; /* later calls would wait for its turn */
    fsdp__comm_break(comm, status, fsdp_last_error());
    return fsdp_fail_hop(status, __FILE__, __LINE__);
}

/* Ends the turn, also after a failure, which ends the world: peers' devices would wait for ever. */
static fsdp_status end_turn(const reading *r, fsdp_status status)
{
    if (status != FSDP_OK)
        fsdp__comm_break(r->group->comm, status, fsdp_last_error());
    fsdp__carried_turn_end(r->group->comm);
    return status;
}

static fsdp_status count_done(fsdp_stream *stream, const void *argument)
{
    const reading *r = argument;
    const fsdp__reader_ops *readers = r->group->ops->readers;
    fsdp_status status;

    fsdp__carried_wait_done(r->group->comm, r->turn - 1);
    status = readers->device_done(group_of(r->group), r->shared, r->number, stream);
    if (status == FSDP_OK) {
        FSDP__TELL(ORDER_PUBLISHED, .context = r->group->comm->context, .stream = stream, .object = r->shared,
                   .number = r->number);
        readers->read_done(group_of(r->group), r->shared, r->number); /* it has been issued: see tell_order */
    }
    return end_turn(r, status);
}

/* Tells the race check that the reads come before what follows on the stream. It must do so after the peers have told
 * of their reads, so then, and only then, the host waits for them. */
static fsdp_status tell_order(fsdp_stream *stream, const reading *r)
{
    fsdp_context *context = r->group->comm->context;

    if (!fsdp__is_probed(FSDP__POINT_ORDER_ACQUIRED) || !fsdp__context_get(context, FSDP__SLOT_WATCHER))
        return FSDP_OK;
    FSDP_TRY(r->group->ops->readers->await_readers(group_of(r->group), r->shared, r->number, stream, r->issued));
    FSDP__TELL(ORDER_ACQUIRED, .context = context, .stream = stream, .object = r->shared, .number = r->number);
    return FSDP_OK;
}

static fsdp_status await_on_device(fsdp_stream *stream, const void *argument)
{
    const reading *r = argument;
    fsdp_status status;

    fsdp__carried_wait_done(r->group->comm, r->turn - 1);
    status = r->group->ops->readers->device_await(group_of(r->group), r->shared, r->number, stream);
    if (status == FSDP_OK)
        status = tell_order(stream, r);
    return end_turn(r, status);
}

/* ---- ends of reads, and waits for them ---- */

fsdp_status fsdp__process_group_end_read(fsdp_process_group *group, void *shared, fsdp_stream *stream)
{
    reading r = {.group = group, .shared = shared};

    if (!has_readers(group, shared))
        return FSDP_OK;
    /* The program has ended the read; it is over when the kernels before this place in the stream have run. */
    r.number = group->ops->readers->read_end(group_of(group), shared);
    if (fsdp__shared_memory_device(group->comm, shared))
        return in_turn(stream, count_done, &r);
    return enqueue(stream, publish_done, &r);
}

void fsdp__process_group_host_waits(fsdp_process_group *group, const fsdp_stream *worker, bool waits)
{
    if (group->ops->health)
        group->ops->health->host_waits(group->transport_group, worker, waits);
}

static fsdp_status await_readers(fsdp_stream *stream, const void *argument)
{
    const reading *r = argument;
    fsdp__comm *comm = r->group->comm;
    bool on_host = fsdp__stream_is_inline(stream);
    int64_t start = fsdp__clock_ns();
    fsdp_status status;

    /* A worker that waits does not stop its program, which may still make the call that a peer waits for. */
    if (on_host)
        fsdp__process_group_host_waits(r->group, NULL, true);
    status = r->group->ops->readers->await_readers(group_of(r->group), r->shared, r->number, on_host ? NULL : stream,
                                                   r->issued);
    if (on_host)
        fsdp__process_group_host_waits(r->group, NULL, false);
    atomic_fetch_add_explicit(&comm->waiting_ns, fsdp__clock_ns() - start, memory_order_relaxed);
    if (status == FSDP_OK)
        FSDP__TELL(ORDER_ACQUIRED, .context = comm->context, .stream = stream, .object = r->shared,
                   .number = r->number);
    else
        fsdp__comm_break(comm, status, fsdp_last_error());
    return status;
}

fsdp_status fsdp__process_group_await_readers(fsdp_process_group *group, void *shared, fsdp_stream *stream)
{
    reading r = {.group = group, .shared = shared};

    if (!has_readers(group, shared))
        return FSDP_OK;
    /* Take the numbers as of now: reads that the program ends after this write read what it wrote. */
    r.number = group->ops->readers->reads_ended(group_of(group), shared);
    r.issued = group->issued;
    if (fsdp__shared_memory_device(group->comm, shared))
        return in_turn(stream, await_on_device, &r);
    if (fsdp__stream_is_inline(stream) && group->ops->readers->readers_done(group_of(group), shared, r.number)) {
        FSDP__TELL(ORDER_ACQUIRED, .context = group->comm->context, .stream = stream, .object = shared,
                   .number = r.number);
        return FSDP_OK; /* the usual case: needs neither the clock nor the queue */
    }
    return enqueue(stream, await_readers, &r);
}

bool fsdp__process_group_give_back(fsdp_process_group *group, void *shared, const fsdp_sharded_buffer *buffer)
{
    if (!has_readers(group, shared) || !group->ops->give_back)
        return true;
    if (!group->ops->readers->readers_done(group_of(group), shared,
                                           group->ops->readers->reads_ended(group_of(group), shared)))
        return false;
    group->ops->give_back(group->transport_group, buffer);
    return true;
}
