/* utf8.h - what of bytes is UTF-8. */
#ifndef TOKENIZER_UTF8_H
#define TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The character at the beginning of `bytes` bytes of any kind, and how long it is; 0: none is there. */
int fsdp__utf8_at(const char *text, size_t bytes, uint32_t *character);
/* The character that ends before `text + offset`, of text that is UTF-8; `offset` is not 0. */
uint32_t fsdp__utf8_before(const char *text, size_t offset);
/* How many bytes from the beginning are UTF-8: all of them, or up to the first that is not. */
size_t fsdp__utf8_prefix(const char *text, size_t bytes);
/* Of bytes that begin with no character: how many one U+FFFD stands for (what may begin a character, to where it goes
 * wrong), as Python and Rust count; `*cut`: they may be a character when more follow. */
size_t fsdp__utf8_broken(const char *text, size_t bytes, bool *cut);
/* Unicode's White_Space. */
enum {
    FSDP__LAST_WHITE_SPACE = 0x3000
};
bool fsdp__is_white_space(uint32_t character);

#endif
