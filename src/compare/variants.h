/* variants.h - what is compared: every strategy with every wrap policy, each with a config of its own. */
#pragma once

#include "fsdp/train.h"

typedef struct fsdp__variant {
    char strategy[64]; /* "zero2", "fsdp1:no_shard" */
    char policy[160];  /* "blocks", "size:20000"; "" if there are no units */
    char label[240];   /* the strategy, and the policy if policies were named */
    fsdp_train_config *config;
    char refused[1024]; /* why it is not possible; "": it is possible */
} fsdp__variant;

enum {
    FSDP__VARIANTS = 64 /* at most */
};

typedef struct fsdp__variants {
    fsdp__variant *items;
    int count;
} fsdp__variants;

/* Checks that every word of the lists is valid, whatever config they are for; NULL: no list. */
fsdp_status fsdp__variants_check_words(const char *strategies, const char *policies);

/* Creates the variants. `strategies` and `policies` are comma-separated lists. Strategies are those of
 * parallelism.strategy; fsdp1 may have one of its own (fsdp1:shard_grad_op), and all may have teams (fsdp2:tp2,
 * ddp:cp2). NULL: all of them. Policies are those of parallelism.wrap_policy, with their argument (size:20000,
 * class:A+B); NULL: the config's. No variant writes anything: neither metrics nor an export.
 *
 * Keys of the config that belong to its own strategy alone are left out for the others: those of fsdp1 and ddp, and
 * hsdp's number of copies. hsdp without a number of copies gets two. ddp and fsdp1:no_shard have no copies, and ddp has
 * no units.
 *
 * A config, a word or a pair that is not possible is an error, before anything runs. If the caller named no strategies,
 * those that do not go with the config are `refused`; the caller must check that not all are. */
fsdp_status fsdp__variants_create(const fsdp_train_config *config, int world_size, const char *strategies,
                                  const char *policies, fsdp__variants *out);
void fsdp__variants_release(fsdp__variants *variants);
