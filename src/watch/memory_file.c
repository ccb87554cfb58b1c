/* memory_file.c - a FILE whose bytes are kept in memory. */
#include "watch/memory_file.h"

#include <string.h>

#include "base/alloc.h"

enum {
    PIECE = 64 * 1024, /* by which it grows at least */
    GZIP = 15 + 16     /* zlib's largest window, with gzip's head and end */
};

static fsdp_status make_room(fsdp__memory_file *f, int64_t bytes)
{
    unsigned char *larger;
    int64_t capacity = f->capacity + f->capacity / 2 + PIECE + bytes;

    if (f->capacity - f->bytes >= bytes)
        return FSDP_OK;
    larger = fsdp__realloc(f->data, (size_t)capacity);
    FSDP__TRY_NEW(larger);
    f->data = larger;
    f->capacity = capacity;
    return FSDP_OK;
}

static fsdp_status pack(fsdp__memory_file *f, const char *data, size_t bytes, int flush)
{
    int code = Z_OK;

    f->packer.next_in = (Bytef *)(uintptr_t)data;
    f->packer.avail_in = (uInt)bytes;
    do {
        FSDP_TRY(make_room(f, PIECE));
        f->packer.next_out = f->data + f->bytes;
        f->packer.avail_out = PIECE;
        code = deflate(&f->packer, flush);
        f->bytes += PIECE - f->packer.avail_out;
    } while (code == Z_OK && (f->packer.avail_in > 0 || f->packer.avail_out == 0 || flush == Z_FINISH));
    return FSDP_OK;
}

static fsdp_status keep(fsdp__memory_file *f, const char *data, size_t bytes)
{
    if (f->packs)
        return pack(f, data, bytes, Z_NO_FLUSH);
    FSDP_TRY(make_room(f, (int64_t)bytes));
    memcpy(f->data + f->bytes, data, bytes);
    f->bytes += (int64_t)bytes;
    return FSDP_OK;
}

static ssize_t write_to(void *cookie, const char *data, size_t bytes)
{
    fsdp__memory_file *f = cookie;

    if (f->status == FSDP_OK)
        f->status = keep(f, data, bytes);
    return f->status == FSDP_OK ? (ssize_t)bytes : 0;
}

fsdp_status fsdp__memory_file_open(fsdp__memory_file *f, bool packs, const char *comment)
{
    static const cookie_io_functions_t functions = {.write = write_to};

    *f = (fsdp__memory_file){.header = {.os = 3 /* Unix */, .comment = (Bytef *)(uintptr_t)comment}};
    if (packs && deflateInit2(&f->packer, Z_DEFAULT_COMPRESSION, Z_DEFLATED, GZIP, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for zlib");
    f->packs = packs;
    if (packs)
        (void)deflateSetHeader(&f->packer, &f->header);
    f->stream = fopencookie(f, "w", functions);
    return f->stream ? FSDP_OK : FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for a stream");
}

fsdp_status fsdp__memory_file_finish(fsdp__memory_file *f)
{
    bool lost = fclose(f->stream) != 0;

    f->stream = NULL;
    if (f->status == FSDP_OK && lost)
        f->status = FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for a stream");
    if (f->status == FSDP_OK && f->packs)
        f->status = pack(f, "", 0, Z_FINISH);
    return f->status;
}

void fsdp__memory_file_release(fsdp__memory_file *f)
{
    if (f->stream)
        (void)fclose(f->stream);
    if (f->packs)
        (void)deflateEnd(&f->packer);
    fsdp__free(f->data);
    *f = (fsdp__memory_file){.data = NULL};
}
