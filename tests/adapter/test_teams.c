/* Adapters beside layers that a team of ranks computes together: losses, norms, what is trained and what is written are
 * those of one rank.
 * Links: parallel optim shard */
#include <math.h>

#include "autograd/autograd.h"
#include "fsdp/adapter.h"
#include "fsdp/parallelize.h"
#include "fsdp/wrap.h"
#include "nn/module.h"
#include "shard/cut_net.h"
#include "support/models.h"

enum {
    STEPS = 3,
    ROWS = 12, /* divides any number of teams here */
    LENGTH = 6,
    VOCAB = 30
};

static const cut_layout layouts[] = {{1, 1, 2}, {1, 2, 2}, {1, 1, 4}, {2, 1, 2}, {1, 3, 1}, {1, 1, 3}, {2, 2, 2}};

/* What is run, on one rank and on many. */
typedef struct way {
    fsdp_architecture architecture;
    cut_layout layout;
    fsdp_model_parallel_options plan;
    bool dora, saved, plain, low; /* the head is trained whole; not sharded after it is cut; the base is in bf16 */
    bool units;                   /* each module with a forward is sharded by itself */
    float dropout;
    fsdp_recompute_mode recompute;
} way;

typedef struct outcome {
    double losses[STEPS], norms[STEPS];
    fsdp_state_dict *adapter, *merged; /* whole, on the host */
    fsdp_context *context;             /* which they live in */
} outcome;

typedef struct trial {
    way way;
    const outcome *expected; /* NULL: this is the run on one rank */
    outcome *out;
    const char *folder;
} trial;

/* ---- the model ---- */

/* Heads that 2, 3 and 4 divide; widths that they do not. */
static fsdp_model_config config_of(const way *w)
{
    fsdp_architecture a = w->architecture;
    bool gpt2 = a == FSDP_GPT2;

    return MODEL_CONFIG(.architecture = a, .n_layers = 2, .dim = gpt2 ? 24 : 20, .n_heads = 12, .n_kv_heads = 12,
                        .head_dim = 2, .ffn_dim = 21, .vocab_size = VOCAB, .max_seq_len = 32, .rope_theta = 100,
                        .rope_type = FSDP_ROPE_DEFAULT, .init_std = 0.3f, .tie_word_embeddings = gpt2,
                        .attention_bias = a == FSDP_LLAMA, .mlp_bias = a == FSDP_LLAMA,
                        .embd_dropout = gpt2 ? w->dropout : 0, .dropout = gpt2 ? w->dropout : 0);
}

static fsdp_adapter *add_adapter(fsdp_module *model, const way *w)
{
    static const char *const all[] = {"all-linear"}, *const head[] = {"lm_head"};
    fsdp_lora_options options = {.rank = 3,
                                 .alpha = 6,
                                 .dropout = (double)w->dropout,
                                 .dora = w->dora,
                                 .targets = all,
                                 .target_count = 1,
                                 .saved = head,
                                 .saved_count = w->saved,
                                 .seed = 11};
    fsdp_adapter *adapter;

    CHECK_OK(fsdp_adapter_add(model, &options, &adapter));
    return adapter;
}

static void shard(fsdp_module *model, const way *w, const cut_meshes *meshes)
{
    const fsdp_wrap_policy always = {.kind = FSDP_WRAP_ALWAYS};
    const fsdp_shard_options options = {.mesh = meshes->data};

    if (w->units) {
        CHECK_OK(fsdp_fully_shard_by_policy(model, &always, &options));
        return;
    }
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), &options));
    CHECK_OK(fsdp_fully_shard(model, &options));
}

/* Gives every parameter of the adapter numbers: B is zero at first. */
static void fill(fsdp_adapter *adapter)
{
    fsdp_state_dict *state;

    CHECK_OK(fsdp_adapter_initialize_base(adapter, 5));
    CHECK_OK(fsdp_adapter_initialize(adapter, 7));
    CHECK_OK(fsdp_adapter_state_dict(adapter, &state));
    for (int64_t i = 0; i < state->count; i++)
        if (strstr(state->entries[i].name, "lora_B")) {
            CHECK_OK(fsdp_tensor_begin_write(state->entries[i].tensor));
            CHECK_OK(fsdp__init_tensor(state->entries[i].tensor, (fsdp_init){FSDP_INIT_UNIFORM, -0.5f, 0.5f}, 9,
                                       state->entries[i].name));
        }
    fsdp_state_dict_free(state);
}

