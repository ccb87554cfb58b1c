/* Models whose sequences are cut over ranks: losses, logits and gradients are those of one rank. */
#include "autograd/autograd.h"
#include "device/device.h"
#include "fsdp/models.h"
#include "fsdp/ops.h"
#include "fsdp/parallel.h"
#include "fsdp/parallelize.h"
#include "nn/layers.h"
#include "parallel/context_parallel.h"
#include "support/models.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

#include <stdlib.h>

enum {
    BATCH = 2,
    LENGTH = 24, /* 2 W chunks for 1 to 4 ranks, but not 5 */
    VOCAB = 37,
    MAX_NUMEL = 8192
};

typedef struct job {
    fsdp_architecture architecture;
    int cp, tp;
    fsdp_recompute_mode recompute;
    bool empty;     /* all targets of a rank are ignored */
    bool documents; /* rows have several */
    bool each;      /* the model gives the loss of each token, of which the mean of squares is taken */
    bool generates; /* a text, and logits of whole sequences, between forward and backward */
    bool first;     /* sequences are cut before layers */
    bool inner;     /* of the layers only those of a module inside are cut, before all else */
    float dropout;
    int64_t short_to; /* longer documents have other rotary frequencies, of this type; 0: none have */
    fsdp_rope_type type;
} job;

static fsdp_model_config config_of(const job *j)
{
    bool gpt2 = j->architecture == FSDP_GPT2, dynamic = j->short_to > 0 && j->type == FSDP_ROPE_DYNAMIC;

    return MODEL_CONFIG(.architecture = j->architecture, .n_layers = 2, .dim = 24, .n_heads = 4,
                        .n_kv_heads = gpt2 ? 4 : 2, .head_dim = 6, .ffn_dim = 20, .vocab_size = VOCAB,
                        .max_seq_len = dynamic ? j->short_to : 32, .rope_theta = 100,
                        .rope_type = j->short_to > 0 ? j->type : FSDP_ROPE_DEFAULT, .rope_factor = 4,
                        .rope_original_max_seq_len = j->short_to, .rope_short_factors = {1, 1.5f, 2.25f},
                        .rope_long_factors = {1.25f, 4, 9.5f}, .window = j->architecture == FSDP_MISTRAL ? 7 : 0,
                        .local_layers = {j->architecture == FSDP_MISTRAL ? 3 : 0}, .init_std = 0.3f,
                        .dropout = j->dropout, .embd_dropout = j->dropout, .tie_word_embeddings = gpt2);
}

/* What a model is called with, on the host. */
typedef struct batch {
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH], positions[BATCH * LENGTH];
} batch;

static void fill(const job *j, batch *b)
{
    for (int i = 0; i < BATCH * LENGTH; i++) {
        int t = i % LENGTH;

        b->tokens[i] = (7 * i + 3) % VOCAB;
        b->targets[i] = i % 5 == 1 || (j->empty && t >= LENGTH / 4 && t < 3 * LENGTH / 4) ? FSDP_IGNORE_TARGET
                                                                                          : (5 * i + 3) % VOCAB;
        b->positions[i] = t == 0 || i % 11 == 4 ? 0 : b->positions[i - 1] + 1;
    }
}

static fsdp_tensor *tensor_of(fsdp_context *context, const int32_t *values)
{
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(BATCH, LENGTH), values));
}

/* All calls draw alike for dropouts. */
static fsdp_tensor *loss_of(const job *j, fsdp_module *model, fsdp_context *context, const batch *b)
{
    fsdp_tensor *tokens = tensor_of(context, b->tokens), *targets = tensor_of(context, b->targets), *loss;

    CHECK_OK(fsdp_module_set_draws(model, 0));
    loss = CHECK_PTR(j->documents ? fsdp_call(model, tokens, targets, tensor_of(context, b->positions))
                                  : fsdp_call(model, tokens, targets));
    return j->each ? CHECK_PTR(fsdp_mean(fsdp_square(fsdp_scale(loss, 0.1)))) : loss;
}

static fsdp_tensor *loss_from_host(const job *j, fsdp_module *model, fsdp_context *context, const batch *b)
{
    const fsdp__host_call call = {
        test_device(context), BATCH, LENGTH, b->tokens, b->targets, j->documents ? b->positions : NULL};

    fsdp_tensor *loss;

    CHECK_OK(fsdp_module_set_draws(model, 0));
    loss = CHECK_PTR(fsdp__call_from_host(model, &call));
    return j->each ? CHECK_PTR(fsdp_mean(fsdp_square(fsdp_scale(loss, 0.1)))) : loss;
}

