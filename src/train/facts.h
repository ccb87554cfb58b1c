/* facts.h - what must be the same in two places (ranks; a run and its checkpoint), as lines of text "name<tab>value".
 */
#ifndef TRAIN_FACTS_H
#define TRAIN_FACTS_H

#include <stdbool.h>
#include <stdio.h>

#include "config/keys.h"
#include "fsdp/context.h"
#include "fsdp/data.h"
#include "fsdp/train.h"

enum {
    FSDP__FACTS_TEXT = 900 /* of fsdp__facts_differ */
};

/* All that decides what a model computes but its weights and its dropouts. */
void fsdp__facts_of_model(const fsdp_model_config *model, FILE *out);
/* A key with its value; of paths and others that may differ, whether it is set. */
void fsdp__facts_of_key(const fsdp_train_config *config, const fsdp__key *key, FILE *out);
/* How many tokens `key` names, and which: all of four million, or that many from all over. */
void fsdp__facts_of_data(const fsdp_tokens *stream, const char *key, FILE *out);
/* The same, of a few of them, as a checkpoint keeps it (fsdp__facts_hash_data): another file of the same size, or files
 * in another order, are seen. */
void fsdp__facts_of_sampled_data(const fsdp_tokens *stream, const char *key, FILE *out);
/* What a folder has as weights: names, types and shapes of its tensors, and what they hold, of those of more than 64
 * KiB that much from all over; or a checkpoint's checksums. */
void fsdp__facts_of_weights(const char *folder, bool is_checkpoint, const char *key, FILE *out);
/* Of some of its tokens, from all over it. */
fsdp_status fsdp__facts_hash_data(const fsdp_tokens *stream, uint64_t *out);
/* How many facts differ, and in `text` the first of them: "training.seed is 1 and 2, data.order is ..., and 3 more". */
int fsdp__facts_differ(const char *a, size_t a_bytes, const char *b, size_t b_bytes, char *text);
/* Whether all ranks write the same: else FSDP_INVALID on all, "ranks 0 and 2 (machine 'b') WHAT: ...: start all with
 * the same". [collective] */
fsdp_status fsdp__facts_agree(fsdp_context *context, const char *what, void (*write)(const void *arg, FILE *out),
                              const void *arg);

#endif
