/* tokens.c - token files as one memory-mapped stream. Files are little-endian, as is every machine we run on. */
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "fsdp/data.h"

enum {
    HEADER_WORDS = 1024,
    HEADER_BYTES = HEADER_WORDS * 4,
    SNIFFED_BYTES = 4096 /* of a file with an unknown name, to tell text from the rest */
};

/* llm.c's headers: the magic number tells the width of the tokens. */
static const struct header_kind {
    int32_t magic, version;
    int width;
} header_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

typedef struct token_file {
    char *path;
    fsdp__mapping map;
    size_t offset_bytes; /* of the first token */
    int width;           /* bytes per token: 1, 2 or 4 */
    int64_t first;       /* position of its first token in the stream */
    int64_t count;
} token_file;

struct fsdp_tokens {
    token_file *files;
    int file_count;
    int64_t count;
};

static bool has_extension(const char *path, const char *const *extensions, int count)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');

    for (int i = 0; dot && i < count; i++)
        if (strcasecmp(dot, extensions[i]) == 0)
            return true;
    return false;
}

/* Bytes per token of a file without a header; 0 and an error when its name and contents do not tell. */
static int guess_width(const token_file *file)
{
    static const char *const two[] = {".bin", ".u16"}, *const four[] = {".u32"}, *const text[] = {".txt"};

    if (has_extension(file->path, two, FSDP__COUNT_OF(two)))
        return 2;
    if (has_extension(file->path, four, FSDP__COUNT_OF(four)))
        return 4;
    if (has_extension(file->path, text, FSDP__COUNT_OF(text)))
        return 1;
    if (!memchr(file->map.data, 0, FSDP__MIN(file->map.bytes, (size_t)SNIFFED_BYTES)))
        return 1;
    FSDP_FAIL(FSDP_FORMAT,
              "cannot tell the format of '%s': it is not text; say whether its tokens are uint16 or uint32",
              file->path);
    return 0;
}

/* `*found` tells whether the file begins with a header of ours; then width, offset and count come from it. */
static fsdp_status read_header(token_file *file, bool *found)
{
    int32_t words[3];
    size_t expected;

    *found = false;
    if (file->map.bytes < sizeof words)
        return FSDP_OK;
    memcpy(words, file->map.data, sizeof words);
    for (size_t i = 0; i < FSDP__COUNT_OF(header_kinds); i++) {
        const struct header_kind *kind = &header_kinds[i];

        if (words[0] != kind->magic)
            continue;
        if (words[1] != kind->version)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': header version %d at offset 4, expected %d", file->path,
                             (int)words[1], (int)kind->version);
        if (words[2] < 0)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': token count %d at offset 8 is negative", file->path,
                             (int)words[2]);
        expected = HEADER_BYTES + (size_t)words[2] * (size_t)kind->width;
        if (file->map.bytes != expected)
            return FSDP_FAIL(FSDP_FORMAT,
                             "cannot read '%s': its header at offset 8 promises %d tokens of %d bytes, that is %zu "
                             "bytes, but the file has %zu",
                             file->path, (int)words[2], kind->width, expected, file->map.bytes);
        file->width = kind->width;
        file->offset_bytes = HEADER_BYTES;
        *found = true;
    }
    return FSDP_OK;
}

static fsdp_status open_file(const char *path, fsdp_token_format format, token_file *file)
{
    bool header = false;
    size_t bytes;

    file->path = fsdp__strdup(path);
    if (!file->path)
        return FSDP_NO_MEMORY;
    FSDP_TRY(fsdp__file_map(path, &file->map));
    if (file->map.bytes == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is empty", path);
    if (format != FSDP_TOKENS_TEXT)
        FSDP_TRY(read_header(file, &header));
    if (!header)
        file->width = format == FSDP_TOKENS_TEXT     ? 1
                      : format == FSDP_TOKENS_UINT16 ? 2
                      : format == FSDP_TOKENS_UINT32 ? 4
                                                     : guess_width(file);
    if (file->width == 0)
        return fsdp_fail_hop(FSDP_FORMAT, __FILE__, __LINE__);
    bytes = file->map.bytes - file->offset_bytes;
    if (bytes % (size_t)file->width != 0)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': %zu bytes are no whole number of %d-byte tokens (%zu left at "
                         "offset %zu)",
                         path, bytes, file->width, bytes % (size_t)file->width,
                         file->map.bytes - bytes % (size_t)file->width);
    file->count = (int64_t)(bytes / (size_t)file->width);
    return FSDP_OK;
}

fsdp_status fsdp_tokens_open(const char *const *paths, int count, fsdp_token_format format, fsdp_tokens **out)
{
    fsdp_status status = FSDP_OK;
    fsdp_tokens *tokens;

    *out = NULL;
    if (!paths || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot open tokens: no file is given");
    if (format < FSDP_TOKENS_AUTO || format > FSDP_TOKENS_UINT32)
        return FSDP_FAIL(FSDP_INVALID, "cannot open '%s': there is no token format %d", paths[0], (int)format);
    tokens = fsdp__calloc(1, sizeof *tokens);
    if (!tokens)
        return FSDP_NO_MEMORY;
    tokens->files = fsdp__calloc((size_t)count, sizeof *tokens->files);
    if (!tokens->files) {
        status = FSDP_NO_MEMORY;
        goto out;
    }
    for (int i = 0; i < count; i++) {
        token_file *file = &tokens->files[tokens->file_count++];

        FSDP_TRY_GOTO(status, open_file(paths[i], format, file), out);
        file->first = tokens->count;
        tokens->count += file->count;
    }
    *out = tokens;
    tokens = NULL;
out:
    fsdp_tokens_close(tokens);
    return status;
}

void fsdp_tokens_close(fsdp_tokens *tokens)
{
    if (!tokens)
        return;
    for (int i = 0; i < tokens->file_count; i++) {
        fsdp__file_unmap(&tokens->files[i].map);
        fsdp__free(tokens->files[i].path);
    }
    fsdp__free(tokens->files);
    fsdp__free(tokens);
}

int64_t fsdp_tokens_count(const fsdp_tokens *tokens)
{
    return tokens->count;
}

/* The file that holds `position`, which is inside; the last of those that begin there (a header may count 0). */
static const token_file *file_of(const fsdp_tokens *tokens, int64_t position)
{
    int low = 0, high = tokens->file_count - 1;

    while (low < high) {
        int middle = low + (high - low + 1) / 2;

        if (tokens->files[middle].first <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return &tokens->files[low];
}

/* Widens `count` tokens from `index` of the file on. Returns false if one does not fit an int32. */
static bool widen(const token_file *file, int64_t index, int64_t count, int32_t *out)
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
    if (position < 0 || count < 0 || position > tokens->count - count)
        return FSDP_FAIL(FSDP_INVALID, "cannot read %lld tokens at %lld: the stream has %lld", (long long)count,
                         (long long)position, (long long)tokens->count);
    while (count > 0) {
        const token_file *file = file_of(tokens, position);
        int64_t index = position - file->first, part = FSDP__MIN(count, file->count - index);

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
    const token_file *file = file_of(tokens, FSDP__MAX(position, 0));

    *position_in_file = position - file->first;
    return file->path;
}
