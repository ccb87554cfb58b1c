/* regex.h - translates regular expressions with Oniguruma's meaning into PCRE2's syntax.
 *
 * PCRE2 would read some of them differently, and its Unicode tables are those of the machine. So it sees neither: each
 * character of a text becomes a symbol, which is one byte for all characters that the expression does not tell apart,
 * and the translation is an expression over symbols that uses only what both libraries read alike. */
#pragma once

#include "tokenizer/nfc.h"
#include "tokenizer/symbols.h"

/* Translates a regular expression. `path` is for messages. What cannot be translated is refused; the message says what
 * it is and where. `out` gets the translation, followed by a NUL. The caller releases `out` and `symbols`, also on
 * failure. */
fsdp_status fsdp__regex_translate(const char *path, const char *regex, fsdp__symbols *symbols, fsdp__text *out);
