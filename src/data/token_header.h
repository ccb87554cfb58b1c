/* token_header.h - llm.c's header of token files: 256 int32. */
#pragma once

#include "fsdp/status.h"

enum {
    FSDP__TOKEN_HEADER_BYTES = 256 * 4,
    FSDP__TOKEN_NOTE_BYTES = 640 /* including the NUL */
};

typedef struct fsdp__token_header {
    int32_t magic, version, expected_version;
    int width;     /* by the magic number; 0: not such a header */
    int64_t count; /* negative: unknown or invalid */
} fsdp__token_header;

/* Reads the header from a file's first bytes. If there are fewer than FSDP__TOKEN_HEADER_BYTES, only magic and width
 * are read. */
fsdp__token_header fsdp__token_header_read(const unsigned char *data, size_t bytes);
/* Writes a header. A count beyond int32 does not fit into llm.c's field: -1 is stored there, and the count in 64 bits
 * after it. */
void fsdp__token_header_write(unsigned char *out, int width, int64_t count);
/* Returns whether fsdp__token_header_write made the header. */
bool fsdp__token_header_is_ours(const unsigned char *header);
/* Store a line of text that goes with the tokens in a header of ours, cut if it is too long, and read it: "" if there
 * is none. */
void fsdp__token_header_set_note(unsigned char *header, const char *note);
const char *fsdp__token_header_note(const unsigned char *header);
