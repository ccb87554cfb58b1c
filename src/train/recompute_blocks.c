/* recompute_blocks.c - which blocks recompute their forward in the backward, chosen as torchtitan chooses them. */
#include "train/run_start.h"

fsdp_recompute_mode fsdp__train_recompute_of(const fsdp_train_config *config, int64_t block)
{
    int every = config->activation_checkpoint.selective_ac_option;

    if (config->activation_checkpoint.mode != FSDP_RECOMPUTE_SELECTIVE)
        return (fsdp_recompute_mode)config->activation_checkpoint.mode;
    if (every == 0)
        return FSDP_RECOMPUTE_SELECTIVE;
    return (block + 1) % every == 0 ? FSDP_RECOMPUTE_FULL : FSDP_RECOMPUTE_NONE;
}

int64_t fsdp__train_recomputed(const fsdp_train_config *config, int64_t blocks)
{
    int64_t count = 0;

    for (int64_t i = 0; i < blocks; i++)
        count += fsdp__train_recompute_of(config, i) != FSDP_RECOMPUTE_NONE;
    return count;
}

fsdp_status fsdp__train_set_recompute(const fsdp_train_config *config, fsdp_module *model)
{
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        FSDP_TRY(fsdp_module_set_recompute(fsdp_model_block(model, i), fsdp__train_recompute_of(config, i)));
    return FSDP_OK;
}
