/* utf8.h - reads UTF-8, and finds what is not UTF-8. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the character at the beginning of arbitrary bytes. Returns its length, or 0 if there is no valid character. */
int fsdp__utf8_at(const char *text, size_t bytes, uint32_t *character);
/* Returns the character that ends right before `text + offset`. The text is UTF-8, and `offset` is not 0. */
uint32_t fsdp__utf8_before(const char *text, size_t offset);
/* Returns how many bytes from the beginning are UTF-8: all of them, or those before the first that is not. */
size_t fsdp__utf8_prefix(const char *text, size_t bytes);
/* Takes bytes that begin with no valid character, and returns how many of them one U+FFFD stands for, as Python and
 * Rust count: the bytes that could begin a character, up to where they go wrong. `*cut` says that they may still become
 * a character if more bytes follow. */
size_t fsdp__utf8_broken(const char *text, size_t bytes, bool *cut);
/* Lists Unicode's property White_Space, and the last character that has it. */
enum {
    FSDP__LAST_WHITE_SPACE = 0x3000
};
bool fsdp__is_white_space(uint32_t character);
