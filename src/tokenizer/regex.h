/* regex.h - regular expressions as Oniguruma reads them, in words of PCRE2.
 *
 * PCRE2 would read some of them otherwise, and has the tables of Unicode that its machine has. So it gets none of
 * either: each character of a text becomes a symbol, a byte for all characters that the expression does not tell apart,
 * and the translation is an expression over symbols, in what both libraries read alike. */
#ifndef TOKENIZER_REGEX_H
#define TOKENIZER_REGEX_H

#include "tokenizer/nfc.h"
#include "tokenizer/symbols.h"

/* `path` is for messages. What is not translated is refused by its name and its place. `out` gets the translation, with
 * a NUL behind it; the caller releases it, and `symbols`, on failure as well. */
fsdp_status fsdp__regex_translate(const char *path, const char *regex, fsdp__symbols *symbols, fsdp__text *out);

#endif
