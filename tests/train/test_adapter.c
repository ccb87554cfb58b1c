/* Runs that train an adapter: what their checkpoints and exports have, going on to the bit, memory, and refusals. What
 * they compute is held in test_adapter_reference.c. */
#include <math.h>
#include <unistd.h>

#include "fsdp/adapter.h"
#include "fsdp/checkpoint.h"
#include "fsdp/format.h"
#include "fsdp/hub.h"
#include "train/config.h"
#include "train/run.h"
#include "train/story.h"

/* ---- going on ---- */

static void set_adapter(story *s)
{
    story_set(s, "adapter.rank", "3");
    story_set(s, "adapter.alpha", "6");
    story_set(s, "adapter.targets", "[q_proj, v_proj, down_proj]");
    story_set(s, "adapter.dropout", "0.2");
}

/* In one piece, and in three: the same losses, and the same adapter. */
static void in_pieces_as_in_one(story *s, int world)
{
    double losses[STORY_STEPS + 1];
    size_t bytes;
    char *weights;

    story_set(s, "export.path", s->model);
    story_go(s, world);
    memcpy(losses, s->losses, sizeof losses);
    weights = story_weights(s, &bytes);
    story_set(s, "checkpoint.folder", s->folder);
    for (int piece = 0; piece < 2; piece++) {
        story_stop(s, world, 2 * piece + 2);
        CHECK_BYTES(s->losses + 2 * piece + 1, losses + 2 * piece + 1, 2 * sizeof *losses);
    }
    s->end_after = 0;
    story_go(s, world);
    CHECK_BYTES(s->losses + 5, losses + 5, 2 * sizeof *losses);
    story_check_weights(s, weights, bytes);
}

STORY_TEST(a_run_in_pieces_is_the_run_in_one)
{
    static const char *const keys[][2] = {{"adapter.dora", "true"},
                                          {"parallelism.strategy", "ddp"},
                                          {"parallelism.strategy", "zero1"},
                                          {"adapter.base_dtype", "bfloat16"},
                                          {"adapter.quantize", "nf4"},
                                          {"adapter.quantize", "int8"},
                                          {"adapter.modules_to_save", "lm_head"},
                                          {"activation_checkpoint.mode", "full"},
                                          {"training.mixed_precision_param", "bfloat16"}};

    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++) {
        if (!test_takes((int)i + 2, 1, 3)) /* zero1, nf4, full */
            continue;
        s = story_new();
        set_adapter(s);
        story_set(s, keys[i][0], keys[i][1]);
        in_pieces_as_in_one(s, 1 + (int)i % 3);
    }
}

/* Lets `team` ranks compute each layer together, of a model with heads that two can share. */
static void set_team(story *s, int team)
{
    char text[12];

    test_set_keys(s->config, "model.dim=16 model.n_heads=4 model.n_kv_heads=2");
    snprintf(text, sizeof text, "%d", team);
    story_set(s, "parallelism.tensor_parallel_degree", text);
}

/* How ranks have a model. */
typedef struct side {
    const char *strategy;
    int world, team;
} side;

/* From one world and door to another; `quantize` is that of the base. */
static void check_passage(const side sides[2], const char *quantize)
{
    story_passage p = {.left = {.step = -1}};

    p.story = story_new();
    set_adapter(p.story);
    if (sides[0].world == 8 || sides[1].world == 8)
        story_set(p.story, "training.global_batch_size", STORY_BATCH_OF_8);
    test_set_keys(p.story->config, "adapter.dora=true adapter.quantize=%s checkpoint.folder=%s", quantize,
                  p.story->folder);
    for (int i = 0; i < 2; i++) {
        bool fsdp1 = strcmp(sides[i].strategy, "fsdp1") == 0;

        story_set(p.story, "parallelism.strategy", sides[i].strategy);
        story_set(p.story, "parallelism.fsdp1_use_orig_params", fsdp1 ? "true" : "");
        if (fsdp1) /* A, B and m are units, too */
            story_set(p.story, "parallelism.wrap_policy", "always");
        set_team(p.story, sides[i].team);
        test_run_ranks(sides[i].world, i ? story_find : story_leave, &p);
    }
    CHECK_EQ(p.left.model, p.found.model);
    CHECK_EQ(p.left.optimizer, p.found.optimizer);
    CHECK(p.left.optimizer != 0);
    CHECK_EQ(p.found.step, 2);
}

