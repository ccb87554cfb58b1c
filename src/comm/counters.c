/* counters.c - counts calls, bytes and time of each group and of the context. */
#include "comm/counters.h"

#include <string.h>

#include "base/clock.h"
#include "base/context.h"

/* ---- counting ---- */

static void count(fsdp__counters *counters, fsdp_collective kind, int64_t bytes_sent)
{
    atomic_fetch_add_explicit(&counters->calls[kind], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters->bytes_sent[kind], bytes_sent, memory_order_relaxed);
}

void fsdp__comm_count(fsdp_process_group *group, fsdp_collective kind, int64_t bytes_sent)
{
    if (group->size == 1)
        return;
    count(&group->counters, kind, bytes_sent);
    count(&group->comm->counters, kind, bytes_sent);
}

void fsdp__comm_count_reduction(fsdp_process_group *group, fsdp_collective kind, fsdp_reduce_op op, int64_t bytes_sent)
{
    fsdp__comm_count(group, kind, bytes_sent);
    if (group->size == 1)
        return;
    atomic_fetch_add_explicit(&group->counters.calls_of[kind][op], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&group->comm->counters.calls_of[kind][op], 1, memory_order_relaxed);
}

static void move(fsdp__counters *counters, fsdp_collective kind, const fsdp__traffic *traffic)
{
    atomic_fetch_add_explicit(&counters->bytes_moved[kind], traffic->moved_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters->network_sent[kind], traffic->network_sent, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters->network_received[kind], traffic->network_received, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters->network_messages[kind], traffic->network_messages, memory_order_relaxed);
}

void fsdp__comm_account(fsdp_process_group *group, fsdp_collective kind, const fsdp__traffic *traffic, int64_t start_ns)
{
    fsdp__comm *comm = group->comm;

    if (traffic->counts)
        fsdp__comm_count_reduction(group, kind, traffic->op, traffic->sent_bytes);
    if (group->size > 1 && kind < FSDP_COLLECTIVES) {
        move(&group->counters, kind, traffic);
        move(&comm->counters, kind, traffic);
    }
    atomic_fetch_add_explicit(&comm->total_ns, fsdp__clock_ns() - start_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->waiting_ns, traffic->waiting_ns, memory_order_relaxed);
}

/* ---- what was counted ---- */

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
    const _Atomic int64_t *all = (const _Atomic int64_t *)counters; /* which has nothing else, in the same order */
    int64_t *to = (int64_t *)out;

    _Static_assert(sizeof *counters == sizeof *out, "what is counted is what is told");
    for (size_t i = 0; i < sizeof *counters / sizeof *all; i++)
        to[i] = atomic_load_explicit(&all[i], memory_order_relaxed);
}

static void clear_counters(fsdp__counters *counters)
{
    _Atomic int64_t *all = (_Atomic int64_t *)counters; /* which has nothing else */

    for (size_t i = 0; i < sizeof *counters / sizeof *all; i++)
        atomic_store_explicit(&all[i], 0, memory_order_relaxed);
}

void fsdp_process_group_stats(const fsdp_process_group *group, fsdp_comm_stats *out)
{
    if (!out)
        return;
    memset(out, 0, sizeof *out);
    if (group)
        read_counters(&group->counters, out);
}

void fsdp_context_comm_stats(const fsdp_context *context, fsdp_comm_stats *out)
{
    const fsdp__comm *comm = fsdp__context_get(context, FSDP__SLOT_COMM);

    if (!out)
        return;
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
    for (fsdp_process_group *group = comm->groups; group; group = group->next)
        clear_counters(&group->counters);
    atomic_store_explicit(&comm->total_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&comm->waiting_ns, 0, memory_order_relaxed);
}

void fsdp_context_comm_time(const fsdp_context *context, int64_t *total_ns, int64_t *waiting_ns)
{
    const fsdp__comm *comm = fsdp__context_get(context, FSDP__SLOT_COMM);

    if (total_ns)
        *total_ns = comm ? atomic_load_explicit(&comm->total_ns, memory_order_relaxed) : 0;
    if (waiting_ns)
        *waiting_ns = comm ? atomic_load_explicit(&comm->waiting_ns, memory_order_relaxed) : 0;
}
