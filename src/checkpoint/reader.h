/* reader.h - an open checkpoint, and verified bytes of its files. */
#pragma once

#include "checkpoint/manifest.h"

enum {
    FSDP__WINDOWS = 8
};

/* An open file, and the block of it that was read last and matches its checksum. */
typedef struct fsdp__window {
    int64_t file, block; /* -1: none */
    int fd;
    unsigned char *data;
    size_t capacity;
} fsdp__window;

struct fsdp_checkpoint_reader {
    char *path;
    fsdp__manifest manifest;
    fsdp_checkpoint_file *small; /* manifest.small, with their bytes */
    fsdp__window windows[FSDP__WINDOWS];
};

/* Copies verified bytes of a rank's file, from `begin` on, to `out`. An error names the file and the tensors. */
fsdp_status fsdp__reader_copy(fsdp_checkpoint_reader *reader, int rank, uint64_t begin, size_t bytes, void *out);
/* Read and check a block, or the header in front of the first block. */
fsdp_status fsdp__reader_check_block(fsdp_checkpoint_reader *reader, int64_t file, int64_t block);
fsdp_status fsdp__reader_check_header(fsdp_checkpoint_reader *reader, int64_t file);
/* Set the windows empty, and free what they hold. */
void fsdp__windows_init(fsdp_checkpoint_reader *reader);
void fsdp__windows_release(fsdp_checkpoint_reader *reader);
