/* same_facts.h - what must be the same in two places (on ranks; in a run and its checkpoint), as lines of text
 * "name<tab>value". */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "config/keys.h"
#include "data/open_data.h"
#include "fsdp/context.h"
#include "fsdp/data.h"
#include "fsdp/train.h"

enum {
    FSDP__FACTS_TEXT = 900 /* room for the text of fsdp__facts_differ */
};

/* Writes all that decides what a model computes, except its weights and its dropouts. */
void fsdp__facts_of_model(const fsdp_model_config *model, FILE *out);
/* Writes a key with its value; for paths and others that may differ, only whether it is set. */
void fsdp__facts_of_key(const fsdp_train_config *config, const fsdp__key *key, FILE *out);
/* Writes how many tokens `key` names, and a hash of them: of all up to four million, or else of that many from all
 * over. Of rows, how many they are and their digest. */
void fsdp__facts_of_data(const fsdp__open_data *data, const char *key, FILE *out);
/* Writes the same with a hash of a few tokens, as a checkpoint keeps it (fsdp__facts_hash_data): it shows another file
 * of the same size, or files in another order. */
void fsdp__facts_of_sampled_data(const fsdp__open_data *data, const char *key, FILE *out);
/* Writes what a folder has as weights: names, types and shapes of its tensors, and a hash of their contents, which for
 * tensors of more than 64 KiB covers that much from all over; for a checkpoint, its checksums. */
void fsdp__facts_of_weights(const char *folder, bool is_checkpoint, const char *key, FILE *out);
/* Hashes some of the tokens, from all over the stream. */
fsdp_status fsdp__facts_hash_data(const fsdp_tokens *stream, uint64_t *out);
/* Returns how many facts differ; `text` gets the first of them: "training.seed is 1 and 2, data.order is ..., and 3
 * more". */
int fsdp__facts_differ(const char *a, size_t a_bytes, const char *b, size_t b_bytes, char *text);
/* Checks that all ranks write the same; otherwise fails with FSDP_INVALID on all, "ranks 0 and 2 (machine 'b') WHAT:
 * ...: start all with the same". [collective] */
fsdp_status fsdp__facts_agree(fsdp_context *context, const char *what, void (*write)(const void *arg, FILE *out),
                              const void *arg);
