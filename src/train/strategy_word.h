/* strategy_word.h - a strategy and a wrap policy as one word each, as on a command line. */
#pragma once

#include "fsdp/train.h"

/* Sets the strategy from a word: "zero2", "fsdp1:shard_grad_op", "fsdp2:tp2" (in teams of two ranks, each of which has
 * the sequences that its ranks would have, unless training.global_batch_size says how many a step has), "fsdp2:cp2" or
 * "fsdp2:cp2+tp2". Any strategy that can be combined with these degrees may have teams. Keys of the earlier strategy
 * are dropped as fsdp__train_drop_other_keys says; a hybrid strategy without a number of copies gets
 * two, and ddp no units. */
fsdp_status fsdp__train_set_strategy(fsdp_train_config *config, const char *word);
/* Sets the policy from a word: "blocks", "size:20000", "class:A+B", in place of what the config says about units.
 * fsdp__train_check_units checks whether everything is there that the policy needs. */
fsdp_status fsdp__train_set_policy(fsdp_train_config *config, const char *word);
/* Writes the word of the config's policy, cut where it does not fit. */
void fsdp__train_policy_word(const fsdp_train_config *config, char *text, size_t bytes);

/* Drops keys of strategies other than the config's: those of fsdp1 and of ddp; and the number of copies that hsdp had,
 * or that cannot be where every rank has everything. `before` is the strategy that they were written for. */
void fsdp__train_drop_other_keys(fsdp_train_config *config, int before);
