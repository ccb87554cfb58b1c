/* Each family cut over 1 to 4 ranks: losses, logits and gradients are those of one rank, by any plan. */
#include "device/device.h"
#include "fsdp/models.h"
#include "fsdp/parallelize.h"
#include "parallel/parts.h"
#include "support/models.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    BATCH = 2,
    VOCAB = 37, /* cut unevenly, as the length is */
    LENGTH = 7,
    MAX_PARAMETERS = 64,
    MAX_NUMEL = 8192
};

/* What one rank computes. */
typedef struct result {
    int count;
    char names[MAX_PARAMETERS][96];
    float grads[MAX_PARAMETERS][MAX_NUMEL];
    float loss, logits[BATCH * LENGTH * VOCAB];
} result;

typedef struct job {
    fsdp_architecture architecture;
    int degree; /* that heads are to be divided by */
    fsdp_model_parallel_options options;
    bool parallel, sum, each, meta, frozen, thawed; /* frozen before the plan, and thawed after it */
    bool apart; /* parts of the model are cut by calls of their own, over two meshes of a grid */
    fsdp_recompute_mode recompute;
    float dropout;
    result *out; /* set where it is not parallel, else compared with */
} job;

/* Everything that a family may have is there. Heads of a degree that is not the number of key/value heads. */
static fsdp_model_config config_of(const job *j)
{
    fsdp_architecture a = j->architecture;
    bool gemma = a == FSDP_GEMMA2 || a == FSDP_GEMMA3, gpt2 = a == FSDP_GPT2;
    int64_t heads = 2 * j->degree;

    return MODEL_CONFIG(.architecture = a, .n_layers = 2, .dim = gpt2 ? 6 * heads : 20, .n_heads = heads,
                        .n_kv_heads = gpt2 ? heads : j->degree, .head_dim = 6, .ffn_dim = 21, .vocab_size = VOCAB,
                        .max_seq_len = 64, .rope_theta = 100, .rope_type = FSDP_ROPE_DEFAULT, .init_std = 0.3f,
                        .tie_word_embeddings = gemma || gpt2 || a == FSDP_SMOLLM3, .attention_bias = a == FSDP_LLAMA,
                        .mlp_bias = a == FSDP_LLAMA, .embd_dropout = gpt2 ? j->dropout : 0,
                        .dropout = gpt2 ? j->dropout : 0, .window = 4,
                        .local_layers = {a == FSDP_OLMO2 || a == FSDP_LLAMA ? 0 : 1},
                        .no_rope_layers = {a == FSDP_SMOLLM3 ? 2 : 0}, .rotary_fraction = a == FSDP_PHI3 ? 0.7f : 0,
                        .local_rope_theta = a == FSDP_GEMMA3 ? 30 : 0, .query_scalar = gemma ? 5 : 0,
                        .attention_softcap = a == FSDP_GEMMA2 ? 2 : 0, .logits_softcap = a == FSDP_GEMMA2 ? 3 : 0);
}

static fsdp_tensor *ids(fsdp_context *context, int step, bool targets)
{
    int32_t values[BATCH * LENGTH];

    for (int i = 0; i < BATCH * LENGTH; i++)
        values[i] = targets && i % 5 == 1 ? FSDP_IGNORE_TARGET : (step * i + 3) % VOCAB;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(BATCH, LENGTH), values));
}

static void parallelize(fsdp_context *context, fsdp_module *model, const job *j)
{
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->degree), (const char *const[]){"tp"}, &mesh));
    CHECK_OK(fsdp_model_parallelize(model, mesh, &j->options));
    fsdp_mesh_unref(mesh);
}

#define MLP(layer)                                                              \
    {                                                                           \
        {"model.layers." layer ".mlp.gate_proj", {.kind = FSDP_COLUMN_WISE}},   \
            {"model.layers." layer ".mlp.up_proj", {.kind = FSDP_COLUMN_WISE}}, \
            {"model.layers." layer ".mlp.down_proj", {.kind = FSDP_ROW_WISE}},  \
    }

