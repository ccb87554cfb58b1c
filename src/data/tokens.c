/* tokens.c - reads files as one stream of tokens. */
#include "data/tokens.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/status.h"

FSDP__SCOPED_POINTER(fsdp_tokens, fsdp_tokens_close)

/* ---- life ---- */

/* Notes a mixture of text and tokens. A list may hold both, a folder may not; a byte and a token of the same number
 * hardly mean the same. */
static fsdp_status note_mixture(fsdp_tokens *tokens)
{
    const fsdp__token_file *first = tokens->files;

    for (int64_t i = 1; i < tokens->file_count; i++) {
        const fsdp__token_file *file = &tokens->files[i];
        bool text = file->width == 1;

        if (text == (first->width == 1))
            continue;
        tokens->warning = fsdp__sprintf("'%s' is read as text and '%s' as tokens, in one stream",
                                        text ? file->path : first->path, text ? first->path : file->path);
        return tokens->warning ? FSDP_OK : FSDP_NO_MEMORY;
    }
    return FSDP_OK;
}

/* Notes the first doubtful file, and how many there are. */
static fsdp_status note_doubts(fsdp_tokens *tokens)
{
    char text[768], other[768];
    int64_t doubtful = 0;

    for (int64_t i = 0; i < tokens->file_count; i++)
        doubtful += fsdp__token_file_doubt(&tokens->files[i], doubtful ? other : text, sizeof text);
    if (doubtful == 0)
        return note_mixture(tokens);
    tokens->warning = doubtful == 1 ? fsdp__strdup(text)
                                    : fsdp__sprintf("%s (and so on: %lld of %lld files are doubtful)", text,
                                                    (long long)doubtful, (long long)tokens->file_count);
    return tokens->warning ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status open_files(fsdp_tokens *tokens, fsdp_token_format format, bool own)
{
    int64_t count = tokens->paths.count;

    FSDP__TRY_NEW(tokens->files = fsdp__calloc((size_t)count, sizeof *tokens->files));
    for (int64_t i = 0; i < count; i++) {
        fsdp__token_file *file = &tokens->files[tokens->file_count++];
        const char *path = tokens->paths.paths[i];
        fsdp_status status = own ? fsdp__token_file_open_own(file, path) : fsdp__token_file_open(file, path, format);

        /* A mapping needs no descriptor, but the number of mappings is limited too. */
        if (status == FSDP_NO_MEMORY && count > 1000)
            return fsdp_fail_prefix(
                status, "file %lld of %lld (a process may map about 65,000, see vm.max_map_count: join files)",
                (long long)i + 1, (long long)count);
        FSDP_TRY(status);
        file->first = tokens->count;
        tokens->count += file->count;
    }
    return note_doubts(tokens);
}

static fsdp_status open_tokens(const char *const *paths, int count, fsdp_token_format format, bool own,
                               fsdp_tokens **out)
{
    FSDP__SCOPED(fsdp_tokens_close_at) fsdp_tokens *tokens = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot open tokens: there is no place for them");
    *out = NULL;
    if (!paths || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot open tokens: no file is given");
    if (format < FSDP_TOKENS_AUTO || format > FSDP_TOKENS_BINARY)
        return FSDP_FAIL(FSDP_INVALID, "cannot open '%s': there is no token format %d", paths[0], (int)format);
    FSDP__TRY_NEW(tokens = fsdp__calloc(1, sizeof *tokens));
    FSDP_TRY(fsdp__data_files_list(paths, count, format, &tokens->paths));
    FSDP_TRY(open_files(tokens, format, own));
    *out = fsdp__take(&tokens);
    return FSDP_OK;
}

fsdp_status fsdp_tokens_open(const char *const *paths, int count, fsdp_token_format format, fsdp_tokens **out)
{
    return open_tokens(paths, count, format, false, out);
}

fsdp_status fsdp__tokens_open_own(const char *path, fsdp_tokens **out)
{
    return open_tokens(&path, 1, FSDP_TOKENS_BINARY, true, out);
}

void fsdp__tokens_name_text(fsdp_tokens *tokens, const char *text, bool more)
{
    tokens->text = text;
    tokens->more_text = more;
}

void fsdp_tokens_close(fsdp_tokens *tokens)
{
    if (!tokens)
        return;
    for (int64_t i = 0; i < tokens->file_count; i++)
        fsdp__token_file_close(&tokens->files[i]);
    fsdp__free(tokens->files);
    fsdp__data_files_release(&tokens->paths);
    FSDP__FREE_ALL(tokens->warning, tokens);
}

fsdp_status fsdp__tokens_check_width(const fsdp_tokens *tokens, int64_t vocab_size)
{
    for (int64_t i = 0; vocab_size > 1 << 16 && i < tokens->file_count; i++)
        if (tokens->files[i].width_is_guess)
            return FSDP_FAIL(FSDP_FORMAT,
                             "cannot read '%s': nothing says whether its tokens are uint16 or uint32, and uint16 is "
                             "too small for a vocabulary of %lld: name it .u32 or .u16, or set data.dtype",
                             tokens->files[i].path, (long long)vocab_size);
    return FSDP_OK;
}

/* ---- reading ---- */

int64_t fsdp_tokens_count(const fsdp_tokens *tokens)
{
    return tokens ? tokens->count : 0;
}

/* Returns the file that holds `position`, which must be inside the stream: the last of those that begin there (a header
 * may have a count of 0). */
static const fsdp__token_file *file_of(const fsdp_tokens *tokens, int64_t position)
{
    int64_t low = 0, high = tokens->file_count - 1;

    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;

        if (tokens->files[middle].first <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return &tokens->files[low];
}

/* Widens `count` tokens of the file, from `index` on. Returns false if one does not fit an int32. */
static bool widen(const fsdp__token_file *file, int64_t index, int64_t count, int32_t *out)
{
    const unsigned char *from = file->map.data + file->offset_bytes + (size_t)index * (size_t)file->width;
    uint32_t all = 0;

    if (file->width == 1) {
        for (int64_t i = 0; i < count; i++)
            out[i] = from[i];
    } else if (file->width == 2) {
        for (int64_t i = 0; i < count; i++) {
            uint16_t token;

            memcpy(&token, from + 2 * i, sizeof token);
            out[i] = token;
        }
    } else {
        memcpy(out, from, (size_t)count * sizeof *out);
        for (int64_t i = 0; i < count; i++)
            all |= (uint32_t)out[i];
    }
    return all <= INT32_MAX;
}

fsdp_status fsdp_tokens_read(const fsdp_tokens *tokens, int64_t position, int64_t count, int32_t *out)
{
    if (!tokens || (!out && count > 0))
        return FSDP__FAIL_NULL("cannot read tokens: the stream and a place for them are required");
    if (position < 0 || count < 0 || position > tokens->count - count)
        return FSDP_FAIL(FSDP_INVALID, "cannot read %lld tokens at %lld: the stream has %lld", (long long)count,
                         (long long)position, (long long)tokens->count);
    while (count > 0) {
        const fsdp__token_file *file = file_of(tokens, position);
        int64_t index = position - file->first, part = FSDP__MIN(count, file->count - index);

        FSDP_TRY(fsdp__token_file_compare(file, index, part));
        if (!widen(file, index, part, out)) {
            while (*out >= 0) {
                out++;
                index++;
            }
            return FSDP_FAIL(FSDP_FORMAT, "token %u at position %lld of '%s' is beyond 2147483647", (unsigned)*out,
                             (long long)index, file->path);
        }
        position += part;
        count -= part;
        out += part;
    }
    return FSDP_OK;
}

const char *fsdp_tokens_locate(const fsdp_tokens *tokens, int64_t position, int64_t *position_in_file)
{
    const fsdp__token_file *file = tokens ? file_of(tokens, FSDP__MAX(position, 0)) : NULL;

    if (position_in_file)
        *position_in_file = file ? position - file->first : 0;
    return file ? file->path : NULL;
}

bool fsdp_tokens_have_text(const fsdp_tokens *tokens)
{
    bool text = false;

    for (int64_t i = 0; tokens && i < tokens->file_count; i++)
        text = text || tokens->files[i].width == 1;
    return text;
}

const char *fsdp_tokens_warning(const fsdp_tokens *tokens)
{
    return tokens ? tokens->warning : NULL;
}
