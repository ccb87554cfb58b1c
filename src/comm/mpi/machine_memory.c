/* machine_memory.c - the memory that the ranks of one machine share, where MPI has started them. */
#include "comm/mpi/machine_memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "comm/transport/arena/handoff.h"
#include "comm/transport/arena/shm.h"
#include "comm/transport/network/join_report.h"

enum {
    NAME_BYTES = FSDP__REPORT_NOTE /* enough that nobody can guess it */
};

static fsdp_status make(const fsdp__places *places, fsdp__report *mine, fsdp__arena **out)
{
    ssize_t got = getrandom(mine->note, sizeof mine->note, 0);

    if (got != (ssize_t)sizeof mine->note)
        return FSDP_FAIL(FSDP_IO, "no random numbers: %s", strerror(errno));
    FSDP_TRY(fsdp__arena_create(places->machine_ranks, places->ranks, true, out));
    (*out)->board->first = places->rank;
    snprintf((*out)->board->host, FSDP__HOST_BYTES, "%.64s", fsdp__host_of(places, places->rank));
    return FSDP_OK;
}

static fsdp_status hand_over(const fsdp__places *places, const fsdp__report *first, int seconds, fsdp__arena **arena)
{
    char name[2 * NAME_BYTES + 1];
    /* Half of the time, so that a rank that waits in vain reports it before joining times out as a whole. */
    const fsdp__handoff handoff = {.name = name, .timeout_ns = (int64_t)seconds * 500000000};
    int local_rank = fsdp__local_of(places, places->rank), fd = -1;
    fsdp_status status;

    for (int i = 0; i < NAME_BYTES; i++)
        snprintf(name + 2 * (ptrdiff_t)i, 3, "%02x", first->note[i]);
    if (local_rank == 0) {
        FSDP_TRY(fsdp__handoff_give(&handoff, (*arena)->fd, places->machine_ranks - 1));
        return fsdp__shm_take_place(*arena, 0);
    }
    FSDP_TRY(fsdp__handoff_take(&handoff, &fd));
    status = fsdp__arena_map(fd, arena);
    (void)close(fd);
    FSDP_TRY(status);
    return fsdp__shm_take_place(*arena, local_rank);
}

fsdp_status fsdp__mpi_machine_memory(const fsdp__network_ops *ops, void *network, const fsdp__places *places,
                                     int seconds, fsdp__arena **out)
{
    fsdp__report mine = {0}, first = {0};
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;

    *out = NULL;
    if (fsdp__local_of(places, places->rank) == 0)
        fsdp__report_write(&mine, make(places, &mine, &arena));
    FSDP_TRY(fsdp__report_compare(ops, network, places, &mine, &first));
    fsdp__report_write(&mine, hand_over(places, &first, seconds, &arena));
    FSDP_TRY(fsdp__report_compare(ops, network, places, &mine, &first));
    *out = fsdp__take(&arena);
    return FSDP_OK;
}
