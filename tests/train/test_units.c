/* parallelism.wrap_policy: runs are the same whichever modules are sharded together, and gather as often as there are
 * units; what the keys exclude and need. */
#include "fsdp/fsdp1.h"
#include "fsdp/models.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"

enum {
    STEPS = 2,
    BLOCKS = 2,
    WORLDS = 3
};

typedef struct fixture {
    fsdp_train_config *config;
    fsdp_train_report reports[STEPS];
    int64_t units;
} fixture;

static void train(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_summary summary;
    fsdp_train_report report;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    fsdp_train_run_summary(run, &summary);
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        if (fsdp_context_rank(context) == 0)
            f->reports[step] = report;
    }
    if (fsdp_context_rank(context) == 0)
        f->units = summary.units;
    fsdp_train_run_free(run);
}

static fsdp_train_config *configure(const char *data, const char *preset)
{
    return test_config("model.n_layers=2 model.dim=24 model.n_heads=2 model.ffn_dim=50 data.workers=0 "
                       "model.vocab_size=256 training.seq_len=8 training.local_batch_size=2 metrics.log_freq=1 "
                       "parallelism.fsdp_reshard_after_forward=always model.preset=%s data.path=%s",
                       preset, data);
}

/* "key=value key=value" of parallelism. */
static void apply(fsdp_train_config *config, const char *settings)
{
    char text[160], *rest = text, *one;

    snprintf(text, sizeof text, "%s", settings);
    while ((one = strtok_r(rest, " ", &rest))) {
        char key[80], *value = strchr(one, '=');

        *value++ = '\0';
        snprintf(key, sizeof key, "%s%s", strchr(one, '.') ? "" : "parallelism.", one);
        CHECK_OK(fsdp_train_config_set(config, key, value));
    }
}

static void run(fixture *f, const char *data, const char *preset, const char *settings, int world)
{
    f->config = configure(data, preset);
    apply(f->config, settings);
    test_run_ranks(world, train, f);
}

static char *write_data(const char *directory)
{
    char text[1024], *path = test_path(directory, "data.txt");

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "a quick brown fox jumps over "[i * 7 % 29];
    test_write_file(path, text, sizeof text);
    return path;
}

/* ---- the same runs ---- */

#define UNTIED "model.tie_word_embeddings=false"

static const struct {
    const char *preset, *settings;
    int units, gathers; /* of a step: those with parameters, in each direction */
} cases[] = {
    {"llama-1m", "wrap_policy=blocks prefetch=1", BLOCKS + 1, 2 * (BLOCKS + 1)},
    {"llama-1m", "wrap_policy=blocks keep_last_unit=true", BLOCKS + 1, 2 * (BLOCKS + 1) - 1},
    {"llama-1m", "wrap_policy=class wrap_classes=[LlamaAttention,LlamaMLP] keep_last_unit=true", 2 * BLOCKS + 1,
     2 * (2 * BLOCKS + 1) - 1},
    {"llama-1m", "wrap_policy=class wrap_classes=[LlamaDecoderLayer,LlamaMLP] keep_last_unit=true", 2 * BLOCKS + 1,
     2 * (2 * BLOCKS + 1) - 1},
    {"llama-1m", "wrap_policy=root", 1, 2},
    {"llama-1m", "wrap_policy=class wrap_classes=LlamaDecoderLayer", BLOCKS + 1, 2 * (BLOCKS + 1)},
    {"llama-1m", "wrap_policy=class wrap_classes=[LlamaMLP,Embedding] prefetch=2", BLOCKS + 2, 2 * (BLOCKS + 2)},
    {"llama-1m", "wrap_policy=size wrap_min_num_params=1200", 11, 22},
    {"llama-1m", "wrap_policy=always", 31, 42},
    {"llama-1m", "wrap_policy=always activation_checkpoint.mode=full", 31, 42},
    {"gpt2-124m", "wrap_policy=always " UNTIED, 33, 32},
    {"gpt2-124m", "wrap_policy=class wrap_classes=[GPT2Block,LayerNorm,Embedding] " UNTIED, 10, 20},
    {"gpt2-124m", "wrap_policy=class wrap_classes=[GPT2Block,Embedding]", 5, 10},
};

