/* content.h - tells what a file is by its bytes, whatever its name says: packed, binary, or text. */
#pragma once

#include "fsdp/status.h"

enum {
    FSDP__CONTENT_BYTES = 4096 /* how much of a file's beginning is looked at */
};

/* Says what the owner of a Parquet file can do. */
#define FSDP__CONTENT_TO_LINES                                                                            \
    "write it as JSON lines: python3 -c \"import pandas; pandas.read_parquet('IN').to_json('OUT.jsonl', " \
    "orient='records', lines=True)\""

/* Refuses contents that their first bytes show to be neither text nor tokens, and says what the owner can do; a pointer
 * of Git LFS is refused too. `in` says where the contents are packed ("its gzip data"); NULL: they are the file itself.
 * `tokens`: the file is read as numbers, so a mark that numbers may well begin with is a reason to refuse only where
 * what follows leaves no doubt. */
fsdp_status fsdp__content_refuse(const char *path, const char *in, const void *data, size_t bytes, bool tokens);

/* Refuses a file that is not packed, as its first bytes show, but has a name that says it is ("a.gz"): it may be
 * damaged. Refuses a table of text, too (.csv, .tsv), which is no text to learn. */
fsdp_status fsdp__content_refuse_name(const char *path, size_t bytes);

/* Refuses a file in a folder that nobody would read, because its name fits no format, if it may hold data: either its
 * first bytes are those of packed data, an archive or a table (Parquet, Arrow, NumPy, ...), or its name says so,
 * whatever the contents are. Anything else is passed over: programs, pictures, weights, text. */
fsdp_status fsdp__content_refuse_data(const char *path, const void *data, size_t bytes);
/* Returns whether the name says that the file is packed, an archive or a table. */
bool fsdp__content_is_named_data(const char *path);

/* Refuses a part of a file that is not text in any encoding that extends ASCII: it has a NUL byte, or it is not UTF-8
 * and has too many control characters for another such encoding. `offset` is where the part begins in the file, for the
 * message. */
fsdp_status fsdp__content_check_text(const char *path, int64_t offset, const void *data, size_t bytes);

/* Returns whether the bytes are text: at least 16 bytes without control characters other than those of text, and either
 * UTF-8, which may end within a character, or at least 64 bytes that are mostly ASCII, as Latin-1 is. */
bool fsdp__content_is_text(const void *data, size_t bytes);
