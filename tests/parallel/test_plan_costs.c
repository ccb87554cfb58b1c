/* What a plan sends: as many collectives of as many bytes as PyTorch's plans of the same model (reference/runs/tp-*),
 * and fewer where inputs are prepared once. What it keeps: parts of activations. */
#include "device/device.h"
#include "fsdp/models.h"
#include "fsdp/parallelize.h"
#include "parallel/parts.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    LENGTH = 32,
    LAYERS = 3,
    DIM = 64,
    VOCAB = 259
};

/* That of the reference: tiny-llama. */
static const fsdp_model_config config = {
    .architecture = FSDP_LLAMA,
    .n_layers = LAYERS,
    .dim = DIM,
    .n_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 16,
    .ffn_dim = 172,
    .vocab_size = VOCAB,
    .max_seq_len = 128,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .init_std = 0.02f,
};

typedef struct run {
    int64_t batch;
    bool gpt2;
    fsdp_architecture architecture; /* 0: Llama */
    fsdp_model_parallel_options options;
    fsdp_comm_stats stats;
    int64_t activations; /* bytes that wait for the backward */
} run;

static fsdp_tensor *tokens(fsdp_context *context, int64_t batch)
{
    int32_t ids[16 * LENGTH];

    for (int i = 0; i < batch * LENGTH; i++)
        ids[i] = 7 * i % VOCAB;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(batch, LENGTH), ids));
}

static int64_t activations(fsdp_context *context)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    return stats.live_bytes[FSDP_MEMORY_ACTIVATION];
}

static fsdp_module *create(fsdp_context *context, const run *r)
{
    fsdp_model_config mine = config;
    fsdp_module *model;
    fsdp_mesh *mesh = team_mesh(context);

    mine.architecture = r->gpt2 ? FSDP_GPT2 : r->architecture ? r->architecture : config.architecture;
    mine.n_kv_heads = r->gpt2 ? config.n_heads : config.n_kv_heads;
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &mine));
    CHECK_OK(fsdp_model_parallelize(model, mesh, &r->options));
    fsdp_mesh_unref(mesh);
    return model;
}

/* One step after the first, in which ranks meet. */
static void step(fsdp_context *context, void *arg)
{
    run *r = arg;
    fsdp_module *model = create(context, r);
    fsdp_comm_stats stats;

    for (int i = 0; i < 2; i++) {
        fsdp_tensor *loss, *ids;
        int64_t before;

        fsdp_context_reset_comm_stats(context);
        CHECK_OK(fsdp_scope_begin(context));
        ids = tokens(context, r->batch);
        before = activations(context);
        loss = CHECK_PTR(fsdp_call(model, ids, ids));
        if (fsdp_context_rank(context) == 0)
            r->activations = activations(context) - before;
        CHECK_OK(fsdp_backward(loss));
        fsdp_module_zero_grad(model);
        fsdp_scope_end(context, NULL);
    }
    fsdp_context_comm_stats(context, &stats);
    if (fsdp_context_rank(context) == 0)
        r->stats = stats;
    fsdp_module_unref(model);
}

static run on_two(run r)
{
    test_run_ranks(2, step, &r);
    CHECK_EQ(r.stats.calls[FSDP_BROADCAST], 0);
    CHECK_EQ(r.stats.calls[FSDP_ALL_TO_ALL], 0);
    return r;
}

static run run_on_two(int64_t batch, fsdp_model_parallel_options options)
{
    return on_two((run){.batch = batch, .options = options});
}

/* Checks calls, and elements of which each of two ranks sends this many. */
static void check(const run *r, fsdp_collective kind, int64_t calls, int64_t elements)
{
    CHECK_EQ(r->stats.calls[kind], calls);
    CHECK_EQ(r->stats.bytes_sent[kind], 4 * elements);
}

TEST(each_projection_prepares_its_input_as_in_pytorch)
{
    run r = run_on_two(12, (fsdp_model_parallel_options){.per_projection = true});

    check(&r, FSDP_ALL_REDUCE, 23, 23 * 12 * LENGTH * DIM); /* tp-llama-1x2 */
    check(&r, FSDP_ALL_GATHER, 1, 12 * LENGTH * 130);
    check(&r, FSDP_REDUCE_SCATTER, 0, 0);
}

TEST(attention_and_mlp_prepare_theirs_once)
{
    run r = run_on_two(12, (fsdp_model_parallel_options){0});

    check(&r, FSDP_ALL_REDUCE, 1 + 2 * LAYERS + 2 * LAYERS + 1, (2 + 4 * LAYERS) * 12 * LENGTH * DIM);
    check(&r, FSDP_ALL_GATHER, 1, 12 * LENGTH * 130);
}

TEST(sequences_are_gathered_and_scattered_as_in_pytorch)
{
    for (int per_projection = 0; per_projection < 2; per_projection++) {
        run r =
            run_on_two(6, (fsdp_model_parallel_options){.sequence_parallel = true, .per_projection = per_projection});

        check(&r, FSDP_REDUCE_SCATTER, 14, 14 * 6 * LENGTH * DIM / 2); /* tp-llama-2x2-sp */
        check(&r, FSDP_ALL_GATHER, 15, 14 * 6 * LENGTH * DIM / 2 + 6 * LENGTH * 130);
        check(&r, FSDP_ALL_REDUCE, 7, 7 * DIM);
    }
}

