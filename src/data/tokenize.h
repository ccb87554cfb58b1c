/* tokenize.h - tokenizes files that have been listed, for the cache too. */
#pragma once

#include "data/files.h"
#include "data/text_file.h"
#include "fsdp/tokenize.h"

/* Does the same as fsdp_tokenize_files. With `hashes`, those of the files, the file is one whose name says all that it
 * is made from: it gets checksums (token_sums.h) and replaces whatever has its name, and a file whose hash is another
 * by now is an error. */
fsdp_status fsdp__tokenize_files(const fsdp_tokenizer *tokenizer, const fsdp__data_files *files,
                                 const fsdp__text_hash *hashes, const char *out, const fsdp_tokenize_options *options,
                                 fsdp_tokenize_summary *summary);
