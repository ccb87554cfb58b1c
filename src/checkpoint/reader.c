/* reader.c - blocks of a checkpoint's files, each verified when it is read. */
#include "checkpoint/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

/* ---- errors ---- */

/* Names the tensors that have bytes in a range of a file. */
static void name_tensors(const fsdp__manifest *m, int rank, uint64_t begin, uint64_t end, fsdp__names *names)
{
    for (int64_t i = 0; i < m->tensor_count; i++) {
        for (int64_t k = 0; k < m->tensors[i].part_count; k++) {
            const fsdp_checkpoint_part *part = &m->tensors[i].parts[k];
            char name[FSDP__NAME_TEXT];

            if (part->rank != rank || part->begin >= end || part->begin + part->bytes <= begin)
                continue;
            snprintf(name, sizeof name, "%s.%s", m->tensors[i].section, m->tensors[i].name);
            fsdp__names_add(names, FSDP__SHOWN_NAME(name));
        }
    }
}

static fsdp_status damaged(const fsdp_checkpoint_reader *r, const fsdp__rank_file *file, uint64_t begin, uint64_t end)
{
    fsdp__names names = {.count = 0};

    name_tensors(&r->manifest, file->rank, begin, end, &names);
    return FSDP_FAIL(FSDP_FORMAT,
                     "'%s/%s' is damaged: bytes %llu to %llu do not fit their checksum, where tensor%s %s lie%s: take "
                     "another checkpoint",
                     r->path, file->name, (unsigned long long)begin, (unsigned long long)end - 1,
                     names.count > 1 ? "s" : "", fsdp__names_text(&names), names.count > 1 ? "" : "s");
}

/* ---- reading ---- */

static void close_window(fsdp__window *window)
{
    if (window->fd >= 0)
        close(window->fd);
    window->fd = -1;
    window->file = window->block = -1;
}

/* Gets the file's window, with the file open. Files take turns if there are more of them than windows. */
static fsdp_status open_file(fsdp_checkpoint_reader *r, int64_t index, fsdp__window **out)
{
    fsdp__window *window = &r->windows[index % FSDP__WINDOWS];
    FSDP__FREED char *path = NULL;

    *out = window;
    if (window->file == index)
        return FSDP_OK;
    close_window(window);
    path = fsdp__path_join(r->path, r->manifest.files[index].name);
    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", r->path);
    window->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (window->fd < 0)
        return FSDP_FAIL(FSDP_IO, "cannot open '%s/%s': %s%s", r->path, r->manifest.files[index].name,
                         strerrordesc_np(errno), fsdp__limit_behind(errno));
    window->file = index;
    return FSDP_OK;
}

static fsdp_status read_bytes(const fsdp_checkpoint_reader *r, const fsdp__window *window, uint64_t begin, size_t bytes)
{
    const fsdp__rank_file *file = &r->manifest.files[window->file];
    size_t done = 0;

    while (done < bytes) {
        ssize_t got = pread(window->fd, window->data + done, bytes - done, (off_t)(begin + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return FSDP_FAIL(FSDP_IO, "cannot read '%s/%s': %s at byte %llu", r->path, file->name,
                             strerrordesc_np(errno), (unsigned long long)(begin + done));
        if (got == 0)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s/%s': it ends at byte %llu of %llu", r->path, file->name,
                             (unsigned long long)(begin + done), (unsigned long long)file->bytes);
        done += (size_t)got;
    }
    return FSDP_OK;
}

static fsdp_status make_room(const fsdp_checkpoint_reader *r, fsdp__window *window, size_t bytes)
{
    unsigned char *more;

    if (window->capacity >= bytes)
        return FSDP_OK;
    more = fsdp__realloc(window->data, bytes);
    if (!more)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", r->path);
    window->data = more;
    window->capacity = bytes;
    return FSDP_OK;
}

static fsdp_status load_block(fsdp_checkpoint_reader *r, int64_t index, int64_t block, fsdp__window **out)
{
    const fsdp__rank_file *file = &r->manifest.files[index];
    uint64_t begin = file->header_bytes + (uint64_t)block * file->block_bytes;
    size_t bytes = (size_t)FSDP__MIN(file->block_bytes, file->bytes - begin);

    FSDP_TRY(open_file(r, index, out));
    if ((*out)->block == block)
        return FSDP_OK;
    (*out)->block = -1;
    FSDP_TRY(make_room(r, *out, bytes));
    FSDP_TRY(read_bytes(r, *out, begin, bytes));
    if (fsdp__checksum((*out)->data, bytes) != file->blocks[block])
        return damaged(r, file, begin, begin + bytes);
    (*out)->block = block;
    return FSDP_OK;
}

fsdp_status fsdp__reader_check_header(fsdp_checkpoint_reader *reader, int64_t index)
{
    const fsdp__rank_file *file = &reader->manifest.files[index];
    fsdp__window *window;

    FSDP_TRY(open_file(reader, index, &window));
    window->block = -1;
    FSDP_TRY(make_room(reader, window, (size_t)file->header_bytes));
    FSDP_TRY(read_bytes(reader, window, 0, (size_t)file->header_bytes));
    if (fsdp__checksum(window->data, (size_t)file->header_bytes) != file->header_checksum)
        return FSDP_FAIL(FSDP_FORMAT,
                         "'%s/%s' is damaged: its header (%llu bytes) does not fit its checksum: take another "
                         "checkpoint",
                         reader->path, file->name, (unsigned long long)file->header_bytes);
    return FSDP_OK;
}

void fsdp__windows_init(fsdp_checkpoint_reader *reader)
{
    for (int i = 0; i < FSDP__WINDOWS; i++)
        reader->windows[i] = (fsdp__window){.file = -1, .block = -1, .fd = -1};
}

void fsdp__windows_release(fsdp_checkpoint_reader *reader)
{
    for (int i = 0; i < FSDP__WINDOWS; i++) {
        close_window(&reader->windows[i]);
        fsdp__free(reader->windows[i].data);
    }
}

fsdp_status fsdp__reader_check_block(fsdp_checkpoint_reader *reader, int64_t file, int64_t block)
{
    fsdp__window *window;

    return load_block(reader, file, block, &window);
}

fsdp_status fsdp__reader_copy(fsdp_checkpoint_reader *reader, int rank, uint64_t begin, size_t bytes, void *out)
{
    const fsdp__rank_file *file = fsdp__manifest_file(&reader->manifest, rank);
    int64_t index = file - reader->manifest.files;
    unsigned char *to = out;

    while (bytes > 0) {
        uint64_t at = begin - file->header_bytes, inside = at % file->block_bytes;
        size_t some = (size_t)FSDP__MIN(bytes, file->block_bytes - inside);
        fsdp__window *window;

        FSDP_TRY(load_block(reader, index, (int64_t)(at / file->block_bytes), &window));
        memcpy(to, window->data + inside, some);
        to += some;
        begin += some;
        bytes -= some;
    }
    return FSDP_OK;
}
