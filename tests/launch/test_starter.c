/* test_starter.c - who started a process, by every table of variables there is, and what contradicts what. */
#include "launch/starter.h"
#include "support/test.h"

/* All that is read; a test sets some, and none is left of whoever runs the tests. */
static const char *const known[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "NODE_RANK",
                                    "GROUP_RANK",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_RUN_ID",
                                    "TORCHELASTIC_RESTART_COUNT",
                                    "FSDP_SHM_FD",
                                    "FSDP_MPI",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALRANKID",
                                    "MPI_LOCALNRANKS",
                                    "PMIX_RANK",
                                    "SLURM_PROCID",
                                    "SLURM_NTASKS",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_NODEID"};

/* "NAME=value NAME=value" and nothing else of what is known. */
static void set_all(const char *assignments)
{
    char *text = strdup(assignments), *rest = text;

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        unsetenv(known[i]);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one) {
            char *value = strchr(one, '=');

            *value = '\0';
            setenv(one, value + 1, 1);
        }
    free(text);
}

static const struct {
    const char *variables;
    fsdp__starter expected;
} starters[] = {
    {"", {FSDP__BY_NOBODY, "nobody", 0, 1, 0, 1, 0, NULL, NULL}},
    {"RANK=0", {FSDP__BY_NOBODY, "nobody", 0, 1, 0, 1, 0, NULL, NULL}},
    {"RANK=0 WORLD_SIZE=1", {FSDP__BY_NOBODY, "the environment", 0, 1, -1, 0, -1, NULL, NULL}},
    {"FSDP_SHM_FD=5 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=0",
     {FSDP__BY_LAUNCH, "fsdp run", 1, 2, 1, 2, 0, NULL, NULL}},
    {"RANK=1 WORLD_SIZE=2", {FSDP__BY_NAME, "the environment", 1, 2, 1, 2, -1, NULL, NULL}},
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none "
     "TORCHELASTIC_RESTART_COUNT=0",
     {FSDP__BY_NAME, "torchrun", 1, 2, 1, 2, 0, NULL, NULL}},
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     {FSDP__BY_MPI, "mpirun", 3, 4, 1, 2, -1, NULL, NULL}},
    {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
     {FSDP__BY_MPI, "mpiexec", 1, 2, 1, 2, -1, NULL, NULL}},
    {"PMIX_RANK=7", {FSDP__BY_MPI, "PMIx", 7, 0, -1, 0, -1, NULL, NULL}},
    {"FSDP_MPI=openmpi", {FSDP__BY_MPI, "MPI", 0, 0, -1, 0, -1, NULL, NULL}},
    {"FSDP_MPI=openmpi PMIX_RANK=7", {FSDP__BY_MPI, "PMIx", 7, 0, -1, 0, -1, NULL, NULL}},
    {"FSDP_MPI=mpich FSDP_SHM_FD=5 RANK=1 WORLD_SIZE=2", {FSDP__BY_LAUNCH, "fsdp run", 1, 2, -1, 0, -1, NULL, NULL}},
    {"SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1",
     {FSDP__BY_MPI, "srun", 2, 4, 0, 0, 1, NULL, NULL}},
    /* the script of sbatch is no rank */
    {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=0",
     {FSDP__BY_NOBODY, "nobody", 0, 1, 0, 1, 0, NULL, NULL}},
    /* the innermost */
    {"FSDP_SHM_FD=5 RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=8",
     {FSDP__BY_LAUNCH, "fsdp run", 1, 2, -1, 0, -1, NULL, NULL}},
    {"TORCHELASTIC_RUN_ID=x RANK=1 WORLD_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4",
     {FSDP__BY_NAME, "torchrun", 1, 2, 1, 2, -1, NULL, NULL}},
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMIX_RANK=3",
     {FSDP__BY_MPI, "mpirun", 3, 4, -1, 0, -1, NULL, NULL}},
    /* left over: torchrun says how many there are */
    {"TORCHELASTIC_RUN_ID=x OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4",
     {FSDP__BY_MPI, "mpirun", 3, 4, -1, 0, -1, NULL, NULL}},
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 PMI_RANK=0 PMI_SIZE=1",
     {FSDP__BY_MPI, "mpirun", 3, 4, -1, 0, -1, NULL, NULL}},
    {"FSDP_MPI=openmpi OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMI_RANK=0 PMI_SIZE=4",
     {FSDP__BY_MPI, "mpirun", 0, 1, -1, 0, -1, NULL, NULL}},
    /* what repeats it does no harm */
    {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 RANK=3 WORLD_SIZE=4",
     {FSDP__BY_MPI, "mpirun", 3, 4, -1, 0, -1, NULL, NULL}},
    {"SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 PMI_RANK=2 PMI_SIZE=4",
     {FSDP__BY_MPI, "mpiexec", 2, 4, -1, 0, -1, NULL, NULL}},
    {"FSDP_MPI=none OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4",
     {FSDP__BY_NOBODY, "nobody", 0, 1, 0, 1, 0, NULL, NULL}},
    /* of one rank: alone */
    {"TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=1", {FSDP__BY_NOBODY, "torchrun", 0, 1, -1, 0, -1, NULL, NULL}},
};

