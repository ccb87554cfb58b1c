/* token_header.h - llm.c's header of token files: 256 int32. */
#ifndef DATA_TOKEN_HEADER_H
#define DATA_TOKEN_HEADER_H

#include "fsdp/status.h"

enum {
    FSDP__TOKEN_HEADER_BYTES = 256 * 4,
    FSDP__TOKEN_NOTE_BYTES = 640 /* with its end */
};

typedef struct fsdp__token_header {
    int32_t magic, version, expected_version;
    int width;     /* by the magic number; 0: it is no such header */
    int64_t count; /* negative: it is none */
} fsdp__token_header;

/* Of a file's first bytes; short ones, of which there must be FSDP__TOKEN_HEADER_BYTES for the rest, have a width. */
fsdp__token_header fsdp__token_header_read(const unsigned char *data, size_t bytes);
/* A count beyond int32 does not fit where llm.c has it: -1 stands there, and the count behind it, in 64 bits. */
void fsdp__token_header_write(unsigned char *out, int width, int64_t count);
/* Whether fsdp__token_header_write made it. */
bool fsdp__token_header_is_ours(const unsigned char *header);
/* A line of text that goes with the tokens, in a header of ours: puts it there, cut where it is longer; and reads it,
 * "" where there is none. */
void fsdp__token_header_set_note(unsigned char *header, const char *note);
const char *fsdp__token_header_note(const unsigned char *header);

#endif
