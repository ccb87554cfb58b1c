/* Models that tensor parallel cuts and fully_shard shards: a training state that one layout of ranks has saved is the
 * same bits in every other, as checkpoints and as folders of Hugging Face, and so are first values.
 * Links: hub optim parallel shard */
#include "fsdp/checkpoint.h"
#include "fsdp/hub.h"
#include "fsdp/models.h"
#include "fsdp/optim.h"
#include "fsdp/parallelize.h"
#include "fsdp/shard.h"
#include "support/models.h"
#include "support/ranks.h"

typedef struct layout {
    int rep, dp, tp;
} layout;

enum {
    STEPS = 2,
    SEED = 3
};

/* Saved by each, and loaded by each. */
static const layout layouts[] = {{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {1, 2, 2}, {1, 3, 2},
                                 {1, 1, 4}, {1, 2, 4}, {2, 2, 2}, {1, 3, 1}, {2, 1, 2}};

typedef struct job {
    fsdp_architecture architecture;
    layout layout;
    bool sequence_parallel, async;
    const char *folder, *model;
    char *digest; /* of all whole tensors: set by the first run, compared by others */
} job;

static fsdp_model_config config_of(const job *j)
{
    return MODEL_CONFIG(.architecture = j->architecture, .n_layers = 2, .dim = 24, .n_heads = 4, .n_kv_heads = 4,
                        .head_dim = 6, .ffn_dim = 21, /* cut unevenly, as the vocabulary is */ .vocab_size = 37,
                        .max_seq_len = 16, .rope_theta = 100, .init_std = 0.3f,
                        .tie_word_embeddings = j->architecture == FSDP_GPT2);
}

/* ---- a training run ---- */

typedef struct training {
    fsdp_mesh *root, *data, *parts;
    fsdp_module *model;
    fsdp_optimizer *optimizer;
} training;

static fsdp_module *build(fsdp_context *context, const job *j, training *t)
{
    static const char *const names[] = {"rep", "dp", "tp"};
    const int64_t shape[] = {j->layout.rep, j->layout.dp, j->layout.tp};
    const fsdp_model_parallel_options plan = {.sequence_parallel = j->sequence_parallel};
    fsdp_model_config config = config_of(j);
    fsdp_shard_options options = {0};

    CHECK_OK(fsdp_mesh_create(context, 3, shape, names, &t->root));
    CHECK_OK(fsdp_mesh_slice(t->root, 2, names, &t->data));
    CHECK_OK(fsdp_mesh_slice(t->root, 1, names + 2, &t->parts));
    t->model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    CHECK_OK(fsdp_model_parallelize(t->model, t->parts, &plan));
    options.mesh = t->data;
    for (int64_t i = 0; i < fsdp_model_block_count(t->model); i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(t->model, i), &options));
    CHECK_OK(fsdp_fully_shard(t->model, &options));
    CHECK_OK(fsdp_module_materialize(t->model, test_device(context)));
    return t->model;
}

static training begin(fsdp_context *context, const job *j)
{
    training t = {0};
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_initialize(build(context, j, &t), SEED));
    CHECK_OK(fsdp_module_parameters(t.model, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &options, &t.optimizer));
    fsdp_parameters_release(&parameters);
    return t;
}

static void end(training *t)
{
    fsdp_optimizer_free(t->optimizer);
    fsdp_module_unref(t->model);
    fsdp_mesh_unref(t->parts);
    fsdp_mesh_unref(t->data);
    fsdp_mesh_unref(t->root);
}

static void step(training *t, int number)
{
    fsdp_context *context = fsdp_mesh_context(t->root);
    int32_t ids[2 * 8], targets[2 * 8];
    fsdp_tensor *x, *y;

    for (int i = 0; i < 16; i++) {
        ids[i] = (i * 5 + number) % 37;
        targets[i] = (i * 7 + number) % 37;
    }
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(2, 8), ids));
    y = CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(2, 8), targets));
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(t->model, x, y))));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_optimizer_step(t->optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(t->optimizer));
}

/* ---- what it has ---- */