TEST(at_other_ranks_and_through_another_door_it_goes_on)
{
    static const side sides[] = {{"fsdp2", 2, 1}, {"ddp", 3, 1},   {"fsdp2", 1, 1}, {"zero2", 4, 1},
                                 {"fsdp1", 8, 1}, {"zero3", 3, 1}, {"fsdp2", 2, 1}};

    for (int i = 0; i < 6; i += test_brief() ? 3 : 1) {
        check_passage(sides + i, "none");
        if (i < 3) /* fsdp1 has no codes */
            check_passage(sides + i, i % 2 ? "int8" : "nf4");
    }
}

/* ---- teams ---- */

TEST(a_run_goes_on_with_any_teams)
{
    static const side sides[] = {{"fsdp2", 2, 2}, {"fsdp2", 3, 1}, {"fsdp2", 4, 2}, {"zero1", 2, 1}, {"fsdp2", 8, 2}};

    for (int i = 0; i < 4; i += test_brief() ? 3 : 1)
        check_passage(sides + i, "none");
}

/* Runs it with teams of so many ranks. Reads the tensors of the adapter that it exports. free() them. */
static float *trained_by(story *s, int world, int team, int64_t *count)
{
    char *path = test_path(s->model, "adapter_model.safetensors");
    fsdp_safetensors *file = NULL;
    float *values = NULL;

    test_remove_tree(s->model);
    set_team(s, team);
    story_go(s, world);
    *count = 0;
    CHECK_OK(fsdp_safetensors_open(path, &file));
    for (int64_t i = 0; i < fsdp_safetensors_count(file); i++) {
        const fsdp_safetensors_entry *t = fsdp_safetensors_at(file, i);

        values = realloc(values, (size_t)*count * sizeof *values + t->bytes);
        memcpy(values + *count, t->data, t->bytes);
        *count += (int64_t)(t->bytes / sizeof *values);
    }
    fsdp_safetensors_close(file);
    return values;
}

STORY_TEST(a_team_exports_the_adapter_that_one_rank_does)
{
    static const int worlds[][2] = {{2, 2}, {4, 2}, {6, 2}};
    double losses[STORY_STEPS + 1];
    int64_t count, alone_count;
    float *alone;

    set_adapter(s);
    story_set(s, "adapter.dora", "true");
    story_set(s, "optimizer.name", "sgd"); /* Adam makes much of little */
    story_set(s, "optimizer.lr", "0.5");
    story_set(s, "export.path", s->model);
    alone = trained_by(s, 1, 1, &alone_count);
    memcpy(losses, s->losses, sizeof losses);
    for (size_t i = test_brief() ? 1 : 0; i < FSDP__COUNT_OF(worlds); i += test_brief() ? 2 : 1) {
        float *team = trained_by(s, worlds[i][0], worlds[i][1], &count);

        CHECK_EQ(count, alone_count);
        CHECK_CLOSE(team, alone, count, 1e-4, 1e-5);
        for (int step = 1; step <= STORY_STEPS; step++)
            CHECK_NEAR(s->losses[step], losses[step], 1e-5 * losses[step]);
        free(team);
    }
    free(alone);
}

/* ---- what is written ---- */

STORY_TEST(a_checkpoint_has_the_adapter_alone)
{
    fsdp_checkpoint_reader *reader = NULL;
    char *path;
    int64_t model = 0;

    set_adapter(s);
    story_set(s, "checkpoint.folder", s->folder);
    story_go(s, 2);
    path = test_path(s->folder, "step-6");
    CHECK_OK(fsdp_checkpoint_open(path, &reader));
    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++) {
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_at(reader, i);

        CHECK_CONTAINS(t->name, ".lora_");
        model += strcmp(t->section, "model") == 0;
    }
    CHECK_EQ(model, 2 * 3 * 2); /* two blocks of three layers, A and B */
    fsdp_checkpoint_close(reader);
}

static int64_t tensors_with(const char *folder, const char *file, const char *part)
{
    char *path = test_path(folder, file);
    fsdp_safetensors *weights = NULL;
    int64_t count = 0;

    CHECK_OK(fsdp_safetensors_open(path, &weights));
    for (int64_t i = 0; i < fsdp_safetensors_count(weights); i++)
        count += strstr(fsdp_safetensors_at(weights, i)->name, part) != NULL;
    fsdp_safetensors_close(weights);
    return count;
}

