/* A run on several machines: what each must see, where copies lie, who reads. Its ranks are threads of one process,
 * each with a working directory of its own, on machines that a network of threads connects. */
#include <dirent.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/run.h"

enum {
    RANKS = 4,
    MACHINES = 2
};

typedef struct fixture {
    char *directory;
    char *folders[MACHINES]; /* in which the ranks of a machine work */
    fsdp_train_config *config;
    int machines;
    fsdp_status statuses[RANKS];
    char messages[RANKS][1024], logged[1024];
    int replicas;
    bool saves;            /* a checkpoint of one step more, once it has begun */
    float *weights[RANKS]; /* whole, after loading */
    bool hashes[RANKS];    /* all the data */
} fixture;

static void write_text(const char *folder, const char *name)
{
    test_write_letters(test_path(folder, name), 4000, 23);
}

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->directory = test_directory();
    f->machines = MACHINES;
    for (int m = 0; m < MACHINES; m++) {
        f->folders[m] = test_path(f->directory, m ? "b" : "a");
        CHECK_EQ(mkdir(f->folders[m], 0700), 0);
        write_text(f->folders[m], "data.txt");
    }
    f->config = test_config("model.preset=llama-1m model.n_layers=1 model.dim=24 model.n_heads=3 model.n_kv_heads=1 "
                            "model.ffn_dim=50 training.steps=3 training.seq_len=16 training.local_batch_size=1 "
                            "data.path=data.txt");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    for (int r = 0; r < RANKS; r++)
        free(f->weights[r]);
    return 0;
}

static void keep_line(void *arg, fsdp_log_level level, const char *line)
{
    fixture *f = arg;

    if (level == FSDP_LOG_INFO)
        snprintf(f->logged, sizeof f->logged, "%s", line);
}

static void keep_weights(fixture *f, fsdp_context *context, fsdp_train_run *run)
{
    fsdp_parameters parameters;
    fsdp_tensor *whole = NULL;
    int rank = fsdp_context_rank(context);

    CHECK_OK(fsdp_module_parameters(fsdp_train_run_model(run), &parameters));
    CHECK_OK(fsdp_full_tensor(parameters.items[0].tensor, &whole));
    free(f->weights[rank]);
    f->weights[rank] = malloc((size_t)fsdp_tensor_numel(whole) * sizeof(float));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, f->weights[rank]));
    fsdp_tensor_unref(whole);
    fsdp_parameters_release(&parameters);
}

static void begin(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    int rank = fsdp_context_rank(context);
    fsdp_train_run *run = NULL;
    fsdp_train_summary summary;

    CHECK_EQ(unshare(CLONE_FS), 0); /* a directory of this thread alone */
    CHECK_EQ(chdir(f->folders[rank * MACHINES / RANKS]), 0);
    if (rank == 0)
        fsdp_context_set_log(context, FSDP_LOG_INFO, keep_line, f);
    f->statuses[rank] = fsdp_train_run_create(context, f->config, &run);
    snprintf(f->messages[rank], sizeof f->messages[rank], "%s", f->statuses[rank] == FSDP_OK ? "" : fsdp_last_error());
    if (run) {
        fsdp_train_run_summary(run, &summary);
        if (rank == 0)
            f->replicas = summary.replicas;
        keep_weights(f, context, run);
        f->hashes[rank] = run->digest != NULL;
        if (f->saves)
            CHECK(fsdp_train_step(run, NULL) == FSDP_OK && fsdp_train_save(run) == FSDP_OK);
    }
    fsdp_train_run_free(run);
}

/* All ranks get words with `part` in them; NULL: they may train. Nothing stays in the folders. */
static void agree(fixture *f, fsdp_status status, const char *part)
{
    test_run_machines(f->machines, RANKS / f->machines, false, begin, f);
    for (int r = 0; r < RANKS; r++) {
        CHECK_EQ(f->statuses[r], status);
        CHECK_CONTAINS(f->messages[r], part ? part : "");
    }
    for (int m = 0; m < MACHINES; m++) {
        DIR *folder = opendir(f->folders[m]);

        CHECK(folder != NULL);
        for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
            CHECK(strstr(entry->d_name, "fsdp-seen") == NULL);
        closedir(folder);
    }
}

