/* utf8.c - the shortest form only, no surrogates, nothing beyond U+10FFFF: as YAML takes it. */
#include "config/utf8.h"

int fsdp__utf8_next(const char *text, uint32_t *character)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    int bytes = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : at[0] >> 3 == 30 ? 4 : 0;
    uint32_t value = bytes == 1 ? at[0] : at[0] & (0xFFu >> (bytes + 1));

    for (int i = 1; i < bytes; i++) { /* a text that ends too soon has a NUL here */
        if (at[i] >> 6 != 2)
            return 0;
        value = value << 6 | (at[i] & 0x3F);
    }
    if (!bytes || value < least[bytes] || value >> 11 == 0x1B || value > 0x10FFFF)
        return 0;
    *character = value;
    return bytes;
}
