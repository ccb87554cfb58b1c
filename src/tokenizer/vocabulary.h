/* vocabulary.h - finds tokens by id, and ids by what the tokens stand for. */
#pragma once

#include "fsdp/status.h"

#define FSDP__NO_TOKEN (-1)

typedef struct fsdp__token {
    size_t at; /* offset in the vocabulary's bytes */
    uint32_t bytes;
    bool present;
    bool special;
    bool added;   /* added besides the model's tokens: no word is encoded to it */
    bool literal; /* not a byte-level token: its text stands for itself */
} fsdp__token;

typedef struct fsdp__vocabulary {
    bool plain;          /* no token is byte-level: the texts of files stand for themselves. Set before the first */
    fsdp__token *tokens; /* by id */
    int64_t count, capacity;
    char *bytes; /* of all tokens, one after another */
    int64_t byte_count, byte_capacity;
    int32_t *slots; /* a hash table of ids */
    int64_t slot_count, used;
} fsdp__vocabulary;

/* Adds a token; `text` is written as in tokenizer.json. If another token has the id, or the token has another id, that
 * is an error that names both. Adding the same again is fine. */
fsdp_status fsdp__vocabulary_add(fsdp__vocabulary *vocabulary, const char *text, int64_t id);
/* Find a token by its text as in files, or by the bytes that byte-level text stands for. FSDP__NO_TOKEN: there is
 * none. */
fsdp_status fsdp__vocabulary_find_text(const fsdp__vocabulary *vocabulary, const char *text, int32_t *out);
int32_t fsdp__vocabulary_find_bytes(const fsdp__vocabulary *vocabulary, const char *bytes, size_t count);
/* Returns whether a token has this id; a vocabulary may leave ids out. */
bool fsdp__vocabulary_has(const fsdp__vocabulary *vocabulary, int64_t id);
/* Returns the bytes that a token stands for. `token` must be in the vocabulary. */
const char *fsdp__vocabulary_bytes(const fsdp__vocabulary *vocabulary, int32_t token, size_t *count);
void fsdp__vocabulary_release(fsdp__vocabulary *vocabulary);
