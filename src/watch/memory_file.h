/* memory_file.h - a stream into memory, packed by gzip if that is asked for. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <zlib.h>

#include "fsdp/status.h"

typedef struct fsdp__memory_file {
    unsigned char *data;
    int64_t bytes, capacity;
    FILE *stream; /* write to it; NULL once it is finished */
    bool packs;
    fsdp_status status;
    z_stream packer;
    gz_header header;
} fsdp__memory_file;

/* Opens the stream. `comment` is written into gzip's header, so that the file can be told from others; or NULL. */
fsdp_status fsdp__memory_file_open(fsdp__memory_file *file, bool packs, const char *comment);
/* Ends the writing: `data` has all of it. */
fsdp_status fsdp__memory_file_finish(fsdp__memory_file *file);
void fsdp__memory_file_release(fsdp__memory_file *file); /* also after a failure */
