/* text_file.h - reads the text of one file from beginning to end: plain, gzip, zstd, or the rows of Parquet. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__text_file fsdp__text_file;

/* Identifies the contents of a file: the bytes in the file, packed or not. */
typedef struct fsdp__text_hash {
    uint64_t bytes, high, low; /* number of bytes, and their 128-bit XXH3 */
} fsdp__text_hash;

/* Opens a file as plain, gzip or zstd, by its first bytes, whatever its name says; and Parquet that is named .parquet,
 * whose text is JSON lines (parquet.h). A file that is recognized as anything else (content.h) is refused, and so is
 * one that is not packed but has the name of a packed file. `path` is borrowed. */
fsdp_status fsdp__text_file_open(const char *path, fsdp__text_file **out);
/* Returns whether these are the first bytes of gzip or zstd data. */
bool fsdp__text_is_packed(const void *data, size_t bytes);
/* Reads the next bytes, at most `room`; `*got` is 0 at the end. The contents of several members or frames follow each
 * other. Compressed data that is damaged, cut short, not text, or packed twice is an error; zeros after a member of
 * gzip are skipped. */
fsdp_status fsdp__text_file_read(fsdp__text_file *file, char *into, size_t room, size_t *got);
/* Returns how many bytes of the file have been read so far; of Parquet, about how many hold what has been read. */
int64_t fsdp__text_file_position(const fsdp__text_file *file);
/* Returns the hash of the file's bytes so far, which is that of the whole file once its text has been read to the
 * end. */
fsdp__text_hash fsdp__text_file_hash(const fsdp__text_file *file);
void fsdp__text_file_close(fsdp__text_file *file); /* NULL is allowed */

/* Computes the hash of a whole file. It refuses the same files as fsdp__text_file_open. */
fsdp_status fsdp__text_hash_of(const char *path, fsdp__text_hash *out);

/* These look at the name, without .gz or .zst. The first returns whether it says JSON lines (.jsonl, .ndjson, and .json
 * too, because many people name them so) or rows that are read as such (.parquet); the second whether a file of a
 * folder is taken as text (these and .txt, but not .json, which can be many other things); the third whether the file
 * is packed. */
bool fsdp__is_json_lines(const char *path);
bool fsdp__is_document(const char *path);
bool fsdp__is_packed(const char *path);
