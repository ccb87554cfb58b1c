/* What is explained is what is: for every strategy, units, dtypes and microbatches, models that were drawn and one of
 * the caller's own, ledger, counters and parts of every rank are those of ranks that really train. */
#include "explain/real.h"
#include "support/dice.h"
#include "train/config.h"

#include <stdlib.h>
#include <string.h>

/* ---- configs ---- */

static void hold_on(int machines, int world, bool one_level, const char *keys)
{
    fsdp_train_config *config = test_small_config(keys);
    real_result was = {.machines = machines, .one_level = one_level};

    real_train(world, config, &was);
    real_compare(world, NULL, config, &was);
    real_release(&was);
}

static void hold(int world, const char *keys)
{
    hold_on(0, world, false, keys);
}

/* ---- long sequences ---- */

/* What a step of one sequence of `length` tokens holds at once on the last of some ranks, of which `cp` share it. */
static fsdp_explained_step step_of(int world, int cp, int length, bool recomputes)
{
    char keys[240];
    fsdp_train_config *config;
    fsdp_explained_step step;
    fsdp_explanation *e;

    snprintf(keys, sizeof keys,
             "training.seq_len=%d model.max_seq_len=%d training.local_batch_size=1 "
             "parallelism.context_parallel_degree=%d activation_checkpoint.mode=%s",
             length, length, cp, recomputes ? "full" : "none");
    config = test_small_config(keys);
    CHECK_OK(fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = world, .rank = world - 1}, &e));
    step = e->step;
    fsdp_explanation_free(e);
    return step;
}

/* Beside positions, and keys and values of two other ranks, of one layer, with their gradients, and sums. */
TEST(activations_are_divided_by_the_ranks_of_a_sequence)
{
    const int length = 240, kv = 2 * 12 * 4; /* bytes of a token */

    for (int recomputes = 0; recomputes < 2; recomputes++)
        for (int cp = 2; cp <= 6; cp++) {
            size_t alone = step_of(cp, 1, length, recomputes).peak_bytes[FSDP_MEMORY_ACTIVATION];
            size_t shared = step_of(cp, cp, length, recomputes).peak_bytes[FSDP_MEMORY_ACTIVATION];
            size_t token = (size_t)(length / cp);

            if (length % (2 * cp) != 0)
                continue;
            CHECK(shared >= alone / (size_t)cp);
            CHECK(shared <= alone / (size_t)cp + token * (5 * (size_t)kv + 4 * 24 + 4) + 1024);
        }
}

/* The largest of so many tokens, in steps of some, that fits into a rank's memory. */
static int longest(int cp, size_t memory)
{
    int length = 0;

    while (step_of(cp, cp, length + 48, true).peak_total_bytes <= memory)
        length += 48;
    return length;
}

TEST(ranks_together_train_on_what_none_can_hold)
{
    const size_t memory = 1 << 19;
    int alone = longest(1, memory), two = longest(2, memory), three = longest(3, memory);
    char keys[240];
    fsdp_train_config *config;
    real_result was = {.machines = 0};

    CHECK(alone > 0 && two >= 2 * alone && three >= 3 * alone);
    snprintf(keys, sizeof keys,
             "training.seq_len=%d model.max_seq_len=%d training.local_batch_size=1 "
             "parallelism.context_parallel_degree=2 activation_checkpoint.mode=full",
             two, two);
    config = test_small_config(keys);
    real_train(2, config, &was);
    for (int rank = 0; rank < 2; rank++)
        CHECK(was.steps[rank].peak_total_bytes <= memory);
    real_release(&was);
}

/* ---- every strategy ---- */

TEST(every_strategy_costs_what_is_said)
{
    static const char *const strategies[] = {"parallelism.strategy=fsdp2", "parallelism.strategy=zero1",
                                             "parallelism.strategy=zero2", "parallelism.strategy=zero3",
                                             "parallelism.strategy=ddp",   "parallelism.strategy=fsdp1"};
    char keys[256];

    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
        for (int world = 1; world <= REAL_WORLDS; world += test_brief() ? 3 : 1) {
            int micros = (world + (int)i) % 2 + 1;

            snprintf(keys, sizeof keys, "%s training.global_batch_size=%d", strategies[i], 2 * world * micros);
            hold(world, keys);
        }
}

