/* encode_piece.h - the ids of one piece of documents. */
#ifndef DATA_ENCODE_PIECE_H
#define DATA_ENCODE_PIECE_H

#include "data/documents.h"

typedef struct fsdp__encoded {
    fsdp_token_list ids;
    int64_t documents; /* that end in the piece */
    int64_t text_bytes;
} fsdp__encoded;

/* `options` as for fsdp_tokenize_files. Errors name the file, and the line or offset. */
fsdp_status fsdp__encode_piece(fsdp_encoder *encoder, const fsdp_tokenize_options *options, int32_t eos,
                               const fsdp__piece *piece, fsdp__encoded *out);

#endif