/* Adds a line for each whole tensor: its name and all bits, as a checksum. */
static void digest_state(const fsdp_state_dict *state, char **text)
{
    fsdp_state_dict *whole = NULL;

    CHECK_OK(fsdp_state_dict_gather(state, NULL, &whole));
    for (int64_t i = 0; i < whole->count; i++) {
        const fsdp_tensor *t = whole->entries[i].tensor;
        size_t bytes = (size_t)fsdp_tensor_numel(t) * fsdp_dtype_size(fsdp_tensor_dtype(t));
        unsigned char *data = malloc(bytes + 1);
        uint64_t sum = 1469598103934665603u;
        char *longer = NULL;

        CHECK_OK(fsdp_tensor_read(t, fsdp_tensor_dtype(t), data));
        for (size_t b = 0; b < bytes; b++)
            sum = (sum ^ data[b]) * 1099511628211u;
        CHECK(asprintf(&longer, "%s%s %016llx\n", *text ? *text : "", whole->entries[i].name, (unsigned long long)sum) >
              0);
        free(*text);
        *text = longer;
        free(data);
    }
    fsdp_state_dict_free(whole);
}

static char *digest_of(training *t, bool optimizer)
{
    fsdp_state_dict *model = NULL, *moments = NULL;
    char *text = NULL;

    CHECK_OK(fsdp_module_reshard(t->model));
    CHECK_OK(fsdp_state_dict_from_module(t->model, &model));
    digest_state(model, &text);
    fsdp_state_dict_free(model);
    if (!optimizer)
        return text;
    CHECK_OK(fsdp_optimizer_state_dict(t->optimizer, &moments));
    digest_state(moments, &text);
    fsdp_state_dict_free(moments);
    return text;
}

/* Compares with the first run, if this is not that. */
static void settle(job *j, training *t, bool optimizer)
{
    char *text = digest_of(t, optimizer);
    bool first = fsdp_context_rank(fsdp_mesh_context(t->root)) == 0;

    if (j->digest) {
        CHECK_STRING(text, j->digest);
        free(text);
        return;
    }
    CHECK_OK(fsdp_barrier(fsdp_world(fsdp_mesh_context(t->root))));
    if (first)
        j->digest = text;
    else
        free(text);
}

/* ---- first values ---- */

static void initialize(fsdp_context *context, void *arg)
{
    training t = begin(context, arg);

    settle(arg, &t, false);
    end(&t);
}

TEST(first_values_are_the_same_at_every_layout)
{
    static const fsdp_architecture architectures[] = {FSDP_GPT2, FSDP_PHI3, FSDP_QWEN3};

    for (size_t a = 0; a < 3; a++) {
        job j = {.architecture = architectures[a]};

        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            j.layout = layouts[i];
            if (i == 0 || test_takes((int)(a + i), 1, 3))
                test_run_ranks(j.layout.rep * j.layout.dp * j.layout.tp, initialize, &j);
        }
        free(j.digest);
    }
}

/* ---- checkpoints ---- */

static void save(fsdp_context *context, void *arg)
{
    job *j = arg;
    training t = begin(context, j);
    fsdp_checkpoint_saver *saver = NULL;
    fsdp_checkpoint_section sections[] = {{.name = "model"}, {.name = "optimizer"}};
    fsdp_model_config config = config_of(j);

    for (int i = 0; i < STEPS; i++)
        step(&t, i);
    settle(j, &t, true);
    CHECK_OK(fsdp_state_dict_from_module(t.model, &sections[0].state));
    CHECK_OK(fsdp_optimizer_state_dict(t.optimizer, &sections[1].state));
    CHECK_OK(fsdp_checkpoint_saver_create(j->folder, &(fsdp_checkpoint_saver_options){.async = j->async},
                                          fsdp_world(context), &saver));
    CHECK_OK(fsdp_checkpoint_saver_save(
        saver, &(fsdp_checkpoint_content){.step = STEPS, .sections = sections, .section_count = 2, .mesh = t.root}));
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
    fsdp_checkpoint_saver_free(saver);
    CHECK_OK(fsdp_hub_save(j->model, sections[0].state, &config, FSDP_F32, fsdp_world(context)));
    fsdp_state_dict_free(sections[1].state);
    fsdp_state_dict_free(sections[0].state);
    end(&t);
}

