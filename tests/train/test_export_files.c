/* The files of an export: whatever shards the model, the weights that were loaded come out again, in files of the size
 * that was asked for; and so they do when one rank reads for all. */
#include "fsdp/format.h"
#include "fsdp/hub.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"

typedef struct strategy {
    int world;
    const char *keys; /* of parallelism: "key=value key=value" */
} strategy;

static const strategy strategies[] = {
    {1, "strategy=fsdp2"},
    {2, "strategy=fsdp2"},
    {3, "strategy=fsdp2"},
    {8, "strategy=fsdp2"},
    {2, "strategy=ddp"},
    {3, "strategy=zero1"},
    {2, "strategy=zero2"},
    {3, "strategy=zero3"},
    {4, "strategy=hsdp data_parallel_replicate_degree=2"},
    {3, "strategy=fsdp1"},
    {2, "strategy=fsdp1 fsdp1_use_orig_params=true"},
    {4, "strategy=fsdp1 data_parallel_replicate_degree=2"},
};

typedef struct fixture {
    char *directory, *source, *export;
    fsdp_train_config *config;
} fixture;

/* With biases, uneven rows and a tied head. */
static const fsdp_model_config tiny = {.architecture = FSDP_QWEN2,
                                       .n_layers = 2,
                                       .dim = 12,
                                       .n_heads = 3,
                                       .n_kv_heads = 1,
                                       .head_dim = 4,
                                       .ffn_dim = 22,
                                       .vocab_size = 257,
                                       .max_seq_len = 32,
                                       .norm_eps = 1e-5f,
                                       .rope_theta = 10000,
                                       .init_std = 0.02f,
                                       .tie_word_embeddings = true};

static void write_source(fsdp_context *context, void *arg)
{
    const fixture *f = arg;
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &tiny));
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_module_initialize(model, 7));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp_hub_save(f->source, state, &tiny, FSDP_F32, fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
}

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    char *data, text[300];

    f->directory = test_directory();
    f->source = test_path(f->directory, "source");
    f->export = test_path(f->directory, "export");
    data = test_path(f->directory, "data.txt");
    memset(text, 'a', sizeof text);
    test_write_file(data, text, sizeof text);
    f->config = test_config("data.workers=0 training.seq_len=8 training.local_batch_size=1 export.max_shard_size=2KB "
                            "data.path=%s model.path=%s export.path=%s",
                            data, f->source, f->export);
    test_run_ranks(1, write_source, f);
    *state = f;
    return 0;
}

static void load_and_export(fsdp_context *context, void *arg)
{
    const fixture *f = arg;
    fsdp_train_run *run = NULL;

    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    CHECK_OK(fsdp_train_export(run));
    fsdp_train_run_free(run);
}

/* That both folders hold the same, and files of the export no more than they may. */
static void check_export(const fixture *f)
{
    fsdp_weights *from = NULL, *to = NULL;
    fsdp_model_config config;
    char a[16384], b[16384];

    CHECK_OK(fsdp_hub_read_config(f->export, &config));
    CHECK_EQ(config.architecture, FSDP_QWEN2);
    CHECK_OK(fsdp_weights_open(f->source, &from));
    CHECK_OK(fsdp_weights_open(f->export, &to));
    CHECK_EQ(fsdp_weights_file_count(from), 1);
    CHECK(fsdp_weights_file_count(to) > 4);
    CHECK_EQ(fsdp_weights_count(from), fsdp_weights_count(to));
    for (int64_t i = 0; i < fsdp_weights_count(from); i++) {
        const fsdp_weights_entry *x = fsdp_weights_at(from, i), *y = fsdp_weights_at(to, i);
        size_t together = 0;

        CHECK_STRING(y->name, x->name);
        CHECK_EQ(y->bytes, x->bytes);
        CHECK_OK(fsdp_weights_read(from, x, 0, (int64_t)(x->bytes / 4), a));
        CHECK_OK(fsdp_weights_read(to, y, 0, (int64_t)(y->bytes / 4), b));
        CHECK_BYTES(b, a, x->bytes);
        for (int64_t k = 0; k < fsdp_weights_count(to); k++)
            if (strcmp(fsdp_weights_at(to, k)->file, y->file) == 0)
                together += fsdp_weights_at(to, k)->bytes;
        CHECK(together <= 2000 || together == y->bytes);
    }
    fsdp_weights_close(from);
    fsdp_weights_close(to);
}

static void use(fixture *f, const char *keys)
{
    char copy[256], *rest = copy, *entry;

    snprintf(copy, sizeof copy, "%s", keys);
    while ((entry = strsep(&rest, " "))) {
        char *value = strchr(entry, '='), key[80];

        *value++ = '\0';
        snprintf(key, sizeof key, "parallelism.%s", entry);
        SET(f, key, value);
    }
}

TEST_OF(every_strategy_writes_the_weights_that_were_loaded, setup, NULL, fixture *f)
{
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        SET(f, "parallelism.data_parallel_replicate_degree", "1");
        SET(f, "parallelism.fsdp1_use_orig_params", "");
        SET(f, "model.load", i % 2 ? "leader" : "each");
        use(f, strategies[i].keys);
        test_run_ranks(strategies[i].world, load_and_export, f);
        check_export(f);
    }
}
