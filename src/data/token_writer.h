/* token_writer.h - writes a token file. The file is created without a name where the file system can do that, otherwise
 * under a temporary name beside its own; it gets its own name when it is whole. */
#pragma once

#include "base/directory.h"
#include "fsdp/status.h"

typedef struct fsdp__token_writer {
    const char *path;   /* for messages; borrowed */
    fsdp__directory in; /* the folder that the file will be in */
    char *name, *temporary;
    bool named; /* the file has a name, `temporary` */
    int note;   /* of that name (base/temporary.h) */
    int fd;     /* -1: not open */
    int width;
    int64_t tokens;
    unsigned char *buffer;
    size_t used;
    uint64_t offset; /* of the buffer in the file */
    bool kept;       /* the file belongs to the cache: it has checksums */
    uint64_t *sums;
    int64_t sum_count, sum_capacity;
} fsdp__token_writer;

/* Opens a writer for tokens of `width` bytes, 2 or 4. If a file of that name exists that fsdp did not make, it is
 * refused. A file that is `kept` by the cache has a name of the cache's own making: it replaces whatever has that name,
 * and gets checksums (token_sums.h). */
fsdp_status fsdp__token_writer_open(fsdp__token_writer *writer, const char *path, int width, bool kept);
fsdp_status fsdp__token_writer_add(fsdp__token_writer *writer, const int32_t *ids, int64_t count);
/* Adds bytes that are no tokens, to a file that is kept. */
fsdp_status fsdp__token_writer_bytes(fsdp__token_writer *writer, const void *data, size_t bytes);
/* Writes the header with a note ("": none; token_header.h), syncs the file to the disk and gives it its name. */
fsdp_status fsdp__token_writer_finish(fsdp__token_writer *writer, const char *note);
/* Does the same with a header of FSDP__TOKEN_HEADER_BYTES that the caller has filled, for a file that is kept: it is
 * completed by the seal (token_sums.h). */
fsdp_status fsdp__token_writer_finish_as(fsdp__token_writer *writer, unsigned char *header);
void fsdp__token_writer_close(fsdp__token_writer *writer); /* removes what is not finished */
