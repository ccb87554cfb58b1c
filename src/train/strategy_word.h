/* strategy_word.h - a strategy and a wrap policy as one word each, as a command line has them. */
#ifndef TRAIN_STRATEGY_WORD_H
#define TRAIN_STRATEGY_WORD_H

#include "fsdp/train.h"

/* "zero2", "fsdp1:shard_grad_op". What is of the strategy that was set before goes as
 * fsdp__train_drop_other_keys says; a hybrid one without a number of copies has two, and ddp no units. */
fsdp_status fsdp__train_set_strategy(fsdp_train_config *config, const char *word);
/* "blocks", "size:20000", "class:A+B", in place of what the config says of units. Whether all is there that the policy
 * needs is for fsdp__train_check_units. */
fsdp_status fsdp__train_set_policy(fsdp_train_config *config, const char *word);
/* The word of the config's policy; cut where it does not fit. */
void fsdp__train_policy_word(const fsdp_train_config *config, char *text, size_t bytes);

/* Keys of other strategies than the config's: those of fsdp1 and of ddp; the copies that hsdp had, or that there cannot
 * be where every rank has all. `before`: the strategy that they were written for. */
void fsdp__train_drop_other_keys(fsdp_train_config *config, int before);

#endif
