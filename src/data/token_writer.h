/* token_writer.h - a token file that is made without a name where the file system can do that, else beside its
 * own, which it gets when it is whole. */
#ifndef DATA_TOKEN_WRITER_H
#define DATA_TOKEN_WRITER_H

#include "base/directory.h"
#include "fsdp/status.h"

typedef struct fsdp__token_writer {
    const char *path;   /* for messages; borrowed */
    fsdp__directory in; /* which the file is to be in */
    char *name, *temporary;
    bool named; /* the file, as temporary */
    int fd;     /* -1: none */
    int width;
    int64_t tokens;
    unsigned char *buffer;
    size_t used;
    uint64_t offset; /* in the file, of the buffer */
    bool kept;       /* by the cache: it has checksums */
    uint64_t *sums;
    int64_t sum_count, sum_capacity;
} fsdp__token_writer;

/* Of `width` 2 or 4 bytes a token. A file of that name that this writer has not made is refused; of one that is `kept`
 * by the cache, under a name of its own making, whatever has the name is replaced, and it gets checksums
 * (token_sums.h). */
fsdp_status fsdp__token_writer_open(fsdp__token_writer *writer, const char *path, int width, bool kept);
fsdp_status fsdp__token_writer_add(fsdp__token_writer *writer, const int32_t *ids, int64_t count);
/* Writes the header with a note ("": none; token_header.h), syncs the file to the disk and gives it its name. */
fsdp_status fsdp__token_writer_finish(fsdp__token_writer *writer, const char *note);
void fsdp__token_writer_close(fsdp__token_writer *writer); /* what is not finished is removed */

#endif
