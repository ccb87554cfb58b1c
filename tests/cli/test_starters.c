/* What the program makes of a world that somebody else has started, and of torchrun's words. */
#include <sched.h>
#include <sys/stat.h>

#include "cli/fixture.h"

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

FIXTURE_TEST(another_number_of_ranks_than_were_started_is_refused)
{
    const char *sanitizer = getenv("ASAN_OPTIONS");
    char options[600];

    /* Here and in all that follows: who refuses tells the other ranks by MPI, which keeps memory of its own. */
    snprintf(options, sizeof options, "%s:detect_leaks=0", sanitizer ? sanitizer : "");
    setenv("ASAN_OPTIONS", options, 1);
    set_open_mpi("1", "3");
    SAYS(2, "fsdp: -n is 2, but mpirun has started 3 ranks (OMPI_COMM_WORLD_SIZE): leave -n out", "train", f->config,
         "-n", "2");
    SAYS(2, "-n is 2, but mpirun has started 3 ranks", "run", "-n", "2", "--", "true");
    SAYS(2, "-n is 2, but mpirun has started 3 ranks", "eval", f->model, "--data", f->data, "-n", "2");
    SAYS(2, "-n is 2, but mpirun has started 3 ranks", "generate", f->model, "--tokens", "1", "-n", "2");
    SAYS(2, "compare: it starts its own ranks, but mpirun has started this process as one of several", "compare",
         f->config, "-n", "3");
    SAYS(2, "--max-restarts starts ranks again that this program has started, but mpirun has started these", "train",
         f->config, "--max-restarts=1");
    SAYS(2, "RANK is 0, but OMPI_COMM_WORLD_RANK of mpirun is 1: unset RANK", "run", "--", "env", "RANK=0", PROGRAM,
         "train", f->config);
    SAYS(2, "generate: --prompt-file - is standard input, but of the ranks that mpirun has started only rank 0 has one",
         "generate", f->model, "--prompt-file", "-");
    unset_open_mpi();
    setenv("PMIX_RANK", "0", 1);
    SAYS(2, "-n is 2, but PMIx has started the ranks (PMIX_RANK): leave -n out", "train", f->config, "-n", "2");
}

