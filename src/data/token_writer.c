/* token_writer.c - writes llm.c's header and tokens, little-endian as every machine we run on. */
#include "data/token_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/probe.h"
#include "base/temporary.h"
#include "data/token_header.h"
#include "data/token_sums.h"

enum {
    BUFFER_BYTES = 16 * FSDP__SUM_BLOCK_BYTES
};

#define DESCRIPTOR "/proc/self/fd/%d"

/* ---- the file's name ---- */

/* Checks that nothing has the name, or only a token file that fsdp made. */
static fsdp_status check_name(const fsdp__token_writer *w)
{
    unsigned char header[FSDP__TOKEN_HEADER_BYTES];
    bool held = fsdp_hold_error(true);
    struct stat info;
    ssize_t got = -1;
    int fd = -1;

    if (!fsdp__directory_look(&w->in, w->name, &info)) {
        fsdp_release_error(held);
        return FSDP_OK; /* creating it will tell */
    }
    if (fsdp__directory_open_file(&w->in, w->name, &fd, NULL) == FSDP_OK) {
        got = pread(fd, header, sizeof header, 0);
        close(fd);
    }
    fsdp_release_error(held);
    if (got == (ssize_t)sizeof header && fsdp__token_header_is_ours(header))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "'%s' exists and is not a token file that fsdp made: remove it, or name another",
                     w->path);
}

/* Finds a free temporary name beside the file's. */
static fsdp_status name_temporary(fsdp__token_writer *w)
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        struct stat info;

        fsdp__free(w->temporary);
        FSDP__TRY_NEW(w->temporary = fsdp__sprintf("%s.tmp-%ld-%d", w->name, (long)getpid(), attempt));
        if (!fsdp__directory_look(&w->in, w->temporary, &info))
            return FSDP_OK;
    }
    return FSDP_FAIL(FSDP_IO, "cannot write '%s': too many temporary files beside it", w->path);
}

/* Returns whether no file at all can be made in a folder; otherwise it may be that only nameless ones cannot. */
static bool is_final(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == EROFS;
}

/* Creates a file without a name, which is gone when its process ends, however it ends. w->fd < 0: not possible here. */
static fsdp_status create_nameless(fsdp__token_writer *w)
{
    char link[sizeof DESCRIPTOR + 12];

    w->fd = openat(w->in.fd, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    if (w->fd < 0 && is_final(errno))
        return FSDP_FAIL(errno == ENOENT ? FSDP_NOT_FOUND : FSDP_IO, "cannot create '%s': %s%s", w->path,
                         strerrordesc_np(errno), fsdp__limit_behind(errno));
    snprintf(link, sizeof link, DESCRIPTOR, w->fd);
    if (w->fd >= 0 && access(link, F_OK) != 0) { /* it could not get a name later */
        close(w->fd);
        w->fd = -1;
    }
    return FSDP_OK;
}

static fsdp_status create_beside(fsdp__token_writer *w)
{
    fsdp_status status;

    FSDP_TRY(name_temporary(w));
    FSDP_TRY(create_nameless(w));
    if (w->fd >= 0)
        return FSDP_OK;
    status = fsdp__directory_create_temporary(&w->in, w->temporary, &w->fd, &w->note);
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "cannot write '%s'", w->path);
    w->named = true;
    return FSDP_OK;
}

static fsdp_status give_name(fsdp__token_writer *w)
{
    char link[sizeof DESCRIPTOR + 12];
    fsdp__making making;

    if (w->named)
        return FSDP_OK;
    FSDP_TRY(name_temporary(w)); /* the temporary name chosen at first may be taken by now */
    snprintf(link, sizeof link, DESCRIPTOR, w->fd);
    making = fsdp__temporary_begin();
    w->named = !fsdp__file_is_refused(FSDP__POINT_WRITE, NULL) &&
               linkat(AT_FDCWD, link, w->in.fd, w->temporary, AT_SYMLINK_FOLLOW) == 0;
    w->note = fsdp__temporary_made(&making, w->in.fd, w->named ? w->temporary : NULL);
    if (w->named)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_IO, "cannot create '%s': %s", w->path, strerrordesc_np(errno));
}

fsdp_status fsdp__token_writer_open(fsdp__token_writer *writer, const char *path, int width, bool kept)
{
    *writer =
        (fsdp__token_writer){.path = path, .fd = -1, .width = width, .offset = FSDP__TOKEN_HEADER_BYTES, .kept = kept};
    FSDP_TRY(fsdp__directory_of(path, &writer->in, &writer->name));
    if (!kept)
        FSDP_TRY(check_name(writer));
    FSDP__TRY_NEW(writer->buffer = fsdp__malloc(BUFFER_BYTES));
    return create_beside(writer);
}