STORY_TEST(the_export_is_a_folder_of_peft_or_the_merged_model)
{
    fsdp_lora_options *options = NULL;
    fsdp_model_config config;
    char *config_path;

    set_adapter(s);
    story_set(s, "export.path", s->model);
    story_go(s, 2);
    CHECK_EQ(tensors_with(s->model, "adapter_model.safetensors", "base_model.model.model.layers."), 12);
    CHECK_EQ(tensors_with(s->model, "adapter_model.safetensors", ""), 12);
    CHECK_OK(fsdp_adapter_read_options(s->model, &options));
    CHECK_EQ(options->rank, 3);
    CHECK_NEAR(options->alpha, 6, 0);
    fsdp_lora_options_free(options);
    config_path = test_path(s->model, "config.json");
    CHECK(access(config_path, F_OK) != 0);
    story_set(s, "export.merge", "true");
    story_set(s, "export.overwrite", "true");
    test_remove_tree(s->model);
    story_go(s, 3);
    CHECK_EQ(tensors_with(s->model, "model.safetensors", "lora"), 0);
    CHECK(tensors_with(s->model, "model.safetensors", "") > 12);
    CHECK_OK(fsdp_hub_read_config(s->model, &config));
}

/* What a merged model computes is what was trained: the decoded weights with the adapter in them. */
TEST(a_quantized_base_is_decoded_when_it_is_merged)
{
    static const char *const kinds[] = {"nf4", "int8"};
    static const char *const own[] = {"model.preset",  "model.n_layers",   "model.dim",
                                      "model.n_heads", "model.n_kv_heads", "model.ffn_dim"};

    for (int i = 0; i < 2; i++) {
        double trained;
        story *s = story_new();

        set_adapter(s);
        test_set_keys(s->config, "adapter.dropout=0 adapter.quantize=%s adapter.modules_to_save=lm_head", kinds[i]);
        story_set(s, "optimizer.lr", "1e-12"); /* so the last step has the loss of what is exported */
        test_set_keys(s->config, "optimizer.weight_decay=0 export.merge=true export.path=%s", s->model);
        story_go(s, 3);
        trained = s->losses[1];
        CHECK_EQ(tensors_with(s->model, "model.safetensors", "lora"), 0);
        for (size_t k = 0; k < FSDP__COUNT_OF(own); k++)
            story_set(s, own[k], "");
        test_set_keys(s->config, "model.path=%s adapter.quantize=none export.path= export.merge=", s->model);
        story_go(s, 2);
        CHECK_NEAR(s->losses[1], trained, 1e-5 * trained);
    }
}

/* The best weights come from their checkpoint, or from a copy: of the adapter alone, and merged then. */
STORY_TEST(the_best_adapter_is_exported)
{
    for (int saves = 0; saves < 2; saves++)
        for (int merges = 0; merges < 2; merges++) {
            if (!test_takes(saves + merges, 1, 2))
                continue;
            s = story_new();
            set_adapter(s);
            story_set(s, "optimizer.lr", "10"); /* it gets worse */
            test_set_keys(s->config, "validation.share=0.2 validation.freq=1 export.which=best");
            story_set(s, "export.merge", merges ? "true" : "false");
            story_set(s, "export.path", s->model);
            if (saves)
                story_set(s, "checkpoint.folder", s->folder);
            story_go(s, 2);
            CHECK(s->best_step < STORY_STEPS);
            CHECK(tensors_with(s->model, merges ? "model.safetensors" : "adapter_model.safetensors", "") > 0);
        }
}

/* ---- memory ---- */

static void check_memory(fsdp_context *context, void *arg)
{
    story *s = arg;
    fsdp_train_run *run = NULL;
    fsdp_memory_stats memory;
    fsdp_parameters parameters;
    int64_t trained = 0, all = 0, bytes = 0, parameters_of_adapter = 0;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, s->config, &run));
    CHECK_OK(fsdp_train_step(run, NULL));
    CHECK_OK(fsdp_module_parameters(run->model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        all += fsdp_tensor_numel(parameters.items[i].tensor);
        if (!fsdp_tensor_requires_grad(parameters.items[i].tensor))
            continue;
        trained += fsdp_tensor_numel(parameters.items[i].tensor);
        parameters_of_adapter++;
        bytes += (fsdp_tensor_numel(parameters.items[i].tensor) * 4 + 63) / 64 * 64;
    }
    fsdp_parameters_release(&parameters);
    fsdp_device_memory(test_device(context), &memory);
    CHECK(trained * 4 < all);
    CHECK_EQ(memory.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE], 2 * bytes); /* two moments, in f32 */
    CHECK_EQ(memory.peak_bytes[FSDP_MEMORY_OPTIMIZER_STATE], 2 * bytes);
    /* Gradients of the microbatches before and of this one, whole ones on several ranks; none of frozen parameters. */
    CHECK(memory.peak_bytes[FSDP_MEMORY_GRADIENT] <=
          (size_t)(2 * fsdp_context_world_size(context) * (bytes + 64 * parameters_of_adapter)));
    CHECK_EQ(memory.live_bytes[FSDP_MEMORY_GRADIENT], 0);
    fsdp_train_run_free(run);
}

