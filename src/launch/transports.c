/* transports.c - the only list of the transports. */
#include "launch/transports.h"

#include <fcntl.h>
#include <limits.h>

#include "base/compiler.h"
#include "comm/mpi/join.h"
#include "comm/transport/arena/shm.h"
#include "launch/by_name.h"
#include "launch/variables.h"

static fsdp_status join_shm(const fsdp__starter *starter, const fsdp_context_options *options, fsdp_context **out)
{
    int fd = -1;

    (void)starter;
    FSDP_TRY(fsdp__read_number(FSDP__SHM_VARIABLE, 0, INT_MAX, &fd));
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* programs that a rank starts must not get it */
    return fsdp__shm_join(fd, false, options, out);
}

static fsdp_status join_mpi(const fsdp__starter *starter, const fsdp_context_options *options, fsdp_context **out)
{
    int one_level = 0;
    fsdp__mpi_join_options join = {.starter = starter->name,
                                   .ranks = starter->size,
                                   .local_ranks = starter->local_size,
                                   .local_rank = starter->local_rank,
                                   .threads = options->threads};

    FSDP_TRY(fsdp__read_number("FSDP_ONE_LEVEL", 0, 1, &one_level));
    FSDP_TRY(fsdp__read_join_seconds(&join.join_seconds));
    join.one_level = one_level == 1;
    return fsdp__mpi_join(&join, out);
}

static const fsdp__transport transports[] = {
    {FSDP__BY_LAUNCH, join_shm},
    {FSDP__BY_NAME, fsdp__join_by_name},
    {FSDP__BY_MPI, join_mpi},
};

const fsdp__transport *fsdp__transport_of(fsdp__starter_kind kind)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(transports); i++)
        if (transports[i].kind == kind)
            return &transports[i];
    return NULL;
}
