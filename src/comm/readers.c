/* readers.c - who still reads shared memory, and the writer who waits for them.
 *
 * [Note: a wait that cannot end]
 * A rank tells where it is in shared memory and goes on; only who writes looks, and waits for the ranks that lag. A
 * rank that lags and waits for the writer in its turn would wait for ever, and the writer too. That is an error in the
 * program, and it can be seen: the programs of both wait, the lagging rank has not ended its read, and it stands in a
 * call that this rank has not made although it has made all it was told to, or it awaits a read that this rank has not
 * ended. Ranks that make the same calls in the same order never come to this: who stands in a later call has ended the
 * read before. It must be seen twice in a row, so that a rank that is just on its way is not taken for it. */
#include <stdio.h>

#include "base/clock.h"
#include "comm/failure.h"
#include "device/device.h"

/* What travels through a stream. */
typedef struct reading {
    fsdp_process_group *group;
    void *shared;
    uint64_t number;
} reading;

static bool has_readers(const fsdp_process_group *group, const void *shared)
{
    return group && shared && group->size > 1 && group->ops->read_begin;
}

void fsdp__process_group_begin_read(fsdp_process_group *group, void *shared)
{
    if (has_readers(group, shared))
        group->ops->read_begin(group->transport_group, shared);
}

static fsdp_status publish_done(fsdp_stream *stream, const void *argument)
{
    const reading *r = argument;

    (void)stream;
    r->group->ops->read_done(r->group->transport_group, r->shared, r->number);
    return FSDP_OK;
}

fsdp_status fsdp__process_group_end_read(fsdp_process_group *group, void *shared, fsdp_stream *stream)
{
    reading r = {.group = group, .shared = shared};

    if (!has_readers(group, shared))
        return FSDP_OK;
    /* The program has ended the read; it is over when the kernels before this place in the stream have run. */
    r.number = group->ops->read_end(group->transport_group, shared);
    FSDP_TRY(fsdp__stream_enqueue(stream, publish_done, &r, sizeof r));
    return FSDP_OK;
}

/* Whether this rank has made every call that it was told to. */
static bool is_idle(fsdp_process_group *group)
{
    bool idle;

    pthread_mutex_lock(&group->mutex);
    /* Else a worker has calls to run yet, and may come to the meeting by itself. */
    idle = group->done == group->issued;
    pthread_mutex_unlock(&group->mutex);
    return idle;
}

/* Whether rank `behind` of the group waits for this rank in a meeting of some group. */
static bool waits_in_a_meeting(const reading *r, int behind, char *where, size_t bytes)
{
    fsdp__comm *comm = r->group->comm;
    bool waits = false;

    pthread_mutex_lock(&comm->mutex); /* on a worker: the host may make or free a group meanwhile */
    for (fsdp_process_group *group = comm->groups; group && !waits; group = group->next) {
        int position = fsdp__position_of(r->group->ranks[behind], group->ranks, group->size);

        waits = position >= 0 && group->size > 1 && group->ops->awaits_meeting && is_idle(group) &&
                group->ops->awaits_meeting(group->transport_group, position);
        if (waits)
            snprintf(where, bytes, "in a collective of group '%s'", group->name);
    }
    pthread_mutex_unlock(&comm->mutex);
    return waits;
}

/* Says where rank `behind` of the group waits for this rank; false when it does not. */
static bool waits_for_us(const reading *r, int behind, char *where, size_t bytes)
{
    if (waits_in_a_meeting(r, behind, where, bytes))
        return true;
    snprintf(where, bytes, "to end a read");
    return r->group->ops->awaits_read(r->group->transport_group, behind);
}

/* Whether this rank and `behind` wait for each other: see the note above. */
static bool is_cycle(const reading *r, int behind, char *where, size_t bytes)
{
    const fsdp_process_group *group = r->group;

    /* Whether it has ended the read is asked last: a rank ends a read before it goes on to wait, so one that was seen
     * waiting and has not ended the read will not. */
    return behind != group->rank && group->ops->host_is_waiting(group->comm->transport) &&
           waits_for_us(r, behind, where, bytes) &&
           !group->ops->reader_ended(group->transport_group, r->shared, r->number, behind);
}

static fsdp_status await_all(const reading *r)
{
    fsdp_process_group *group = r->group;
    int behind, seen = 0;
    char where[128];

    while (!group->ops->readers_done(group->transport_group, r->shared, r->number, &behind)) {
        int me = group->ranks[group->rank], peer = group->ranks[behind];

        if (fsdp__comm_is_broken(group))
            return fsdp__comm_fail_broken(group);
        seen = is_cycle(r, behind, where, sizeof where) ? seen + 1 : 0;
        if (seen == 2)
            return FSDP_FAIL(FSDP_STATE,
                             "rank %d cannot write to memory that rank %d still reads, and rank %d waits for rank %d "
                             "%s: all ranks must make the same calls in the same order",
                             me, peer, peer, me, where);
        FSDP_TRY(group->ops->await_reader(group->transport_group, r->shared, r->number, behind));
    }
    return FSDP_OK;
}

void fsdp__process_group_host_waits(fsdp_process_group *group, int change)
{
    if (group->ops->host_waits)
        group->ops->host_waits(group->comm->transport, change);
}

static fsdp_status await_readers(fsdp_stream *stream, const void *argument)
{
    const reading *r = argument;
    fsdp__comm *comm = r->group->comm;
    bool on_host = fsdp__stream_is_inline(stream);
    int64_t start = fsdp__clock_ns();
    fsdp_status status;

    /* A worker that waits does not stop its program, which may yet make the call that a peer waits for. */
    if (on_host)
        fsdp__process_group_host_waits(r->group, +1);
    status = await_all(r);
    if (on_host)
        fsdp__process_group_host_waits(r->group, -1);
    atomic_fetch_add_explicit(&comm->waiting_ns, fsdp__clock_ns() - start, memory_order_relaxed);
    if (status != FSDP_OK)
        fsdp__comm_break(comm, status, fsdp_last_error());
    return status;
}

fsdp_status fsdp__process_group_await_readers(fsdp_process_group *group, void *shared, fsdp_stream *stream)
{
    reading r = {.group = group, .shared = shared};
    int behind;

    if (!has_readers(group, shared))
        return FSDP_OK;
    /* As of now: reads that the program ends after this write are of what it wrote. */
    r.number = group->ops->reads_ended(group->transport_group, shared);
    if (fsdp__stream_is_inline(stream) && group->ops->readers_done(group->transport_group, shared, r.number, &behind))
        return FSDP_OK; /* the usual case: without clock and queue */
    FSDP_TRY(fsdp__stream_enqueue(stream, await_readers, &r, sizeof r));
    return FSDP_OK;
}
