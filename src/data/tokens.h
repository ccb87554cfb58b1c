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

#endif
