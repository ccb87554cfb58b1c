/* merge_table.c - a hash table of pairs of tokens. */
#include "tokenizer/merge_table.h"

#include "base/alloc.h"

fsdp_status fsdp__merges_init(fsdp__merges *merges, int64_t count)
{
    uint64_t slots = 16;

    while (slots < 2 * ((uint64_t)count + 1))
        slots *= 2;
    FSDP__TRY_NEW(merges->slots = fsdp__malloc(slots * sizeof *merges->slots));
    for (uint64_t i = 0; i < slots; i++)
        merges->slots[i] = (fsdp__merge){.left = -1};
    merges->mask = slots - 1;
    return FSDP_OK;
}

void fsdp__merges_add(fsdp__merges *merges, const fsdp__merge *merge)
{
    uint64_t i = fsdp__merges_hash(merge->left, merge->right) & merges->mask;

    while (merges->slots[i].left >= 0 &&
           (merges->slots[i].left != merge->left || merges->slots[i].right != merge->right))
        i = (i + 1) & merges->mask;
    merges->slots[i] = *merge;
}

void fsdp__merges_release(fsdp__merges *merges)
{
    fsdp__free(merges->slots);
    *merges = (fsdp__merges){0};
}
