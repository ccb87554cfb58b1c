/* token_file.h - one file of tokens or text, memory-mapped. */
#ifndef DATA_TOKEN_FILE_H
#define DATA_TOKEN_FILE_H

#include "base/file.h"
#include "data/token_sums.h"
#include "fsdp/data.h"

struct stat;

typedef struct fsdp__token_file {
    const char *path; /* borrowed */
    fsdp__mapping map;
    size_t offset_bytes; /* of the first token */
    int width;           /* bytes per token: 1, 2 or 4 */
    bool width_is_guess; /* 2, for want of a header, a format or a name that says it */
    int64_t first;       /* position of its first token in the stream */
    int64_t count;
    fsdp__token_sums sums; /* of a file of the cache */
} fsdp__token_file;

/* Text that is none, tokens that are none, and JSON lines as text are refused by what they are (content.h). Closed by
 * the caller, also on failure. */
fsdp_status fsdp__token_file_open(fsdp__token_file *file, const char *path, fsdp_token_format format);
/* One of the cache: made under this name, by this user or root. Whoever opens such a file opens it so, each time:
 * another user may have put his own in its place since. */
fsdp_status fsdp__token_file_open_own(fsdp__token_file *file, const char *path);
/* The refusal of one of another's. */
fsdp_status fsdp__token_file_refuse(const char *path, const struct stat *info);
void fsdp__token_file_close(fsdp__token_file *file);

/* Before tokens [index, index + count) are used: FSDP_FORMAT where they do not fit their checksums. A file without any
 * is taken as it is. [thread-safe] */
fsdp_status fsdp__token_file_compare(const fsdp__token_file *file, int64_t index, int64_t count);

/* Of the files that paths stand for, how many are text and how many tokens: as `format` says, of AUTO by llm.c's
 * header, the name, or the first bytes of each; text is for a tokenizer, so it may be packed or JSON lines. Where the
 * format says it they are not listed: it is 1 and 0. */
fsdp_status fsdp__token_files_count_text(const char *const *paths, int64_t count, fsdp_token_format format,
                                         int64_t *out_text, int64_t *out_tokens);

/* What its first bytes say against reading it so: "'a.bin' is read as uint16 tokens, but ..."; false when nothing does.
 */
bool fsdp__token_file_doubt(const fsdp__token_file *file, char *text, size_t text_bytes);

#endif
