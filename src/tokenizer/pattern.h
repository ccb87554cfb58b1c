/* pattern.h - the regular expressions of tokenizers, which are written for Oniguruma. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__pattern fsdp__pattern; /* read-only: may be shared by threads */

/* Compiles a regular expression. One that we would match differently than Oniguruma is refused (regex.h). `path` is for
 * messages. */
fsdp_status fsdp__pattern_create(const char *path, const char *regex, fsdp__pattern **out);
/* Makes a pattern that matches `text` itself. */
fsdp_status fsdp__pattern_create_literal(const char *path, const char *text, fsdp__pattern **out);
void fsdp__pattern_free(fsdp__pattern *pattern);

/* The memory of one thread for matching; any pattern can use it. */
typedef struct fsdp__matcher fsdp__matcher;
fsdp_status fsdp__matcher_create(fsdp__matcher **out);
void fsdp__matcher_free(fsdp__matcher *matcher);

/* A search of one text for one pattern, from beginning to end. */
typedef struct fsdp__search {
    const fsdp__pattern *pattern;
    fsdp__matcher *matcher;
    size_t bytes;
    const char *symbols; /* what the pattern is matched against: a symbol for each character, or the text itself */
    size_t symbol_count;
    const uint32_t *places; /* offsets of the symbols in the text; NULL: symbol i is byte i */
    size_t at, symbol_at;   /* where the last match ended, as an offset in the text and in the symbols */
} fsdp__search;

enum {
    FSDP__SEARCHES = 16 /* that one matcher can run at the same time */
};

/* Begins a search of `text`, which is UTF-8. Each of the searches that run at the same time needs a `level` of its own,
 * below FSDP__SEARCHES. */
fsdp_status fsdp__search_begin(fsdp__search *search, const fsdp__pattern *pattern, fsdp__matcher *matcher, int level,
                               const char *text, size_t bytes);
/* Finds the first match from `*end` on, which is not before the last match. If there is none, `*begin` is the end of
 * the text. */
fsdp_status fsdp__search_next(fsdp__search *search, size_t *begin, size_t *end);
