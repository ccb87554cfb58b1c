/* small.h - a small tokenizer: a token for each byte (id = byte), and those of a few merges. */
#pragma once

#include "fsdp/tokenizer.h"
#include "support/test.h"

/* Parts of tokenizer.json, as JSON; NULL: as GPT-2 has them, without added tokens. */
typedef struct small_parts {
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder, *added_tokens;
    const char *model;    /* more keys of the model, with a comma behind them */
    bool merges_as_pairs; /* ["a", "b"] in place of "a b" */
} small_parts;

/* Tokens 256, 257, ...: Ġt, he, Ġthe, in, ing, er, th, the, Ġa, ĠĠ, 12, 123, ĊĊ, Ċa. */
char *small_json(const small_parts *parts);
fsdp_tokenizer *small_tokenizer(const small_parts *parts);

/* Encodes and compares; the list ends with -1. */
void check_encodes(const fsdp_tokenizer *tokenizer, const char *text, const fsdp_encode_options *options,
                   const int32_t *expected);
/* Encodes, and compares where the tokens stand: "0-1 1-4". With an encoder that knows the words, too. */
void check_origins(const fsdp_tokenizer *tokenizer, const char *text, const char *expected);
#define CHECK_IDS(tokenizer, text, ...) \
    check_encodes((tokenizer), (text), NULL, (const int32_t[]){__VA_ARGS__ __VA_OPT__(, ) - 1})