static const fsdp_parallel_entry inner[] = {{"gate_proj", {.kind = FSDP_COLUMN_WISE}},
                                            {"up_proj", {.kind = FSDP_COLUMN_WISE}},
                                            {"down_proj", {.kind = FSDP_ROW_WISE}}};

static fsdp_module *create(fsdp_context *context, const job *j, bool cut, fsdp_mesh *cp, fsdp_mesh *tp)
{
    fsdp_model_config config = config_of(j);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));

    if (cut && j->first)
        CHECK_OK(fsdp_model_context_parallel(model, cp));
    if (j->inner)
        CHECK_OK(fsdp_parallelize_module(fsdp_module_child(fsdp_model_block(model, 1), "mlp"), tp, inner, 3));
    else if (j->tp > 1)
        CHECK_OK(fsdp_model_parallelize(
            model, tp, &(fsdp_model_parallel_options){.sequence_parallel = true, .loss_parallel = true}));
    if (cut && !j->first)
        CHECK_OK(fsdp_model_context_parallel(model, cp));
    if (j->each)
        CHECK_OK(fsdp_model_set_loss(model, FSDP_LOSS_NONE, 0));
    CHECK_OK(fsdp_module_initialize(model, 5));
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(model, i), j->recompute));
    return model;
}

static void compare(fsdp_tensor *got, fsdp_tensor *want)
{
    float a[MAX_NUMEL], b[MAX_NUMEL];

    CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(got)), fsdp_tensor_numel(CHECK_PTR(want)));
    CHECK_OK(fsdp_tensor_read(got, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(want, FSDP_F32, b));
    CHECK_CLOSE(a, b, fsdp_tensor_numel(got), 2e-5, 2e-5);
}

/* The mean of a parameter's gradients over the ranks that cut sequences, against that of whole ones. */
static void compare_gradients(fsdp_module *cut, fsdp_module *whole, fsdp_process_group *group)
{
    fsdp_parameters got = {0}, want = {0};

    CHECK_OK(fsdp_module_parameters(cut, &got));
    CHECK_OK(fsdp_module_parameters(whole, &want));
    for (int64_t i = 0; i < got.count; i++) {
        fsdp_tensor *sum = fsdp_parallel_all_reduce(fsdp_tensor_grad(got.items[i].tensor), group);

        compare(fsdp_scale(sum, 1.0 / fsdp_process_group_size(group)), fsdp_tensor_grad(want.items[i].tensor));
    }
    fsdp_parameters_release(&got);
    fsdp_parameters_release(&want);
}

/* Both ways of a call give the same bits. */
static void check_host(fsdp_context *context, const job *j, fsdp_module *cut, const batch *b)
{
    double values[2];

    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_tensor_item(loss_of(j, cut, context, b), &values[0]));
    CHECK_OK(fsdp_tensor_item(loss_from_host(j, cut, context, b), &values[1]));
    CHECK_BYTES(&values[0], &values[1], sizeof values[0]);
    fsdp_no_grad_end(context);
}

/* Logits, and those behind a text that cannot be cut, which each rank computes alone. */
static void compare_logits(fsdp_context *context, fsdp_module *cut, fsdp_module *whole, const batch *b)
{
    fsdp_tensor *few = CHECK_PTR(fsdp_slice(tensor_of(context, b->tokens), 1, 0, 7));

    fsdp_no_grad_begin(context);
    fsdp_module_train(cut, false);
    fsdp_module_train(whole, false);
    compare(fsdp_call(cut, tensor_of(context, b->tokens)), fsdp_call(whole, tensor_of(context, b->tokens)));
    CHECK_OK(fsdp_model_set_last_logits_only(cut, true));
    CHECK_OK(fsdp_model_set_last_logits_only(whole, true));
    compare(fsdp_call(cut, few), fsdp_call(whole, few));
    fsdp_no_grad_end(context);
}

