/* starter.c - the table of programs that start ranks. */
#include "launch/starter.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "launch/transports.h"
#include "launch/variables.h"

#define STEP_SIZE "SLURM_STEP_NUM_TASKS"
#define OPEN_MPI_SIZE "OMPI_COMM_WORLD_SIZE"
#define MPICH_SIZE "PMI_SIZE"

/* Lists the variables of one starter. NULL: it has none for that. */
typedef struct starter_row {
    fsdp__starter_kind kind;
    const char *name;
    const char *sign; /* if this variable is set, it was this starter */
    const char *rank, *size, *local_rank, *local_size, *machine;
} starter_row;

/* The first row whose sign is set counts. Starters for one machine come first: torchrun may run inside a step of srun,
 * but not the other way round; and what starts an MPI's processes may itself run under srun. In the script of sbatch,
 * which is no rank, SLURM_PROCID is set too, but not the size of a step. Variables set by hand come last: under MPI
 * they may only repeat what MPI says. */
static const starter_row rows[] = {
    {FSDP__BY_LAUNCH, "fsdp run", FSDP__SHM_VARIABLE, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "NODE_RANK"},
    {FSDP__BY_NAME, "torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "GROUP_RANK"},
    {FSDP__BY_MPI, "mpirun", OPEN_MPI_SIZE, "OMPI_COMM_WORLD_RANK", OPEN_MPI_SIZE, "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {FSDP__BY_MPI, "mpiexec", MPICH_SIZE, "PMI_RANK", MPICH_SIZE, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
    {FSDP__BY_MPI, "srun", STEP_SIZE, "SLURM_PROCID", STEP_SIZE, "SLURM_LOCALID", NULL, "SLURM_NODEID"},
    {FSDP__BY_MPI, "PMIx", "PMIX_RANK", "PMIX_RANK", NULL, NULL, NULL, NULL},
    /* the user says that it is MPI, and MPI says the rest */
    {FSDP__BY_MPI, "MPI", "FSDP_MPI", NULL, NULL, NULL, NULL, NULL},
    {FSDP__BY_NAME, "the environment", "WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "NODE_RANK"},
};

static bool is_set(const char *name)
{
    const char *value = name ? getenv(name) : NULL;

    return value && *value;
}

/* Returns whether this starter has started the process. torchrun says how many ranks there are: one of its variables
 * alone is left over from somewhere. */
static bool is_starter(const starter_row *row)
{
    return is_set(row->sign) && (row->kind != FSDP__BY_NAME || is_set(row->size));
}

/* Returns whether a program that MPI has started is to be a world of its own. */
static bool is_switched_off(void)
{
    const char *choice = getenv("FSDP_MPI");

    return choice && strcmp(choice, "none") == 0;
}

static fsdp_status read_number(const char *name, int low, int high, int *out)
{
    return name ? fsdp__read_number(name, low, high, out) : FSDP_OK;
}

/* ---- what must be, and what must agree ---- */

static fsdp_status read_row(const starter_row *row, fsdp__starter *s)
{
    *s = (fsdp__starter){.kind = row->kind,
                         .name = row->name,
                         .local_rank = -1,
                         .machine = -1,
                         .rank_variable = row->rank ? row->rank : row->sign,
                         .size_variable = row->size};
    if (row->kind != FSDP__BY_MPI)
        s->size = 1;
    FSDP_TRY(read_number(row->size, 1, INT_MAX, &s->size));
    if (!is_set(row->rank) && s->size > 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s is %d, but %s is not set: each process needs its own; 'fsdp run -n %d -- ...' starts them "
                         "with it",
                         row->size, s->size, row->rank, s->size);
    FSDP_TRY(read_number(row->rank, 0, s->size > 0 ? s->size - 1 : INT_MAX, &s->rank));
    FSDP_TRY(read_number(row->local_size, 1, s->size > 0 ? s->size : INT_MAX, &s->local_size));
    FSDP_TRY(read_number(row->local_rank, 0, s->local_size > 0 ? s->local_size - 1 : INT_MAX, &s->local_rank));
    return read_number(row->machine, 0, INT_MAX, &s->machine);
}

/* Checks `said`, the value of the variable `by`; below 0: it was not set. */
static fsdp_status check_same(const fsdp__starter *s, const char *name, int said, const char *by)
{
    int value = said;

    if (said < 0 || !by)
        return FSDP_OK;
    FSDP_TRY(fsdp__read_number(name, 0, INT_MAX, &value));
    if (value != said)
        return FSDP_FAIL(FSDP_INVALID, "environment variable %s is %d, but %s of %s is %d: unset %s", name, value, by,
                         s->name, said, name);
    return FSDP_OK;
}

/* Checks what was set by hand under MPI: RANK and the like must equal what MPI says, or it is an error. */
static fsdp_status check_repeated(const starter_row *row, const fsdp__starter *s)
{
    FSDP_TRY(check_same(s, "RANK", s->rank, row->rank));
    FSDP_TRY(check_same(s, "WORLD_SIZE", s->size > 0 ? s->size : -1, row->size));
    FSDP_TRY(check_same(s, "LOCAL_RANK", s->local_rank, row->local_rank));
    FSDP_TRY(check_same(s, "LOCAL_WORLD_SIZE", s->local_size > 0 ? s->local_size : -1, row->local_size));
    return check_same(s, "NODE_RANK", s->machine, row->machine);
}

/* Refuses a world of one by variables of Open MPI together with one of several by those of MPICH: the former are left
 * over from whoever started mpiexec, and its ranks would each be alone. In the opposite case the row that counts is
 * right. */
static fsdp_status check_left_over(const starter_row *row, const fsdp__starter *s)
{
    int size = 1;

    if (s->size != 1 || strcmp(row->sign, OPEN_MPI_SIZE) != 0 || is_set("FSDP_MPI") || !is_set(MPICH_SIZE))
        return FSDP_OK;
    FSDP_TRY(fsdp__read_number(MPICH_SIZE, 1, INT_MAX, &size));
    if (size > 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "environment variable " OPEN_MPI_SIZE " is 1, but " MPICH_SIZE
                         " is %d: unset the variables of the MPI that has not started this process (OMPI_* or PMI_*)",
                         size);
    return FSDP_OK;
}

static fsdp_status check_rendezvous(void)
{
    int ignored = 0;

    FSDP_TRY(fsdp__read_number("MASTER_PORT", 0, 65535, &ignored));
    FSDP_TRY(fsdp__read_number("GROUP_RANK", 0, INT_MAX, &ignored));
    FSDP_TRY(fsdp__read_number("NODE_RANK", 0, INT_MAX, &ignored));
    return fsdp__read_number("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, &ignored);
}

/* Checks that there is one machine, since there is no MPI. */
static fsdp_status check_one_machine(const starter_row *row, fsdp__starter *s)
{
    if (s->size == 1)
        return FSDP_OK;
    if (s->local_size == 0)
        s->local_size = s->size;
    if (s->local_rank < 0)
        s->local_rank = s->rank;
    FSDP_TRY(check_rendezvous());
    if (s->local_size < s->size)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "WORLD_SIZE is %d and LOCAL_WORLD_SIZE %d: start ranks on several machines with MPI: mpirun "
                         "-n %d ..., or srun",
                         s->size, s->local_size, s->size);
    if (s->local_rank != s->rank)
        return FSDP_FAIL(FSDP_INVALID, "LOCAL_RANK is %d, but RANK is %d, and all %d ranks are on this machine",
                         s->local_rank, s->rank, s->size);
    if (s->machine > 0)
        return FSDP_FAIL(FSDP_INVALID, "%s is %d, but all %d ranks are on one machine (LOCAL_WORLD_SIZE): expected 0",
                         row->machine, s->machine, s->size);
    return FSDP_OK;
}

fsdp_status fsdp__starter_read(fsdp__starter *out)
{
    const starter_row *row = NULL;

    *out = (fsdp__starter){.kind = FSDP__BY_NOBODY, .name = "nobody", .size = 1, .local_size = 1};
    for (size_t i = 0; i < FSDP__COUNT_OF(rows) && !row; i++)
        if (is_starter(&rows[i]) && !(rows[i].kind == FSDP__BY_MPI && is_switched_off()))
            row = &rows[i];
    if (!row && read_number("RANK", 0, 0, &out->rank) != FSDP_OK)
        return FSDP_FAIL(
            FSDP_INVALID,
            "environment variable RANK is '%s', but WORLD_SIZE, the number of ranks, is not set: set both, "
            "or unset RANK",
            getenv("RANK"));
    if (!row)
        return FSDP_OK;
    FSDP_TRY(read_row(row, out));
    FSDP_TRY(check_left_over(row, out));
    /* This is a step of one task, such as a shell of salloc: what it starts says who it is. */
    if (row->kind == FSDP__BY_MPI && out->size == 1 && strcmp(row->size, STEP_SIZE) == 0) {
        *out = (fsdp__starter){.kind = FSDP__BY_NOBODY, .name = "nobody", .size = 1, .local_size = 1};
        return FSDP_OK;
    }
    if (row->kind == FSDP__BY_MPI)
        return check_repeated(row, out);
    if (row->kind == FSDP__BY_NAME)
        FSDP_TRY(check_one_machine(row, out));
    if (row->kind == FSDP__BY_NAME && out->size == 1)
        out->kind = FSDP__BY_NOBODY;
    return FSDP_OK;
}
