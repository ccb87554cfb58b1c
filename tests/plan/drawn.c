/* drawn.c - configs for plans, from a seed. */
#include "plan/drawn.h"

#include "support/dice.h"
#include "train/config.h"

fsdp_train_config *plan_drawn_config(uint64_t *dice)
{
    static const char *const choices[][8] = {
        {"parallelism.strategy=fsdp2", "parallelism.strategy=zero3", "parallelism.strategy=zero1",
         "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2",
         "parallelism.strategy=ddp parallelism.ddp_bucket_cap_mb=1 parallelism.ddp_compress=bfloat16",
         "parallelism.strategy=fsdp1 parallelism.fsdp1_strategy=shard_grad_op",
         "parallelism.strategy=fsdp1 parallelism.fsdp1_use_orig_params=true", NULL},
        {"parallelism.fsdp_reshard_after_forward=never", "parallelism.fsdp_reshard_after_forward=2",
         "parallelism.keep_last_unit=true", "training.no_sync=false", "training.max_norm=0", NULL},
        {"parallelism.wrap_policy=root", "parallelism.wrap_policy=size parallelism.wrap_min_num_params=2000",
         "parallelism.wrap_policy=class parallelism.wrap_classes=LlamaMLP", "parallelism.wrap_policy=always",
         "training.seq_len=8", NULL},
        {"activation_checkpoint.mode=selective activation_checkpoint.selective_ac_option=2",
         "activation_checkpoint.mode=full", "training.enable_cpu_offload=true", "training.threads=1", NULL},
        {"parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_degree=2",
         "training.global_batch_size=24", "training.global_batch_size=48", "optimizer.name=sgd", NULL},
        {"training.device=cuda", "training.device=cuda", "training.device=cpu", NULL},
    };
    fsdp_train_config *config = test_small_config("model.dim=32 model.n_kv_heads=2 training.local_batch_size=6");

    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        int count = 0;

        while (choices[i][count])
            count++;
        test_set_keys(config, "%s", choices[i][dice_below(dice, count)]);
    }
    return config;
}