static fsdp_module *build(fsdp_context *context, const trial *t, cut_meshes *meshes, fsdp_adapter **adapter)
{
    fsdp_model_config config = config_of(&t->way);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));

    *meshes = (cut_meshes){.batches = 1};
    if (t->way.low)
        CHECK_OK(fsdp_module_to(model, FSDP_BF16));
    *adapter = add_adapter(model, &t->way);
    if (t->expected) {
        *meshes = cut_meshes_create(context, t->way.layout);
        CHECK_OK(fsdp_model_parallelize(model, meshes->parts, &t->way.plan));
    }
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(model, i), t->way.recompute));
    if (t->expected && !t->way.plain)
        shard(model, &t->way, meshes);
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    fill(*adapter);
    return model;
}

/* ---- steps ---- */

static fsdp_tensor *ids(fsdp_context *context, const cut_meshes *meshes, int step, bool targets)
{
    int count = ROWS / meshes->batches, first = meshes->batch * count;
    int32_t values[ROWS * LENGTH];

    for (int i = 0; i < count * LENGTH; i++)
        values[i] = ((first * LENGTH + i) * 7 + step + 5 * targets) % VOCAB;
    CHECK_OK(fsdp__set_rows_of_batch(context, (fsdp__rows_of_batch){first, count}));
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(count, LENGTH), values));
}

/* The loss of the global batch. */
static double forward_backward(fsdp_context *context, fsdp_module *model, const cut_meshes *meshes, int step)
{
    void **all;
    size_t *bytes;
    fsdp_tensor *loss;
    double value, sum = 0;
    int world = fsdp_context_world_size(context);

    CHECK_OK(fsdp_scope_begin(context));
    loss = CHECK_PTR(fsdp_call(model, ids(context, meshes, step, false), ids(context, meshes, step, true)));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_gather_objects(fsdp_world(context), &value, sizeof value, &all, &bytes));
    for (int r = 0; r < world; r++)
        sum += *(const double *)all[r];
    fsdp_objects_free(fsdp_world(context), all, bytes);
    return sum / world;
}