FIXTURE_TEST(a_started_rank_becomes_the_program)
{
    set_open_mpi("2", "3");
    SAYS(0, "2 of 3", "run", "--", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE $GOMP_SPINCOUNT");
    SAYS(0, "2 of 3", "run", "-n", "3", "--", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE");
    SAYS(7, "", "run", "--", "sh", "-c", "exit 7");
    SAYS(127, "fsdp: cannot start './nope': No such file", "run", "--", "./nope");
    unset_open_mpi();
}

FIXTURE_TEST(torchrun_s_words_are_understood)
{
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
    SAYS(2, "-n is 2 and --nproc-per-node is 3: leave one of the two out", "run", "-n", "2", "--nproc-per-node=3", "--",
         "true");
    SAYS(2, "--nnodes is '2', but this starts the ranks of one machine: for several, use MPI: mpirun -n", "run",
         "--nnodes=2", "--nproc-per-node=2", "--", "true");
    SAYS(2, "--nnodes is '1:4'", "run", "--nnodes=1:4", "--nproc-per-node=2", "--", "true");
    SAYS(2, "--node-rank is '1', but there is only one machine: expected 0", "run", "--node-rank=1", "-n", "2", "--",
         "true");
    setenv("FSDP_FAKECUDA_DEVICES", "0", 1); /* test_devices.c has some */
    SAYS(2, "run: --nproc-per-node is gpu: there is no ", "run", "--nproc-per-node=gpu", "--", "true");
    unsetenv("FSDP_FAKECUDA_DEVICES");
    SAYS(2, "--nproc-per-node is 'all': expected an integer", "run", "--nproc-per-node=all", "--", "true");
    SAYS(2, "--nproc-per-node is '0': expected an integer from 1", "run", "--nproc_per_node=0", "--", "true");
    SAYS(0, "", "run", "--max_restarts=0", "-n", "1", "--", "true");
    SAYS(2, "--max-restarts is '3', but this command starts a program once: 'fsdp train --max-restarts'", "run",
         "--max-restarts=3", "-n", "1", "--", "true");
    SAYS(2, "--master-port is '70000': expected an integer from 0 to 65535", "run", "-n", "2", "--master-port=70000",
         "--", "true");
    SAYS(2, "run: say how many ranks", "run", "--standalone", "--", "true");
}

FIXTURE_TEST(words_of_torchrun_count_where_the_program_starts_its_own_ranks)
{
    SAYS(0, "ranks:  2,", "train", f->config, "--nproc_per_node", "2", "--nnodes=1");
    SAYS(0, "ranks:  2,", "train", f->config, "--nproc-per-node=2", "--standalone", "-n", "2");
    SAYS(0, "perplexity", "eval", f->model, "--data", f->data, "--nproc_per_node=2");
    SAYS(0, "1,", "generate", f->model, "--tokens", "1", "--nproc_per_node=2", "--max-new-tokens=1");
    SAYS(0, "ddp", "compare", f->config, "--nproc_per_node=2", "--strategies=ddp", "--rounds=1", "--steps=1");
    setenv("FSDP_FAKECUDA_DEVICES", "0", 1);
    SAYS(2, "train: --nproc-per-node is gpu: there is no ", "train", f->config, "--nproc_per_node=gpu");
    unsetenv("FSDP_FAKECUDA_DEVICES");
    SAYS(2, "--nproc-per-node is 'two': expected an integer", "eval", f->model, "--data", f->data,
         "--nproc_per_node=two");
    SAYS(2, "generate: --nnodes is '2', but this starts the ranks of one machine: for several, use MPI", "generate",
         f->model, "--tokens", "1", "--nnodes=2");
    SAYS(2, "compare: -n is 3 and --nproc-per-node is 2: leave one of the two out", "compare", f->config, "-n", "3",
         "--nproc_per_node=2");
}

/* Ranks 0 and 1 with RANK and WORLD_SIZE alone. */
static void run_two(fixture *f, const char *elsewhere, const char *const *first, const char *const *second, program *a,
                    program *b)
{
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "0", 1);
    CHECK_EQ(chdir(f->directory), 0);
    *a = program_start(f->directory, first);
    setenv("RANK", "1", 1);
    CHECK_EQ(chdir(elsewhere), 0);
    *b = program_start(elsewhere, second);
    CHECK_EQ(chdir("/"), 0);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    program_wait(b);
    program_wait(a);
}

/* Rank 0 says why before they meet, and rank 1 says that it has heard it from rank 0. */
FIXTURE_TEST(a_degree_that_does_not_divide_ranks_is_told_before_they_meet)
{
    const char *line[] = {PROGRAM, "train", f->config, "--parallelism.tensor_parallel_degree=3", NULL};
    char *elsewhere = test_path(f->directory, "elsewhere");
    program first, second;

    (void)mkdir(elsewhere, 0700);
    run_two(f, elsewhere, line, line, &first, &second);
    CHECK_EQ(first.status, 1);
    CHECK_EQ(second.status, 1);
    CHECK_CONTAINS(first.output, "the environment's rank 0 (machine '");
    CHECK_CONTAINS(first.output, "parallelism.tensor_parallel_degree is 3, but there are 2 ranks");
    CHECK_CONTAINS(second.output, "rank 0 failed: parallelism.tensor_parallel_degree is 3, but there are 2 ranks");
}

static void make_model(const fixture *f)
{
    RUN(0, "train", f->config);
}

/* Each says `expected` where rank 1 was given `second`. */
static void check_told(fixture *f, const char *const *first, const char *const *second, const char *expected)
{
    char *elsewhere = test_path(f->directory, "elsewhere");
    program a, b;

    (void)mkdir(elsewhere, 0700);
    run_two(f, elsewhere, first, second, &a, &b);
    CHECK_EQ(a.status, 1);
    CHECK_EQ(b.status, 1);
    CHECK_CONTAINS(a.output, expected);
    CHECK_CONTAINS(b.output, expected);
    CHECK_CONTAINS(b.output, "ranks 0 and 1 were given different command lines: ");
}

#define LINE(...) ((const char *const[]){PROGRAM, __VA_ARGS__, NULL})

FIXTURE_TEST(a_rank_with_another_command_line_is_told)
{
    const char *const train[] = {PROGRAM, "train", f->config, "--data.path=a\nb", "--data.path=c", NULL};
    const char *const eval[] = {PROGRAM, "eval", f->model, "--data", f->data, NULL};
    const char *const generate[] = {PROGRAM, "generate", f->model, "--tokens=1", NULL};

    make_model(f);
    check_told(f, train, LINE("train", f->config, "--data.path=a\nb", "--data.path=c", "--training.seed=0"),
               "--training.seed is not given and 0: start all ranks with the same");
    check_told(f, train, LINE("train", f->config, "--data.path=c", "--data.path=a\nb"), "--data.path is ");
    check_told(f, train, LINE("train", "other.yaml", "--data.path=a\nb", "--data.path=c"), "the file or folder is ");
    check_told(f, train, LINE("train", f->config), "--data.path is ");
    check_told(f, eval, LINE("eval", f->model, "--data", f->data, "--comm-timeout=9"),
               "--comm-timeout is not given and 9");
    check_told(f, eval, LINE("eval", f->model, "--data", f->data, "--batch-size=8"), "--batch-size is not given and 8");
    check_told(f, generate, LINE("generate", f->model, "--tokens=1", "--ignore-eos"),
               "--ignore-eos is not given and given");
    check_told(f, generate, LINE("eval", f->model, "--data", f->data), "the command is generate and eval");
}

/* A folder and data may lie elsewhere: what is there is compared. */
FIXTURE_TEST(paths_of_what_each_rank_reads_may_differ)
{
    char *other = test_path(f->directory, "other"), *second = test_path(f->directory, "second");
    program a, b;

    make_model(f);
    CHECK_EQ(symlink(f->model, other), 0);
    CHECK_EQ(mkdir(second, 0700), 0);
    run_two(f, second, LINE("eval", f->model, "--data", f->data, "--batch-size=4"),
            LINE("eval", other, "--batch-size", "4", "--data", f->data, "--tokenizer=bytes"), &a, &b);
    CHECK_EQ(a.status, 1); /* but --tokenizer is given on one alone */
    CHECK_CONTAINS(a.output, "--tokenizer is not given and given");
    run_two(f, second, LINE("eval", f->model, "--data", f->data, "-n2"),
            LINE("eval", "--np", "2", other, "--data", f->data), &a, &b);
    CHECK_EQ(a.status, 0);
    CHECK_EQ(b.status, 0);
}

/* Who cannot join says so to the others, who may be there already or come later. */
FIXTURE_TEST(a_rank_that_cannot_join_is_not_waited_for)
{
    char *second = test_path(f->directory, "second");
    program a, b;

    CHECK_EQ(mkdir(second, 0700), 0);
    run_two(f, second, LINE("train", "nope.yaml"), LINE("train", "nope.yaml"), &a, &b);
    CHECK_EQ(a.status, 1);
    CHECK_EQ(b.status, 1);
    CHECK_CONTAINS(a.output, "cannot open 'nope.yaml'");
    CHECK_CONTAINS(b.output, "rank 0 failed: ");
    CHECK_CONTAINS(b.output, "cannot open 'nope.yaml'");
    run_two(f, second, LINE("train", f->config), LINE("train", f->config, "--bogus"), &a, &b);
    CHECK_EQ(a.status, 1);
    CHECK_EQ(b.status, 2);
    CHECK_CONTAINS(a.output, "rank 1 failed: train: unknown option '--bogus'");
}

/* What `ps` shows of a process, with blanks between words. */
static void check_title(pid_t pid, const char *expected)
{
    char path[48], text[400];
    size_t bytes;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    file = fopen(path, "r");
    CHECK(file != NULL);
    bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    while (bytes > 0 && text[bytes - 1] == '\0')
        bytes--;
    for (size_t i = 0; i < bytes; i++)
        text[i] = text[i] ? text[i] : ' ';
    text[bytes] = '\0';
    CHECK_STRING(text, expected);
}

FIXTURE_TEST(the_list_of_processes_shows_ranks_and_runs)
{
    char mark[200], expected[300];
    const char *const line[] = {PROGRAM, "train", f->config, "--training.steps=1000000", "--metrics.log_freq=1",
                                "-n",    "2",     NULL};
    program p;

    setenv("FSDP_TEST_MARK", f->directory, 1);
    snprintf(mark, sizeof mark, "FSDP_TEST_MARK=%s", f->directory);
    p = program_start(f->directory, line);
    fixture_await(&p, "step:");
    check_title(fixture_rank(mark, 0), "fsdp: rank 0 of 2, config.yaml");
    check_title(fixture_rank(mark, 1), "fsdp: rank 1 of 2, config.yaml");
    CHECK_EQ(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGTERM);

    snprintf(expected, sizeof expected, PROGRAM " train %s --training.steps=1000000 --metrics.log_freq=1", f->config);
    p = program_start(f->directory, (const char *const[]){PROGRAM, "train", f->config, "--training.steps=1000000",
                                                          "--metrics.log_freq=1", NULL});
    fixture_await(&p, "step:");
    check_title(p.pid, expected); /* a process alone is what was typed */
    CHECK_EQ(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
}

/* Only rank 0 can see the config. */
FIXTURE_TEST(the_config_is_read_by_rank_0_alone)
{
    const char *const line[] = {PROGRAM, "train", "config.yaml", "--training.threads=2", NULL};
    char *elsewhere = test_path(f->directory, "elsewhere");
    program a, b;

    CHECK_EQ(mkdir(elsewhere, 0700), 0);
    run_two(f, elsewhere, line, line, &a, &b);
    CHECK_EQ(a.status, 0);
    CHECK_EQ(b.status, 0);
    CHECK_STRING(b.output, "");
    CHECK_CONTAINS(a.output, "ranks:  2, 2 threads each");
    CHECK_CONTAINS(a.output, "done:   30 steps");
}
