/* nfc.h - Unicode's normalization form C, as Hugging Face's tokenizers makes it: by the tables of Unicode 9. Characters
 * that came later stay where they are, and join nothing. */
#ifndef TOKENIZER_NFC_H
#define TOKENIZER_NFC_H

#include "fsdp/status.h"

typedef struct fsdp__text {
    char *bytes;
    int64_t count, capacity;
} fsdp__text;
fsdp_status fsdp__text_append(fsdp__text *text, const char *bytes, size_t count);
void fsdp__text_release(fsdp__text *text);

/* Whether a text may be cut before this character, and both parts be normalized alone. */
bool fsdp__nfc_begins(uint32_t character);
/* `text`, which is UTF-8, in form C: `*out` is the text itself where it is that already, else in `scratch`. */
fsdp_status fsdp__nfc(const char *text, size_t bytes, fsdp__text *scratch, const char **out, size_t *out_bytes);

#endif
