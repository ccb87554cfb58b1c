/* text.c - names and values that others chose, as they are shown to a reader. */
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Bytes of the UTF-8 character at `at`; 0: there is none, or one that is encoded longer than it need be. */
static int decode(const unsigned char *at, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int length = at[0] < 0x80 ? 1 : at[0] >> 5 == 0x6 ? 2 : at[0] >> 4 == 0xE ? 3 : at[0] >> 3 == 0x1E ? 4 : 0;

    *code = length == 1 ? at[0] : length ? at[0] & (0x7Fu >> length) : 0;
    for (int i = 1; i < length; i++) {
        if (at[i] >> 6 != 2)
            return 0;
        *code = *code << 6 | (at[i] & 0x3F);
    }
    return length > 1 && (*code < least[length] || *code > 0x10FFFF || *code >> 11 == 0x1B) ? 0 : length;
}

/* Moves a cursor, begins a line that looks like another message, or turns the direction of what follows. */
static bool moves(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029 ||
           (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

const char *fsdp__shown(const char *text, char *out, size_t out_bytes)
{
    static const char digits[] = "0123456789abcdef", cut[] = "...";
    const unsigned char *from = (const unsigned char *)text;
    size_t used = 0;

    while (*from) {
        uint32_t code = 0;
        int length = decode(from, &code);
        bool plain = length > 0 && !moves(code);
        size_t count = length > 0 ? (size_t)length : 1, needed = plain ? count : 4 * count;

        if (used + needed + sizeof cut > out_bytes)
            break;
        if (plain)
            memcpy(out + used, from, count);
        for (size_t i = 0; i < count && !plain; i++) {
            const char shown[] = {'\\', 'x', digits[from[i] >> 4], digits[from[i] & 15]};

            memcpy(out + used + 4 * i, shown, sizeof shown);
        }
        used += needed;
        from += count;
    }
    memcpy(out + used, *from ? cut : "", *from ? sizeof cut : 1);
    return out;
}
