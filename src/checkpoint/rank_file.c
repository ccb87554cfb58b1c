/* rank_file.c - writes a rank's file, once from beginning to end. */
#include "checkpoint/rank_file.h"

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/probe.h"

enum {
    BLOCK_BYTES = 1 << 20, /* fits a core's cache from copying through checking to writing */
    MOST_BLOCKS = 1 << 15  /* of a file: larger files have larger blocks */
};

typedef struct writing {
    int fd;
    const char *path;
    fsdp__data_cursor cursor;
    const unsigned char *copy;
    unsigned char *buffer; /* for one block, if there is no copy */
    const _Atomic bool *stop;
} writing;

static fsdp_status write_block(writing *w, fsdp__rank_file *file, uint64_t at, size_t bytes)
{
    const unsigned char *block = w->copy ? w->copy + at : w->buffer;

    if (atomic_load(w->stop))
        return FSDP_FAIL(FSDP_INTERRUPTED, "cannot write '%s': it was given up", w->path);
    if (!w->copy)
        FSDP_TRY(fsdp__data_cursor_read(&w->cursor, w->buffer, bytes));
    file->blocks[file->block_count++] = fsdp__checksum(block, bytes);
    return fsdp__file_pwrite(w->fd, w->path, block, bytes, file->header_bytes + at);
}

static fsdp_status write_all(writing *w, const fsdp__save_file *plan, fsdp__rank_file *file)
{
    uint64_t data_bytes = file->bytes - file->header_bytes;

    FSDP_TRY(fsdp__file_pwrite(w->fd, w->path, plan->header, plan->header_bytes, 0));
    for (uint64_t at = 0; at < data_bytes; at += file->block_bytes)
        FSDP_TRY(write_block(w, file, at, (size_t)FSDP__MIN(file->block_bytes, data_bytes - at)));
    return fsdp__file_sync(w->fd, w->path);
}

static fsdp_status make_room(writing *w, fsdp__rank_file *file)
{
    while (file->bytes / file->block_bytes >= MOST_BLOCKS)
        file->block_bytes *= 2;
    file->blocks = fsdp__calloc((size_t)(file->bytes / file->block_bytes + 1), sizeof *file->blocks);
    if (!w->copy)
        w->buffer = fsdp__malloc((size_t)file->block_bytes);
    if (!file->blocks || (!w->copy && !w->buffer))
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write '%s'", w->path);
    return FSDP_OK;
}

fsdp_status fsdp__rank_file_write(const fsdp_context *context, const fsdp__directory *in, const char *name,
                                  const fsdp__rank_data *data, const unsigned char *copy, const _Atomic bool *stop,
                                  fsdp__rank_file *out)
{
    FSDP__FREED char *path = fsdp__path_join(in->path, name);
    const fsdp__save_file *plan = &data->plan.files[0];
    writing w = {.fd = -1, .path = path, .cursor = {.data = data}, .copy = copy, .stop = stop};
    fsdp__rank_file file = {.bytes = plan->total_bytes,
                            .header_bytes = plan->header_bytes,
                            .header_checksum = fsdp__checksum(plan->header, plan->header_bytes),
                            .block_bytes = BLOCK_BYTES};
    fsdp_status status = path ? make_room(&w, &file) : FSDP_NO_MEMORY;

    FSDP__TELL(PART_BEGUN, .context = context, .name = name, .bytes = (size_t)file.bytes, .ns = fsdp__clock_ns());
    if (status == FSDP_OK)
        status = fsdp__directory_create(in, name, &w.fd);
    if (status == FSDP_OK)
        status = write_all(&w, plan, &file);
    if (w.fd >= 0)
        FSDP_KEEP_FIRST(status, fsdp__file_close(w.fd, path));
    FSDP__TELL(PART_DONE, .context = context, .name = name, .bytes = (size_t)file.bytes, .ns = fsdp__clock_ns());
    fsdp__free(w.buffer);
    if (status == FSDP_OK)
        *out = file;
    else
        fsdp__free(file.blocks);
    return status;
}
