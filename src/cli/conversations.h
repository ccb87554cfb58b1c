/* conversations.h - conversations on the command line: they are recognised, and shown as a model sees them. */
#pragma once

#include <stdio.h>

#include "data/packing.h"
#include "fsdp/tokenize.h"

/* Sets the options where the files are conversations: opens the chat of the tokenizer's folder, with `file` (NULL:
 * none) in place of its template. The caller closes `*out`, which is NULL where there are none. */
fsdp_status fsdp__conversations_open(const char *folder, const fsdp_tokenizer *tokenizer, const char *file,
                                     const char *const *paths, int count, fsdp_tokenize_options *options,
                                     fsdp_chat **out);

/* Prints what an evaluation sees: how many conversations, tokens, answers and windows, `batch` of these at a time. */
void fsdp__conversations_describe(const fsdp__packed *packed, int64_t batch);

typedef struct fsdp__shown_rows {
    const char *const *paths;
    int count;
    int64_t rows; /* how many */
    bool learn_all;
} fsdp__shown_rows;
/* Prints the first conversations, decoded, with what is learned between two marks. */
fsdp_status fsdp__conversations_show(const fsdp__shown_rows *shown, const fsdp_tokenizer *tokenizer,
                                     const fsdp_chat *chat, FILE *to);