/* Over one mesh, over the other, and over the first again, which none of the others undoes; what is cut stays so. */
static void parallelize_apart(fsdp_context *context, fsdp_module *model, const job *j)
{
    const fsdp_parallel_entry first[] = MLP("0"), second[] = MLP("1");
    const fsdp_parallel_entry head = {"lm_head", {.kind = FSDP_COLUMN_WISE, .to = {{.kind = FSDP_LAYOUT_REPLICATED}}}};
    static const char *const names[] = {"a", "b"};
    fsdp_mesh *grid, *meshes[2];

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->degree, j->degree), names, &grid));
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_mesh_slice(grid, 1, &names[i], &meshes[i]));
    CHECK_OK(fsdp_parallelize_module(model, meshes[0], first, 3));
    CHECK_OK(fsdp_parallelize_module(model, meshes[1], second, 3));
    CHECK_OK(fsdp_parallelize_module(model, meshes[0], &head, 1));
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(fsdp_parallelize_module(model, meshes[i], first, 3), FSDP_STATE);
        CHECK_CONTAINS(fsdp_last_error(), "is a distributed tensor already");
        fsdp_clear_error();
        fsdp_mesh_unref(meshes[i]);
    }
    fsdp_mesh_unref(grid);
}

static fsdp_module *create(fsdp_context *context, const job *j)
{
    fsdp_model_config config = config_of(j);
    fsdp_device *device = j->meta ? fsdp_meta(context) : test_device(context);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, device, &config));

    if (j->frozen || j->thawed)
        CHECK_OK(fsdp_module_set_requires_grad(fsdp_model_block(model, 0), false));
    if (j->parallel)
        (j->apart ? parallelize_apart : parallelize)(context, model, j);
    if (j->thawed)
        CHECK_OK(fsdp_module_set_requires_grad(model, true));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_module_initialize(model, 5));
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(model, i), j->recompute));
    if (j->sum)
        CHECK_OK(fsdp_model_set_loss(model, FSDP_LOSS_SUM, 0.25));
    if (j->each)
        CHECK_OK(fsdp_model_set_loss(model, FSDP_LOSS_NONE, 0));
    return model;
}

/* ---- comparing ---- */

static void compare_gradient(const result *want, const char *name, const fsdp_tensor *parameter)
{
    float got[MAX_NUMEL] = {0};
    int at = 0;

    while (at < want->count && strcmp(want->names[at], name) != 0)
        at++;
    CHECK(at < want->count);
    if (fsdp_tensor_grad(parameter))
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(parameter), FSDP_F32, got));
    check_part(name, parameter, got, want->grads[at]);
}

static void note_gradient(result *out, const char *name, const fsdp_tensor *parameter)
{
    int at = out->count++;

    CHECK(at < MAX_PARAMETERS && fsdp_tensor_numel(parameter) <= MAX_NUMEL);
    snprintf(out->names[at], sizeof out->names[at], "%s", name);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(parameter)), FSDP_F32, out->grads[at]));
}

static void settle(const job *j, float loss, const float *logits, fsdp_module *model)
{
    fsdp_parameters parameters = {0};

    if (j->parallel) {
        check_alike("loss", 0, loss, j->out->loss);
        for (int64_t i = 0; i < BATCH * LENGTH * VOCAB; i++)
            check_alike("logits", i, logits[i], j->out->logits[i]);
    } else {
        j->out->loss = loss;
        memcpy(j->out->logits, logits, sizeof j->out->logits);
    }
    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (j->parallel)
            compare_gradient(j->out, parameters.items[i].name, parameters.items[i].tensor);
        else
            note_gradient(j->out, parameters.items[i].name, parameters.items[i].tensor);
    fsdp_parameters_release(&parameters);
}

/* Computes a loss with its gradients, and logits. */
static void run(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_module *model = create(context, j);
    float logits[BATCH * LENGTH * VOCAB], value;
    fsdp_tensor *loss;

    CHECK_OK(fsdp_scope_begin(context));
    loss = CHECK_PTR(fsdp_call(model, ids(context, 5, false), ids(context, 3, true)));
    if (j->each)
        loss = CHECK_PTR(fsdp_mean(fsdp_square(loss)));
    CHECK_OK(fsdp_tensor_read(loss, FSDP_F32, &value));
    CHECK_OK(fsdp_backward(loss));
    fsdp_module_train(model, false);
    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, ids(context, 5, false))), FSDP_F32, logits));
    fsdp_no_grad_end(context);
    settle(j, value, logits, model);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
}

/* Runs it on one rank, and then by these plans. */
static void compare(job j, int count, const fsdp_model_parallel_options *plans)
{
    result *alone = CHECK_PTR(calloc(1, sizeof *alone));

    j.out = alone;
    j.parallel = false;
    test_run_ranks(1, run, &j);
    j.parallel = true;
    for (int i = 0; i < count; i++) {
        j.options = plans[i];
        if (test_takes(i + (int)j.architecture + j.degree, 1, 3))
            test_run_ranks(j.apart ? j.degree * j.degree : j.degree, run, &j);
    }
    free(alone);
}