/* Calls that give no gradients, each of another kind than the one whose backward is to come. */
static void generate(fsdp_context *context, fsdp_module *cut, const batch *b)
{
    fsdp_tensor *few = CHECK_PTR(fsdp_slice(tensor_of(context, b->tokens), 1, 0, 7));

    fsdp_no_grad_begin(context);
    CHECK_PTR(fsdp_call(cut, tensor_of(context, b->tokens)));
    CHECK_OK(fsdp_model_set_last_logits_only(cut, true));
    CHECK_PTR(fsdp_call(cut, few));
    CHECK_OK(fsdp_model_set_last_logits_only(cut, false));
    fsdp_no_grad_end(context);
}

static void check_same(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_module *cut, *whole;
    fsdp_tensor *loss[2];
    batch b;
    fsdp_mesh *mesh, *cp, *tp;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->cp, j->tp), (const char *const[]){"cp", "tp"}, &mesh));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"cp"}, &cp));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"tp"}, &tp));
    cut = create(context, j, true, cp, tp);
    whole = create(context, j, false, cp, tp);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp__set_rows_of_batch(context, (fsdp__rows_of_batch){BATCH, BATCH}));
    fill(j, &b);
    check_host(context, j, cut, &b);
    loss[0] = loss_from_host(j, cut, context, &b);
    loss[1] = loss_of(j, whole, context, &b);
    compare(loss[0], loss[1]);
    if (j->generates)
        generate(context, cut, &b);
    CHECK_OK(fsdp_backward(loss[0]));
    CHECK_OK(fsdp_backward(loss[1]));
    compare_gradients(cut, whole, fsdp_mesh_process_group(cp, 0));
    CHECK_OK(fsdp__set_rows_of_batch(context, (fsdp__rows_of_batch){0}));
    compare_logits(context, cut, whole, &b);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(cut);
    fsdp_module_unref(whole);
    fsdp_mesh_unref(cp);
    fsdp_mesh_unref(tp);
    fsdp_mesh_unref(mesh);
}

TEST(losses_and_gradients_are_those_of_one_rank)
{
    const fsdp_architecture all[] = {FSDP_GPT2, FSDP_LLAMA, FSDP_MISTRAL};

    for (size_t a = 0; a < FSDP__COUNT_OF(all); a++)
        for (int cp = 1; cp <= 4; cp++) {
            job j = {.architecture = all[a], .cp = cp, .tp = 1};

            if (!test_takes((int)a + cp, 1, 3))
                continue;
            test_run_ranks(cp, check_same, &j);
            j.documents = true;
            test_run_ranks(cp, check_same, &j);
        }
}

/* The longest document of a row has 11 tokens: a rank's part of a row may be shorter than that, or longer. */
TEST(rotary_frequencies_follow_whole_sequences)
{
    for (int type = FSDP_ROPE_DYNAMIC; type <= FSDP_ROPE_LONGROPE; type += FSDP_ROPE_LONGROPE - FSDP_ROPE_DYNAMIC)
        for (int cp = 1; cp <= 4; cp++) {
            job j = {.architecture = FSDP_LLAMA, .cp = cp, .tp = 1, .short_to = 12, .type = (fsdp_rope_type)type};

            j.recompute = cp == 3 ? FSDP_RECOMPUTE_FULL : FSDP_RECOMPUTE_NONE;
            test_run_ranks(cp, check_same, &j);
            j.documents = true;
            for (j.short_to = 10; j.short_to <= 11; j.short_to++)
                test_run_ranks(cp, check_same, &j);
        }
}

TEST(they_are_with_tensor_parallel_too)
{
    for (int cp = 1; cp <= 2; cp++) {
        job j = {.architecture = FSDP_LLAMA, .cp = cp, .tp = 2};

        test_run_ranks(2 * cp, check_same, &j);
    }
}

TEST(and_if_sequences_are_cut_before_layers)
{
    for (int gpt2 = 0; gpt2 < 2; gpt2++) {
        job j = {.architecture = gpt2 ? FSDP_GPT2 : FSDP_LLAMA, .cp = 2, .tp = 2, .first = true};

        j.dropout = gpt2 ? 0.3f : 0;
        test_run_ranks(4, check_same, &j);
    }
}

TEST(and_if_layers_of_a_module_inside_are_cut)
{
    test_run_ranks(4, check_same, &(job){.architecture = FSDP_LLAMA, .cp = 2, .tp = 2, .inner = true});
}

