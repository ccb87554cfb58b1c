/* token_header.c - the words of the header: magic, version, count; in our own headers also a 64-bit count and a
 * mark. */
#include "data/token_header.h"

#include <string.h>

#include "base/compiler.h"

enum {
    VERSION_WORD = 1,
    COUNT_WORD,
    LONG_COUNT_WORD = 4, /* two words */
    MARK_WORD = 8,
    NOTE_WORD = 64 /* the words before it hold the mark, and possibly more */
};

/* The magic number tells the width of the tokens. */
static const struct {
    int32_t magic, version;
    int width;
} kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static const char mark[] = "made by fsdp tokenize";

static int32_t get_word(const unsigned char *header, int word)
{
    int32_t value;

    memcpy(&value, header + (size_t)word * sizeof value, sizeof value);
    return value;
}

fsdp__token_header fsdp__token_header_read(const unsigned char *data, size_t bytes)
{
    fsdp__token_header header = {.count = -1};

    if (bytes < sizeof header.magic)
        return header;
    header.magic = get_word(data, 0);
    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++)
        if (header.magic == kinds[i].magic) {
            header.width = kinds[i].width;
            header.expected_version = kinds[i].version;
        }
    if (header.width == 0 || bytes < FSDP__TOKEN_HEADER_BYTES)
        return header;
    header.version = get_word(data, VERSION_WORD);
    header.count = get_word(data, COUNT_WORD);
    if (header.count == -1 && fsdp__token_header_is_ours(data))
        memcpy(&header.count, data + (size_t)LONG_COUNT_WORD * sizeof(int32_t), sizeof header.count);
    return header;
}

void fsdp__token_header_write(unsigned char *out, int width, int64_t count)
{
    bool wide = width == kinds[1].width;
    int32_t words[] = {kinds[wide].magic, kinds[wide].version, count > INT32_MAX ? -1 : (int32_t)count};

    memset(out, 0, FSDP__TOKEN_HEADER_BYTES);
    memcpy(out, words, sizeof words);
    memcpy(out + (size_t)LONG_COUNT_WORD * sizeof(int32_t), &count, sizeof count);
    memcpy(out + (size_t)MARK_WORD * sizeof(int32_t), mark, sizeof mark);
}

bool fsdp__token_header_is_ours(const unsigned char *header)
{
    fsdp__token_header read = {.magic = get_word(header, 0)};

    return (read.magic == kinds[0].magic || read.magic == kinds[1].magic) &&
           memcmp(header + (size_t)MARK_WORD * sizeof(int32_t), mark, sizeof mark) == 0;
}

void fsdp__token_header_set_note(unsigned char *header, const char *note)
{
    size_t bytes = FSDP__MIN(strlen(note), (size_t)FSDP__TOKEN_NOTE_BYTES - 1);

    memcpy(header + (size_t)NOTE_WORD * sizeof(int32_t), note, bytes);
}

const char *fsdp__token_header_note(const unsigned char *header)
{
    const char *note = (const char *)header + (size_t)NOTE_WORD * sizeof(int32_t);

    return fsdp__token_header_is_ours(header) && memchr(note, '\0', FSDP__TOKEN_NOTE_BYTES) ? note : "";
}
