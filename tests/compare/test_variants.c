/* Strategies and policies as configs: which there are, what each changes, what cannot be. */
#include "compare/variants.h"
#include "fsdp/fsdp1.h"
#include "support/test.h"
#include "train/config.h"

static fsdp_train_config *configure(const char *key, const char *value)
{
    fsdp_train_config *config =
        test_config("model.preset=llama-1m data.path=text.txt metrics.jsonl=metrics.jsonl export.path=model");

    if (key)
        CHECK_OK(fsdp_train_config_set(config, key, value));
    return config;
}

static const fsdp__variant *find(const fsdp__variants *variants, const char *label)
{
    for (int i = 0; i < variants->count; i++)
        if (strcmp(variants->items[i].label, label) == 0)
            return &variants->items[i];
    TEST_FAIL("no '%s'", label);
    return NULL;
}

TEST(all_strategies_are_there_and_write_nothing)
{
    fsdp_train_config *config = configure(NULL, NULL);
    fsdp__variants v;

    CHECK_OK(fsdp__variants_create(config, 4, NULL, NULL, &v));
    CHECK_EQ(v.count, 7);
    for (int i = 0; i < v.count; i++) {
        CHECK_STRING(v.items[i].refused, "");
        CHECK(v.items[i].config->metrics.jsonl == NULL);
        CHECK(v.items[i].config->save.path == NULL);
        CHECK_EQ(v.items[i].config->metrics.log_freq, 1);
        CHECK_OK(fsdp_train_config_check(v.items[i].config, 4));
    }
    CHECK_EQ(find(&v, "hsdp")->config->parallelism.data_parallel_replicate_degree, 2);
    CHECK_EQ(find(&v, "zero3")->config->parallelism.strategy, FSDP_TRAIN_ZERO3);
    CHECK_STRING(find(&v, "zero3")->policy, "blocks");
    CHECK_STRING(find(&v, "ddp")->policy, "");
    CHECK(config->save.path != NULL);
    fsdp__variants_release(&v);
    CHECK_OK(fsdp__variants_create(config, 3, NULL, NULL, &v));
    CHECK_CONTAINS(find(&v, "hsdp")->refused, "data_parallel_replicate_degree is 2, but there are 3 ranks");
    fsdp__variants_release(&v);
}

/* Of what the config says for its own strategy, others have nothing; what is of all goes with all, or refuses. */
TEST(keys_of_one_strategy_are_left_out_for_others)
{
    fsdp_train_config *config = configure("parallelism.strategy", "fsdp1");
    fsdp__variants v;

    CHECK_OK(fsdp_train_config_set(config, "parallelism.fsdp1_strategy", "shard_grad_op"));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.wrap_policy", "size"));
    CHECK_OK(fsdp__variants_create(config, 2, "fsdp1,zero1,ddp,fsdp1:hybrid_shard,fsdp1:no_shard", NULL, &v));
    CHECK_EQ(find(&v, "fsdp1")->config->parallelism.fsdp1_strategy, FSDP_SHARD_GRAD_OP);
    CHECK_EQ(find(&v, "zero1")->config->parallelism.fsdp1_strategy, -1);
    CHECK_EQ(find(&v, "zero1")->config->parallelism.wrap_policy, FSDP_TRAIN_WRAP_SIZE);
    CHECK_EQ(find(&v, "ddp")->config->parallelism.wrap_policy, FSDP_TRAIN_WRAP_BLOCKS);
    CHECK_EQ(find(&v, "fsdp1:hybrid_shard")->config->parallelism.data_parallel_replicate_degree, 2);
    CHECK_EQ(find(&v, "fsdp1:no_shard")->config->parallelism.fsdp1_strategy, FSDP_NO_SHARD);
    fsdp__variants_release(&v);

    config = configure("parallelism.strategy", "hsdp");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_replicate_degree", "4"));
    CHECK_OK(fsdp__variants_create(config, 8, NULL, NULL, &v));
    CHECK_EQ(find(&v, "hsdp")->config->parallelism.data_parallel_replicate_degree, 4);
    CHECK_EQ(find(&v, "fsdp2")->config->parallelism.data_parallel_replicate_degree, 1);
    fsdp__variants_release(&v);

    config = configure("parallelism.strategy", "ddp");
    CHECK_OK(fsdp_train_config_set(config, "parallelism.ddp_bucket_cap_mb", "3"));
    CHECK_OK(fsdp__variants_create(config, 2, NULL, NULL, &v));
    for (int i = 0; i < v.count; i++)
        CHECK_STRING(v.items[i].refused, "");
    CHECK_NEAR(find(&v, "ddp")->config->parallelism.ddp_bucket_cap_mb, 3, 0);
    fsdp__variants_release(&v);

    config = configure("training.no_sync", "true");
    CHECK_OK(fsdp__variants_create(config, 2, NULL, NULL, &v));
    CHECK_CONTAINS(find(&v, "zero2")->refused, "training.no_sync true adds up whole ones");
    CHECK_STRING(find(&v, "zero1")->refused, "");
    fsdp__variants_release(&v);
    CHECK_ERROR(fsdp__variants_create(config, 2, "zero1,zero2", NULL, &v), FSDP_INVALID, "--strategies zero2: ");
    CHECK_EQ(v.count, 0);
}

