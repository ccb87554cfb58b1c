/* token_ends.h - where in a text each of its tokens ends. */
#pragma once

#include "fsdp/tokenizer.h"

/* Finds for each of `count` ids, which are those of `text`, the offset behind it in the text. The text is normalized as
 * the tokenizer does it, but without what is put before texts. What cannot be found is FSDP_UNSUPPORTED. */
fsdp_status fsdp__token_ends(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes, const int32_t *ids,
                             int64_t count, size_t *ends);
