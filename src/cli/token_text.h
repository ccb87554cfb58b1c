/* token_text.h - turns text into the tokens of a model, and tokens into text. Without a tokenizer, tokens are bytes. */
#pragma once

#include <stdio.h>

#include "fsdp/fsdp.h"
#include "fsdp/tokenizer.h"

typedef struct fsdp__token_text {
    fsdp_tokenizer *tokenizer; /* NULL: tokens are bytes */
    fsdp_decoder *decoder;
    char half[5]; /* the bytes so far of an incomplete character */
    int half_bytes;
} fsdp__token_text;

/* Opens the tokenizer at `path`, none for "bytes", or that of the model's folder for NULL. A model whose folder has no
 * tokenizer must have a vocabulary of bytes. */
fsdp_status fsdp__token_text_open(const char *folder, const char *path, int64_t vocab_size, fsdp__token_text *out);
void fsdp__token_text_close(fsdp__token_text *text);

/* Parses --on-bad-line: error or skip; NULL is error. */
fsdp_status fsdp__bad_line_option(const char *text, bool *out_skip);

/* Turns a prompt into tokens. The caller fsdp__free's `*out`, which has room for `more` tokens after them. */
fsdp_status fsdp__token_text_encode(fsdp__token_text *text, const char *prompt, size_t bytes, int64_t more,
                                    int32_t **out, int64_t *out_count);
/* Writes the prompt, so that the continuation can be written after it. */
void fsdp__token_text_echo(fsdp__token_text *text, const char *prompt, size_t bytes, FILE *to);
/* Writes the text that this token completes. Only whole characters are written, and bytes that are none as U+FFFD.
 * Returns false if writing failed. */
bool fsdp__token_text_print(fsdp__token_text *text, int32_t token, FILE *to);
/* Writes what is left: an incomplete character. */
bool fsdp__token_text_end(fsdp__token_text *text, FILE *to);
