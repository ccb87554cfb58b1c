/* token_cache.h - the tokens of text, made once and kept in a folder. */
#ifndef DATA_TOKEN_CACHE_H
#define DATA_TOKEN_CACHE_H

#include "data/token_header.h"
#include "fsdp/tokenize.h"

typedef struct fsdp__cached_tokens {
    char *path;                            /* of the token file, fsdp__free it */
    bool made;                             /* just now, by this call */
    bool damaged;                          /* what had the name when this call came */
    fsdp_tokenize_summary summary;         /* where it was made */
    char left_out[FSDP__TOKEN_NOTE_BYTES]; /* "3 of 1,204 lines left out: ..."; "": none */
} fsdp__cached_tokens;

/* A file counts that this user or root has made; instead of another's, this user gets one of his own, with
 * "-user-<number>" behind its name, or an error where he cannot write. A lock that another may have put there is
 * refused. The file is opened with fsdp__tokens_open_own, which asks again.
 *
 * The token file of these files, in `folder`, which is made if it is not there. Its name says what it is made of: a
 * hash of all bytes of the files, of the tokenizer's files, of what `options` say, and of the versions of the tables of
 * characters; so whatever changes, other tokens are found or made. What is tokenized is hashed once more: a file that
 * has changed since its hash went into the name is an error, and nothing is kept. All of the file is compared with its
 * checksums first: one that is damaged, or that has another's content, is made anew and replaced. A process that has
 * the old one open keeps it. Of several ranks and programs one makes it, and the others wait: who `leads` begins at
 * once, others give such a one some seconds to do so. */
fsdp_status fsdp__token_cache_get(const fsdp_tokenizer *tokenizer, const char *const *paths, int count,
                                  const char *folder, bool leads, const fsdp_tokenize_options *options,
                                  fsdp__cached_tokens *out);

#endif
