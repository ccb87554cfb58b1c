/* byte_level.h - the way byte-level tokens are written in files: each of the 256 bytes is written as one character, its
 * own if it is visible, otherwise one from U+0100 on. */
#ifndef TOKENIZER_BYTE_LEVEL_H
#define TOKENIZER_BYTE_LEVEL_H

#include <stdbool.h>
#include <stddef.h>

/* Decodes `token` into the bytes that it stands for, at most strlen(token), in `out`. Returns false if it has a
 * character that stands for no byte. */
bool fsdp__byte_level_bytes(const char *token, char *out, size_t *out_bytes);

#endif
