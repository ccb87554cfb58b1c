/* byte_level.c - the characters that stand for bytes. */
#include "tokenizer/byte_level.h"

#include "base/text.h"

enum {
    BYTES = 256,
    FIRST_STAND_IN = 256
};

static bool is_own_character(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* Returns the byte that a character stands for; -1: none. Bytes without a visible character have stand-ins, in their
 * order. */
static int byte_of(uint32_t character)
{
    uint32_t stand_in = FIRST_STAND_IN;

    if (character < BYTES)
        return is_own_character(character) ? (int)character : -1;
    for (unsigned byte = 0; byte < BYTES; byte++)
        if (!is_own_character(byte) && stand_in++ == character)
            return (int)byte;
    return -1;
}

bool fsdp__byte_level_bytes(const char *token, char *out, size_t *out_bytes)
{
    size_t count = 0;

    for (const char *at = token; *at;) {
        uint32_t character = 0;
        int length = fsdp__utf8_next(at, &character), byte = length > 0 ? byte_of(character) : -1;

        if (byte < 0)
            return false;
        out[count++] = (char)byte;
        at += length;
    }
    *out_bytes = count;
    return true;
}