TEST(every_way_of_a_strategy_costs_what_is_said)
{
    static const struct {
        int world;
        const char *keys;
    } ways[] = {
        {4, "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2"},
        {4, "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2 training.global_batch_size=16"},
        {3, "parallelism.strategy=fsdp1 parallelism.fsdp1_strategy=shard_grad_op training.global_batch_size=12"},
        {3, "parallelism.strategy=fsdp1 parallelism.fsdp1_strategy=no_shard"},
        {3, "parallelism.strategy=fsdp1 parallelism.fsdp1_use_orig_params=true"},
        {4, "parallelism.strategy=fsdp1 parallelism.fsdp1_strategy=hybrid_shard "
            "parallelism.data_parallel_replicate_degree=2"},
        {4, "parallelism.strategy=fsdp1 parallelism.fsdp1_strategy=hybrid_shard_zero2 "
            "parallelism.data_parallel_replicate_degree=2 training.mixed_precision_param=bfloat16"},
        {3, "parallelism.fsdp_reshard_after_forward=never"},
        {4, "parallelism.fsdp_reshard_after_forward=2"},
        {3, "parallelism.keep_last_unit=true parallelism.wrap_policy=class "
            "parallelism.wrap_classes=[LlamaAttention,LlamaMLP] training.global_batch_size=12"},
        {3, "training.no_sync=false training.global_batch_size=12"},
        {3, "training.mixed_precision_param=bfloat16"},
        {2, "training.mixed_precision_param=bfloat16 training.mixed_precision_reduce=bfloat16"},
        {2, "training.mixed_precision_param=float16"},
        {3, "parallelism.gather_dtype=int8"},
        {2, "parallelism.gather_dtype=float8 training.global_batch_size=8"},
        {2, "training.enable_cpu_offload=true"},
        {2, "activation_checkpoint.mode=full"},
        {2, "activation_checkpoint.mode=selective"},
        {2, "activation_checkpoint.mode=cheap"},
        {2, "optimizer.name=sgd optimizer.momentum=0.9"},
        {3, "optimizer.name=muon optimizer.decay=matrices"},
        {3, "optimizer.name=adafactor optimizer.decay=matrices"},
        {3, "optimizer.name=lion training.ema_decay=0.9"},
        {2, "optimizer.name=adamw8bit model.ffn_dim=600"},
        {2, "training.max_norm=0 model.frozen=model.embed_tokens.weight"},
        {3, "model.tie_word_embeddings=true"},
        {2, "parallelism.context_parallel_degree=2"},
        {4, "parallelism.context_parallel_degree=2 training.mixed_precision_param=bfloat16 "
            "training.global_batch_size=8"},
        {4, "parallelism.context_parallel_degree=4 activation_checkpoint.mode=full"},
        {4, "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2 "
            "parallelism.context_parallel_degree=2"},
    };

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i += test_brief() ? 3 : 1)
        hold(ways[i].world, ways[i].keys);
}

TEST(units_of_every_policy_cost_what_is_said)
{
    static const char *const policies[] = {
        "parallelism.wrap_policy=root",
        "parallelism.wrap_policy=size parallelism.wrap_min_num_params=3000",
        "parallelism.wrap_policy=class parallelism.wrap_classes=LlamaAttention",
        "parallelism.wrap_policy=always",
        "parallelism.prefetch=2",
        "parallelism.wrap_policy=always parallelism.strategy=fsdp1",
        "parallelism.wrap_policy=root parallelism.strategy=zero2 training.global_batch_size=12",
    };

    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        hold(3, policies[i]);
}

/* ---- several machines ---- */

TEST(machines_send_what_is_said)
{
    static const struct {
        int machines, world;
        bool one_level;
        const char *keys;
    } ways[] = {
        {2, 2, false, "parallelism.strategy=fsdp2"},
        {2, 4, false, "parallelism.strategy=fsdp2 training.global_batch_size=16"},
        {3, 3, false, "parallelism.strategy=fsdp2 training.mixed_precision_param=bfloat16"},
        {2, 4, true, "parallelism.strategy=fsdp2"},
        {2, 4, false, "parallelism.strategy=hsdp"},
        {2, 4, false, "parallelism.strategy=hsdp training.mixed_precision_reduce=bfloat16"},
        {2, 4, false, "parallelism.strategy=ddp"},
        {2, 4, true, "parallelism.strategy=ddp"},
        {2, 4, false, "parallelism.strategy=zero1"},
        {2, 4, false, "parallelism.strategy=fsdp1"},
        {2, 4, false, "parallelism.fsdp_reshard_after_forward=2"},
        {2, 4, false, "parallelism.gather_dtype=int8"},
        {4, 4, false, "parallelism.wrap_policy=always training.max_norm=0"},
    };

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i += test_brief() ? 3 : 1)
        hold_on(ways[i].machines, ways[i].world, ways[i].one_level, ways[i].keys);
}

/* ---- models that were drawn ---- */

static const char *draw(uint64_t *dice, int world, char *keys, size_t bytes)
{
    static const char *const strategies[] = {"fsdp2", "zero1", "zero2", "zero3", "fsdp1", "ddp"};
    static const char *const policies[] = {"blocks", "root", "always", "size parallelism.wrap_min_num_params=2500"};
    bool gpt2 = dice_chance(dice, 50);
    int heads = 1 + dice_below(dice, 4), strategy = dice_below(dice, 6), micros = 1 + dice_below(dice, 3);
    int policy = strategy == 5 ? 0 : dice_below(dice, 4);

    snprintf(keys, bytes,
             "model.preset=%s model.n_layers=%d model.n_heads=%d model.n_kv_heads=%d model.dim=%d model.ffn_dim=%d "
             "model.vocab_size=%d training.seq_len=%d training.local_batch_size=%d training.global_batch_size=%d "
             "parallelism.strategy=%s parallelism.wrap_policy=%s training.mixed_precision_param=%s",
             gpt2 ? "gpt-10m" : "llama-1m", 1 + dice_below(dice, 4), heads, gpt2 ? heads : 1,
             heads * 2 * (2 + dice_below(dice, 7)), 9 + dice_below(dice, 60), 256 + dice_below(dice, 99),
             3 + dice_below(dice, 20), 3, 3 * world * micros, strategies[strategy], policies[policy],
             strategy != 5 && dice_chance(dice, 30) ? "bfloat16" : "float32");
    return keys;
}

TEST(models_that_were_drawn_cost_what_is_said)
{
    const dice_seeds seeds = dice_seeds_of("MODELS", test_long() ? 200 : test_brief() ? 2 : 8);
    char keys[512];

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        uint64_t dice = 7 * seed;
        int world = 1 + dice_below(&dice, REAL_WORLDS);

        hold(world, draw(&dice, world, keys, sizeof keys));
    }
}
