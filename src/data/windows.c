/* windows.c - windows of either kind. */
#include "data/windows.h"

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

fsdp__windows fsdp__windows_of_tokens(const fsdp_tokens *tokens, int64_t token_count, int64_t seq_len)
{
    return (fsdp__windows){.tokens = tokens, .seq_len = seq_len, .count = (token_count - 1) / seq_len};
}

fsdp__windows fsdp__windows_of_packed(const fsdp__packed *packed)
{
    return (fsdp__windows){.packed = packed, .seq_len = packed->options.seq_len, .count = packed->windows};
}

bool fsdp__windows_have_documents(const fsdp__windows *windows)
{
    return windows->packed && windows->packed->options.packing != FSDP_PACKING_PAD;
}

fsdp_status fsdp__windows_read(const fsdp__windows *windows, int64_t vocab_size, int64_t window, int32_t *inputs,
                               int32_t *targets, int32_t *positions)
{
    int64_t length = windows->seq_len;

    if (windows->packed)
        return fsdp__packed_read(windows->packed, vocab_size, window, inputs, targets, positions);
    for (int64_t i = 0; positions && i < length; i++)
        positions[i] = (int32_t)i;
    return fsdp__window_read(windows->tokens, vocab_size, window * length, length, inputs, targets);
}

fsdp_status fsdp__windows_answers(const fsdp__windows *windows, int64_t window, int64_t *out)
{
    if (windows->packed)
        return fsdp__packed_answers(windows->packed, window, out);
    *out = windows->seq_len;
    return FSDP_OK;
}

int64_t fsdp__windows_tokens(const fsdp__windows *windows, int64_t window)
{
    return windows->packed ? fsdp__packed_tokens(windows->packed, window) : windows->seq_len;
}
