/* text_file.h - the text of one file, from beginning to end: plain, gzip or zstd. */
#ifndef DATA_TEXT_FILE_H
#define DATA_TEXT_FILE_H

#include "fsdp/status.h"

typedef struct fsdp__text_file fsdp__text_file;

/* By its first bytes. `path` is borrowed. */
fsdp_status fsdp__text_file_open(const char *path, fsdp__text_file **out);
/* The next bytes, `room` or fewer; `*got` is 0 at the end. What is compressed and damaged, or cut short, is an error.
 */
fsdp_status fsdp__text_file_read(fsdp__text_file *file, char *into, size_t room, size_t *got);
/* Bytes of the file that were read so far. */
int64_t fsdp__text_file_position(const fsdp__text_file *file);
void fsdp__text_file_close(fsdp__text_file *file); /* NULL is allowed */

/* Whether its name, but for .gz or .zst, says JSON lines; or, with these, text. */
bool fsdp__is_json_lines(const char *path);
bool fsdp__is_document(const char *path);

#endif