/* ---- tokens ---- */

/* Adds the checksums of the buffer, which consists of whole blocks except at the end of the file. */
static fsdp_status add_sums(fsdp__token_writer *w)
{
    for (size_t at = 0; at < w->used; at += FSDP__SUM_BLOCK_BYTES) {
        FSDP_TRY(fsdp__grow(&w->sums, w->sum_count, &w->sum_capacity, sizeof *w->sums));
        w->sums[w->sum_count++] =
            fsdp__checksum(w->buffer + at, FSDP__MIN(w->used - at, (size_t)FSDP__SUM_BLOCK_BYTES));
    }
    return FSDP_OK;
}

static fsdp_status flush(fsdp__token_writer *w)
{
    if (w->kept)
        FSDP_TRY(add_sums(w));
    FSDP_TRY(fsdp__file_pwrite(w->fd, w->path, w->buffer, w->used, w->offset));
    w->offset += w->used;
    w->used = 0;
    return FSDP_OK;
}

fsdp_status fsdp__token_writer_add(fsdp__token_writer *writer, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (writer->used == BUFFER_BYTES)
            FSDP_TRY(flush(writer));
        if (writer->width == 2)
            memcpy(writer->buffer + writer->used, &(uint16_t){(uint16_t)ids[i]}, 2);
        else
            memcpy(writer->buffer + writer->used, &ids[i], 4);
        writer->used += (size_t)writer->width;
    }
    writer->tokens += count;
    return FSDP_OK;
}

fsdp_status fsdp__token_writer_bytes(fsdp__token_writer *writer, const void *data, size_t bytes)
{
    const unsigned char *from = data;

    while (bytes > 0) {
        size_t part = FSDP__MIN(bytes, BUFFER_BYTES - writer->used);

        if (part == 0) {
            FSDP_TRY(flush(writer));
            continue;
        }
        memcpy(writer->buffer + writer->used, from, part);
        writer->used += part;
        from += part;
        bytes -= part;
    }
    return FSDP_OK;
}

fsdp_status fsdp__token_writer_finish(fsdp__token_writer *writer, const char *note)
{
    unsigned char header[FSDP__TOKEN_HEADER_BYTES];

    fsdp__token_header_write(header, writer->width, writer->tokens);
    fsdp__token_header_set_note(header, note);
    return fsdp__token_writer_finish_as(writer, header);
}

fsdp_status fsdp__token_writer_finish_as(fsdp__token_writer *writer, unsigned char *header)
{
    int fd = writer->fd;

    FSDP_TRY(flush(writer));
    if (writer->kept) {
        size_t bytes = (size_t)writer->sum_count * sizeof *writer->sums;

        FSDP_TRY(fsdp__file_pwrite(fd, writer->path, writer->sums, bytes, writer->offset));
        fsdp__token_sums_seal(header, writer->sums, bytes, fsdp__token_sums_name(writer->path));
    }
    FSDP_TRY(fsdp__file_pwrite(fd, writer->path, header, FSDP__TOKEN_HEADER_BYTES, 0));
    FSDP_TRY(fsdp__file_sync(fd, writer->path));
    FSDP_TRY(give_name(writer));
    writer->fd = -1;
    FSDP_TRY(fsdp__file_close(fd, writer->path));
    FSDP_TRY(fsdp__directory_rename(&writer->in, writer->temporary, &writer->in, writer->name, FSDP__RENAME_REPLACES));
    fsdp__temporary_gone(writer->note);
    writer->named = false;
    FSDP_TRY(fsdp__directory_sync(&writer->in));
    fsdp__free(fsdp__take(&writer->temporary));
    return FSDP_OK;
}

void fsdp__token_writer_close(fsdp__token_writer *writer)
{
    if (writer->fd >= 0)
        close(writer->fd);
    if (writer->temporary && writer->named) {
        (void)unlinkat(writer->in.fd, writer->temporary, 0);
        fsdp__temporary_gone(writer->note);
    }
    fsdp__directory_close(&writer->in);
    FSDP__FREE_ALL(writer->name, writer->temporary, writer->buffer, writer->sums);
    *writer = (fsdp__token_writer){.fd = -1};
}
