/* placement.c - assigns cores to ranks. */
#include "launch/placement.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/context.h"
#include "comm/group_calls.h"
#include "fsdp/comm.h"

static bool openmp_is_told(void)
{
    return getenv("OMP_PROC_BIND") || getenv("GOMP_CPU_AFFINITY") || getenv("KMP_AFFINITY");
}

bool fsdp__share_of_cores(const cpu_set_t *all, int rank, int ranks, cpu_set_t *out)
{
    int cores = CPU_COUNT(all), index = 0;

    if (ranks < 2 || cores < ranks || openmp_is_told())
        return false;
    CPU_ZERO(out);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, all))
            continue;
        if (index >= (int)((long)rank * cores / ranks) && index < (int)((long)(rank + 1) * cores / ranks))
            CPU_SET(cpu, out);
        index++;
    }
    return true;
}

/* ---- of ranks that somebody else has started ---- */

static bool is_free(const fsdp__seat *seat)
{
    return !seat->told && CPU_COUNT(&seat->cores) == seat->online;
}

/* Counts cores for this rank alone, and parts of those that others may use too; at least 1. */
static int count_threads(const fsdp__seat *seats, int count, const fsdp__seat *own)
{
    double cores = 0;

    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int users = 0;

        for (int i = 0; i < count && CPU_ISSET(cpu, &own->cores); i++)
            users += seats[i].machine == own->machine && CPU_ISSET(cpu, &seats[i].cores);
        if (users > 0)
            cores += 1.0 / users;
    }
    return cores + 1e-6 < 1 ? 1 : (int)(cores + 1e-6); /* thirds do not add up exactly */
}

void fsdp__place_choose(const fsdp__seat *seats, int count, int rank, fsdp__place_of_rank *out)
{
    const fsdp__seat *own = &seats[rank];
    int mates = 0;
    bool all_free = true;

    for (int i = 0; i < count; i++) {
        if (seats[i].machine != own->machine)
            continue;
        mates++;
        all_free &= is_free(&seats[i]);
    }
    *out = (fsdp__place_of_rank){.threads = count_threads(seats, count, own)};
    out->binds = all_free && fsdp__share_of_cores(&own->cores, own->local_rank, mates, &out->cores);
    if (out->binds)
        out->threads = CPU_COUNT(&out->cores);
}

static void sit_down(const fsdp_context *context, fsdp__seat *out)
{
    *out = (fsdp__seat){.machine = fsdp_context_machine(context),
                        .local_rank = fsdp_context_local_rank(context),
                        .online = (int)sysconf(_SC_NPROCESSORS_ONLN),
                        .told = openmp_is_told()};
    /* If there are more cores than a set holds, nobody is bound. */
    if (sched_getaffinity(0, sizeof out->cores, &out->cores) != 0)
        CPU_ZERO(&out->cores);
}

fsdp_status fsdp__place_rank(fsdp_context *context, bool threads)
{
    fsdp_process_group *world = fsdp_world(context);
    int ranks = fsdp_context_world_size(context);
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};
    FSDP__FREED fsdp__seat *seats = NULL;
    fsdp__seat own;
    fsdp__place_of_rank place;

    if (!world)
        return fsdp_last_status();
    sit_down(context, &own);
    seats = fsdp__calloc((size_t)ranks, sizeof *seats);
    if (!seats)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot place %d ranks on cores", ranks);
    FSDP_TRY(fsdp__gather(world, &own, sizeof own, &all));
    for (int r = 0; r < ranks; r++)
        memcpy(&seats[r], all.objects[r], sizeof own);
    fsdp__place_choose(seats, ranks, fsdp_context_rank(context), &place);
    if (place.binds)
        (void)sched_setaffinity(0, sizeof place.cores, &place.cores);
    if (!threads && CPU_COUNT(&own.cores) > 0)
        fsdp__context_set_threads(context, place.threads);
    return FSDP_OK;
}
