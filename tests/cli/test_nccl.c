/* Whole runs whose ranks exchange by NCCL, on fake GPUs and a fake NCCL (tests/backend/fakecuda): every strategy has
 * the bits of exchanges through the host, a checkpoint goes on with either, sums may be NCCL's, and a rank that is
 * killed is named. */
#include <stdarg.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "cli/fixture.h"

#define PLUGIN TEST_BINARY_DIR "/tests/libfsdp-cuda.so"

enum {
    MOST_WORDS = 40,
    NAMED_SECONDS = 200 /* after which a killed rank is named at the latest: 1, and less than comm.timeout if held up */
};

/* ---- runs ---- */

/* The folder of a test, with what each run exports and saves. */
typedef struct runs {
    const fixture *f;
    char *exported, *other, *saved;
} runs;

static runs begin(const fixture *f)
{
    test_skip_if(access(PLUGIN, F_OK) != 0, "there is no plug-in for the fake GPU");
    setenv("FSDP_FAKECUDA_DEVICES", "4", 1);
    return (runs){f, test_path(f->directory, "exported"), test_path(f->directory, "other"),
                  test_path(f->directory, "saved")};
}

static void end(void)
{
    unsetenv("FSDP_FAKECUDA_DEVICES");
}

/* Trains a small model with these words behind those that all runs have, and returns what it printed. */
static program train(const runs *r, int expected, const char *const *words, ...)
{
    const char *line[MOST_WORDS] = {PROGRAM,
                                    "train",
                                    r->f->config,
                                    "--training.device=cuda",
                                    "--training.seq_len=16",
                                    "--training.local_batch_size=1",
                                    "--model.n_heads=4",
                                    "--model.n_kv_heads=2",
                                    "--metrics.jsonl=",
                                    "--export.overwrite=true"};
    int count = 10;
    const char *word;
    va_list more;

    for (; words && *words; words++)
        line[count++] = *words;
    va_start(more, words);
    while ((word = va_arg(more, const char *)) != NULL && count < MOST_WORDS - 1)
        line[count++] = word;
    va_end(more);
    return program_run(r->f->directory, expected, line);
}

#define TRAIN(expected, words, ...) train(&r, (expected), words, __VA_ARGS__, NULL)
#undef SAYS /* not the fixture's: a run here has words of its own */
#define SAYS(expected, what, words, ...) CHECK_CONTAINS(TRAIN(expected, words, __VA_ARGS__).output, what)

/* Returns the largest difference of two exports' weights, by `fsdp diff`; 0: they have the same bits. */
static double difference(const runs *r)
{
    const char *const line[] = {PROGRAM, "diff", "--brief", r->exported, r->other, NULL};
    program p = program_start(r->f->directory, line);
    double most = 0;

    program_wait(&p);
    CHECK(p.status == 0 || p.status == 1);
    for (const char *at = p.output; (at = strstr(at, " by ")) != NULL; at += 4) {
        double by = strtod(at + 4, NULL);

        most = by > most ? by : most;
    }
    CHECK_EQ(p.status == 0, most == 0);
    CHECK_CONTAINS(p.output, ", 0 only in A, 0 only in B");
    return most;
}

/* ---- the bits of exchanges through the host ---- */

/* Trains for two steps, through the host, and by NCCL with a checkpoint between them. */
static void check_bits(const runs *run, const char *const *words)
{
    runs r = *run;
    char export[2][600], folder[600];

    snprintf(export[0], sizeof export[0], "--export.path=%s", r.exported);
    snprintf(export[1], sizeof export[1], "--export.path=%s", r.other);
    snprintf(folder, sizeof folder, "--checkpoint.folder=%s", r.saved);
    TRAIN(0, words, "--comm.carrier=staged", "--training.steps=2", export[0]);
    SAYS(0, "exchanges by carrier 'nccl': NCCL 2.30.7, through windows of 64 MiB\n", words, "--comm.carrier=nccl",
         "--training.steps=1", folder, "--export.path=");
    SAYS(0, "step:  2", words, "--comm.carrier=nccl", "--training.steps=2", folder, export[1]);
    if (difference(&r) != 0)
        TEST_FAIL("other weights than through the host: %s %s %s", words[0], words[1], words[2] ? words[2] : "");
    test_remove_tree(r.saved);
}

