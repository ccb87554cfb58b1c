/* nfc.h - Unicode's normalization form C, as Hugging Face's tokenizers compute it: by the tables of Unicode 9.
 * Characters that came later stay where they are and join with nothing. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__text {
    char *bytes;
    int64_t count, capacity;
} fsdp__text;
fsdp_status fsdp__text_append(fsdp__text *text, const char *bytes, size_t count);
void fsdp__text_release(fsdp__text *text);

/* Returns whether a text may be cut before this character so that both parts can be normalized alone. */
bool fsdp__nfc_begins(uint32_t character);
/* Puts `text`, which is UTF-8, into form C. `*out` is `text` itself if it is in form C already; otherwise it lies in
 * `scratch`. */
fsdp_status fsdp__nfc(const char *text, size_t bytes, fsdp__text *scratch, const char **out, size_t *out_bytes);
