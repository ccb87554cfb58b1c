/* utf8.c - reads characters of text that may end anywhere. */
#include "tokenizer/utf8.h"

#include <string.h>

#include "base/text.h"

int fsdp__utf8_at(const char *text, size_t bytes, uint32_t *character)
{
    char last[5] = {0}; /* a NUL ends a character that is cut */

    if (bytes >= 4)
        return fsdp__utf8_next(text, character);
    if (bytes == 0)
        return 0;
    memcpy(last, text, bytes);
    return fsdp__utf8_next(last, character);
}

uint32_t fsdp__utf8_before(const char *text, size_t offset)
{
    uint32_t character = 0;
    size_t at = offset - 1;

    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    fsdp__utf8_at(text + at, offset - at, &character);
    return character;
}

size_t fsdp__utf8_prefix(const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes) {
        uint64_t eight;
        uint32_t character;
        int length;

        if (at + sizeof eight <= bytes) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        length = fsdp__utf8_at(text + at, bytes - at, &character);
        if (length == 0)
            return at;
        at += (size_t)length;
    }
    return bytes;
}

/* Returns whether a byte may be the second of a character. For a few first bytes the range is narrower. */
static bool may_be_second(unsigned char first, unsigned char second)
{
    switch (first) {
    case 0xe0:
        return second >= 0xa0 && second < 0xc0;
    case 0xed:
        return second >= 0x80 && second < 0xa0;
    case 0xf0:
        return second >= 0x90 && second < 0xc0;
    case 0xf4:
        return second >= 0x80 && second < 0x90;
    default:
        return second >> 6 == 2;
    }
}

size_t fsdp__utf8_broken(const char *text, size_t bytes, bool *cut)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t expected = at[0] >= 0xc2 && at[0] < 0xe0   ? 2
                      : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
                      : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                      : 1;
    size_t count = 1;

    while (count < expected && count < bytes && (count == 1 ? may_be_second(at[0], at[1]) : at[count] >> 6 == 2))
        count++;
    *cut = count == bytes && count < expected;
    return count;
}

bool fsdp__is_white_space(uint32_t character)
{
    return (character >= 9 && character <= 13) || character == ' ' || character == 0x85 || character == 0xa0 ||
           character == 0x1680 || (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
           character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
}
