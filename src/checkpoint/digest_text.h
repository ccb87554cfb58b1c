/* digest_text.h - how 64-bit numbers, and the end of a manifest, are written. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FSDP__MANIFEST_FORMAT "fsdp checkpoint"

enum {
    FSDP__MANIFEST_VERSION = 1,
    FSDP__HEX_DIGITS = 16,
    FSDP__DIGEST_BYTES = sizeof ",\"digest\":\"0123456789abcdef\"}\n" - 1
};

/* Writes the value in lower case, with a NUL; returns `out`. */
const char *fsdp__hex(uint64_t value, char out[FSDP__HEX_DIGITS + 1]);
/* Reads FSDP__HEX_DIGITS characters, only as fsdp__hex writes them. */
bool fsdp__hex_read(const char *digits, uint64_t *out);

/* Writes the end of a manifest whose bytes before it have this checksum, with a NUL. */
void fsdp__digest_text(uint64_t checksum, char out[FSDP__DIGEST_BYTES + 1]);
