/* token_file.c - one file: llm.c's header, what its name says, and what its first bytes look like. Files are
 * little-endian, as is every machine we run on. */
#include "data/token_file.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "data/files.h"
#include "data/token_header.h"

enum {
    SNIFFED_BYTES = 4096 /* from the beginning of a file, to tell text from the rest */
};

static fsdp__token_header header_of(const fsdp__token_file *file)
{
    return fsdp__token_header_read(file->map.data, file->map.bytes);
}

/* ---- opening ---- */

/* Width, offset and count are what the header says. */
static fsdp_status read_header(fsdp__token_file *file, const fsdp__token_header *header)
{
    size_t bytes = file->map.bytes - FSDP__TOKEN_HEADER_BYTES;

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
    if (bytes % (size_t)header->width != 0 || bytes / (size_t)header->width != (size_t)header->count)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': its header at offset 8 promises %lld tokens of %d bytes, that is %llu "
                         "bytes, but the file has %zu",
                         file->path, (long long)header->count, header->width,
                         FSDP__TOKEN_HEADER_BYTES + (unsigned long long)header->count * (unsigned)header->width,
                         file->map.bytes);
    file->width = header->width;
    file->offset_bytes = FSDP__TOKEN_HEADER_BYTES;
    return FSDP_OK;
}

/* Of a file without a header. */
static fsdp_status find_width(fsdp__token_file *file, fsdp_token_format format)
{
    int by_name = fsdp__data_width_by_name(file->path);

    if (format == FSDP_TOKENS_UINT16 || format == FSDP_TOKENS_UINT32)
        file->width = format == FSDP_TOKENS_UINT16 ? 2 : 4;
    else if (format == FSDP_TOKENS_BINARY)
        file->width = by_name > 1 ? by_name : 2;
    else if (by_name)
        file->width = by_name;
    else if (memchr(file->map.data, 0, FSDP__MIN(file->map.bytes, (size_t)SNIFFED_BYTES)))
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot tell the format of '%s': it is not text; say whether its tokens are uint16 or uint32",
                         file->path);
    else
        file->width = 1;
    return FSDP_OK;
}

static fsdp_status count_tokens(fsdp__token_file *file)
{
    size_t bytes = file->map.bytes - file->offset_bytes, width = (size_t)file->width;

    if (bytes % width != 0)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': %zu bytes are no whole number of %d-byte tokens (%zu left at offset %zu)",
                         file->path, bytes, file->width, bytes % width, file->map.bytes - bytes % width);
    file->count = (int64_t)(bytes / width);
    return FSDP_OK;
}

fsdp_status fsdp__token_file_open(fsdp__token_file *file, const char *path, fsdp_token_format format)
{
    fsdp__token_header header;
    int asked = format == FSDP_TOKENS_UINT16 ? 2 : format == FSDP_TOKENS_UINT32 ? 4 : 0;

    file->path = path;
    FSDP_TRY(fsdp__file_map(path, &file->map));
    if (file->map.bytes == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is empty", path);
    if (format == FSDP_TOKENS_TEXT) {
        file->width = 1;
        return count_tokens(file);
    }
    header = header_of(file);
    if (header.width && asked && header.width != asked)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s' as uint%d: its header (magic %d at offset 0) says uint%d", path,
                         asked * 8, (int)header.magic, header.width * 8);
    FSDP_TRY(header.width ? read_header(file, &header) : find_width(file, format));
    return count_tokens(file);
}

void fsdp__token_file_close(fsdp__token_file *file)
{
    fsdp__file_unmap(&file->map);
}

/* ---- doubts ---- */

typedef struct sample {
    const unsigned char *bytes;
    size_t count;
    size_t control, printable; /* of ASCII; spaces and line ends are printable */
} sample;

static sample take_sample(const fsdp__token_file *file)
{
    sample s = {.bytes = file->map.data, .count = FSDP__MIN(file->map.bytes, (size_t)SNIFFED_BYTES)};

    for (size_t i = 0; i < s.count; i++) {
        unsigned char byte = s.bytes[i];

        if ((byte >= 0x20 && byte < 0x7f) || (byte >= '\t' && byte <= '\r'))
            s.printable++;
        else if (byte < 0x20 || byte == 0x7f)
            s.control++;
    }
    return s;
}

static bool doubt_text(const fsdp__token_file *file, const sample *s, char *text, size_t text_bytes)
{
    if (header_of(file).width)
        snprintf(text, text_bytes, "'%s' is read as text, but it begins with llm.c's header of token files",
                 file->path);
    else if (s->count >= 4 && memcmp(s->bytes, "\177ELF", 4) == 0)
        snprintf(text, text_bytes, "'%s' is read as text, but it is a program (ELF)", file->path);
    else if (s->control * 100 > s->count)
        snprintf(text, text_bytes, "'%s' is read as text, but %zu of its first %zu bytes are control bytes", file->path,
                 s->control, s->count);
    else
        return false;
    return true;
}

/* As uint32 below 65536 look as uint16. */
static bool every_second_is_zero(const sample *s)
{
    size_t pairs = s->count / 4;
    bool any = false;

    for (size_t i = 0; i < pairs; i++) {
        if (s->bytes[4 * i + 2] || s->bytes[4 * i + 3])
            return false;
        any = any || s->bytes[4 * i] || s->bytes[4 * i + 1];
    }
    return any && pairs >= 8;
}

bool fsdp__token_file_doubt(const fsdp__token_file *file, char *text, size_t text_bytes)
{
    sample s = take_sample(file);

    if (file->width == 1)
        return doubt_text(file, &s, text, text_bytes);
    if (file->offset_bytes)
        return false;
    if (s.control == 0 && s.count >= 16 && s.printable * 10 >= s.count * 9)
        snprintf(text, text_bytes, "'%s' is read as uint%d tokens, but its first %zu bytes are text", file->path,
                 file->width * 8, s.count);
    else if (file->width == 2 && every_second_is_zero(&s))
        snprintf(text, text_bytes,
                 "'%s' is read as uint16 tokens, but every second of its first %zu is 0, as if they were uint32",
                 file->path, s.count / 2);
    else
        return false;
    return true;
}
