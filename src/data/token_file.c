/* token_file.c - one file: llm.c's header, what its name says, and what its first bytes look like. Files are
 * little-endian, as is every machine we run on. */
#include "data/token_file.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "data/content.h"
#include "data/files.h"
#include "data/parquet.h"
#include "data/text_file.h"
#include "data/token_header.h"
#include "format/json_scan.h"

static fsdp__token_header header_of(const fsdp__token_file *file)
{
    return fsdp__token_header_read(file->map.data, file->map.bytes);
}

/* Returns how many of the file's first bytes are looked at. */
static size_t sniffed(const fsdp__token_file *file)
{
    return FSDP__MIN(file->map.bytes, (size_t)FSDP__CONTENT_BYTES);
}

/* ---- opening ---- */

/* Takes width, offset and count from the header. */
static fsdp_status read_header(fsdp__token_file *file, const fsdp__token_header *header)
{
    size_t bytes = file->map.bytes - FSDP__TOKEN_HEADER_BYTES, table_bytes = 0;

    if (file->map.bytes < FSDP__TOKEN_HEADER_BYTES)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it begins with llm.c's header, but its %zu bytes are less than "
                         "the header's %d",
                         file->path, file->map.bytes, FSDP__TOKEN_HEADER_BYTES);
    if (header->version != header->expected_version)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': header version %d at offset 4, expected %d", file->path,
                         (int)header->version, (int)header->expected_version);
    if (header->count < 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': token count %lld at offset 8 is negative", file->path,
                         (long long)header->count);
    if (fsdp__token_sums_follow(file->map.data) && (uint64_t)header->count <= bytes / (size_t)header->width)
        table_bytes = fsdp__token_sums_blocks((size_t)header->count * (size_t)header->width) * sizeof(uint64_t);
    if ((uint64_t)header->count > bytes / (size_t)header->width ||
        bytes != (size_t)header->count * (size_t)header->width + table_bytes)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': its header at offset 8 promises %lld tokens of %d bytes, that is %llu "
                         "bytes%s, but the file has %zu",
                         file->path, (long long)header->count, header->width,
                         FSDP__TOKEN_HEADER_BYTES + (unsigned long long)header->count * (unsigned)header->width,
                         table_bytes ? " and their checksums" : "", file->map.bytes);
    file->width = header->width;
    file->offset_bytes = FSDP__TOKEN_HEADER_BYTES;
    return table_bytes ? fsdp__token_sums_open(file->path, file->map.data, bytes - table_bytes, &file->sums) : FSDP_OK;
}

/* Returns the bytes per token of a file without a header; 0: its first bytes show that it is neither text nor
 * tokens. */
static int width_of(const fsdp__token_file *file, fsdp_token_format format)
{
    int by_name = fsdp__data_width_by_name(file->path);

    if (format == FSDP_TOKENS_UINT16 || format == FSDP_TOKENS_UINT32)
        return format == FSDP_TOKENS_UINT16 ? 2 : 4;
    if (format == FSDP_TOKENS_BINARY)
        return by_name > 1 ? by_name : 2;
    if (format == FSDP_TOKENS_TEXT)
        return 1;
    if (by_name)
        return by_name;
    if (fsdp__is_json_lines(file->path) || fsdp__is_packed(file->path))
        return 1;
    return file->map.bytes > 0 && memchr(file->map.data, 0, sniffed(file)) ? 0 : 1;
}

