/* dpo_keys.c - checks the keys of preference tuning. */
#include <math.h>

#include "train/run_config.h"

bool fsdp__train_is_dpo(const fsdp_train_config *config)
{
    return config->training.objective == FSDP_TRAIN_DPO;
}

double fsdp__train_beta(const fsdp_train_config *config)
{
    return isnan(config->dpo.beta) ? 0.1 : config->dpo.beta;
}

double fsdp__train_label_smoothing(const fsdp_train_config *config)
{
    return isnan(config->dpo.label_smoothing) ? 0 : config->dpo.label_smoothing;
}

static fsdp_status refuse(const char *key, const char *why)
{
    return FSDP_FAIL(FSDP_INVALID, "%s, but training.objective is dpo, %s", key, why);
}

fsdp_status fsdp__train_check_dpo(const fsdp_train_config *c)
{
    if (!fsdp__train_is_dpo(c))
        return FSDP_OK;
    if (c->data.packing >= 0)
        return refuse("data.packing is set", "and a window has one pair: leave it out");
    if (c->data.train_on == FSDP_TRAIN_ON_ALL)
        return refuse("data.train_on is all", "which compares answers: leave it out");
    if (c->data.long_row != FSDP_LONG_ROW_ERROR && c->data.long_row != FSDP_LONG_ROW_SKIP)
        return refuse("data.on_long_row cuts rows", "and a pair is not cut: set error or skip");
    if (c->adapter.modules_to_save_count > 0)
        return refuse("adapter.modules_to_save is set", "whose reference is the model without its adapter: leave it "
                                                        "out");
    if (!fsdp__train_loads(c, FSDP__TRAIN_DATALOADER))
        return refuse("checkpoint.exclude_from_loading has dataloader",
                      "and a checkpoint's reference is of its data: leave it out");
    return FSDP_OK;
}
