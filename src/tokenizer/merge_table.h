/* merge_table.h - which two tokens merge into one, and which merge goes first. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__merge {
    int32_t left, right, result;
    uint32_t rank; /* the lowest goes first */
} fsdp__merge;

typedef struct fsdp__merges {
    fsdp__merge *slots; /* a hash table; left is -1 where it is free */
    uint64_t mask;
} fsdp__merges;

/* Makes room for `count` merges. */
fsdp_status fsdp__merges_init(fsdp__merges *merges, int64_t count);
/* if a pair is added twice, the later rank counts */
void fsdp__merges_add(fsdp__merges *merges, const fsdp__merge *merge);
void fsdp__merges_release(fsdp__merges *merges);

static inline uint64_t fsdp__merges_hash(int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    pair *= 0x9e3779b97f4a7c15u;
    return pair ^ (pair >> 32);
}

/* Returns the merge of the two tokens, or NULL if they do not merge. */
static inline const fsdp__merge *fsdp__merges_find(const fsdp__merges *merges, int32_t left, int32_t right)
{
    for (uint64_t i = fsdp__merges_hash(left, right) & merges->mask;; i = (i + 1) & merges->mask) {
        const fsdp__merge *merge = &merges->slots[i];

        if (merge->left == left && merge->right == right)
            return merge;
        if (merge->left < 0)
            return NULL;
    }
}