TEST_OF(what_a_machine_does_not_see_is_said_at_the_start, setup, teardown, fixture *f)
{
    char host[65] = "", expected[400], *shared = test_path(f->directory, "new/checkpoints");

    CHECK_EQ(gethostname(host, sizeof host - 1), 0);
    agree(f, FSDP_OK, NULL);
    write_text(f->folders[0], "more.txt");
    SET(f, "data.path", "[data.txt, more.txt]");
    snprintf(expected, sizeof expected,
             "rank 2: data.path: machine '%s' does not see 'more.txt' (No such file or directory), which exists on "
             "machine '%s' (rank 0): share it, or copy it to the same place on every machine",
             host, host);
    agree(f, FSDP_NOT_FOUND, expected + strlen("rank 2: ")); /* which says it of itself without */
    strcat(expected, " (machine 'b')");                      /* its name in that network */
    CHECK_STRING(f->messages[0], expected);
    SET(f, "data.path", "data.txt");
    SET(f, "validation.path", "more.txt");
    agree(f, FSDP_NOT_FOUND, "validation.path: machine '");
    SET(f, "validation.path", "data.txt");
    SET(f, "checkpoint.folder", "checkpoints");
    snprintf(expected, sizeof expected,
             "checkpoint.folder: machine '%s' does not see what machine '%s' (rank 0) writes to "
             "'checkpoints': all machines must share that folder",
             host, host);
    agree(f, FSDP_NOT_FOUND, expected);
    SET(f, "checkpoint.folder", shared);
    agree(f, FSDP_OK, NULL);
    SET(f, "export.path", "model");
    agree(f, FSDP_NOT_FOUND, "export.path: machine '");
}

/* One of them writes the digest; the others need it where there is one to compare it with. */
TEST_OF(a_machine_hashes_its_data_where_the_run_goes_on, setup, teardown, fixture *f)
{
    char *shared = test_path(f->directory, "checkpoints");

    SET(f, "checkpoint.folder", shared);
    f->saves = true;
    agree(f, FSDP_OK, NULL);
    for (int r = 0; r < RANKS; r++)
        CHECK_EQ(f->hashes[r], r == 0);
    agree(f, FSDP_OK, NULL);
    for (int r = 0; r < RANKS; r++)
        CHECK_EQ(f->hashes[r], r % (RANKS / MACHINES) == 0);
    SET(f, "checkpoint.exclude_from_loading", "dataloader");
    agree(f, FSDP_OK, NULL);
    for (int r = 0; r < RANKS; r++)
        CHECK_EQ(f->hashes[r], r == 0);
}

TEST_OF(what_rank_0_does_not_see_is_its_machine_s, setup, teardown, fixture *f)
{
    char host[65] = "", expected[300];

    (void)gethostname(host, sizeof host - 1);
    SET(f, "data.path", "nowhere.txt");
    test_run_machines(f->machines, RANKS / f->machines, false, begin, f);
    CHECK_EQ(f->statuses[0], FSDP_NOT_FOUND);
    snprintf(expected, sizeof expected,
             "data.path: machine '%s' (rank 0) does not see 'nowhere.txt': No such file or directory", host);
    CHECK_CONTAINS(f->messages[0], expected);
}

TEST_OF(hsdp_has_a_copy_on_each_machine, setup, teardown, fixture *f)
{
    SET(f, "parallelism.strategy", "hsdp");
    agree(f, FSDP_OK, NULL);
    CHECK_EQ(f->replicas, MACHINES);
    CHECK_CONTAINS(f->logged, "parallelism.strategy hsdp: each of the 2 machines has a copy of the parameters, sharded "
                              "over its 2 ranks (parallelism.data_parallel_replicate_degree says otherwise)");
    *f->logged = '\0';
    SET(f, "parallelism.data_parallel_replicate_degree", "4");
    agree(f, FSDP_OK, NULL);
    CHECK_EQ(f->replicas, 4);
    CHECK_STRING(f->logged, "");
    SET(f, "parallelism.data_parallel_replicate_degree", "1");
    SET(f, "parallelism.data_parallel_shard_degree", "4");
    agree(f, FSDP_INVALID, "parallelism.data_parallel_shard_degree is 4, but there are 4 ranks for 2 copies");
    SET(f, "parallelism.data_parallel_shard_degree", "-1");
    f->machines = 1;
    agree(f, FSDP_INVALID, "parallelism.data_parallel_replicate_degree is 1: set it to their number");
}

static void save_model(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;

    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    CHECK_OK(fsdp_train_export(run));
    fsdp_train_run_free(run);
}

TEST_OF(each_machine_has_a_leader_that_reads, setup, teardown, fixture *f)
{
    char *model = test_path(f->directory, "model"), *data = test_path(f->folders[0], "data.txt");
    size_t bytes = 24 * sizeof(float);

    test_set_keys(f->config, "data.path=%s export.path=%s training.seed=7", data, model);
    test_run_ranks(1, save_model, f);
    f->config = test_config("model.path=%s model.load=leader data.path=%s training.seq_len=16 "
                            "training.local_batch_size=1",
                            model, data);
    agree(f, FSDP_OK, NULL);
    for (int r = 1; r < RANKS; r++)
        CHECK_EQ(memcmp(f->weights[r], f->weights[0], bytes), 0);
    for (int i = 0; i < 24; i++)
        CHECK(f->weights[0][i] != 0);
}
