/* token_window.c - reads a window of a stream. */
#include "data/token_window.h"

#include <string.h>

#include "base/compiler.h"

static fsdp_status check_vocabulary(const fsdp_tokens *stream, int64_t vocabulary, const int32_t *tokens,
                                    int64_t position, int64_t count)
{
    int64_t in_file = 0;
    int32_t largest = 0;
    const char *path;

    if (vocabulary == 0)
        return FSDP_OK;
    for (int64_t i = 0; i < count; i++)
        largest = FSDP__MAX(largest, tokens[i]);
    if (largest < vocabulary)
        return FSDP_OK;
    while (*tokens < vocabulary) {
        tokens++;
        position++;
    }
    path = fsdp_tokens_locate(stream, position, &in_file);
    return FSDP_FAIL(FSDP_FORMAT, "token %d at position %lld of '%s' is beyond the vocabulary of %lld", (int)*tokens,
                     (long long)in_file, path, (long long)vocabulary);
}

fsdp_status fsdp__window_read(const fsdp_tokens *tokens, int64_t vocab_size, int64_t start, int64_t length,
                              int32_t *inputs, int32_t *targets)
{
    FSDP_TRY(fsdp_tokens_read(tokens, start, length, inputs));
    FSDP_TRY(check_vocabulary(tokens, vocab_size, inputs, start, length));
    /* The target of the last token is the one after the window. */
    memcpy(targets, inputs + 1, (size_t)(length - 1) * sizeof *targets);
    FSDP_TRY(fsdp_tokens_read(tokens, start + length, 1, targets + length - 1));
    return check_vocabulary(tokens, vocab_size, targets + length - 1, start + length, 1);
}
