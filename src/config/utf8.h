/* utf8.h - characters of a text. */
#ifndef CONFIG_UTF8_H
#define CONFIG_UTF8_H

#include <stdint.h>

/* The character that `text` begins with, and how many bytes it has; 0 when they are no UTF-8 (a NUL is one byte). */
int fsdp__utf8_next(const char *text, uint32_t *character);

#endif