/* Strategies, and the ranks that take part. */
static const char *const strategies[][5] = {
    {"-n", "2"},
    {"-n", "3", "--parallelism.strategy=fsdp1"},
    {"-n", "2", "--parallelism.strategy=ddp"},
    {"-n", "3", "--parallelism.strategy=zero1"},
    {"-n", "2", "--parallelism.strategy=zero3", "--training.mixed_precision_param=bfloat16"},
    {"-n", "4", "--parallelism.strategy=hsdp", "--parallelism.data_parallel_replicate_degree=2"},
};

static void check_each(fixture *f, const char *const (*list)[5], size_t count)
{
    runs r = begin(f);

    for (size_t i = 0; i < count; i++)
        if (test_takes((int)i + 1, 3, 3))
            check_bits(&r, list[i]);
    end();
}

FIXTURE_TEST(strategies_have_the_bits_of_exchanges_through_the_host)
{
    check_each(f, strategies, FSDP__COUNT_OF(strategies));
}

static const char *const teams[][5] = {
    {"-n", "2", "--parallelism.tensor_parallel_degree=2"},
    {"-n", "2", "--parallelism.context_parallel_degree=2"},
    {"-n", "4", "--parallelism.tensor_parallel_degree=2", "--parallelism.context_parallel_degree=2"},
    {"-n", "4", "--parallelism.tensor_parallel_degree=2", "--training.mixed_precision_param=bfloat16"},
};

FIXTURE_TEST(teams_have_the_bits_of_exchanges_through_the_host)
{
    check_each(f, teams, FSDP__COUNT_OF(teams));
}

/* What one carrier saved goes on by another, and on one rank, which exchanges nothing. */
FIXTURE_TEST(a_checkpoint_goes_on_by_another_carrier)
{
    static const char *const by[] = {"--comm.carrier=staged", "--comm.carrier=peer", "--comm.carrier=nccl"};
    static const char *const two[] = {"-n", "2", NULL};
    runs r = begin(f);
    char export[600], folder[600];

    snprintf(export, sizeof export, "--export.path=%s", r.exported);
    snprintf(folder, sizeof folder, "--checkpoint.folder=%s", r.saved);
    TRAIN(0, two, "--training.steps=3", "--comm.carrier=nccl", export);
    snprintf(export, sizeof export, "--export.path=%s", r.other);
    for (size_t i = 0; i < FSDP__COUNT_OF(by); i++) {
        TRAIN(0, two, "--training.steps=2", by[(i + 2) % 3], folder, "--export.path=");
        TRAIN(0, two, "--training.steps=3", by[i], folder, export);
        CHECK_EQ(difference(&r), 0);
        test_remove_tree(r.saved);
    }
    TRAIN(0, two, "--training.steps=2", "--comm.carrier=nccl", folder, "--export.path=");
    SAYS(0, "step:  3", NULL, "-n", "1", "--training.steps=3", "--training.global_batch_size=2", "--comm.carrier=nccl",
         folder);
    end();
}

/* ---- sums by NCCL ---- */

FIXTURE_TEST(nccl_may_add_in_its_own_order)
{
    static const char *const cases[][4] = {
        {"-n", "3"}, {"-n", "2", "--parallelism.strategy=ddp"}, {"-n", "3", "--parallelism.strategy=zero2"}};
    runs r = begin(f);
    char export[2][600];

    snprintf(export[0], sizeof export[0], "--export.path=%s", r.exported);
    snprintf(export[1], sizeof export[1], "--export.path=%s", r.other);
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        TRAIN(0, cases[i], "--training.steps=3", "--optimizer.name=sgd", export[0]);
        SAYS(0, "exchanges by carrier 'nccl': NCCL 2.30.7, through windows of 64 MiB; it adds in its own order\n",
             cases[i], "--comm.reduce=nccl", "--training.steps=3", "--optimizer.name=sgd", export[1]);
        CHECK(difference(&r) < 1e-6);
    }
    end();
}

