/* size.h - numbers of bytes as people write them: 5GB, 1.5 GiB, 200000. */
#ifndef CONFIG_SIZE_H
#define CONFIG_SIZE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    FSDP__SIZE_TEXT = 32
};

/* A number, and a unit or none: B; KB, MB, GB, TB of thousands; KiB, MiB, GiB, TiB of 1024; in any case, with a space
 * before it or without. What is over of a byte is cut off. False for what is none of that, or beyond 9e18. */
bool fsdp__size_parse(const char *text, int64_t *out_bytes);
/* In the largest unit in which it is a whole number: fsdp__size_parse gives it back. Returns `text`. */
const char *fsdp__size_write(int64_t bytes, char text[FSDP__SIZE_TEXT]);

#endif
