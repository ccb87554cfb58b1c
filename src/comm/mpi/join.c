/* join.c - makes the context of a process that MPI has started. */
#include "comm/mpi/join.h"

#include "comm/health/process.h"
#include "comm/mpi/load.h"
#include "comm/mpi/machine_memory.h"
#include "comm/transport/network/network_transport.h"

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
    return fsdp__mpi_machine_memory(ops, network, places, j->options->join_seconds, out);
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