TEST(every_starter_is_known_by_its_variables)
{
    for (size_t i = 0; i < sizeof starters / sizeof *starters; i++) {
        const fsdp__starter *e = &starters[i].expected;
        fsdp__starter s;

        set_all(starters[i].variables);
        CHECK_OK(fsdp__starter_read(&s));
        if (s.kind != e->kind || strcmp(s.name, e->name) != 0 || s.rank != e->rank || s.size != e->size ||
            s.local_rank != e->local_rank || s.local_size != e->local_size || s.machine != e->machine)
            TEST_FAIL("'%s': kind %d, %s, rank %d of %d, local rank %d of %d, machine %d", starters[i].variables,
                      s.kind, s.name, s.rank, s.size, s.local_rank, s.local_size, s.machine);
    }
    set_all("");
}

TEST(what_is_wrong_is_named)
{
    static const struct {
        const char *variables;
        fsdp_status status;
        const char *text;
    } cases[] = {
        {"RANK=1", FSDP_INVALID, "RANK is '1', but WORLD_SIZE, the number of ranks, is not set: "},
        {"WORLD_SIZE=4", FSDP_INVALID, "WORLD_SIZE is 4, but RANK is not set: each process needs its own; 'fsdp run"},
        {"WORLD_SIZE=0 RANK=0", FSDP_INVALID, "WORLD_SIZE is '0', not a number from 1"},
        {"WORLD_SIZE=2 RANK=2", FSDP_INVALID, "RANK is '2', not a number from 0 to 1"},
        {"WORLD_SIZE=2 RANK=x", FSDP_INVALID, "RANK is 'x'"},
        {"WORLD_SIZE=2 RANK=1 LOCAL_RANK=0", FSDP_INVALID, "LOCAL_RANK is 0, but RANK is 1, and all 2 ranks are on"},
        {"WORLD_SIZE=2 RANK=1 LOCAL_WORLD_SIZE=3", FSDP_INVALID, "LOCAL_WORLD_SIZE is '3', not a number from 1 to 2"},
        {"WORLD_SIZE=2 RANK=1 LOCAL_RANK=-1", FSDP_INVALID, "LOCAL_RANK is '-1'"},
        {"WORLD_SIZE=4 RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", FSDP_UNSUPPORTED, "with MPI: mpirun -n 4"},
        {"WORLD_SIZE=2 RANK=1 NODE_RANK=1", FSDP_INVALID, "NODE_RANK is 1, but all 2 ranks are on one machine"},
        {"TORCHELASTIC_RUN_ID=x WORLD_SIZE=2 RANK=1 GROUP_RANK=1", FSDP_INVALID, "GROUP_RANK is 1, but all 2 ranks"},
        {"TORCHELASTIC_RUN_ID=x RANK=1", FSDP_INVALID,
         "RANK is '1', but WORLD_SIZE, the number of ranks, is not set: "},
        {"WORLD_SIZE=2 RANK=1 MASTER_PORT=seven", FSDP_INVALID, "MASTER_PORT is 'seven', not a number from 0 to 65535"},
        {"WORLD_SIZE=2 RANK=1 TORCHELASTIC_RESTART_COUNT=-1", FSDP_INVALID, "TORCHELASTIC_RESTART_COUNT is '-1'"},
        {"OMPI_COMM_WORLD_SIZE=0 OMPI_COMM_WORLD_RANK=0", FSDP_INVALID,
         "OMPI_COMM_WORLD_SIZE is '0', not a number from 1"},
        {"PMI_SIZE=two PMI_RANK=0", FSDP_INVALID, "PMI_SIZE is 'two', not a number from 1"},
        {"OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMI_SIZE=2 PMI_RANK=1", FSDP_INVALID,
         "OMPI_COMM_WORLD_SIZE is 1, but PMI_SIZE is 2: unset the variables of the MPI that has not"},
        {"OMPI_COMM_WORLD_SIZE=4", FSDP_INVALID, "OMPI_COMM_WORLD_SIZE is 4, but OMPI_COMM_WORLD_RANK is not set"},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=4", FSDP_INVALID, "OMPI_COMM_WORLD_RANK is '4'"},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 RANK=0", FSDP_INVALID,
         "RANK is 0, but OMPI_COMM_WORLD_RANK of mpirun is 3: unset RANK"},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 WORLD_SIZE=2", FSDP_INVALID,
         "WORLD_SIZE is 2, but OMPI_COMM_WORLD_SIZE of mpirun is 4: unset WORLD_SIZE"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 LOCAL_RANK=3", FSDP_INVALID,
         "LOCAL_RANK is 3, but SLURM_LOCALID of srun is 1"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 NODE_RANK=0", FSDP_INVALID,
         "NODE_RANK is 0, but SLURM_NODEID of srun is 1"},
        {"PMI_SIZE=2 PMI_RANK=1 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=2", FSDP_INVALID, "MPI_LOCALRANKID is '2'"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp__starter s;

        set_all(cases[i].variables);
        CHECK_ERROR(fsdp__starter_read(&s), cases[i].status, cases[i].text);
    }
    set_all("");
}
