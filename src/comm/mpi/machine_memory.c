/* machine_memory.c - the memory that the ranks of one machine share, where MPI has started them. */
#include "comm/mpi/machine_memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "comm/shm/handoff.h"
#include "comm/shm/shm.h"

enum {
    NAME_BYTES = 16, /* nobody guesses it */
    TEXT_BYTES = 320,
    WAIT_SECONDS = 60 /* for ranks of this machine, which are all on their way */
};

/* What every rank tells all others, twice: when the memory is made, and when it is there. */
typedef struct report {
    unsigned char name[NAME_BYTES];
    int32_t status;
    char text[TEXT_BYTES];
} report;

static void write_report(report *out, fsdp_status status)
{
    out->status = status;
    if (status != FSDP_OK)
        snprintf(out->text, sizeof out->text, "%s", fsdp_last_error());
}

/* Fails on all ranks where one has failed. `first`: what the first rank of this machine has said. */
static fsdp_status agree(const fsdp__network_ops *ops, void *network, const fsdp__places *places, const report *mine,
                         report *first)
{
    char text[FSDP__NETWORK_TEXT] = "";
    report *all = fsdp__calloc((size_t)places->ranks, sizeof *all);
    fsdp_status status = FSDP_OK;

    if (!ops->exchange(network, mine, sizeof *mine, all, text))
        status = all ? FSDP_FAIL(FSDP_COMM, "rank %d: %s", places->rank, text) : FSDP_NO_MEMORY;
    for (int rank = 0; rank < places->ranks && status == FSDP_OK; rank++) {
        const report *said = &all[places->carriers[rank]];

        if (said->status != FSDP_OK)
            status = FSDP_FAIL((fsdp_status)said->status, "rank %d (machine '%s'): %.*s", rank,
                               places->hosts[fsdp__machine_of(places, rank)], (int)sizeof said->text - 1, said->text);
    }
    if (all)
        *first = all[places->carriers[places->rank - places->rank % places->machine_ranks]];
    fsdp__free(all);
    return status;
}

static fsdp_status make(const fsdp__places *places, report *mine, fsdp__arena **out)
{
    ssize_t got = getrandom(mine->name, sizeof mine->name, 0);

    if (got != (ssize_t)sizeof mine->name)
        return FSDP_FAIL(FSDP_IO, "no random numbers: %s", strerror(errno));
    FSDP_TRY(fsdp__arena_create(places->machine_ranks, true, out));
    (*out)->control->first = places->rank;
    return FSDP_OK;
}

static fsdp_status hand_over(const fsdp__places *places, const report *first, fsdp__arena **arena)
{
    char name[2 * NAME_BYTES + 1];
    const fsdp__handoff handoff = {.name = name, .timeout_ns = (int64_t)WAIT_SECONDS * 1000000000};
    int local_rank = places->rank % places->machine_ranks, fd = -1;
    fsdp_status status;

    for (int i = 0; i < NAME_BYTES; i++)
        snprintf(name + 2 * (ptrdiff_t)i, 3, "%02x", first->name[i]);
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
                                     fsdp__arena **out)
{
    report mine = {0}, first;
    fsdp__arena *arena = NULL;
    fsdp_status status;

    *out = NULL;
    if (places->rank % places->machine_ranks == 0)
        write_report(&mine, make(places, &mine, &arena));
    FSDP_TRY_GOTO(status, agree(ops, network, places, &mine, &first), out);
    write_report(&mine, hand_over(places, &first, &arena));
    FSDP_TRY_GOTO(status, agree(ops, network, places, &mine, &first), out);
    *out = arena;
    arena = NULL;
out:
    fsdp__arena_unref(arena);
    return status;
}
