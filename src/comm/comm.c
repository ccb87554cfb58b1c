/* comm.c - what a context knows of its world: attached once, broken at most once, counted all along. */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"

const char *fsdp__call_text(fsdp__call_name name)
{
    static const char *const texts[] = {
#define CALL_TEXT(NAME, text) text,
        FSDP__CALL_MAP(CALL_TEXT)
#undef CALL_TEXT
    };

    return (unsigned)name < FSDP__CALLS ? texts[name] : "unknown call";
}

/* ---- life ---- */

static void comm_free(void *state)
{
    fsdp__comm *comm = state;

    if (comm->world)
        fsdp__group_destroy(comm->world);
    if (comm->transport)
        comm->ops->close(comm->transport);
    pthread_mutex_destroy(&comm->mutex);
    fsdp__free(comm);
}

static fsdp_status make_world(fsdp__comm *comm, int rank, int size)
{
    int *ranks = fsdp__malloc((size_t)size * sizeof *ranks);
    fsdp_status st;

    if (!ranks)
        return FSDP_NO_MEMORY;
    for (int i = 0; i < size; i++)
        ranks[i] = i;
    st = fsdp__group_new(comm, ranks, size, rank, "world", &comm->world);
    fsdp__free(ranks);
    return st;
}

fsdp_status fsdp__comm_attach(fsdp_context *context, const fsdp__comm_ops *ops, void *transport, void *world_group,
                              int rank, int size)
{
    fsdp__comm *comm = fsdp__calloc(1, sizeof *comm);
    fsdp_status st;

    if (!comm) {
        if (world_group)
            ops->group_free(world_group);
        if (transport)
            ops->close(transport);
        return FSDP_NO_MEMORY;
    }
    pthread_mutex_init(&comm->mutex, NULL);
    comm->context = context;
    comm->ops = ops;
    comm->transport = transport;
    st = make_world(comm, rank, size);
    if (st != FSDP_OK) {
        if (world_group)
            ops->group_free(world_group);
        comm_free(comm);
        return fsdp_fail_prefix(st, "cannot make the world group");
    }
    if (comm->world->ops == ops && world_group)
        comm->world->transport_group = world_group;
    else if (world_group)
        ops->group_free(world_group); /* alone: no transport needed */
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

fsdp_group *fsdp_world(fsdp_context *context)
{
    fsdp__comm *comm = fsdp__comm_get(context);

    return comm ? comm->world : NULL;
}

fsdp_status fsdp_context_create_fake(int rank, int world_size, fsdp_context **out)
{
    fsdp_context_options options = {.rank = rank, .world_size = world_size, .local_rank = 0, .local_world_size = 1};
    fsdp_context *context = NULL;
    fsdp_status st = FSDP_OK;

    if (!out || world_size < 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a fake world of %d ranks", world_size);
    *out = NULL;
    FSDP_TRY_GOTO(st, fsdp_context_create(&options, &context), out);
    FSDP_TRY_GOTO(st, fsdp__comm_attach(context, &fsdp__comm_fake_ops, NULL, NULL, rank, world_size), out);
    *out = context;
    context = NULL;
out:
    fsdp_context_free(context);
    return st;
}

/* ---- failure ---- */

void fsdp__comm_break(fsdp__comm *comm, fsdp_status status, const char *text)
{
    char all[1024];
    bool first;

    pthread_mutex_lock(&comm->mutex);
    first = !atomic_load_explicit(&comm->broken, memory_order_relaxed);
    if (first) {
        comm->broken_status = status;
        snprintf(comm->broken_text, sizeof comm->broken_text, "%s", text);
        atomic_store_explicit(&comm->broken, true, memory_order_release);
    }
    pthread_mutex_unlock(&comm->mutex);
    if (!first || !comm->transport)
        return;
    snprintf(all, sizeof all, "rank %d failed: %s", comm->world->ranks[comm->world->rank], text);
    comm->ops->abort(comm->transport, all);
}

void fsdp_abort(fsdp_context *context, const char *why)
{
    fsdp__comm *comm = context ? fsdp__context_get(context, FSDP__SLOT_COMM) : NULL;
    const char *last = fsdp_last_error();

    if (!comm)
        return;
    if (!why || !*why)
        why = *last ? last : "aborted";
    fsdp__comm_break(comm, FSDP_COMM, why);
}

/* ---- counters ---- */

const char *fsdp_collective_name(fsdp_collective kind)
{
    static const char *const names[FSDP_COLLECTIVES] = {
        [FSDP_ALL_GATHER] = "all_gather", [FSDP_REDUCE_SCATTER] = "reduce_scatter", [FSDP_ALL_REDUCE] = "all_reduce",
        [FSDP_BROADCAST] = "broadcast",   [FSDP_ALL_TO_ALL] = "all_to_all",         [FSDP_BARRIER] = "barrier",
        [FSDP_OBJECTS] = "objects",
    };

    return (unsigned)kind < FSDP_COLLECTIVES ? names[kind] : "unknown";
}

static void read_counters(const fsdp__counters *counters, fsdp_comm_stats *out)
{
    for (int i = 0; i < FSDP_COLLECTIVES; i++) {
        out->calls[i] = counters->calls[i];
        out->bytes_sent[i] = counters->bytes_sent[i];
        out->bytes_moved[i] = atomic_load_explicit(&counters->bytes_moved[i], memory_order_relaxed);
    }
}

static void clear_counters(fsdp__counters *counters)
{
    for (int i = 0; i < FSDP_COLLECTIVES; i++) {
        counters->calls[i] = counters->bytes_sent[i] = 0;
        atomic_store_explicit(&counters->bytes_moved[i], 0, memory_order_relaxed);
    }
}

void fsdp_group_stats(const fsdp_group *group, fsdp_comm_stats *out)
{
    read_counters(&group->counters, out);
}

void fsdp_context_comm_stats(const fsdp_context *context, fsdp_comm_stats *out)
{
    const fsdp__comm *comm = fsdp__context_get(context, FSDP__SLOT_COMM);

    memset(out, 0, sizeof *out);
    if (comm)
        read_counters(&comm->counters, out);
}

void fsdp_context_reset_comm_stats(fsdp_context *context)
{
    fsdp__comm *comm = fsdp__context_get(context, FSDP__SLOT_COMM);

    if (!comm)
        return;
    clear_counters(&comm->counters);
    for (fsdp_group *group = comm->groups; group; group = group->next)
        clear_counters(&group->counters);
    atomic_store_explicit(&comm->total_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&comm->waiting_ns, 0, memory_order_relaxed);
}

void fsdp_context_comm_time(const fsdp_context *context, int64_t *total_ns, int64_t *waiting_ns)
{
    const fsdp__comm *comm = fsdp__context_get(context, FSDP__SLOT_COMM);

    *total_ns = comm ? atomic_load_explicit(&comm->total_ns, memory_order_relaxed) : 0;
    *waiting_ns = comm ? atomic_load_explicit(&comm->waiting_ns, memory_order_relaxed) : 0;
}
