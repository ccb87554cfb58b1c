/* token_cache.h - the tokens of texts, made once and kept in a folder. */
#pragma once

#include "data/token_header.h"
#include "fsdp/tokenize.h"

typedef struct fsdp__cached_tokens {
    char *path;                            /* of the token file; fsdp__free it */
    bool made;                             /* by this call */
    bool damaged;                          /* a file had this name when the call came, and it was damaged */
    fsdp_tokenize_summary summary;         /* set if the file was made */
    char left_out[FSDP__TOKEN_NOTE_BYTES]; /* "3 of 1,204 lines left out: ..."; "": none */
} fsdp__cached_tokens;

/* Finds or makes the token file for these files in `folder`, which is made if it does not exist. The name of the token
 * file says what it is made from: a hash of all bytes of the files, of the tokenizer's files, of `options`, and of the
 * versions of the character tables. So whatever changes, other tokens are found or made. The text is hashed again while
 * it is tokenized: a file that has changed since its hash went into the name is an error, and nothing is kept. A token
 * file that exists is first compared with its checksums as a whole; one that is damaged, or that has other contents, is
 * made again and replaced. A process that has the old file open keeps it. If several ranks and programs need it, one
 * makes it and the others wait: a caller that `leads` begins at once, the others give such a caller some seconds to
 * begin.
 *
 * Only token files that this user or root has made are used. Instead of another user's file, this user gets one of
 * their own, with "-user-<number>" added to its name, or an error if the folder is not writable. A lock that another
 * user may have put there is refused. Open the file with fsdp__tokens_open_own, which checks the owner again. */
fsdp_status fsdp__token_cache_get(const fsdp_tokenizer *tokenizer, const char *const *paths, int count,
                                  const char *folder, bool leads, const fsdp_tokenize_options *options,
                                  fsdp__cached_tokens *out);