FIXTURE_TEST(what_nccl_is_shown_changes_no_bits)
{
    static const char *const three[] = {"-n", "3", "--training.steps=2", "--training.mixed_precision_param=bfloat16",
                                        NULL};
    runs r = begin(f);
    char export[2][600];

    snprintf(export[0], sizeof export[0], "--export.path=%s", r.exported);
    snprintf(export[1], sizeof export[1], "--export.path=%s", r.other);
    TRAIN(0, three, "--comm.carrier=staged", export[0]);
    SAYS(0, "NCCL 2.30.7, by copy engines where one machine's links join all, through windows of 96 MiB\n", three,
         "--comm.carrier=nccl", "--comm.nccl_buffers=copy_engines", export[1]);
    CHECK(difference(&r) == 0);
    SAYS(0, "NCCL 2.30.7, nothing registered (comm.nccl_buffers)\n", three, "--comm.carrier=nccl",
         "--comm.nccl_buffers=plain", export[1]);
    CHECK(difference(&r) == 0);
    SAYS(2, "comm.nccl_buffers is 'all': expected registered, copy_engines or plain", NULL, "--comm.nccl_buffers=all");
    end();
}

FIXTURE_TEST(sums_by_nccl_are_refused_where_nccl_cannot_add)
{
    static const char *const two[] = {"-n", "2", "--training.steps=1", "--comm.reduce=nccl", NULL};
    runs r = begin(f);

    SAYS(1, "comm.reduce: NCCL adds on GPUs, and this run computes on 'cpu': set training.device=cuda", two,
         "--training.device=cpu");
    SAYS(1, "cannot have the carrier 'staged' (comm.carrier) and sums by NCCL (comm.reduce)", two,
         "--comm.carrier=staged");
    SAYS(1, "cannot have the carrier 'peer' (comm.carrier) and sums by NCCL (comm.reduce)", two, "--comm.carrier=peer");
    SAYS(2, "comm.reduce is 'fast': expected exact or nccl", NULL, "--comm.reduce=fast");
    SAYS(0, "step:  1", NULL, "-n", "1", "--training.steps=1", "--comm.reduce=nccl"); /* has nothing to add */
    setenv("FSDP_FAKENCCL_VERSION", "21805", 1);
    SAYS(1, "group 'dp' cannot have the carrier 'nccl' (comm.carrier): rank 0: libnccl.so.2 is version 2.18.5", two,
         "--export.path=");
    unsetenv("FSDP_FAKENCCL_VERSION");
    end();
}

/* ---- a rank that is killed ---- */

/* Starts a rank as torchrun does. */
static program start_rank(const runs *r, int rank, const char *directory)
{
    const char *const line[] = {PROGRAM,
                                "train",
                                r->f->config,
                                "--training.device=cuda",
                                "--training.steps=1000000",
                                "--metrics.log_freq=1",
                                "--comm.carrier=nccl",
                                "--metrics.jsonl=",
                                NULL};
    char number[12];

    snprintf(number, sizeof number, "%d", rank);
    setenv("RANK", number, 1);
    return program_start(directory, line);
}

FIXTURE_TEST(a_rank_that_is_killed_is_named_by_the_others)
{
    static const char *const folders[] = {"zero", "one", "two"};
    runs r = begin(f);
    program p[3];
    int64_t killed;

    setenv("WORLD_SIZE", "3", 1);
    for (int rank = 0; rank < 3; rank++) {
        char *folder = test_path(r.f->directory, folders[rank]);

        CHECK_EQ(mkdir(folder, 0700), 0);
        p[rank] = start_rank(&r, rank, folder);
    }
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    fixture_await(&p[0], "step:  2");
    CHECK_EQ(kill(p[1].pid, SIGKILL), 0);
    killed = fsdp__clock_ns();
    for (int rank = 2; rank >= 0; rank--)
        program_wait(&p[rank]);
    print_message("named after %.1f s\n", (double)(fsdp__clock_ns() - killed) * 1e-9);
    CHECK(fsdp__clock_ns() - killed < NAMED_SECONDS * INT64_C(1000000000));
    CHECK_EQ(p[1].status, 128 + SIGKILL);
    for (int rank = 0; rank < 3; rank++) {
        if (rank != 1)
            CHECK_CONTAINS(p[rank].output, "rank 1 has died (process ");
    }
    end();
}
