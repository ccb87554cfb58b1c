/* What the program makes of a world that somebody else has started, and of torchrun's words. */
#include <sched.h>
#include <sys/stat.h>

#include "cli/fixture.h"

#define SAYS(expected, part, ...)                                                                              \
    do {                                                                                                       \
        program p_ = program_run(f->directory, (expected), (const char *const[]){PROGRAM, __VA_ARGS__, NULL}); \
        CHECK_CONTAINS(p_.output, (part));                                                                     \
        program_free(&p_);                                                                                     \
    } while (0)

static void set_open_mpi(const char *rank, const char *size)
{
    setenv("OMPI_COMM_WORLD_RANK", rank, 1);
    setenv("OMPI_COMM_WORLD_SIZE", size, 1);
}

static void unset_open_mpi(void)
{
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

static void another_number_of_ranks_than_were_started_is_refused(void **state)
{
    fixture *f = *state;

    set_open_mpi("1", "3");
    SAYS(2, "fsdp: -n is 2, but mpirun has started 3 ranks (OMPI_COMM_WORLD_SIZE): leave -n out", "train", f->config,
         "-n", "2");
    SAYS(2, "-n is 2, but mpirun has started 3 ranks", "run", "-n", "2", "--", "true");
    SAYS(2, "-n is 2, but mpirun has started 3 ranks", "eval", f->model, "--data", f->data, "-n", "2");
    SAYS(2, "-n is 2, but mpirun has started 3 ranks", "generate", f->model, "--tokens", "1", "-n", "2");
    SAYS(2, "compare: it starts its ranks itself, and mpirun has started this process as one of several", "compare",
         f->config, "-n", "3");
    SAYS(2, "--max-restarts starts ranks again that this program has started, and mpirun has started these", "train",
         f->config, "--max-restarts=1");
    SAYS(2, "RANK is 0, but OMPI_COMM_WORLD_RANK of mpirun is 1: unset RANK", "run", "--", "env", "RANK=0", PROGRAM,
         "train", f->config);
    SAYS(2,
         "generate: --prompt-file - is standard input, and of the ranks that mpirun has started rank 0 alone has one",
         "generate", f->model, "--prompt-file", "-");
    unset_open_mpi();
    setenv("PMIX_RANK", "0", 1);
    SAYS(2, "-n is 2, but PMIx has started the ranks (PMIX_RANK): leave -n out", "train", f->config, "-n", "2");
    unsetenv("PMIX_RANK");
}

static void a_started_rank_becomes_the_program(void **state)
{
    fixture *f = *state;

    set_open_mpi("2", "3");
    SAYS(0, "2 of 3", "run", "--", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE $GOMP_SPINCOUNT");
    SAYS(0, "2 of 3", "run", "-n", "3", "--", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE");
    SAYS(7, "", "run", "--", "sh", "-c", "exit 7");
    SAYS(127, "fsdp: cannot start './nope': No such file", "run", "--", "./nope");
    unset_open_mpi();
}

static void torchrun_s_words_are_understood(void **state)
{
    fixture *f = *state;
    char expected[40];
    cpu_set_t cores;

    SAYS(0, "1 of 2 on 0, port 29500 of here", "run", "--nnodes=1", "--nproc_per_node=2", "--node_rank", "0",
         "--master_addr=here", "--master_port", "29500", "--standalone", "--no-python", "--", "sh", "-c",
         "echo $RANK of $WORLD_SIZE on $NODE_RANK, port $MASTER_PORT of $MASTER_ADDR");
    SAYS(0, "0/3", "run", "--nnodes", "1:1", "--nproc-per-node", "3", "--rdzv-backend=c10d", "--rdzv_endpoint=here:0",
         "--rdzv-id=7", "--rdzv_conf=x=1", "--", "sh", "-c", "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE");
    CHECK_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
    snprintf(expected, sizeof expected, "0 of %d.", CPU_COUNT(&cores));
    SAYS(0, expected, "run", "--nproc-per-node=cpu", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE.");
    SAYS(0, expected, "run", "--nproc_per_node=auto", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE.");
    SAYS(0, "1 of 2, and --it", "run", "--nproc-per-node", "2", "--no-python", "sh", "-c",
         "echo $RANK of $WORLD_SIZE, and $0", "--it");
    SAYS(0, "", "run", "-n", "2", "--nproc-per-node=2", "--", "true");
    SAYS(2, "-n is 2 and --nproc-per-node 3: leave one of the two out", "run", "-n", "2", "--nproc-per-node=3", "--",
         "true");
    SAYS(2, "--nnodes is '2', and this starts the ranks of one machine: several are started by MPI: mpirun -n", "run",
         "--nnodes=2", "--nproc-per-node=2", "--", "true");
    SAYS(2, "--nnodes is '1:4'", "run", "--nnodes=1:4", "--nproc-per-node=2", "--", "true");
    SAYS(2, "--node-rank is '1', and there is one machine: expected 0", "run", "--node-rank=1", "-n", "2", "--",
         "true");
    SAYS(2, "--nproc-per-node is gpu, and ranks compute on the CPU", "run", "--nproc-per-node=gpu", "--", "true");
    SAYS(2, "--nproc-per-node is 'all': expected an integer", "run", "--nproc-per-node=all", "--", "true");
    SAYS(2, "--nproc-per-node is '0': expected an integer from 1", "run", "--nproc_per_node=0", "--", "true");
    SAYS(0, "", "run", "--max_restarts=0", "-n", "1", "--", "true");
    SAYS(2, "--max-restarts is '3', and this starts a program once: 'fsdp train --max-restarts'", "run",
         "--max-restarts=3", "-n", "1", "--", "true");
    SAYS(2, "--master-port is '70000': expected an integer from 0 to 65535", "run", "-n", "2", "--master-port=70000",
         "--", "true");
    SAYS(2, "run: say how many ranks", "run", "--standalone", "--", "true");
}

/* Ranks 0 and 1 with RANK and WORLD_SIZE alone; only rank 0 can see the config. */
static void the_config_is_read_by_rank_0_alone(void **state)
{
    fixture *f = *state;
    const char *const first[] = {PROGRAM, "train", f->config, "--training.threads=2", NULL};
    const char *const second[] = {PROGRAM, "train", "nowhere.yaml", "--training.threads=2", NULL};
    char *elsewhere = test_path(f->directory, "elsewhere");
    program a, b;

    CHECK_EQ(mkdir(elsewhere, 0700), 0);
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "0", 1);
    a = program_start(f->directory, first);
    setenv("RANK", "1", 1);
    b = program_start(elsewhere, second);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    program_wait(&b, 60);
    program_wait(&a, 60);
    CHECK_EQ(a.status, 0);
    CHECK_EQ(b.status, 0);
    CHECK_STRING(b.output, "");
    CHECK_CONTAINS(a.output, "ranks:  2, 2 threads each");
    CHECK_CONTAINS(a.output, "done:   30 steps");
    program_free(&a);
    program_free(&b);
    free(elsewhere);
}

TEST_MAIN(T(another_number_of_ranks_than_were_started_is_refused), T(a_started_rank_becomes_the_program),
          T(torchrun_s_words_are_understood), T(the_config_is_read_by_rank_0_alone))
