/* token_window.h - a window of a stream: some tokens, and the same shifted by one as targets. */
#pragma once

#include "fsdp/data.h"

/* Reads `length` tokens from `start` on, at least one, and their targets. A token at or beyond `vocab_size` is an error
 * that names file and position; with 0 that is not checked. */
fsdp_status fsdp__window_read(const fsdp_tokens *tokens, int64_t vocab_size, int64_t start, int64_t length,
                              int32_t *inputs, int32_t *targets);