static fsdp_status refuse_as_text(const fsdp__token_file *file)
{
    bool json = fsdp__is_json_lines(file->path) && !fsdp__parquet_is_named(file->path);

    if (json && fsdp__json_begins_array(file->map.data, sniffed(file)))
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s' as text: it is a JSON array, and brackets and keys would be tokens "
                         "too: " FSDP__JSON_ARRAY_ADVICE
                         ", which a tokenizer reads (data.tokenizer, fsdp tokenize); to use its bytes, name it .txt",
                         file->path);
    if (json)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s' as text: it is JSON lines, and braces and keys would be tokens too: set "
                         "data.tokenizer to a folder with a tokenizer.json, which reads its texts (or use fsdp "
                         "tokenize); to use its bytes, name it .txt",
                         file->path);
    if (header_of(file).width)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s' as text: it begins with llm.c's header of token files",
                         file->path);
    FSDP_TRY(fsdp__content_refuse(file->path, NULL, file->map.data, sniffed(file), false));
    FSDP_TRY(fsdp__content_refuse_name(file->path, file->map.bytes));
    return fsdp__content_check_text(file->path, 0, file->map.data, sniffed(file));
}

static fsdp_status refuse_as_tokens(const fsdp__token_file *file)
{
    FSDP_TRY(fsdp__content_refuse(file->path, NULL, file->map.data, sniffed(file), true));
    if (!fsdp__content_is_text(file->map.data, sniffed(file)))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read '%s' as uint%d tokens: its first %zu bytes are text: name it .txt, or turn it into "
                     "tokens with fsdp tokenize",
                     file->path, file->width * 8, sniffed(file));
}

static bool is_named_u16(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot && strcasecmp(dot, ".u16") == 0;
}

/* Finds the width of a file without a header. */
static fsdp_status find_width(fsdp__token_file *file, fsdp_token_format format)
{
    file->width = width_of(file, format);
    file->width_is_guess = file->width == 2 && format != FSDP_TOKENS_UINT16 && !is_named_u16(file->path);
    if (file->width == 1)
        return refuse_as_text(file);
    if (file->width > 1)
        return refuse_as_tokens(file);
    FSDP_TRY(fsdp__content_refuse(file->path, NULL, file->map.data, sniffed(file), false));
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot tell the format of '%s': it is not text; say whether its tokens are uint16 or uint32",
                     file->path);
}

static fsdp_status count_tokens(fsdp__token_file *file)
{
    size_t bytes = file->map.bytes - file->offset_bytes - file->sums.table_bytes, width = (size_t)file->width;

    if (bytes % width != 0)
        return FSDP_FAIL(
            FSDP_FORMAT,
            "cannot read '%s': %zu bytes are not a whole number of %d-byte tokens (%zu left at offset %zu)", file->path,
            bytes, file->width, bytes % width, file->map.bytes - bytes % width);
    file->count = (int64_t)(bytes / width);
    return FSDP_OK;
}

/* Interprets the mapped file. */
static fsdp_status understand(fsdp__token_file *file, fsdp_token_format format)
{
    int asked = format == FSDP_TOKENS_UINT16 ? 2 : format == FSDP_TOKENS_UINT32 ? 4 : 0;
    const char *path = file->path;
    fsdp__token_header header;

    if (file->map.bytes == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is empty", path);
    header = header_of(file);
    if (format == FSDP_TOKENS_TEXT)
        header.width = 0; /* refused below, as other files that are not text */
    if (header.width && asked && header.width != asked)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s' as uint%d: its header (magic %d at offset 0) says uint%d", path,
                         asked * 8, (int)header.magic, header.width * 8);
    FSDP_TRY(header.width ? read_header(file, &header) : find_width(file, format));
    return count_tokens(file);
}

fsdp_status fsdp__token_file_open(fsdp__token_file *file, const char *path, fsdp_token_format format)
{
    file->path = path;
    FSDP_TRY(fsdp__file_map(path, &file->map));
    return understand(file, format);
}

fsdp_status fsdp__token_file_map_own(const char *path, fsdp__mapping *out)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory in = {.path = NULL};
    FSDP__FREED char *name = NULL;
    FSDP__CLOSED int fd = -1;
    struct stat info;

    FSDP_TRY(fsdp__directory_of_target(path, &in, &name));
    FSDP_TRY(fsdp__directory_look(&in, name, &info) ? fsdp__directory_open_file(&in, name, &fd, &info)
                                                    : fsdp__file_error("open", path));
    if (!fsdp__directory_trusts(&in, &info))
        return fsdp__token_file_refuse(path, &info);
    return fsdp__file_map_open(fd, path, out);
}

