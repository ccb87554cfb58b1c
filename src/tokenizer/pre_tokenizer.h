/* pre_tokenizer.h - splits a text into words, step by step. */
#pragma once

#include "tokenizer/passage.h"
#include "tokenizer/pattern.h"

typedef enum fsdp__split_behavior {
    FSDP__SPLIT_REMOVED,
    FSDP__SPLIT_ISOLATED,
    FSDP__SPLIT_MERGED_WITH_PREVIOUS,
    FSDP__SPLIT_MERGED_WITH_NEXT,
    FSDP__SPLIT_CONTIGUOUS
} fsdp__split_behavior;

/* Says whether a step always ends a word at the places of fsdp__tokenizer_find_cut, whatever is around them. */
typedef enum fsdp__split_cut {
    FSDP__CUTS_UNKNOWN,
    FSDP__CUTS_NOWHERE, /* the step never splits there, and splits the parts cut there as it splits the whole */
    FSDP__CUTS
} fsdp__split_cut;

typedef struct fsdp__split_step {
    fsdp__pattern *pattern; /* NULL: the piece stays whole */
    fsdp__split_behavior behavior;
    bool invert;
    bool add_prefix_space; /* added first, unless the piece begins with one */
    fsdp__split_cut cut;
} fsdp__split_step;

enum {
    FSDP__SPLIT_STEPS = FSDP__SEARCHES
};
typedef struct fsdp__pre_tokenizer {
    fsdp__split_step steps[FSDP__SPLIT_STEPS];
    int count;
    bool byte_level; /* words are bytes; always true once it has been read */
} fsdp__pre_tokenizer;

void fsdp__pre_tokenizer_release(fsdp__pre_tokenizer *pre_tokenizer);

/* Receives the words, in order. */
typedef fsdp_status (*fsdp__word_sink)(void *arg, const fsdp__passage *word);
fsdp_status fsdp__pre_tokenize(const fsdp__pre_tokenizer *pre_tokenizer, fsdp__matcher *matcher,
                               const fsdp__passage *text, fsdp__word_sink sink, void *arg);