TEST(a_loss_of_cut_logits_sends_three_numbers_for_each_target)
{
    run r = run_on_two(6, (fsdp_model_parallel_options){.sequence_parallel = true, .loss_parallel = true});

    check(&r, FSDP_REDUCE_SCATTER, 14, 14 * 6 * LENGTH * DIM / 2); /* tp-llama-2x2-sp-loss */
    check(&r, FSDP_ALL_GATHER, 14, 14 * 6 * LENGTH * DIM / 2);
    check(&r, FSDP_ALL_REDUCE, 10, 7 * DIM + 3 * 6 * LENGTH);
}

/* As of other models, though positions are added to its embeddings; a norm has two parameters, and the products that
 * put heads and columns together have a bias, whose gradients are added up. */
TEST(gpt2_scatters_its_embeddings_too)
{
    run r = on_two((run){.batch = 6, .gpt2 = true, .options = {.sequence_parallel = true, .loss_parallel = true}});

    check(&r, FSDP_REDUCE_SCATTER, 14, 14 * 6 * LENGTH * DIM / 2);
    check(&r, FSDP_ALL_GATHER, 14, 14 * 6 * LENGTH * DIM / 2);
    check(&r, FSDP_ALL_REDUCE, 6 * LAYERS + 2 + 3, (6 * LAYERS + 2) * DIM + 3 * 6 * LENGTH);
}

/* Norms of heads have whole weights, whose gradients are added up; norms of all heads add up squares of each token, and
 * in the backward what becomes of the sum. Both of queries and of keys, and also without cut sequences. */
TEST(norms_of_queries_and_keys_are_added_up)
{
    int64_t tokens = 6 * LENGTH, others = (2 + 4 * LAYERS) * tokens * DIM + 3 * tokens;
    run qwen3 = {.batch = 6, .architecture = FSDP_QWEN3, .options = {.loss_parallel = true}}, olmo2 = qwen3;

    olmo2.architecture = FSDP_OLMO2;
    qwen3 = on_two(qwen3);
    check(&qwen3, FSDP_ALL_REDUCE, 2 + 4 * LAYERS + 3 + 2 * LAYERS, others + 2 * LAYERS * config.head_dim);
    olmo2 = on_two(olmo2);
    check(&olmo2, FSDP_ALL_REDUCE, 2 + 4 * LAYERS + 3 + 4 * LAYERS, others + 4 * LAYERS * tokens);
    qwen3.options.sequence_parallel = true;
    qwen3 = on_two(qwen3);
    check(&qwen3, FSDP_ALL_REDUCE, 10 + 2 * LAYERS, 7 * DIM + 3 * tokens + 2 * LAYERS * config.head_dim);
}

/* Gathers and reduce-scatters of attention and MLP, both ways, are four calls each. */
TEST(pieces_are_more_calls_of_as_many_bytes)
{
    run r =
        run_on_two(6, (fsdp_model_parallel_options){.sequence_parallel = true, .loss_parallel = true, .async = true});

    check(&r, FSDP_REDUCE_SCATTER, 14 + 3 * 4 * LAYERS, 14 * 6 * LENGTH * DIM / 2);
    check(&r, FSDP_ALL_GATHER, 14 + 3 * 4 * LAYERS, 14 * 6 * LENGTH * DIM / 2);
    check(&r, FSDP_ALL_REDUCE, 10, 7 * DIM + 3 * 6 * LENGTH);
}

/* What a step keeps for its backward, in closed form. Cut are queries, keys, values, what attention gives with a number
 * for each head, gate, up and their product; with sequences also the inputs of norms with a number for each; and with
 * the vocabulary the gradient of logits is not kept at all. Each rank keeps ids of its own rows of the table. */
TEST(activations_are_cut_as_predicted)
{
    int64_t tokens = 8 * LENGTH, norms = (2 * LAYERS + 1) * (DIM + 1);
    int64_t heads = config.n_heads * config.head_dim, kv = config.n_kv_heads * config.head_dim;
    int64_t layer = 2 * heads + 2 * kv + config.n_heads + 3 * config.ffn_dim;
    run alone = {.batch = 8};
    int64_t cut;

    test_run_ranks(1, step, &alone);
    cut = alone.activations - 4 * tokens * LAYERS * layer / 2 + 4 * tokens;
    CHECK_EQ(run_on_two(8, (fsdp_model_parallel_options){0}).activations, cut);
    CHECK_EQ(run_on_two(8, (fsdp_model_parallel_options){.loss_parallel = true}).activations, cut - 4 * tokens * VOCAB);
    CHECK_EQ(run_on_two(8, (fsdp_model_parallel_options){.sequence_parallel = true}).activations,
             cut - 4 * tokens * norms / 2);
    CHECK_EQ(run_on_two(8, (fsdp_model_parallel_options){.sequence_parallel = true, .loss_parallel = true}).activations,
             cut - 4 * tokens * norms / 2 - 4 * tokens * VOCAB);
    CHECK_EQ(run_on_two(8, (fsdp_model_parallel_options){.sequence_parallel = true, .async = true}).activations,
             cut - 4 * tokens * norms / 2);
}
