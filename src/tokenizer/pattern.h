/* pattern.h - regular expressions of tokenizers, which are written for Oniguruma. */
#ifndef TOKENIZER_PATTERN_H
#define TOKENIZER_PATTERN_H

#include "fsdp/status.h"

typedef struct fsdp__pattern fsdp__pattern; /* read-only: may be shared by threads */

/* What Oniguruma would match otherwise is refused (regex.h). `path` is for messages. */
fsdp_status fsdp__pattern_create(const char *path, const char *regex, fsdp__pattern **out);
/* Of `text` itself. */
fsdp_status fsdp__pattern_create_literal(const char *path, const char *text, fsdp__pattern **out);
void fsdp__pattern_free(fsdp__pattern *pattern);

/* Memory of a thread's own, for patterns of any kind. */
typedef struct fsdp__matcher fsdp__matcher;
fsdp_status fsdp__matcher_create(fsdp__matcher **out);
void fsdp__matcher_free(fsdp__matcher *matcher);

/* A text in which one pattern is looked for, from its beginning to its end. */
typedef struct fsdp__search {
    const fsdp__pattern *pattern;
    fsdp__matcher *matcher;
    size_t bytes;
    const char *symbols; /* what the pattern is matched with: one for each character, or the text itself */
    size_t symbol_count;
    const uint32_t *places; /* of the symbols in the text; NULL: where they stand themselves */
    size_t at, symbol_at;   /* one place in both: where the last match ended */
} fsdp__search;

enum {
    FSDP__SEARCHES = 16 /* at a time, with one matcher */
};

/* `text` is UTF-8. Of those at a time each has a `level` of its own, below FSDP__SEARCHES. */
fsdp_status fsdp__search_begin(fsdp__search *search, const fsdp__pattern *pattern, fsdp__matcher *matcher, int level,
                               const char *text, size_t bytes);
/* The first match from `*end` on, which is not before the last match; `*begin` is the text's end where there is none.
 */
fsdp_status fsdp__search_next(fsdp__search *search, size_t *begin, size_t *end);

#endif
