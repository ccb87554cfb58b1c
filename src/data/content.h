/* content.h - what a file is by its bytes, whatever its name says: packed, binary, or text. */
#ifndef DATA_CONTENT_H
#define DATA_CONTENT_H

#include "fsdp/status.h"

enum {
    FSDP__CONTENT_BYTES = 4096 /* of a file's beginning: what is looked at */
};

/* Refuses what is told by its first bytes and is neither text nor tokens, and says what its owner may do; a pointer of
 * Git LFS too. `in` is where it is packed ("its gzip data"); NULL: it is the file. `tokens`: it is read as numbers, so
 * what these may well begin with is a reason only where what follows leaves no doubt. */
fsdp_status fsdp__content_refuse(const char *path, const char *in, const void *data, size_t bytes, bool tokens);

/* Refuses what is not packed, as its first bytes say, but has a name that says it is ("a.gz"): it may be damaged. */
fsdp_status fsdp__content_refuse_name(const char *path, size_t bytes);

/* Refuses a file of a folder that nobody would read, for its name fits nothing, if it may hold data: by its first bytes
 * packed, an archive or a table (Parquet, Arrow, NumPy, ...), or by its name, whatever is in it. Anything else is
 * passed over: programs, pictures, weights, text. */
fsdp_status fsdp__content_refuse_data(const char *path, const void *data, size_t bytes);
/* Whether its name says that it is packed, an archive or a table. */
bool fsdp__content_is_named_data(const char *path);

/* Refuses a part of a file that is no text in any encoding that extends ASCII: a NUL byte, or bytes that are neither
 * UTF-8 nor, by their control characters, of another such encoding. `offset` is the part's, for the message. */
fsdp_status fsdp__content_check_text(const char *path, int64_t offset, const void *data, size_t bytes);

/* Whether it has no control characters but those that text has, and is UTF-8, at least 16 bytes, which may end within a
 * character; or at least 64 bytes, mostly ASCII, as of Latin-1. */
bool fsdp__content_is_text(const void *data, size_t bytes);

#endif