TEST(and_with_recomputation_and_a_rank_without_targets)
{
    for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++) {
        job j = {.architecture = FSDP_LLAMA, .cp = 2, .tp = 1, .recompute = (fsdp_recompute_mode)mode, .empty = true};

        if (test_takes(mode, 1, 2))
            test_run_ranks(2, check_same, &j);
        j.documents = true;
        if (test_takes(mode + 1, 1, 2))
            test_run_ranks(2, check_same, &j);
    }
}

TEST(a_text_may_be_generated_between_forward_and_backward)
{
    for (int mode = FSDP_RECOMPUTE_NONE; mode <= FSDP_RECOMPUTE_CHEAP; mode++)
        for (int tp = 1; tp <= 2; tp++) {
            job j = {.architecture = tp == 1 ? FSDP_GPT2 : FSDP_LLAMA, .cp = 2, .tp = tp, .generates = true};

            j.recompute = (fsdp_recompute_mode)mode;
            j.documents = mode == FSDP_RECOMPUTE_SELECTIVE;
            test_run_ranks(2 * tp, check_same, &j);
        }
}

/* Beside keys and values. */
static void check_sent(fsdp_context *context, void *arg)
{
    const job *j = arg;
    int64_t bytes = (j->cp - 1) * BATCH * LENGTH * (int64_t)sizeof(float) / j->cp;
    fsdp_comm_stats stats;
    fsdp_module *model;
    fsdp_tensor *loss;
    fsdp_mesh *mesh;
    batch b;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->cp), (const char *const[]){"cp"}, &mesh));
    model = create(context, j, true, mesh, NULL);
    fill(j, &b);
    CHECK_OK(fsdp_scope_begin(context));
    fsdp_context_reset_comm_stats(context);
    loss = loss_from_host(j, model, context, &b);
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 1);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], bytes);
    fsdp_context_reset_comm_stats(context);
    CHECK_OK(fsdp_backward(loss));
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 1 + 2 * j->cp);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 0);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
}

TEST(losses_of_each_token_are_gathered_once)
{
    job j = {.architecture = FSDP_LLAMA, .cp = 3, .tp = 1, .each = true};

    test_run_ranks(3, check_sent, &j);
}

TEST(losses_of_each_token_are_in_order)
{
    for (int cp = 1; cp <= 4; cp++) {
        job j = {.architecture = FSDP_LLAMA, .cp = cp, .tp = cp == 2 ? 2 : 1, .each = true, .documents = cp == 3};

        test_run_ranks(cp * j.tp, check_same, &j);
    }
}

TEST(dropouts_draw_for_whole_sequences)
{
    for (int cp = 1; cp <= 3; cp++)
        for (int tp = 1; tp <= 2; tp++) {
            job j = {.architecture = FSDP_GPT2, .cp = cp, .tp = tp, .dropout = 0.3f};

            j.recompute = cp == 2 ? FSDP_RECOMPUTE_FULL : FSDP_RECOMPUTE_NONE;
            test_run_ranks(cp * tp, check_same, &j);
        }
}

/* Those that nobody has told which sequences they see. */
static void check_seeds(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_mesh *mesh;
    fsdp_module *model;
    uint64_t *seed;
    void **all;
    size_t *bytes;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->cp), (const char *const[]){"cp"}, &mesh));
    model = create(context, j, true, mesh, NULL);
    seed = CHECK_PTR(fsdp__dropout_seed(CHECK_PTR(fsdp_module_child(model, "transformer.drop"))));
    CHECK_OK(fsdp_gather_objects(fsdp_world(context), seed, sizeof *seed, &all, &bytes));
    for (int r = 0; r < j->cp; r++)
        CHECK_BYTES(all[r], seed, sizeof *seed);
    fsdp_objects_free(fsdp_world(context), all, bytes);
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
}

TEST(ranks_of_a_sequence_have_the_seeds_of_one)
{
    job j = {.architecture = FSDP_GPT2, .cp = 3, .tp = 1, .dropout = 0.3f};

    test_run_ranks(3, check_seeds, &j);
}

