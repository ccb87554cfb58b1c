/* verify.c - checks every block of a checkpoint against its checksum. */
#include "base/compiler.h"
#include "checkpoint/reader.h"

enum {
    BLOCKS_A_REPORT = 8
};

fsdp_status fsdp_checkpoint_verify(fsdp_checkpoint_reader *reader, fsdp_checkpoint_progress progress, void *arg)
{
    uint64_t done = 0, total = 0;
    const fsdp__manifest *m;

    if (!reader)
        return FSDP_FAIL(FSDP_INVALID, "cannot verify a checkpoint: there is none");
    m = &reader->manifest;
    for (int64_t i = 0; i < m->file_count; i++)
        total += m->files[i].bytes;
    for (int64_t i = 0; i < m->file_count; i++) {
        const fsdp__rank_file *file = &m->files[i];

        FSDP_TRY(fsdp__reader_check_header(reader, i));
        done += file->header_bytes;
        for (int64_t b = 0; b < file->block_count; b++) {
            uint64_t at = (uint64_t)b * file->block_bytes;

            FSDP_TRY(fsdp__reader_check_block(reader, i, b));
            done += FSDP__MIN(file->block_bytes, file->bytes - file->header_bytes - at);
            if (progress && (b % BLOCKS_A_REPORT == 0 || b + 1 == file->block_count))
                FSDP_TRY(progress(arg, done, total));
        }
    }
    return FSDP_OK;
}