STORY_TEST(optimizer_state_is_that_of_the_adapter_alone)
{
    set_adapter(s);
    test_run_worlds(1, 3, check_memory, s);
}

/* ---- refusals ---- */

static void check_refused(const char *const (*keys)[2], int count, const char *part)
{
    story *s = story_new();

    for (int i = 0; i < count; i++)
        story_set(s, keys[i][0], keys[i][1]);
    story_run(s, 1);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, part);
}

STORY_TEST(keys_that_do_not_fit_are_refused)
{
    static const struct {
        const char *keys[4][2];
        const char *part;
    } cases[] = {
        {{{"adapter.alpha", "4"}}, "adapter.alpha needs adapter.rank or adapter.path: set one of them"},
        {{{"export.merge", "true"}, {"export.path", "m"}}, "export.merge needs adapter.rank or adapter.path"},
        {{{"adapter.base_dtype", "bfloat16"}}, "adapter.base_dtype needs adapter.rank or"},
        {{{"adapter.quantize", "nf4"}}, "adapter.quantize needs adapter.rank or"},
        {{{"adapter.rank", "2"}, {"adapter.path", "x"}}, "adapter.rank is set, but adapter.path has it"},
        {{{"adapter.path", "/nowhere/at/all"}}, "adapter.path: there is no '/nowhere/at/all'"},
        {{{"adapter.rank", "2"}, {"model.frozen", "*norm*"}}, "model.frozen is set, but an adapter freezes"},
        {{{"adapter.rank", "2"}, {"adapter.targets", "c_attn"}},
         "adapter: the model has no layer for the adapter's target 'c_attn': it has q_proj, k_proj, v_proj, o_proj, "},
        {{{"adapter.rank", "2"}, {"adapter.rank_pattern", "(=3"}}, "adapter: rank_pattern: '(' is not a regular"},
        {{{"adapter.rank", "2"}, {"adapter.targets", "lm_head"}}, "the head, which computes the loss"},
        {{{"adapter.rank", "2"}, {"adapter.targets", "mlp"}}, "cannot adapt 'model.layers.0.mlp', of type LlamaMLP"},
        {{{"adapter.rank", "2"}, {"adapter.rank_pattern", "q_proj"}}, "adapter.rank_pattern has 'q_proj': expected"},
        {{{"adapter.rank", "2"}, {"adapter.target_pattern", "("}}, "is not a regular expression"},
        {{{"adapter.rank", "2"}, {"adapter.targets", "q_proj"}, {"adapter.target_pattern", ".*"}},
         "exclude each other"},
        {{{"adapter.rank", "2"}, {"parallelism.strategy", "fsdp1"}}, "set parallelism.fsdp1_use_orig_params: true"},
        {{{"adapter.rank", "2"},
          {"adapter.quantize", "nf4"},
          {"parallelism.strategy", "fsdp1"},
          {"parallelism.fsdp1_use_orig_params", "true"}},
         "adapter.quantize is set, but with parallelism.strategy fsdp1"},
        {{{"adapter.rank", "2"},
          {"adapter.quantize", "nf4"},
          {"training.mixed_precision_param", "bfloat16"},
          {"training.split_shards", "true"}},
         "splits float32, but adapter.quantize holds the frozen weights otherwise"},
        {{{"adapter.rank", "2"}, {"checkpoint.initial_load_path", "x"}}, "name its base as model.path"},
        {{{"adapter.rank", "2"}, {"adapter.modules_to_save", "embed_tokens"}, {"model.tie_word_embeddings", "true"}},
         "modules_to_save: cannot train 'model.embed_tokens' by itself"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        int count = 0;

        while (count < 4 && cases[i].keys[count][0])
            count++;
        check_refused(cases[i].keys, count, cases[i].part);
    }
}

/* What a run goes on with must be the adapter of its checkpoint, beside the same base. */
TEST(another_adapter_or_base_is_not_gone_on_with)
{
    static const char *const changes[][3] = {{"adapter.alpha", "7", "adapter.alpha is 6 and 7"},
                                             {"adapter.rank", "4", "adapter.rank is 3 and 4"},
                                             {"adapter.quantize", "nf4", "adapter.quantize is none and nf4"},
                                             {"training.seed", "9", "the base's training.seed is"}};

    for (size_t i = 0; i < FSDP__COUNT_OF(changes); i++) {
        story *s = story_new();

        set_adapter(s);
        story_set(s, "checkpoint.folder", s->folder);
        story_stop(s, 1, 2);
        story_set(s, changes[i][0], changes[i][1]);
        story_run(s, 1);
        CHECK(s->status != FSDP_OK && s->status != FSDP_INTERRUPTED);
        CHECK_CONTAINS(s->message, changes[i][2]);
    }
}
