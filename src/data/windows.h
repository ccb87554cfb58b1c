/* windows.h - the windows that a loader gives, each by its number: of a stream, or of rows that are packed. */
#pragma once

#include "data/packing.h"
#include "fsdp/data.h"

/* Has either tokens or packed rows, which are borrowed. */
typedef struct fsdp__windows {
    const fsdp_tokens *tokens;
    const fsdp__packed *packed;
    int64_t seq_len, count;
} fsdp__windows;

/* Returns the windows of a stream's first `token_count` tokens. */
fsdp__windows fsdp__windows_of_tokens(const fsdp_tokens *tokens, int64_t token_count, int64_t seq_len);
fsdp__windows fsdp__windows_of_packed(const fsdp__packed *packed);
/* Returns whether several documents share a window: its attention must know their positions. */
bool fsdp__windows_have_documents(const fsdp__windows *windows);
/* Reads a window: three arrays of seq_len; `positions` may be NULL (packing.h). A token of `vocab_size` or more is an
 * error that names its place; 0: not checked. [thread-safe] */
fsdp_status fsdp__windows_read(const fsdp__windows *windows, int64_t vocab_size, int64_t window, int32_t *inputs,
                               int32_t *targets, int32_t *positions);
/* Counts the targets of a window that are learned. [thread-safe] */
fsdp_status fsdp__windows_answers(const fsdp__windows *windows, int64_t window, int64_t *out);
/* Counts the tokens of a window that are no padding. */
int64_t fsdp__windows_tokens(const fsdp__windows *windows, int64_t window);

/* Reads `length` tokens from `start` on, at least one, and their targets. A token at or beyond `vocab_size` is an error
 * that names file and position; with 0 that is not checked. */
fsdp_status fsdp__window_read(const fsdp_tokens *tokens, int64_t vocab_size, int64_t start, int64_t length,
                              int32_t *inputs, int32_t *targets);
