/* tokens.h - the inside of a stream of tokens. */
#pragma once

#include "data/files.h"
#include "data/token_file.h"

struct fsdp_tokens {
    fsdp__data_files paths;
    fsdp__token_file *files;
    int64_t file_count;
    int64_t count;
    char *warning;    /* NULL: none */
    const char *text; /* the first file of the text that these tokens were made of; borrowed; NULL: of none */
    bool more_text;   /* there are more such files */
};

/* Opens a file of the cache as fsdp_tokens_open does. FSDP_INVALID if neither this user nor root has made it. */
fsdp_status fsdp__tokens_open_own(const char *path, fsdp_tokens **out);

/* Names the text that the tokens were made of, which messages then speak of. `text` must outlive the tokens. */
void fsdp__tokens_name_text(fsdp_tokens *tokens, const char *text, bool more);

/* Refuses a file that is read as uint16 only because no header, format or name says its width, if the vocabulary does
 * not fit uint16. */
fsdp_status fsdp__tokens_check_width(const fsdp_tokens *tokens, int64_t vocab_size);
