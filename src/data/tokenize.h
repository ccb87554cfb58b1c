/* tokenize.h - tokenizing, for the cache. */
#ifndef DATA_TOKENIZE_H
#define DATA_TOKENIZE_H

#include "fsdp/tokenize.h"

/* As fsdp_tokenize_files, of a file that has the name of all that it is made of: it gets checksums (token_sums.h), and
 * replaces whatever has its name. */
fsdp_status fsdp__tokenize_kept(const fsdp_tokenizer *tokenizer, const char *const *paths, int count, const char *out,
                                const fsdp_tokenize_options *options, fsdp_tokenize_summary *summary);

#endif
