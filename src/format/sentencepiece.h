/* sentencepiece.h - reads a tokenizer.model, as SentencePiece writes it. */
#pragma once

#include <stdint.h>

#include "fsdp/status.h"

/* The numbers are SentencePiece's. */
typedef enum fsdp__piece_type {
    FSDP__PIECE_NORMAL = 1,
    FSDP__PIECE_UNKNOWN,
    FSDP__PIECE_CONTROL,
    FSDP__PIECE_USER_DEFINED,
    FSDP__PIECE_UNUSED,
    FSDP__PIECE_BYTE
} fsdp__piece_type;

typedef struct fsdp__piece {
    const char *text; /* UTF-8 without NUL, borrowed from the model; not empty */
    float score;
    fsdp__piece_type type;
} fsdp__piece;

typedef struct fsdp__sentencepiece {
    fsdp__piece *pieces; /* by id */
    int64_t count;
    bool bpe;                  /* otherwise Unigram */
    bool byte_fallback;        /* a character that no piece has becomes the pieces of its bytes */
    bool space_in_front;       /* a space is added before a text */
    bool single_spaces;        /* several spaces are one, and none is left at the ends */
    int32_t unknown, bos, eos; /* -1: there is none */
    const char *table;         /* of characters that the normalizer replaces; borrowed; NULL: there is none */
    size_t table_bytes;
    void *message; /* what is borrowed from */
} fsdp__sentencepiece;

/* Parses a file's contents; `path` is for messages. What would change ids and is not supported is an error. Release
 * `*out` also after a failure. */
fsdp_status fsdp__sentencepiece_parse(const char *path, const void *data, size_t bytes, fsdp__sentencepiece *out);
void fsdp__sentencepiece_release(fsdp__sentencepiece *model);

/* Orders pieces for qsort(): the highest score first, of equal ones the first. */
typedef struct fsdp__scored_piece {
    float score;
    int64_t id;
} fsdp__scored_piece;
int fsdp__by_score(const void *a, const void *b);
