/* encode_piece.h - encodes one piece of documents into token ids. */
#pragma once

#include "data/conversations.h"
#include "data/documents.h"

typedef struct fsdp__encoded {
    fsdp_token_list ids;
    int64_t documents; /* number of documents that end in the piece */
    int64_t text_bytes;
    int64_t replaced_bytes;        /* bytes that are not UTF-8 */
    int64_t lines, left_out_lines; /* of JSON lines, those that are not blank */
    char why[400];                 /* why the last bad line is bad */
    char first_left_out[FSDP_LEFT_OUT_BYTES];
    fsdp__encoded_rows rows; /* of conversations */
} fsdp__encoded;

/* Encodes a piece. `options` are those of fsdp_tokenize_files. Errors name the file, and the line or offset. */
fsdp_status fsdp__encode_piece(fsdp_encoder *encoder, const fsdp_tokenize_options *options, int32_t eos,
                               const fsdp__piece *piece, fsdp__encoded *out);

enum {
    FSDP__LEFT_OUT_TEXT = FSDP_LEFT_OUT_BYTES + 100
};
/* Writes "3 of 1,204 lines left out: first at FILE:LINE: why" to `text`, or "" if no lines were left out. Returns
 * `text`. */
const char *fsdp__left_out_text(const fsdp_tokenize_summary *summary, char text[FSDP__LEFT_OUT_TEXT]);
