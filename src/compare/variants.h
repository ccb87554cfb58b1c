/* variants.h - what is compared: every strategy with every wrap policy, as a config of its own each. */
#ifndef COMPARE_VARIANTS_H
#define COMPARE_VARIANTS_H

#include "fsdp/train.h"

typedef struct fsdp__variant {
    char strategy[64]; /* "zero2", "fsdp1:no_shard" */
    char policy[160];  /* "blocks", "size:20000"; "" where there are no units */
    char label[240];   /* the strategy, and the policy where there are several */
    fsdp_train_config *config;
    char refused[1024]; /* why it cannot be; "": it can */
} fsdp__variant;

enum {
    FSDP__VARIANTS = 64 /* at most */
};

typedef struct fsdp__variants {
    fsdp__variant *items;
    int count;
} fsdp__variants;

/* Whether every word of the lists is one, whatever config they are for; NULL: no list. */
fsdp_status fsdp__variants_check_words(const char *strategies, const char *policies);

/* `strategies` and `policies` are lists with commas. Strategies are those of parallelism.strategy, fsdp1 also with one
 * of its own (fsdp1:shard_grad_op); NULL: all of them. Policies are those of parallelism.wrap_policy, with what is
 * theirs (size:20000, class:A+B); NULL: the config's. Every variant writes nothing: neither metrics nor an export.
 *
 * Keys of the config that are of its own strategy alone are left out for the others: those of fsdp1 and ddp, and of
 * hsdp the number of copies. hsdp without a number of copies has two. ddp and fsdp1:no_shard have neither copies nor,
 * ddp, units.
 *
 * A config, a word or a pair that cannot be is an error, before anything runs. Of strategies that nobody has named,
 * those that do not go with the config are `refused`; that not all are is the caller's to see. */
fsdp_status fsdp__variants_create(const fsdp_train_config *config, int world_size, const char *strategies,
                                  const char *policies, fsdp__variants *out);
void fsdp__variants_release(fsdp__variants *variants);

#endif