TEST(runs_are_the_same_whatever_the_units)
{
    char *directory = test_directory(), *data = write_data(directory);

    for (int world = 1; world <= WORLDS; world++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            fixture blocks = {.units = 0}, f = {.units = 0};

            run(&blocks, data, cases[i].preset, strstr(cases[i].settings, "tie") ? UNTIED : "wrap_policy=blocks",
                world);
            run(&f, data, cases[i].preset, cases[i].settings, world);
            CHECK_EQ(f.units, cases[i].units);
            for (int step = 0; step < STEPS; step++) {
                CHECK_EQ(f.reports[step].all_gather, world > 1 ? cases[i].gathers : 0);
                CHECK_BYTES(&f.reports[step].loss, &blocks.reports[step].loss, sizeof(double));
                CHECK_BYTES(&f.reports[step].grad_norm, &blocks.reports[step].grad_norm, sizeof(double));
                if (world > 1 && strstr(cases[i].settings, "keep_last_unit"))
                    CHECK(f.reports[step].bytes_sent < blocks.reports[step].bytes_sent);
                else
                    CHECK_EQ(f.reports[step].bytes_sent, blocks.reports[step].bytes_sent);
            }
        }
}

/* ---- what excludes each other ---- */

static void refuse(fsdp_context *context, void *arg)
{
    const char *const *pair = arg;
    fsdp_train_config *config = configure(pair[2], "llama-1m");
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    apply(config, pair[0]);
    CHECK_ERROR(fsdp_train_run_create(context, config, &run),
                strstr(pair[1], "no module") ? FSDP_NOT_FOUND : FSDP_INVALID, pair[1]);
    CHECK_NULL(run);
}

TEST(what_is_of_another_policy_is_refused)
{
    static const char *const pairs[][2] = {
        {"wrap_min_num_params=10", "wrap_min_num_params needs parallelism.wrap_policy size"},
        {"wrap_policy=class wrap_classes=Linear wrap_min_num_params=1", "wrap_policy size"},
        {"wrap_classes=Linear", "wrap_classes needs parallelism.wrap_policy class"},
        {"wrap_policy=class", "needs parallelism.wrap_classes"},
        {"wrap_policy=root prefetch=1", "there is only one"},
        {"wrap_policy=root keep_last_unit=true", "there is none: leave one of them out"},
        {"wrap_policy=class wrap_classes=Llama", "parallelism.wrap_policy: wrap policy: no module of this "},
        {"wrap_policy=class wrap_classes=ModuleList", "it has no forward"},
        {"wrap_policy=size", "set parallelism.wrap_min_num_params, which is 100000000, to fewer"},
        {"wrap_policy=size wrap_min_num_params=90000000", "wrap_min_num_params, which is 90000000, to fewer"},
    };
    char *directory = test_directory(), *data = write_data(directory);
    fsdp_train_config *config;

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        test_run_ranks(2, refuse, (const char *[]){pairs[i][0], pairs[i][1], data});
    config = test_empty_config();
    CHECK_ERROR(fsdp_train_config_set(config, "parallelism.wrap_policy", "layers"), FSDP_INVALID, "blocks, root, size");
    CHECK_ERROR(fsdp_train_config_set(config, "parallelism.wrap_classes", "[a, '']"), FSDP_INVALID, "a name or a list");
}

/* ---- the printed tree ---- */

static void check_printed(fsdp_module *model)
{
    FILE *stream = test_begin_text();

    CHECK_OK(fsdp_module_print(model, stream));
    CHECK_CONTAINS(test_end_text(stream), "(lm_head): Linear(in_features=24, out_features=256, bias=False)");
    fsdp_module_unref(model);
}

static fsdp_module *tiny_model(fsdp_context *context, bool tied)
{
    fsdp_model_config config;

    CHECK_OK(fsdp_model_preset("llama-1m", &config));
    config.n_layers = config.n_heads = config.n_kv_heads = 1;
    config.dim = config.head_dim = 24;
    config.tie_word_embeddings = tied;
    return CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
}

RANKS_TEST(a_sharded_head_prints_as_a_whole_one, 3)
{
    for (int tied = 0; tied < 2; tied++) {
        fsdp_module *model = tiny_model(context, tied);

        CHECK_OK(fsdp_fully_shard(model, NULL));
        check_printed(model);
        model = tiny_model(context, tied);
        CHECK_OK(fsdp_fsdp1_wrap(model, NULL));
        check_printed(model);
    }
}