static void take_steps(fsdp_context *context, fsdp_module *model, const trial *t, const cut_meshes *meshes)
{
    double tolerance = t->way.low ? 3e-2 : 1e-4;
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 0.2, .momentum = 0.9}, &optimizer));
    fsdp_parameters_release(&parameters);
    for (int s = 0; s < STEPS; s++) {
        double loss = forward_backward(context, model, meshes, s), norm;

        CHECK_OK(fsdp_clip_grad_norm(optimizer, 0.5, &norm));
        CHECK_OK(fsdp_optimizer_step(optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        if (!t->expected) {
            t->out->losses[s] = loss;
            t->out->norms[s] = norm;
            continue;
        }
        CHECK_NEAR(loss, t->expected->losses[s], tolerance * loss);
        CHECK_NEAR(norm, t->expected->norms[s], 3 * tolerance * norm);
    }
    fsdp_optimizer_free(optimizer);
}

/* ---- what is trained, and written ---- */

static void compare(const fsdp_state_dict *got, const fsdp_state_dict *wanted, double tolerance)
{
    CHECK_EQ(got->count, wanted->count);
    for (int64_t i = 0; i < got->count; i++) {
        const fsdp_state_dict_entry *a = &got->entries[i],
                                    *b = CHECK_PTR(fsdp_state_dict_find(wanted, got->entries[i].name));
        int64_t numel = fsdp_tensor_numel(a->tensor);
        float *left = malloc((size_t)numel * sizeof *left), *right = malloc((size_t)numel * sizeof *right);

        CHECK_EQ(numel, fsdp_tensor_numel(b->tensor));
        CHECK_OK(fsdp_tensor_read(a->tensor, FSDP_F32, left));
        CHECK_OK(fsdp_tensor_read(b->tensor, FSDP_F32, right));
        CHECK_CLOSE(left, right, numel, tolerance, tolerance);
        free(left);
        free(right);
    }
}

static fsdp_state_dict *gather(fsdp_state_dict *parts)
{
    fsdp_state_dict *whole;

    CHECK_OK(fsdp_state_dict_gather(parts, NULL, &whole));
    fsdp_state_dict_free(parts);
    return whole;
}

/* A model of one rank takes the folder, and has what was trained. */
static void check_folder(fsdp_context *context, const trial *t, fsdp_state_dict *wanted)
{
    fsdp_model_config config = config_of(&t->way);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    fsdp_lora_options *options;
    fsdp_adapter *adapter;
    fsdp_state_dict *read;

    CHECK_OK(fsdp_adapter_read_options(t->folder, &options));
    CHECK_OK(fsdp_adapter_add(model, options, &adapter));
    CHECK_OK(fsdp_adapter_load(adapter, t->folder));
    CHECK_OK(fsdp_adapter_state_dict(adapter, &read));
    compare(read, wanted, 0);
    fsdp_state_dict_free(read);
    fsdp_adapter_free(adapter);
    fsdp_lora_options_free(options);
    fsdp_module_unref(model);
}

static void settle(fsdp_context *context, const trial *t, fsdp_module *model, fsdp_adapter *adapter)
{
    double tolerance = t->way.low ? 5e-2 : 2e-4;
    fsdp_state_dict *state, *merged;

    CHECK_OK(fsdp_module_reshard_all(model));
    CHECK_OK(fsdp_adapter_state_dict(adapter, &state));
    state = gather(state);
    CHECK_OK(fsdp_adapter_merge(adapter, NULL, &merged));
    merged = gather(merged);
    if (t->expected) {
        compare(state, t->expected->adapter, tolerance);
        compare(merged, t->expected->merged, tolerance);
        CHECK_OK(fsdp_adapter_save(adapter, t->folder, "base", fsdp_world(context)));
        check_folder(context, t, state);
        CHECK_OK(fsdp_agree(fsdp_world(context), FSDP_OK));
        fsdp_state_dict_free(state);
        fsdp_state_dict_free(merged);
        return;
    }
    t->out->adapter = state;
    t->out->merged = merged;
}

static void run(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    cut_meshes meshes;
    fsdp_adapter *adapter;
    fsdp_module *model = build(context, t, &meshes, &adapter);

    take_steps(context, model, t, &meshes);
    settle(context, t, model, adapter);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
    if (t->expected)
        cut_meshes_free(&meshes);
}

/* Runs it on one rank, whose results outlive it, and then as these plans and layouts say, every second of which it
 * takes. */
static void check(way w, int plan_count, const fsdp_model_parallel_options *plans, int layout_count)
{
    char *directory = test_directory(), *folder = test_path(directory, "adapter");
    outcome one = {.context = test_context()};
    trial t = {.way = w, .out = &one, .folder = folder};

    run(one.context, &t);
    t.expected = &one;
    for (int p = 0; p < plan_count; p++)
        for (int l = 0; l < layout_count; l++) {
            t.way.plan = plans[p];
            t.way.layout = layouts[l];
            if ((w.plain && layouts[l].replicas * layouts[l].shards > 1) || !test_takes(p + l, 2, 4))
                continue;
            test_run_ranks(layouts[l].replicas * layouts[l].shards * layouts[l].parts, run, &t);
            test_remove_tree(folder);
        }
    fsdp_state_dict_free(one.adapter);
    fsdp_state_dict_free(one.merged);
    fsdp_context_free(one.context);
    test_directory_free(directory);
}

static const fsdp_model_parallel_options plans[] = {
    {.sequence_parallel = true, .loss_parallel = true},
    {0},
    {.per_projection = true},
};

TEST(an_adapter_trains_as_on_one_rank_at_every_layout)
{
    check((way){.architecture = FSDP_LLAMA}, 3, plans, (int)FSDP__COUNT_OF(layouts));
}

TEST(fused_projections_are_adapted_part_by_part)
{
    check((way){.architecture = FSDP_GPT2}, 2, plans, 3);
    check((way){.architecture = FSDP_PHI3}, 2, plans, 3);
    check((way){.architecture = FSDP_PHI3, .dora = true}, 1, plans, 3);
}

TEST(norms_of_outputs_whose_inputs_are_cut_are_those_of_all_inputs)
{
    check((way){.architecture = FSDP_LLAMA, .dora = true}, 2, plans, 4);
    check((way){.architecture = FSDP_GPT2, .dora = true}, 1, plans, 2);
}

TEST(dropouts_of_parts_are_those_of_one_rank)
{
    check((way){.architecture = FSDP_LLAMA, .dropout = 0.3f}, 2, plans, 4);
    check((way){.architecture = FSDP_GPT2, .dropout = 0.2f, .dora = true}, 2, plans, 3);
}

TEST(what_is_trained_whole_is_cut_as_well)
{
    check((way){.architecture = FSDP_LLAMA, .saved = true}, 2, plans, 3);
}

TEST(blocks_are_computed_again_with_their_adapters)
{
    for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++)
        check((way){.architecture = FSDP_LLAMA, .dora = true, .dropout = 0.2f, .recompute = (fsdp_recompute_mode)mode},
              1, plans, 2);
}

