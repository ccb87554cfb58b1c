/* tokenizer.h - the parts of a tokenizer. */
#pragma once

#include "base/compiler.h"
#include "fsdp/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unigram.h"

/* Says where the pre-tokenizer Metaspace puts a space in front of a text that has none there. */
typedef enum fsdp__metaspace {
    FSDP__METASPACE_NONE, /* there is no such pre-tokenizer */
    FSDP__METASPACE_NEVER,
    FSDP__METASPACE_FIRST, /* where nothing came before it */
    FSDP__METASPACE_ALWAYS
} fsdp__metaspace;

struct fsdp_tokenizer {
    fsdp__bpe bpe;
    fsdp__unigram unigram; /* in place of merges */
    fsdp__normalizer normalizer;
    fsdp__metaspace metaspace;
    bool metaspace_splits;   /* before each space mark */
    bool words;              /* no token has a space mark after another character, so that words end before them */
    bool strips, strips_all; /* the decoder leaves out a space in front, or all */
    fsdp__added_tokens raw, normalized; /* searched for before normalization, and after it */
    int64_t next_id;                    /* of the next added token that is not in the vocabulary */
    fsdp__pre_tokenizer pre_tokenizer;
    bool trims;                     /* the post-processor takes spaces from both ends of where a token stands */
    fsdp_token_list prefix, suffix; /* what the post-processor adds before and after a text */
    int32_t eos, model_eos;         /* model_eos: that of a tokenizer.model */
    uint64_t hash;                  /* of the tokenizer's files */
};

/* Parses the contents of a tokenizer.json, without the end-of-text id; `path` is for messages. */
fsdp_status fsdp__tokenizer_parse(const char *path, const void *text, size_t bytes, fsdp_tokenizer **out);
/* Does the same with the contents of a tokenizer.model of SentencePiece. */
fsdp_status fsdp__tokenizer_parse_model(const char *path, const void *data, size_t bytes, fsdp_tokenizer **out);
/* Returns whether the tokens are SentencePiece's: in them U+2581 stands for a space, and "<0x0A>" for a byte. */
static inline bool fsdp__tokenizer_has_marks(const fsdp_tokenizer *tokenizer)
{
    return tokenizer->bpe.vocabulary.plain;
}

/* Holds where tokens stand: the bytes of the text that each was made of, as the offsets of Hugging Face's tokenizers.
 * A space that was put in front of a text has its first character, and each token of a byte that stands for a character
 * without a token has the whole character. What the post-processor adds has 0 and 0. */
typedef struct fsdp__origins {
    fsdp__origin *items;
    int64_t count, capacity;
} fsdp__origins;
/* Encode as fsdp_encoder_encode and fsdp_tokenizer_encode do, and append for each id where it stands; `origins` NULL:
 * only the ids. */
fsdp_status fsdp__encoder_trace(fsdp_encoder *encoder, const char *text, size_t bytes,
                                const fsdp_encode_options *options, fsdp_token_list *out, fsdp__origins *origins);
fsdp_status fsdp__tokenizer_trace(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes,
                                  const fsdp_encode_options *options, fsdp_token_list *out, fsdp__origins *origins);

/* Returns whether fsdp__tokenizer_find_cut can find places to cut: every pattern must be known to begin a new word
 * there or to leave those places alone, and at least one must begin one. With NFC there must be no added tokens to
 * search for after normalization. */
bool fsdp__tokenizer_can_cut(const fsdp_tokenizer *tokenizer);
/* Returns the last place of `text` where both parts, each encoded alone, give the ids of the whole, whatever follows
 * the text; 0 if none was found. The text is UTF-8. */
size_t fsdp__tokenizer_find_cut(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes);
/* Returns a hash of everything that decides ids: the tokenizer's files, what ends a text, and the Unicode tables. */
uint64_t fsdp__tokenizer_hash(const fsdp_tokenizer *tokenizer);

FSDP__SCOPED_POINTER(fsdp_tokenizer, fsdp_tokenizer_close)
FSDP__SCOPED_POINTER(fsdp_encoder, fsdp_encoder_free)
