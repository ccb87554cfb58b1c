/* gguf_tokenizer.h - what the files that write and read tokenizers of llama.cpp share. */
#pragma once

#include "format/json.h"
#include "format/sentencepiece.h"
#include "hub/gguf.h"

/* SentencePiece's mark of a space, U+2581. */
#define FSDP__GGUF_MARK "\xe2\x96\x81"

/* ---- gguf_tokens.c ---- */

enum {
    FSDP__GGUF_ADDED_SCORE = -1000, /* as llama.cpp's converter has it */
    FSDP__GGUF_PADDING_SCORE = -10000
};

/* Holds the tokens by their ids. Texts are borrowed from the tokenizer's files; types have SentencePiece's numbers,
 * which are llama.cpp's. */
typedef struct fsdp__gguf_tokens {
    const char **texts; /* NULL: no token has this id */
    int32_t *types;
    float *scores; /* of pieces */
    int64_t count;
    bool pieces; /* SentencePiece's, not byte-level */
} fsdp__gguf_tokens;

/* Makes room for count tokens; release it also after a failure. */
fsdp_status fsdp__gguf_tokens_init(fsdp__gguf_tokens *tokens, int64_t count);
void fsdp__gguf_tokens_release(fsdp__gguf_tokens *tokens);
/* Sets a token; `path` is of the file that says it. */
fsdp_status fsdp__gguf_tokens_set(fsdp__gguf_tokens *tokens, const char *path, const char *text, int64_t id,
                                  int32_t type, float score);

/* Return the text of a key, "" if there is none; and whether a key is true, if it is a boolean. */
const char *fsdp__gguf_json_text(const json_t *object, const char *key);
bool fsdp__gguf_json_true(const json_t *object, const char *key, bool otherwise);

/* ---- gguf_pieces.c ---- */

/* Finds out whether a tokenizer.json is SentencePiece's BPE, and whether a space is put in front of a text. What
 * llama.cpp would do otherwise is refused. */
fsdp_status fsdp__gguf_space_in_front(const char *path, const json_t *root, bool *out);
/* Sets texts, types and scores of the pieces of a tokenizer.model. Those of ids that are set already must agree, unless
 * they are added tokens. */
fsdp_status fsdp__gguf_list_pieces(const char *path, const fsdp__sentencepiece *model, fsdp__gguf_tokens *tokens);
/* Finds scores for the tokens of a tokenizer.json, by which llama.cpp merges in the order of its merges. */
fsdp_status fsdp__gguf_score_by_merges(const char *path, const json_t *model, fsdp__gguf_tokens *tokens);
/* Makes merges of tokens with scores: all ways to make a token, the one of the highest score first. */
fsdp_status fsdp__gguf_merges_of_scores(const char *path, const fsdp__gguf_tokens *tokens, const json_t *vocabulary,
                                        json_t *merges);

/* ---- gguf_tokenizer.c ---- */

/* A way of splitting text for which llama.cpp has a name. */
typedef struct fsdp__gguf_splitting {
    const char *pre;   /* llama.cpp's name */
    const char *regex; /* of a Split before the bytes; NULL: GPT-2's own */
    bool digits;       /* each digit is by itself */
    bool nfc;          /* the normalizer is NFC */
    bool whole_words;  /* a word that is a token needs no merges */
} fsdp__gguf_splitting;

/* Finds a way of splitting by llama.cpp's name; NULL: there is none. */
const fsdp__gguf_splitting *fsdp__gguf_splitting_named(const char *pre);
