/* pattern.h - regular expressions of tokenizers, which are written for Oniguruma. */
#ifndef TOKENIZER_PATTERN_H
#define TOKENIZER_PATTERN_H

#include "fsdp/status.h"

typedef struct fsdp__pattern fsdp__pattern; /* read-only: may be shared by threads */

/* What this library would match otherwise than Oniguruma does is refused. `path` is for messages. */
fsdp_status fsdp__pattern_create(const char *path, const char *regex, fsdp__pattern **out);
/* Of `text` itself. */
fsdp_status fsdp__pattern_create_literal(const char *path, const char *text, fsdp__pattern **out);
void fsdp__pattern_free(fsdp__pattern *pattern);

/* Memory of a thread's own, for patterns of any kind. */
typedef struct fsdp__matcher fsdp__matcher;
fsdp_status fsdp__matcher_create(fsdp__matcher **out);
void fsdp__matcher_free(fsdp__matcher *matcher);

/* The first match from `*end` on in `text`, which is UTF-8; `*begin` is `bytes` where there is none. */
fsdp_status fsdp__pattern_find(const fsdp__pattern *pattern, fsdp__matcher *matcher, const char *text, size_t bytes,
                               size_t *begin, size_t *end);

#endif