static void load(fsdp_context *context, void *arg)
{
    job *j = arg;
    training t = begin(context, j);
    fsdp_checkpoint_reader *reader = NULL;
    fsdp_state_dict *model = NULL, *moments = NULL;

    CHECK_OK(fsdp_optimizer_init_state(t.optimizer));
    CHECK_OK(fsdp_state_dict_from_module(t.model, &model));
    CHECK_OK(fsdp_optimizer_state_dict(t.optimizer, &moments));
    CHECK_OK(fsdp_checkpoint_open(j->folder, &reader));
    CHECK_OK(fsdp_checkpoint_load(reader, "model", model, NULL));
    CHECK_OK(fsdp_checkpoint_load(reader, "optimizer", moments, NULL));
    CHECK_OK(fsdp_optimizer_load_state_dict(t.optimizer, moments));
    fsdp_checkpoint_close(reader);
    fsdp_state_dict_free(moments);
    fsdp_state_dict_free(model);
    settle(j, &t, true);
    step(&t, STEPS); /* it goes on */
    end(&t);
}

static void run_layout(job *j, layout l, test_rank_body body)
{
    j->layout = l;
    test_run_ranks(l.rep * l.dp * l.tp, body, j);
}

/* Each layout saves, and two others take turns to load. */
static void exchange(fsdp_architecture architecture, bool sequence_parallel)
{
    int count = sizeof layouts / sizeof *layouts;

    for (int i = test_brief() ? (int)architecture % 2 : 0; i < count; i += test_brief() ? 2 : 1) {
        char *directory = test_directory(), *folder = test_path(directory, "run"), *model = test_path(directory, "hf");
        job j = {.architecture = architecture,
                 .sequence_parallel = sequence_parallel,
                 .async = i % 2,
                 .folder = folder,
                 .model = model};

        run_layout(&j, layouts[i], save);
        for (int k = 0; k < count; k++)
            if (test_long() || k == (i + 1) % count || k == (i * 3 + 2) % count)
                run_layout(&j, layouts[k], load);
        free(j.digest);
        test_directory_free(directory);
    }
}

TEST(a_run_goes_on_at_any_other_layout)
{
    exchange(FSDP_GPT2, false);
    exchange(FSDP_PHI3, true);
}

/* ---- folders of Hugging Face ---- */

static void write_model(fsdp_context *context, void *arg)
{
    job *j = arg;
    training t = begin(context, j);
    fsdp_model_config config = config_of(j);
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_state_dict_from_module(t.model, &state));
    CHECK_OK(fsdp_hub_save(j->model, state, &config, FSDP_BF16, fsdp_world(context)));
    fsdp_state_dict_free(state);
    end(&t);
}

static void read_model(fsdp_context *context, void *arg)
{
    job *j = arg;
    training t = {0};
    fsdp_model_config config = config_of(j);
    fsdp_state_dict *state = NULL;

    build(context, j, &t);
    CHECK_OK(fsdp_state_dict_from_module(t.model, &state));
    CHECK_OK(fsdp_hub_load(j->model, state, &config));
    fsdp_state_dict_free(state);
    settle(j, &t, false);
    end(&t);
}

/* Every layout writes the same file, and has the same values from it. */
static void exchange_models(fsdp_architecture architecture)
{
    char *directory = test_directory(), *model = test_path(directory, "hf"), *file, *expected = NULL, *got;
    job j = {.architecture = architecture, .model = model};
    size_t bytes, expected_bytes = 0;

    file = test_path(model, "model.safetensors");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i += test_brief() ? 2 : 1) {
        run_layout(&j, layouts[i], write_model);
        got = test_read_file(file, &bytes);
        CHECK(!expected || (bytes == expected_bytes && memcmp(got, expected, bytes) == 0));
        expected = got;
        expected_bytes = bytes;
        run_layout(&j, layouts[i], read_model);
    }
    free(j.digest);
    test_directory_free(directory);
}

TEST(every_layout_writes_and_reads_the_same_folder)
{
    exchange_models(FSDP_GPT2);
    exchange_models(FSDP_PHI3);
}