fsdp_status fsdp__token_file_refuse(const char *path, const struct stat *info)
{
    return FSDP_FAIL(FSDP_INVALID,
                     "'%s' belongs to user %u, or has a second name, in a folder that others may write to: remove it, "
                     "or name another folder (data.cache; fsdp eval: --cache)",
                     path, (unsigned)info->st_uid);
}

fsdp_status fsdp__token_file_open_own(fsdp__token_file *file, const char *path)
{
    file->path = path;
    FSDP_TRY(fsdp__token_file_map_own(path, &file->map));
    FSDP_TRY(understand(file, FSDP_TOKENS_BINARY));
    if (!file->sums.compared || file->sums.name != fsdp__token_sums_name(path))
        return FSDP_FAIL(FSDP_FORMAT, "'%s' was not made under this name", path);
    return FSDP_OK;
}

void fsdp__token_file_close(fsdp__token_file *file)
{
    fsdp__file_unmap(&file->map);
    fsdp__token_sums_release(&file->sums);
}

fsdp_status fsdp__token_file_compare(const fsdp__token_file *file, int64_t index, int64_t count)
{
    size_t width = (size_t)file->width;

    if (!file->sums.compared)
        return FSDP_OK;
    return fsdp__token_sums_compare(&file->sums, file->path, file->map.data, (size_t)index * width,
                                    (size_t)(index + count) * width);
}

/* Decides by llm.c's header, the name, or the first bytes. */
static fsdp_status is_text(const char *path, bool *out)
{
    fsdp__token_file file = {.path = path};

    *out = false;
    FSDP_TRY(fsdp__file_map(path, &file.map));
    if (!header_of(&file).width) {
        int width = width_of(&file, FSDP_TOKENS_AUTO);

        /* If no name tells, packed data has zeros in it, as tokens do. */
        *out = width == 1 || (width == 0 && fsdp__text_is_packed(file.map.data, file.map.bytes));
    }
    fsdp__file_unmap(&file.map);
    return FSDP_OK;
}

fsdp_status fsdp__token_files_count_text(const char *const *paths, int64_t count, fsdp_token_format format,
                                         int64_t *out_text, int64_t *out_tokens)
{
    FSDP__SCOPED(fsdp__data_files_release) fsdp__data_files files = {0};

    *out_text = format == FSDP_TOKENS_TEXT;
    *out_tokens = format != FSDP_TOKENS_TEXT && format != FSDP_TOKENS_AUTO;
    if (format != FSDP_TOKENS_AUTO)
        return FSDP_OK;
    FSDP_TRY(fsdp__data_files_list(paths, count, FSDP__LIST_ANY, &files));
    for (int64_t i = 0; i < files.count; i++) {
        bool text = false;

        FSDP_TRY(is_text(files.paths[i], &text));
        ++*(text ? out_text : out_tokens);
    }
    return FSDP_OK;
}

/* ---- doubts ---- */

/* Returns whether the data looks like uint32 tokens below 65536, read as uint16. */
static bool every_second_is_zero(const unsigned char *bytes, size_t count)
{
    size_t pairs = count / 4;
    bool any = false;

    for (size_t i = 0; i < pairs; i++) {
        if (bytes[4 * i + 2] || bytes[4 * i + 3])
            return false;
        any = any || bytes[4 * i] || bytes[4 * i + 1];
    }
    return any && pairs >= 8;
}

bool fsdp__token_file_doubt(const fsdp__token_file *file, char *text, size_t text_bytes)
{
    if (file->width != 2 || file->offset_bytes || !every_second_is_zero(file->map.data, sniffed(file)))
        return false;
    snprintf(text, text_bytes,
             "'%s' is read as uint16 tokens, but every second one of its first %zu is 0, as if they were uint32",
             file->path, sniffed(file) / 2);
    return true;
}
