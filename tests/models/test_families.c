/* Each family like Llama's: trained over 1, 2 and 3 ranks it is the same model, and a block that is computed again
 * gives the same bits. Links: shard optim */
#include "fsdp/models.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "support/models.h"
#include "support/ranks.h"

enum {
    VOCAB = 17,
    LENGTH = 9,
    STEPS = 3
};

/* A config in which everything that a family may have is there. */
static fsdp_model_config config_of(fsdp_architecture architecture)
{
    bool gemma = architecture == FSDP_GEMMA2 || architecture == FSDP_GEMMA3;

    return MODEL_CONFIG(.architecture = architecture, .n_layers = 3, .dim = 16, .n_heads = 4, .n_kv_heads = 2,
                        .head_dim = 6, .ffn_dim = 21, .vocab_size = VOCAB,
                        .max_seq_len = architecture == FSDP_LLAMA ? 4 : 64, .rope_theta = 100,
                        .rope_type = architecture == FSDP_LLAMA ? FSDP_ROPE_DYNAMIC : FSDP_ROPE_LINEAR,
                        .rope_factor = 2, .init_std = 0.3f,
                        .tie_word_embeddings = gemma || architecture == FSDP_SMOLLM3, .window = 4,
                        .local_layers = {architecture == FSDP_OLMO2 || architecture == FSDP_LLAMA ? 0 : 5},
                        .no_rope_layers = {architecture == FSDP_SMOLLM3 ? 2 : 0},
                        .rotary_fraction = architecture == FSDP_PHI3 ? 0.7f : 0,
                        .local_rope_theta = architecture == FSDP_GEMMA3 ? 30 : 0, .query_scalar = gemma ? 5 : 0,
                        .attention_softcap = architecture == FSDP_GEMMA2 ? 2 : 0,
                        .logits_softcap = architecture == FSDP_GEMMA2 ? 3 : 0);
}

typedef struct job {
    fsdp_architecture architecture;
    fsdp_recompute_mode recompute;
    bool sharded;
    double losses[STEPS]; /* of rank 0 */
} job;

static fsdp_tensor *ids(fsdp_context *context, int step, int first)
{
    int32_t values[2 * LENGTH];

    for (int i = 0; i < 2 * LENGTH; i++)
        values[i] = (step * i + first) % VOCAB;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(2, LENGTH), values));
}

static fsdp_module *create(fsdp_context *context, const job *j)
{
    fsdp_model_config config = config_of(j->architecture);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));

    CHECK_OK(fsdp_module_initialize(model, 5));
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++) {
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(model, i), j->recompute));
        if (j->sharded)
            CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
    }
    if (j->sharded)
        CHECK_OK(fsdp_fully_shard(model, NULL));
    return model;
}

/* Trains on the same tokens on every rank. */
static void train(fsdp_context *context, void *arg)
{
    job *j = arg;
    fsdp_module *model = create(context, j);
    fsdp_sgd_options options = {.lr = 0.1};
    fsdp_parameters parameters = {0};
    fsdp_optimizer *optimizer = NULL;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &options, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        fsdp_tensor *loss;
        float value;

        CHECK_OK(fsdp_scope_begin(context));
        loss = CHECK_PTR(fsdp_call(model, ids(context, 5, step), ids(context, 3, step)));
        CHECK_OK(fsdp_tensor_read(loss, FSDP_F32, &value));
        CHECK_OK(fsdp_backward(loss));
        CHECK_OK(fsdp_optimizer_step(optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        fsdp_scope_end(context, NULL);
        if (fsdp_context_rank(context) == 0)
            j->losses[step] = (double)value;
    }
    fsdp_optimizer_free(optimizer);
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(model);
}

static job run(int world, job j)
{
    test_run_ranks(world, train, &j);
    return j;
}

TEST(over_several_ranks_it_is_the_same_model)
{
    for (int architecture = FSDP_LLAMA; architecture <= FSDP_GEMMA3; architecture++) {
        job alone = run(1, (job){.architecture = (fsdp_architecture)architecture});

        CHECK(alone.losses[STEPS - 1] < alone.losses[0]);
        for (int world = 1; world <= 3; world++) {
            job sharded = run(world, (job){.architecture = (fsdp_architecture)architecture,
                                           .recompute = world == 3 ? FSDP_RECOMPUTE_FULL : FSDP_RECOMPUTE_NONE,
                                           .sharded = true});

            for (int step = 0; step < STEPS; step++)
                CHECK_NEAR(sharded.losses[step], alone.losses[step], 1e-5 * alone.losses[step]);
        }
    }
}

TEST(blocks_that_are_computed_again_give_the_same_bits)
{
    for (int architecture = FSDP_LLAMA; architecture <= FSDP_GEMMA3; architecture++) {
        job kept = run(1, (job){.architecture = (fsdp_architecture)architecture});

        for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++) {
            job again =
                run(1, (job){.architecture = (fsdp_architecture)architecture, .recompute = (fsdp_recompute_mode)mode});

            CHECK_BYTES(again.losses, kept.losses, sizeof kept.losses);
        }
    }
}
