/* multihead_attention.h - passes masks through modules: as inputs behind the others, with an argument that says which
 * they are. */
#pragma once

#include "fsdp/layers.h"

enum {
    FSDP__MOST_MASKS = 2
};

/* Puts the masks into `inputs`, `*count` of them. Returns the argument of a call with them; it stays valid. */
void *fsdp__masks_put(const fsdp_attention_masks *masks, fsdp_tensor **inputs, int *count);
/* Takes the masks out again: they are the last of `count` inputs. `arg` is NULL if there are none. Returns how many
 * there are. */
int fsdp__masks_take(const void *arg, fsdp_tensor *const *inputs, int count, fsdp_attention_masks *out);
