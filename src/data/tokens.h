/* tokens.h - the inside of a stream of tokens. */
#ifndef DATA_TOKENS_H
#define DATA_TOKENS_H

#include "data/files.h"
#include "data/token_file.h"

struct fsdp_tokens {
    fsdp__data_files paths;
    fsdp__token_file *files;
    int64_t file_count;
    int64_t count;
    char *warning; /* NULL: none */
};

/* As fsdp_tokens_open, of a file of the cache: FSDP_INVALID where this user or root has not made it. */
fsdp_status fsdp__tokens_open_own(const char *path, fsdp_tokens **out);

/* Refuses a file that is read as uint16 only for want of a header, format or name that says its width, where the
 * vocabulary does not fit uint16. */
fsdp_status fsdp__tokens_check_width(const fsdp_tokens *tokens, int64_t vocab_size);

#endif
