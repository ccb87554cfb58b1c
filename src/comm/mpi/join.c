/* join.c - makes the context of a process that MPI has started. */
#include "comm/mpi/join.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "comm/health/places.h"
#include "comm/health/process.h"
#include "comm/mpi/load.h"
#include "comm/transport/arena/arena.h"
#include "comm/transport/arena/handoff.h"
#include "comm/transport/arena/shm.h"
#include "comm/transport/network/join_report.h"
#include "comm/transport/network/network.h"
#include "comm/transport/network/network_transport.h"

/* ---- the memory that the ranks of one machine share ---- */

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

/* Makes the memory on the first rank of each machine, which hands it to the others there under a name that the network
 * has carried. All ranks succeed, or all fail with the reason of the first that fails. `seconds` is the time for all of
 * joining; the ranks of a machine wait for each other for half of it. [collective] */
static fsdp_status machine_memory(const fsdp__network_ops *ops, void *network, const fsdp__places *places, int seconds,
                                  fsdp__arena **out)
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

/* ---- joining ---- */

typedef struct joining {
    const fsdp__mpi_join_options *options;
    const fsdp__mpi_start *start;
} joining;

static fsdp_status share(void *arg, const fsdp__network_ops *ops, void *network, const fsdp__places *places,
                         fsdp__arena **out)
{
    const joining *j = arg;

    if (j->options->ranks > 0 && j->options->ranks != places->ranks)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s has started %d ranks, but %s knows of %d: this process was started by another MPI (the "
                         "environment shows %s; FSDP_MPI=openmpi or FSDP_MPI=mpich decides)",
                         j->options->starter, j->options->ranks, j->start->kind->title, places->ranks,
                         j->start->variable);
    return machine_memory(ops, network, places, j->options->join_seconds, out);
}

/* Returns how many processes live that the starter of this process has started: the children of the nearest ancestor
 * that starts MPI processes. */
static int living(void)
{
    static const char *const starters[] = {"mpirun",  "mpirun.openmpi",  "mpiexec", "mpiexec.openmpi",
                                           "orterun", "orted",           "prterun", "prted",
                                           "prte",    "hydra_pmi_proxy", NULL};
    int starter = fsdp__process_above(starters);

    return starter > 0 ? fsdp__process_children(starter) : -1;
}

fsdp_status fsdp__mpi_join(const fsdp__mpi_join_options *options, fsdp_context **out)
{
    const fsdp__network_ops *ops = NULL;
    fsdp__mpi_start start;
    joining j = {.options = options, .start = &start};
    const fsdp__network_options machines = {.threads = options->threads,
                                            .joining = {.ms = (int64_t)options->join_seconds * 1000,
                                                        .warns = options->local_rank <= 0,
                                                        .started = options->local_ranks,
                                                        .living = living},
                                            .one_level = options->one_level,
                                            .share = share,
                                            .arg = &j};

    *out = NULL;
    FSDP_TRY(fsdp__mpi_started(&start));
    if (!start.kind)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "%s has started this process, but without an MPI: with srun say --mpi=pmix for Open MPI, "
                         "--mpi=pmi2 for MPICH; or FSDP_MPI=openmpi or FSDP_MPI=mpich, if it does so by itself",
                         options->starter);
    FSDP_TRY(fsdp__mpi_load(start.kind, &ops));
    return fsdp__network_join(ops, &machines, out);
}
