/* multihead_attention.h - masks on their way through modules: inputs behind the others, and which they are. */
#ifndef NN_MULTIHEAD_ATTENTION_H
#define NN_MULTIHEAD_ATTENTION_H

#include "fsdp/layers.h"

enum {
    FSDP__MOST_MASKS = 2
};

/* The masks as inputs: `*count` of them. What is returned is the argument of a call with them, and lasts. */
void *fsdp__masks_put(const fsdp_attention_masks *masks, fsdp_tensor **inputs, int *count);
/* Out again: `arg` NULL for none; they are the last of `count` inputs. Returns how many there are. */
int fsdp__masks_take(const void *arg, fsdp_tensor *const *inputs, int count, fsdp_attention_masks *out);

#endif