/* A step has as many sequences in teams as without. */
TEST(any_strategy_may_have_teams)
{
    fsdp_train_config *config = configure("training.local_batch_size", "3");
    fsdp__variants v;

    CHECK_OK(fsdp__variants_create(config, 8, "fsdp2,fsdp2:cp2,fsdp2:cp2+tp2,ddp:cp4,fsdp1:cp2,zero2:tp2", NULL, &v));
    CHECK_EQ(v.count, 6);
    CHECK_EQ(find(&v, "fsdp2:cp2")->config->parallelism.context_parallel_degree, 2);
    CHECK_EQ(find(&v, "fsdp2:cp2")->config->training.local_batch_size, 6);
    CHECK_EQ(find(&v, "fsdp2:cp2+tp2")->config->parallelism.context_parallel_degree, 2);
    CHECK_EQ(find(&v, "fsdp2:cp2+tp2")->config->parallelism.tensor_parallel_degree, 2);
    CHECK_EQ(find(&v, "fsdp2:cp2+tp2")->config->training.local_batch_size, 12);
    CHECK_EQ(find(&v, "ddp:cp4")->config->training.local_batch_size, 12);
    CHECK_EQ(find(&v, "fsdp1:cp2")->config->parallelism.context_parallel_degree, 2);
    CHECK_EQ(find(&v, "zero2:tp2")->config->parallelism.tensor_parallel_degree, 2);
    fsdp__variants_release(&v);
    CHECK_ERROR(fsdp__variants_create(config, 2, "ddp:tp2", NULL, &v), FSDP_UNSUPPORTED, "--strategies ddp:tp2: ");
    CHECK_ERROR(fsdp__variants_create(config, 8, "fsdp2:cp2+tp2+cp4", NULL, &v), FSDP_INVALID,
                "'cp2+tp2+cp4' is no team: expected tpN, cpN or cpN+tpN");
}

TEST(policies_are_one_dimension_more)
{
    fsdp_train_config *config = configure(NULL, NULL);
    fsdp__variants v;

    CHECK_OK(
        fsdp__variants_create(config, 2, "zero1,ddp,zero1", "size:77,class:LlamaDecoderLayer+Embedding,always", &v));
    CHECK_EQ(v.count, 4); /* ddp has none, and twice is once */
    CHECK_EQ(find(&v, "zero1 size:77")->config->parallelism.wrap_min_num_params, 77);
    CHECK_EQ(find(&v, "zero1 class:LlamaDecoderLayer+Embedding")->config->parallelism.wrap_class_count, 2);
    CHECK_EQ(find(&v, "zero1 always")->config->parallelism.wrap_policy, FSDP_TRAIN_WRAP_ALWAYS);
    CHECK_EQ(find(&v, "ddp")->config->parallelism.wrap_policy, FSDP_TRAIN_WRAP_BLOCKS);
    fsdp__variants_release(&v);
    CHECK_ERROR(fsdp__variants_create(config, 2, "", NULL, &v), FSDP_INVALID, "--strategies names none");
    CHECK_ERROR(fsdp__variants_create(config, 2, NULL, "", &v), FSDP_INVALID, "--policies names none");
    CHECK_ERROR(fsdp__variants_create(config, 2, NULL, "size:x", &v), FSDP_INVALID, "--policies size:x: ");
    CHECK_ERROR(fsdp__variants_create(config, 2, NULL, "class", &v), FSDP_INVALID, "needs parallelism.wrap_classes");
    CHECK_ERROR(fsdp__variants_create(config, 2, NULL, "always:1", &v), FSDP_INVALID,
                "'always' takes nothing after a colon");
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp__variants_create(config, 2, "zero1", "size:77,class:Linear", &v);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__variants_release(&v);
    }
}
