/* tokenize.h - tokenizes files for the cache. */
#ifndef DATA_TOKENIZE_H
#define DATA_TOKENIZE_H

#include "data/files.h"
#include "data/text_file.h"
#include "fsdp/tokenize.h"

/* Does the same as fsdp_tokenize_files, for a file whose name says all that it is made from: the file gets checksums
 * (token_sums.h) and replaces whatever has its name. `hashes` are those of the files that the name stands for; a file
 * whose hash is another by now is an error. */
fsdp_status fsdp__tokenize_kept(const fsdp_tokenizer *tokenizer, const fsdp__data_files *files,
                                const fsdp__text_hash *hashes, const char *out, const fsdp_tokenize_options *options,
                                fsdp_tokenize_summary *summary);

#endif