static const fsdp_model_parallel_options plans[] = {
    {0},
    {.loss_parallel = true},
    {.sequence_parallel = true},
    {.sequence_parallel = true, .loss_parallel = true},
    {.sequence_parallel = true, .loss_parallel = true, .async = true},
    {.per_projection = true},
};

TEST(every_family_is_the_model_of_one_rank)
{
    for (int degree = test_brief() ? 3 : 1; degree <= 4; degree++)
        for (int a = FSDP_GPT2; a <= FSDP_GEMMA3; a++)
            compare((job){.architecture = (fsdp_architecture)a, .degree = degree}, (int)(sizeof plans / sizeof *plans),
                    plans);
}

TEST(losses_are_reduced_as_those_of_one_rank)
{
    for (int way = 0; way < 2; way++)
        for (int a = 0; a < 2; a++)
            compare((job){.architecture = a ? FSDP_GEMMA2 : FSDP_LLAMA, .degree = 3, .sum = way == 0, .each = way == 1},
                    5, plans);
}

TEST(blocks_that_are_computed_again_give_the_same)
{
    for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++)
        for (int a = FSDP_GPT2; a <= FSDP_GEMMA3; a += 5) /* also OLMo 2 */
            compare((job){.architecture = (fsdp_architecture)a,
                          .degree = 2,
                          .recompute = (fsdp_recompute_mode)mode,
                          .dropout = a == FSDP_GPT2 ? 0.2f : 0},
                    5, plans);
}

TEST(parts_may_be_cut_by_several_calls_over_several_meshes)
{
    for (int meta = 0; meta < 2; meta++)
        compare((job){.architecture = FSDP_LLAMA, .degree = 2, .apart = true, .meta = meta}, 1, plans);
}

TEST(dropouts_draw_as_on_one_rank)
{
    compare((job){.architecture = FSDP_GPT2, .degree = 3, .dropout = 0.3f}, 5, plans);
}

TEST(a_model_may_be_cut_on_the_meta_device)
{
    compare((job){.architecture = FSDP_PHI3, .degree = 2, .meta = true}, 5, plans);
    compare((job){.architecture = FSDP_GPT2, .degree = 3, .meta = true}, 5, plans);
}

/* ---- generation ---- */

static void check_logits(fsdp_tensor *logits, const float *whole, int first, int count)
{
    float got[BATCH * LENGTH * VOCAB];

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(logits), FSDP_F32, got));
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < count * VOCAB; i++)
            check_alike("logits", i, got[b * count * VOCAB + i], whole[(b * LENGTH + first) * VOCAB + i]);
}

/* Gives tokens in pieces, and compares with the logits of all. */
static void generate(fsdp_context *context, void *arg)
{
    static const int counts[] = {4, 1, 2};
    const job *j = arg;
    fsdp_module *model = create(context, j);
    float whole[BATCH * LENGTH * VOCAB];
    fsdp_kv_cache *cache;
    fsdp_tensor *tokens;

    CHECK_OK(fsdp_scope_begin(context));
    fsdp_no_grad_begin(context);
    tokens = ids(context, 5, false);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, tokens)), FSDP_F32, whole));
    CHECK_OK(fsdp_kv_cache_create(model, BATCH, LENGTH, &cache));
    for (int i = 0, first = 0; i < 3; first += counts[i++])
        check_logits(fsdp_model_call_cached(model, cache, fsdp_slice(tokens, 1, first, counts[i])), whole, first,
                     counts[i]);
    CHECK_OK(fsdp_model_set_last_logits_only(model, true));
    check_logits(fsdp_call(model, tokens), whole, LENGTH - 1, 1);
    fsdp_kv_cache_free(cache);
    fsdp_no_grad_end(context);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
}

TEST(a_cache_has_the_keys_of_this_ranks_heads)
{
    for (int a = FSDP_GPT2; a <= FSDP_GEMMA3; a++)
        for (int way = 0; way < 2; way++)
            test_run_ranks(2 + way, generate,
                           &(job){.architecture = (fsdp_architecture)a,
                                  .degree = 2 + way,
                                  .parallel = true,
                                  .options = {.sequence_parallel = way == 1}});
}

/* ---- what is refused ---- */

