/* byte_level.h - how byte-level tokens are written in files: a character for each of the 256 bytes, the byte's own
 * where it is visible, else one from U+0100 on. */
#ifndef TOKENIZER_BYTE_LEVEL_H
#define TOKENIZER_BYTE_LEVEL_H

#include <stdbool.h>
#include <stddef.h>

/* The bytes that `token` stands for, at most strlen(token), into `out`; false when it has a character of no byte. */
bool fsdp__byte_level_bytes(const char *token, char *out, size_t *out_bytes);

#endif
