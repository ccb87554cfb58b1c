/* world.c - the world of a context, which is attached once. */
#include "comm/world.h"

#include <math.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/lock.h"
#include "comm/carrier_watch.h"
#include "comm/group_calls.h"
#include "comm/process_group.h"
#include "comm/shared_memory.h"
#include "comm/transport/fake/fake_world.h"

enum {
    MOST_SECONDS = 1000000000
};

static void comm_free(void *state)
{
    fsdp__comm *comm = state;

    /* Groups are part of the transport, so they are freed first. */
    if (comm->world)
        fsdp__process_group_destroy(comm->world);
    fsdp__carrier_watch_stop(comm);
    if (comm->transport)
        comm->ops->close(comm->transport);
    fsdp__shared_memory_free(comm);
    pthread_cond_destroy(&comm->carried_moved);
    pthread_mutex_destroy(&comm->mutex);
    fsdp__free(comm);
}

fsdp_status fsdp__comm_attach(fsdp_context *context, const fsdp__comm_ops *ops, void *transport, void *world_group,
                              int rank, int size)
{
    const fsdp__process_group_spec spec = {.name = "world", .count = size, .rank = rank};
    fsdp__comm *comm = fsdp__calloc(1, sizeof *comm);
    fsdp_status status;

    if (!comm) {
        if (world_group)
            ops->group_free(world_group);
        if (transport)
            ops->close(transport);
        return FSDP_NO_MEMORY;
    }
    pthread_mutex_init(&comm->mutex, NULL);
    pthread_cond_init(&comm->carried_moved, NULL);
    comm->context = context;
    comm->ops = ops;
    comm->transport = transport;
    comm->tick_ms = FSDP__TICK_MS;
    status = fsdp__process_group_new(comm, &spec, size > 1 ? world_group : NULL, &comm->world);
    if (status != FSDP_OK) {
        if (world_group)
            ops->group_free(world_group);
        comm_free(comm);
        return fsdp_fail_prefix(status, "cannot make the world group");
    }
    if (size == 1 && world_group)
        ops->group_free(world_group); /* no transport is needed */
    fsdp__process_group_list(comm->world);
    fsdp__context_attach(context, FSDP__SLOT_COMM, comm, comm_free);
    return FSDP_OK;
}

fsdp__comm *fsdp__comm_get(fsdp_context *context)
{
    fsdp__comm *comm;

    if (!context) {
        (void)FSDP_FAIL(FSDP_INVALID, "cannot communicate: the context is NULL");
        return NULL;
    }
    comm = fsdp__context_get(context, FSDP__SLOT_COMM);
    if (comm)
        return comm;
    if (fsdp__comm_attach(context, &fsdp__comm_fake_ops, NULL, NULL, 0, 1) != FSDP_OK)
        return NULL;
    return fsdp__context_get(context, FSDP__SLOT_COMM);
}

fsdp_process_group *fsdp_world(fsdp_context *context)
{
    fsdp__comm *comm = fsdp__comm_get(context);

    return comm ? comm->world : NULL;
}

void fsdp__context_add_by_machine(fsdp_context *context, int ranks)
{
    fsdp__comm *comm = fsdp__comm_get(context);

    if (comm && comm->world->ops->add_by_machine)
        comm->ops->add_by_machine(comm->transport, comm->world->transport_group, ranks);
}

void fsdp__context_set_outbox(fsdp_context *context, int64_t bytes)
{
    fsdp__comm *comm = fsdp__comm_get(context);

    if (comm)
        comm->outbox_bytes = bytes;
}

fsdp_status fsdp__context_set_comm_ticks(fsdp_context *context, int64_t timeout_ms, int64_t tick_ms)
{
    fsdp__comm *comm = fsdp__comm_get(context);

    if (!comm)
        return fsdp_last_status();
    atomic_store(&comm->tick_ms, tick_ms);
    if (comm->ops->health)
        comm->ops->health->set_timeout(comm->transport, timeout_ms, tick_ms);
    return FSDP_OK;
}

fsdp_status fsdp_context_set_comm_timeout(fsdp_context *context, double seconds)
{
    if (!(seconds >= 0 && seconds <= MOST_SECONDS))
        return FSDP_FAIL(FSDP_INVALID, "cannot wait %g seconds for a rank: expected 0 (for ever) to %d", seconds,
                         MOST_SECONDS);
    /* Round up, since 0 means for ever. */
    return fsdp__context_set_comm_ticks(context, (int64_t)ceil(seconds * 1000), FSDP__TICK_MS);
}

fsdp_status fsdp_context_set_carrier(fsdp_context *context, fsdp_carrier carrier)
{
    fsdp__comm *comm = fsdp__comm_get(context);

    if (!comm)
        return fsdp_last_status();
    if ((unsigned)carrier >= FSDP_CARRIERS)
        return FSDP_FAIL(FSDP_INVALID, "unknown carrier %d", (int)carrier);
    FSDP__HELD(&comm->mutex);
    comm->wanted = carrier;
    for (fsdp_process_group *g = comm->groups; g; g = g->next)
        if (!g->carriage.decided)
            g->wanted = carrier;
    return FSDP_OK;
}

fsdp_status fsdp_context_create_fake(int rank, int world_size, fsdp_context **out)
{
    return fsdp_context_create_fake_machines(rank, 1, world_size, false, out);
}

fsdp_status fsdp_context_create_fake_machines(int rank, int machines, int machine_ranks, bool one_level,
                                              fsdp_context **out)
{
    /* One thread is enough: a fake world plans, and computes nothing here. */
    fsdp_context_options options = {.rank = rank, .local_world_size = 1, .machines = 1, .threads = 1};
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    fsdp__fake *fake = NULL;

    if (!out || machines < 1 || machine_ranks < 1 ||
        __builtin_mul_overflow(machines, machine_ranks, &options.world_size))
        return FSDP_FAIL(FSDP_INVALID, "cannot make a fake world of %d machines with %d ranks", machines,
                         machine_ranks);
    *out = NULL;
    if (machines > 1) {
        options.local_world_size = machine_ranks;
        options.local_rank = rank % machine_ranks;
        options.machines = machines;
        options.machine = rank / machine_ranks;
    }
    FSDP_TRY(fsdp_context_create(&options, &context));
    if (machines > 1)
        FSDP__TRY_NEW(fake = fsdp__fake_new(rank, machines, machine_ranks, one_level));
    FSDP_TRY(fsdp__comm_attach(context, &fsdp__comm_fake_ops, fake, NULL, rank, options.world_size));
    *out = fsdp__take(&context);
    return FSDP_OK;
}
