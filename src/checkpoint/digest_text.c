/* digest_text.c - numbers of 64 bits as text. */
#include "checkpoint/digest_text.h"

#include <stdio.h>

const char *fsdp__hex(uint64_t value, char out[FSDP__HEX_DIGITS + 1])
{
    snprintf(out, FSDP__HEX_DIGITS + 1, "%016llx", (unsigned long long)value);
    return out;
}

bool fsdp__hex_read(const char *digits, uint64_t *out)
{
    uint64_t value = 0;

    for (int i = 0; i < FSDP__HEX_DIGITS; i++) {
        char c = digits[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

        if (digit < 0)
            return false;
        value = value << 4 | (uint64_t)digit;
    }
    *out = value;
    return true;
}

void fsdp__digest_text(uint64_t checksum, char out[FSDP__DIGEST_BYTES + 1])
{
    snprintf(out, FSDP__DIGEST_BYTES + 1, ",\"digest\":\"%016llx\"}\n", (unsigned long long)checksum);
}
