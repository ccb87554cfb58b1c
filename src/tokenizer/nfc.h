/* nfc.h - Unicode's normalization form C, as Hugging Face's tokenizers compute it: by the tables of Unicode 9.
 * Characters that came later stay where they are and join with nothing. */
#pragma once

#include "tokenizer/passage.h"

/* Returns whether a text may be cut before this character so that both parts can be normalized alone. */
bool fsdp__nfc_begins(uint32_t character);
/* Puts a passage, which is UTF-8, into form C. `*out` is `in` itself if it is in form C already; otherwise it lies in
 * `scratch`. */
fsdp_status fsdp__nfc(const fsdp__passage *in, fsdp__text *scratch, fsdp__passage *out);
