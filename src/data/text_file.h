/* text_file.h - the text of one file, from beginning to end: plain, gzip or zstd. */
#ifndef DATA_TEXT_FILE_H
#define DATA_TEXT_FILE_H

#include "fsdp/status.h"

typedef struct fsdp__text_file fsdp__text_file;

/* What tells a file's content from another's: its bytes as they lie there, packed or not. */
typedef struct fsdp__text_hash {
    uint64_t bytes, high, low; /* how many there are, and their XXH3 of 128 bits */
} fsdp__text_hash;

/* Plain, gzip or zstd by its first bytes, whatever its name says; but what is told to be anything else (content.h), and
 * what has a packed one's name and is none, is refused. `path` is borrowed. */
fsdp_status fsdp__text_file_open(const char *path, fsdp__text_file **out);
/* Whether these are the first bytes of gzip or zstd. */
bool fsdp__text_is_packed(const void *data, size_t bytes);
/* The next bytes, `room` or fewer; `*got` is 0 at the end. Of several members or frames they follow each other. What is
 * compressed and damaged, or cut short, or holds no text but something packed once more, is an error; zeros behind a
 * member of gzip are passed over. */
fsdp_status fsdp__text_file_read(fsdp__text_file *file, char *into, size_t room, size_t *got);
/* Bytes of the file that were read so far. */
int64_t fsdp__text_file_position(const fsdp__text_file *file);
/* The hash of these; of the whole file once it was read to its end. */
fsdp__text_hash fsdp__text_file_hash(const fsdp__text_file *file);
void fsdp__text_file_close(fsdp__text_file *file); /* NULL is allowed */

/* The hash of a whole file, which is refused as if it were opened. */
fsdp_status fsdp__text_hash_of(const char *path, fsdp__text_hash *out);

/* Whether its name, but for .gz or .zst, says JSON lines (.jsonl, .ndjson; .json too, for many have them so); whether a
 * folder's file is taken as text (.txt, .jsonl, .ndjson, not .json, which says much else); whether it is packed. */
bool fsdp__is_json_lines(const char *path);
bool fsdp__is_document(const char *path);
bool fsdp__is_packed(const char *path);

#endif
