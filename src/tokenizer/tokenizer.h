/* tokenizer.h - what a tokenizer is made of. */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include "fsdp/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/word.h"

struct fsdp_tokenizer {
    fsdp__bpe bpe;
    bool nfc;                           /* the normalizer */
    fsdp__added_tokens raw, normalized; /* looked for before it, and after */
    int64_t next_id;                    /* of the next added token that the vocabulary has not */
    fsdp__pre_tokenizer pre_tokenizer;
    fsdp_token_list prefix, suffix; /* what the post-processor puts around a text */
    int32_t eos;
    uint64_t hash; /* of its files */
};

/* Content of a tokenizer.json; `path` is for messages. Without its end-of-text id. */
fsdp_status fsdp__tokenizer_parse(const char *path, const void *text, size_t bytes, fsdp_tokenizer **out);

/* Whether a text may be cut at fsdp__tokenizer_find_cut's places: every pattern is one of those that are known to begin
 * a new word there. */
bool fsdp__tokenizer_can_cut(const fsdp_tokenizer *tokenizer);
/* The last place of `text` where both parts, each encoded alone, give the ids of the whole, whatever comes behind the
 * text; 0: none was found. The text is UTF-8. */
size_t fsdp__tokenizer_find_cut(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes);
/* A hash of all that decides ids: its files, what ends a text, and Unicode's tables. */
uint64_t fsdp__tokenizer_hash(const fsdp_tokenizer *tokenizer);

#endif
