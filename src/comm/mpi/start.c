/* start.c - finds out from the environment which MPI has started this process. */
#include "comm/mpi/start.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/compiler.h"
#include "base/text.h"

static const fsdp__mpi_kind open_mpi = {
    .name = "openmpi", .title = "Open MPI", .runtime = "libopenmpi3", .build = "libopenmpi-dev"};
static const fsdp__mpi_kind mpich = {
    .name = "mpich", .title = "MPICH", .runtime = "libmpich12", .build = "libmpich-dev"};

/* The first entry whose variables are set is chosen. Open MPI's mpirun comes before the rest: it sets PMIx's variables,
 * too, and runs inside Slurm's tasks where it is used there. */
static const struct sign {
    const char *variable, *size; /* both variables; `size` NULL: it does not tell the number of ranks */
    const fsdp__mpi_kind *kind;
} signs[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &open_mpi}, /* mpirun of Open MPI */
    {"PMI_RANK", "PMI_SIZE", &mpich},                            /* mpiexec of MPICH and Intel, srun --mpi=pmi2 */
    {"PMIX_RANK", NULL, &open_mpi},                              /* srun --mpi=pmix, prun */
};

static const char *value_of(const char *variable)
{
    const char *value = variable ? getenv(variable) : NULL;

    return value && *value ? value : NULL;
}

/* Reads what the user chose. `*decided` tells whether that decides. */
static fsdp_status read_choice(fsdp__mpi_start *out, bool *decided)
{
    const char *choice = value_of("FSDP_MPI");
    const fsdp__mpi_kind *const kinds[] = {&open_mpi, &mpich};

    *decided = choice != NULL;
    if (!choice || strcmp(choice, "none") == 0)
        return FSDP_OK;
    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++) {
        if (strcmp(choice, kinds[i]->name) == 0) {
            out->kind = kinds[i];
            out->variable = "FSDP_MPI";
            return FSDP_OK;
        }
    }
    return FSDP_FAIL(FSDP_INVALID, "environment variable FSDP_MPI is '%s', not openmpi, mpich or none",
                     FSDP__SHOWN_NAME(choice));
}

fsdp_status fsdp__mpi_started(fsdp__mpi_start *out)
{
    fsdp__mpi_start found = {0};
    bool decided = false;

    *out = found;
    FSDP_TRY(read_choice(&found, &decided));
    if (decided && !found.kind)
        return FSDP_OK;
    for (size_t i = 0; i < FSDP__COUNT_OF(signs) && !found.kind; i++)
        if (value_of(signs[i].variable) && (!signs[i].size || value_of(signs[i].size)))
            found = (fsdp__mpi_start){signs[i].kind, signs[i].variable};
    *out = found;
    return FSDP_OK;
}

/* Asks Hydra to end all processes. Hydra's processes have a connection to it, and this is a line of its protocol
 * (PMI-1). Other starters set PMI_FD, too, and use another protocol. */
void fsdp__mpi_end_all(void)
{
    const char *fd = value_of("PMI_FD");

    if (!fd || !value_of("MPI_LOCALNRANKS") || atoi(fd) <= 2)
        return;
    /* Hydra throws away the processes' output that it has not read yet, so give it time. */
    nanosleep(&(struct timespec){.tv_nsec = 500 * 1000 * 1000}, NULL);
    (void)dprintf(atoi(fd), "cmd=abort exitcode=1\n");
}