TEST(adapters_may_be_units_of_their_own)
{
    check((way){.architecture = FSDP_LLAMA, .units = true}, 1, plans, 2);
    check((way){.architecture = FSDP_LLAMA, .units = true, .dora = true}, 2, plans, (int)FSDP__COUNT_OF(layouts));
    check(
        (way){
            .architecture = FSDP_GPT2, .units = true, .dora = true, .dropout = 0.2f, .recompute = FSDP_RECOMPUTE_FULL},
        1, plans + 1, 4);
}

TEST(without_an_engine_contributions_are_added_up_as_they_come)
{
    check((way){.architecture = FSDP_LLAMA, .plain = true, .dora = true}, 3, plans, 6);
}

TEST(a_base_in_bf16_has_its_adapter_in_f32)
{
    check((way){.architecture = FSDP_LLAMA, .low = true}, 1, plans, 2);
}

/* ---- what is refused ---- */

static void refuse(fsdp_context *context, void *arg)
{
    static const char *const all[] = {"all-linear"};
    const fsdp_lora_options options = {.targets = all, .target_count = 1};
    const fsdp_parallel_entry twice[] = {{"model.layers.*.mlp.up_proj", {.kind = FSDP_COLUMN_WISE}},
                                         {"model.layers.*.mlp.up_proj.lora_B", {.kind = FSDP_COLUMN_WISE}}};
    const fsdp_model_parallel_options async = {.sequence_parallel = true, .async = true};
    fsdp_model_config config = config_of(arg);
    fsdp_module *cut = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    fsdp_module *adapted = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    cut_meshes meshes = cut_meshes_create(context, (cut_layout){1, 1, 2});
    fsdp_adapter *adapter;

    CHECK_OK(fsdp_model_parallelize(cut, meshes.parts, NULL));
    CHECK_ERROR(fsdp_adapter_add(cut, &options, &adapter), FSDP_STATE,
                "cannot adapt 'model.layers.0.self_attn.q_proj': it is cut already, as (Shard(dim=0),) over mesh "
                "(tp=2): add the adapter before");
    CHECK(fsdp_tensor_requires_grad(CHECK_PTR(fsdp_module_parameter(cut, "model.norm.weight"))));
    CHECK_OK(fsdp_adapter_add(adapted, &options, &adapter));
    CHECK_ERROR(fsdp_parallelize_module(adapted, meshes.parts, twice, 2), FSDP_INVALID, "place the same parameter");
    CHECK_ERROR(fsdp_model_parallelize(adapted, meshes.parts, &async), FSDP_UNSUPPORTED,
                "has an adapter, which asynchronous tensor parallel leaves out");
    CHECK_OK(fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4));
    CHECK_ERROR(fsdp_model_parallelize(adapted, meshes.parts, NULL), FSDP_STATE,
                "'model.layers.0.self_attn.q_proj.weight' is held in fewer bits, which cannot be cut: leave the base "
                "unquantized");
    fsdp_adapter_free(adapter);
    fsdp_module_unref(adapted);
    fsdp_module_unref(cut);
    cut_meshes_free(&meshes);
}

TEST(what_does_not_go_together_is_refused)
{
    test_run_ranks(2, refuse, &(way){.architecture = FSDP_LLAMA});
}

/* Rank 1 adds another multiple of its adapter, or none. */
static void differ(fsdp_context *context, void *arg)
{
    static const char *const all[] = {"all-linear"};
    int rank = fsdp_context_rank(context);
    fsdp_model_config config = config_of(arg);
    cut_meshes meshes = cut_meshes_create(context, (cut_layout){1, 1, 2});

    for (int off = 0; off < 2; off++) {
        fsdp_module *model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
        const fsdp_lora_options options = {
            .rank = 4, .targets = all, .target_count = 1, .alpha = off == 0 && rank == 1 ? 16 : 8};
        fsdp_adapter *adapter;

        CHECK_OK(fsdp_adapter_add(model, &options, &adapter));
        if (off)
            CHECK_OK(fsdp_adapter_set_enabled(adapter, rank == 0));
        CHECK_ERROR(fsdp_model_parallelize(model, meshes.parts, NULL), FSDP_MISMATCH,
                    off == 0
                        ? "an adapter that is on, scaled by 2, rank 1 has beside 'model.layers.0.self_attn.q_proj' "
                          "an adapter that is on, scaled by 4"
                        : "an adapter that is on, scaled by 2, rank 1 has beside 'model.layers.0.self_attn.q_proj' "
                          "an adapter that is off");
        fsdp_clear_error();
        fsdp_adapter_free(adapter);
        fsdp_module_unref(model);
    }
    cut_meshes_free(&meshes);
}

TEST(ranks_whose_adapters_differ_are_told_so)
{
    way one = {.architecture = FSDP_LLAMA};

    test_run_ranks(2, differ, &one);
}
