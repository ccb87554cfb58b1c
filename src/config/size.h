/* size.h - numbers of bytes as people write them: 5GB, 1.5 GiB, 200000. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    FSDP__SIZE_TEXT = 32
};

/* Parses a number, with or without a unit: B; KB, MB, GB, TB for powers of 1000; KiB, MiB, GiB, TiB for powers of 1024.
 * Case does not matter, and a space may stand before the unit. A fraction of a byte is cut off. Returns false if the
 * text is none of that, or beyond 9e18. */
bool fsdp__size_parse(const char *text, int64_t *out_bytes);
/* Writes the number in the largest unit in which it is whole, so that fsdp__size_parse gives it back. Returns
 * `text`. */
const char *fsdp__size_write(int64_t bytes, char text[FSDP__SIZE_TEXT]);