/* Gives the gradient of the table of tokens; with `early`, model and meshes are freed before the backward. */
static void table_gradient(fsdp_context *context, const job *j, bool early, float *out)
{
    fsdp_mesh *mesh, *cp, *tp;
    fsdp_module *model;
    fsdp_tensor *table, *loss;
    batch b;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->cp, j->tp), (const char *const[]){"cp", "tp"}, &mesh));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"cp"}, &cp));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"tp"}, &tp));
    model = create(context, j, true, cp, tp);
    fsdp_mesh_unref(cp);
    fsdp_mesh_unref(tp);
    fsdp_mesh_unref(mesh);
    CHECK_OK(fsdp_scope_begin(context));
    fill(j, &b);
    table = fsdp_tensor_ref(CHECK_PTR(fsdp_module_parameter(model, "model.embed_tokens.weight")));
    loss = loss_from_host(j, model, context, &b);
    if (early)
        fsdp_module_unref(model);
    CHECK_OK(fsdp_backward(loss));
    if (!early)
        fsdp_module_unref(model);
    CHECK(fsdp_tensor_numel(table) <= MAX_NUMEL);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(table)), FSDP_F32, out));
    fsdp_scope_end(context, NULL);
    fsdp_tensor_unref(table);
}

static void free_early(fsdp_context *context, void *arg)
{
    float values[2][MAX_NUMEL] = {{0}};

    table_gradient(context, arg, false, values[0]);
    table_gradient(context, arg, true, values[1]);
    CHECK_BYTES(values[0], values[1], sizeof values[0]);
}

TEST(models_may_be_freed_before_the_backward)
{
    for (int i = 0; i < 4; i++) {
        job j = {.architecture = FSDP_LLAMA, .cp = 1 + i % 3, .tp = i == 1 ? 2 : 1, .each = i == 3};

        j.recompute = i == 2 ? FSDP_RECOMPUTE_SELECTIVE : FSDP_RECOMPUTE_NONE;
        test_run_ranks(j.cp * j.tp, free_early, &j);
    }
}

static void check_refused(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_module *model;
    fsdp_tensor *tokens;
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->cp), (const char *const[]){"cp"}, &mesh));
    model = create(context, j, true, mesh, NULL);
    CHECK_STATUS(fsdp_model_context_parallel(model, mesh), FSDP_STATE);
    CHECK_OK(fsdp_scope_begin(context));
    tokens = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1, 14)));
    CHECK(!fsdp_call(model, tokens, tokens));
    CHECK_CONTAINS(fsdp_last_error(), "sequence length 14 cannot be cut into 4 equal chunks, two for each of 2 ranks: "
                                      "the nearest that can are 12 and "
                                      "16");
    tokens = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1, 16)));
    CHECK(!fsdp_call(model, tokens, tokens, tokens, tokens));
    CHECK_CONTAINS(fsdp_last_error(), "takes tokens, targets and positions, not 4 inputs");
    CHECK_INVALID(fsdp_call(model, tokens, CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1, 12)))),
                  "tokens (1, 16) does not fit targets (1, 12)");
    CHECK_OK(fsdp_model_set_last_logits_only(model, true));
    CHECK(!fsdp_call(model, tokens));
    CHECK_CONTAINS(fsdp_last_error(), "are given without gradients: call fsdp_no_grad_begin");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
}

TEST(what_cannot_be_cut_is_refused)
{
    job j = {.architecture = FSDP_LLAMA, .cp = 2, .tp = 1};

    test_run_ranks(2, check_refused, &j);
}

/* What is no model, or no mesh of one dimension, is refused as fsdp_model_parallelize does. */
static void refuse_others(fsdp_context *context, void *arg)
{
    fsdp_model_config config = config_of(arg);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    fsdp_module *linear = CHECK_PTR(fsdp_linear_create(context, test_device(context), 3, 4, NULL));
    fsdp_context *alone;
    fsdp_mesh *mesh, *wide, *foreign;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(2), (const char *const[]){"cp"}, &mesh));
    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(1, 2), (const char *const[]){"dp", "cp"}, &wide));
    CHECK_OK(fsdp_context_create(NULL, &alone));
    CHECK_OK(fsdp_mesh_create(alone, FSDP_SHAPE(1), (const char *const[]){"cp"}, &foreign));
    CHECK_ERROR(fsdp_model_context_parallel(linear, mesh), FSDP_INVALID, "a Linear was not made by fsdp_model_create");
    CHECK_ERROR(fsdp_model_context_parallel(fsdp_model_block(model, 0), mesh), FSDP_INVALID,
                "was not made by fsdp_model_create: its sequences cannot be cut");
    CHECK_ERROR(fsdp_model_context_parallel(model, wide), FSDP_INVALID,
                "a mesh of one dimension, not (dp=1, cp=2): take one of them with fsdp_mesh_slice");
    CHECK_ERROR(fsdp_model_context_parallel(model, foreign), FSDP_INVALID, "a mesh of another context");
    CHECK_OK(fsdp_model_context_parallel(model, mesh));
    fsdp_mesh_unref(foreign);
    fsdp_context_free(alone);
    fsdp_mesh_unref(wide);
    fsdp_mesh_unref(mesh);
    fsdp_module_unref(linear);
    fsdp_module_unref(model);
}