static void refuse(fsdp_context *context, void *arg)
{
    const job *j = arg;
    int world = fsdp_context_world_size(context);
    fsdp_model_config config = config_of(j);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    fsdp_module *other = CHECK_PTR(fsdp_linear_create(context, fsdp_meta(context), 2, 2, NULL));
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(world), (const char *const[]){"tp"}, &mesh));
    CHECK_ERROR(fsdp_model_parallelize(model, mesh, NULL), FSDP_INVALID,
                world == 3 ? "layer together is 3, which does not divide the model's 8 heads (n_heads): expected 1, 2 "
                             "or 4"
                           : "is 8, which does not divide the model's 4 key/value heads (n_kv_heads): expected 1, 2 "
                             "or 4");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_model_parallelize(other, mesh, NULL), FSDP_INVALID, "a Linear was not made by fsdp_model_create");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_model_parallelize(NULL, mesh, NULL), FSDP_INVALID, "a model and a mesh");
    fsdp_mesh_unref(mesh);
    fsdp_module_unref(other);
    fsdp_module_unref(model);
}

TEST(a_degree_that_does_not_divide_the_heads_is_refused)
{
    test_run_ranks(3, refuse, &(job){.architecture = FSDP_QWEN3, .degree = 4});
    test_run_ranks(8, refuse, &(job){.architecture = FSDP_QWEN3, .degree = 4});
}

/* The embedding would look up ids in its part of the table. */
static void cut_one_of_two(fsdp_context *context, void *arg)
{
    const fsdp_parallel_entry head = {"lm_head", {.kind = FSDP_COLUMN_WISE, .to = {{.kind = FSDP_LAYOUT_REPLICATED}}}};
    fsdp_model_config config = config_of(arg);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(2), (const char *const[]){"tp"}, &mesh));
    CHECK_ERROR(fsdp_parallelize_module(model, mesh, &head, 1), FSDP_INVALID,
                "the pattern 'lm_head' cuts a parameter that is tied to 'model.embed_tokens.weight', and no pattern "
                "names 'model.embed_tokens'");
    CHECK_NULL(fsdp_tensor_distribution(fsdp_module_parameter(model, "model.embed_tokens.weight")));
    fsdp_mesh_unref(mesh);
    fsdp_module_unref(model);
}

TEST(a_tied_parameter_is_cut_in_both_its_modules)
{
    test_run_ranks(2, cut_one_of_two, &(job){.architecture = FSDP_GEMMA2, .degree = 2});
}

TEST(a_degree_that_is_none_is_refused)
{
    fsdp_model_config config = config_of(&(job){.architecture = FSDP_QWEN3, .degree = 4});

    CHECK_ERROR(fsdp_model_parallel_check(&config, 0), FSDP_INVALID, "over 0 ranks");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_model_parallel_check(NULL, 2), FSDP_INVALID, "needs a config");
}

/* ---- the same bits, in any dtype ---- */

static void repeat(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_module *model = create(context, j);
    float losses[2];

    CHECK_OK(fsdp_module_to(model, FSDP_BF16));
    for (int i = 0; i < 2; i++) {
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        loss = CHECK_PTR(fsdp_call(model, ids(context, 5, false), ids(context, 3, true)));
        CHECK_OK(fsdp_tensor_read(loss, FSDP_F32, &losses[i]));
        CHECK_OK(fsdp_backward(loss));
        fsdp_module_zero_grad(model);
        fsdp_scope_end(context, NULL);
    }
    CHECK_BYTES(&losses[0], &losses[1], sizeof(float));
    CHECK_NEAR(losses[0], j->out->loss, 0.1);
    fsdp_module_unref(model);
}

TEST(a_block_that_is_thawed_after_the_plan_has_the_gradients_of_one_rank)
{
    compare((job){.architecture = FSDP_QWEN3, .degree = 2, .thawed = true}, (int)(sizeof plans / sizeof *plans), plans);
}

TEST(in_bf16_every_run_gives_the_same_bits)
{
    result *alone = CHECK_PTR(calloc(1, sizeof *alone));
    job j = {.architecture = FSDP_OLMO2, .degree = 2, .out = alone};

    test_run_ranks(1, run, &j);
    j.parallel = true;
    for (int i = 0; i < 5; i++) {
        j.options = plans[i];
        j.frozen = false;
        if (test_takes(i, 1, 3))
            test_run_ranks(2, repeat, &j);
        j.frozen = true; /* a block, with its norms */
        if (test_takes(i + 1, 1, 3))
            test_run_ranks(2, repeat, &j);
    }
    free(alone);
}
