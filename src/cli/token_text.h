/* token_text.h - the tokens of a model as text, on their way in and out. Tokens of a model without a tokenizer are
 * bytes.
 */
#ifndef CLI_TOKEN_TEXT_H
#define CLI_TOKEN_TEXT_H

#include <stdio.h>

#include "fsdp/fsdp.h"
#include "fsdp/tokenizer.h"

typedef struct fsdp__token_text {
    fsdp_tokenizer *tokenizer; /* NULL: tokens are bytes */
    fsdp_decoder *decoder;
    char half[5]; /* what a character has so far, of bytes */
    int half_bytes;
} fsdp__token_text;

/* The tokenizer at `path`, "bytes" for none, or with NULL that of the model's folder. A model whose folder has none
 * must have a vocabulary of bytes. */
fsdp_status fsdp__token_text_open(const char *folder, const char *path, int64_t vocab_size, fsdp__token_text *out);
void fsdp__token_text_close(fsdp__token_text *text);

/* --on-bad-line: error or skip; NULL is error. */
fsdp_status fsdp__bad_line_option(const char *text, bool *out_skip);

/* A prompt as tokens; the caller fsdp__free's `*out`, which has room for `more` tokens behind them. */
fsdp_status fsdp__token_text_encode(fsdp__token_text *text, const char *prompt, size_t bytes, int64_t more,
                                    int32_t **out, int64_t *out_count);
/* Writes the prompt, so that what comes can be written behind it. */
void fsdp__token_text_echo(fsdp__token_text *text, const char *prompt, size_t bytes, FILE *to);
/* Writes what has become whole with this token: characters come as a whole, and what is none as U+FFFD. False when it
 * could not be written. */
bool fsdp__token_text_print(fsdp__token_text *text, int32_t token, FILE *to);
/* The rest: half a character. */
bool fsdp__token_text_end(fsdp__token_text *text, FILE *to);

#endif