TEST(what_is_no_model_is_refused)
{
    job j = {.architecture = FSDP_LLAMA, .cp = 2, .tp = 1};

    test_run_ranks(2, refuse_others, &j);
}

/* Both orders of calls over meshes with two ranks in both: the same mesh, or one that was made apart. */
static void check_overlap(fsdp_context *context, void *arg)
{
    const job *j = arg;
    const fsdp_model_config config = config_of(j);
    fsdp_mesh *mesh[2];

    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(2), (const char *const[]){i ? "tp" : "cp"}, &mesh[i]));
    for (int i = 0; i < 2; i++)
        for (int first = 0; first < 2; first++) {
            fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));

            if (first)
                CHECK_OK(fsdp_model_context_parallel(model, mesh[0]));
            CHECK_STATUS(fsdp_model_parallelize(model, mesh[i], NULL), first ? FSDP_INVALID : FSDP_OK);
            if (!first)
                CHECK_STATUS(fsdp_model_context_parallel(model, mesh[0]), FSDP_INVALID);
            CHECK_CONTAINS(fsdp_last_error(),
                           first ? "layers cannot be divided over mesh" : "sequences cannot be divided");
            CHECK_CONTAINS(fsdp_last_error(), "and 2 ranks are in both; slice different dimensions of one mesh");
            fsdp_clear_error();
            fsdp_module_unref(model);
        }
    fsdp_mesh_unref(mesh[0]);
    fsdp_mesh_unref(mesh[1]);
}

/* The sequences of a whole model are divided, and then layers of a module in it; or these before. */
static void check_overlap_inside(fsdp_context *context, void *arg)
{
    const fsdp_model_config config = config_of(arg);
    fsdp_module *other = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(2), (const char *const[]){"cp"}, &mesh));
    CHECK_OK(fsdp_model_context_parallel(model, mesh));
    CHECK_ERROR(fsdp_parallelize_module(fsdp_module_child(fsdp_model_block(model, 0), "mlp"), mesh, inner, 3),
                FSDP_INVALID, "and 2 ranks are in both; slice different dimensions of one mesh");
    fsdp_clear_error();
    CHECK_OK(fsdp_parallelize_module(fsdp_module_child(fsdp_model_block(other, 1), "mlp"), mesh, inner, 3));
    CHECK_ERROR(fsdp_model_context_parallel(other, mesh), FSDP_INVALID,
                "sequences cannot be divided over mesh (cp=2): layers are divided over mesh (cp=2), and 2 ranks are in "
                "both");
    fsdp_module_unref(other);
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
}

TEST(layers_and_sequences_are_of_different_ranks)
{
    job j = {.architecture = FSDP_LLAMA, .cp = 2, .tp = 2};

    test_run_ranks(2, check_overlap, &j);
    test_run_ranks(2, check_overlap_inside, &j);
}

/* Rank 1 has another window: the models' parameters have the same shapes. */
static void differ_in_window(fsdp_context *context, void *arg)
{
    fsdp_model_config config = config_of(arg);
    fsdp_module *model;
    fsdp_mesh *mesh;

    config.window += fsdp_context_rank(context);
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(2), (const char *const[]){"cp"}, &mesh));
    CHECK_ERROR(fsdp_model_context_parallel(model, mesh), FSDP_MISMATCH,
                "ranks do not have the same model: rank 0 of the mesh has window 7, rank 1 has window 8");
    CHECK_ERROR(fsdp_model_parallelize(model, mesh, NULL), FSDP_MISMATCH, "has window 7, rank 1 has window 8");
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
}

TEST(ranks_whose_models_differ_are_told_so)
{
    job j = {.architecture = FSDP_MISTRAL, .cp = 2, .tp = 1};

    test_run_ranks(2, differ_in_window, &j);
}
