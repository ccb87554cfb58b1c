/* file.c - files that are read, whole or in parts, and written to. What is made by name is directory.c's. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"

/* Returns how many bytes of a path name the file that something of the path is to lie below; 0: there is none. */
static int file_above(const char *path)
{
    char above[PATH_MAX];
    struct stat info;

    for (const char *slash = strchr(path + (*path == '/'), '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(above, sizeof above, "%.*s", (int)(slash - path), path);
        if (stat(above, &info) != 0)
            return 0;
        if (!S_ISDIR(info.st_mode))
            return (int)(slash - path);
    }
    return 0;
}

fsdp_status fsdp__file_error(const char *verb, const char *path)
{
    int error = errno, bytes = error == ENOTDIR ? file_above(path) : 0;
    fsdp_status status = error == ENOENT ? FSDP_NOT_FOUND : error == ENOMEM ? FSDP_NO_MEMORY : FSDP_IO;

    if (bytes > 0)
        return FSDP_FAIL(status, "cannot %s '%s': '%.*s' is a file, not a folder", verb, path, bytes, path);
    return FSDP_FAIL(status, "cannot %s '%s': %s%s", verb, path, strerrordesc_np(error), fsdp__limit_behind(error));
}

/* Says what stands where a file was looked for. */
static const char *kind_name(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a directory";
    case S_IFIFO:
        return "a FIFO";
    case S_IFSOCK:
        return "a socket";
    case S_IFCHR:
    case S_IFBLK:
        return "a device";
    default:
        return "no file";
    }
}

static fsdp_status wrong_kind(const char *path, mode_t mode, bool streams)
{
    return FSDP_FAIL(FSDP_IO, "cannot read '%s': it is %s, not a %s", path, kind_name(mode),
                     streams ? "file or a pipe" : "regular file");
}

/* Returns whether an open file can be read. The only device that can be is a terminal, since stdin may be one. */
static bool is_readable(int fd, mode_t mode, bool streams)
{
    return S_ISREG(mode) || (streams && (S_ISFIFO(mode) || (S_ISCHR(mode) && isatty(fd))));
}

/* Opens a regular file; with `streams` also one without a size, such as a pipe, whose `*out_bytes` is 0. */
static fsdp_status open_for_reading(const char *path, bool streams, int *out_fd, size_t *out_bytes)
{
    struct stat info;
    FSDP__CLOSED int fd = -1;

    /* Look before it is opened: opening a device may do something, and a socket cannot be opened at all. */
    if (stat(path, &info) == 0 && (S_ISSOCK(info.st_mode) || S_ISBLK(info.st_mode) || S_ISDIR(info.st_mode)))
        return wrong_kind(path, info.st_mode, streams);
    /* Without O_NONBLOCK the open of a FIFO waits for somebody who writes to it. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (streams ? 0 : O_NONBLOCK));
    if (fd < 0)
        return fsdp__file_error("open", path);
    if (fstat(fd, &info) != 0)
        return fsdp__file_error("examine", path);
    if (!is_readable(fd, info.st_mode, streams))
        return wrong_kind(path, info.st_mode, streams);
    *out_fd = fd;
    fd = -1;
    *out_bytes = S_ISREG(info.st_mode) ? (size_t)info.st_size : 0;
    return FSDP_OK;
}

/* Reads to the end of the file; `*data` grows from `capacity` and is the caller's also on failure. */
static fsdp_status read_to_end(int fd, const char *path, size_t limit_bytes, size_t capacity, char **data,
                               size_t *out_bytes)
{
    size_t used = 0;
    char *larger;

    for (;;) {
        ssize_t got = read(fd, *data + used, capacity - used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fsdp__file_error("read", path);
        used += (size_t)got;
        if (used > limit_bytes)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is larger than %zu bytes", path, limit_bytes);
        if (got == 0)
            break;
        if (used == capacity) {
            larger = fsdp__realloc(*data, capacity * 2);
            if (!larger)
                return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
            *data = larger;
            capacity *= 2;
        }
    }
    (*data)[used] = '\0'; /* there is room: a full buffer was grown before the read that returned 0 */
    *out_bytes = used;
    return FSDP_OK;
}

/* Reads a file of `expected` bytes; 0: of any number. */
static fsdp_status read_open(int fd, const char *path, size_t expected, size_t limit_bytes, char **out,
                             size_t *out_bytes)
{
    size_t got = 0, capacity = FSDP__MAX(expected + 1, (size_t)4096);
    FSDP__FREED char *data = NULL;

    if (expected > limit_bytes)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its %zu bytes are more than the limit of %zu", path, expected,
                         limit_bytes);
    data = fsdp__malloc(capacity);
    if (!data)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
    FSDP_TRY(read_to_end(fd, path, limit_bytes, capacity, &data, &got));
    if (got < expected)
        return FSDP_FAIL(FSDP_IO, "cannot read '%s': %zu bytes short", path, expected - got);
    *out = fsdp__take(&data);
    *out_bytes = got;
    return FSDP_OK;
}

fsdp_status fsdp__file_read_all(int fd, const char *path, size_t limit_bytes, char **out, size_t *out_bytes)
{
    struct stat info;

    *out = NULL;
    *out_bytes = 0;
    if (fstat(fd, &info) != 0)
        return fsdp__file_error("examine", path);
    return read_open(fd, path, (size_t)info.st_size, limit_bytes, out, out_bytes);
}

static fsdp_status read_whole(const char *path, bool streams, size_t limit_bytes, char **out, size_t *out_bytes)
{
    size_t expected = 0;
    FSDP__CLOSED int fd = -1;

    *out = NULL;
    *out_bytes = 0;
    FSDP_TRY(open_for_reading(path, streams, &fd, &expected));
    return read_open(fd, path, expected, limit_bytes, out, out_bytes);
}

fsdp_status fsdp__file_read(const char *path, size_t limit_bytes, char **out, size_t *out_bytes)
{
    return read_whole(path, false, limit_bytes, out, out_bytes);
}

fsdp_status fsdp__file_read_stream(const char *path, size_t limit_bytes, char **out, size_t *out_bytes)
{
    return read_whole(path, true, limit_bytes, out, out_bytes);
}

fsdp_status fsdp__file_map_open(int fd, const char *path, fsdp__mapping *out)
{
    struct stat info;
    void *data = NULL;

    *out = (fsdp__mapping){0};
    if (fstat(fd, &info) != 0)
        return fsdp__file_error("examine", path);
    if (info.st_size > 0)
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return fsdp__file_error("map", path);
    *out = (fsdp__mapping){.data = data, .bytes = (size_t)info.st_size, .device = info.st_dev, .inode = info.st_ino};
    return FSDP_OK;
}

fsdp_status fsdp__file_map(const char *path, fsdp__mapping *out)
{
    size_t bytes = 0;
    FSDP__CLOSED int fd = -1; /* the mapping stays */

    *out = (fsdp__mapping){0};
    FSDP_TRY(open_for_reading(path, false, &fd, &bytes));
    return fsdp__file_map_open(fd, path, out);
}

bool fsdp__file_is_mapped(const fsdp__mapping *mapping, int fd)
{
    struct stat info;

    return fstat(fd, &info) == 0 && info.st_dev == mapping->device && info.st_ino == mapping->inode;
}

void fsdp__file_unmap(fsdp__mapping *mapping)
{
    if (mapping->data)
        munmap((void *)(uintptr_t)mapping->data, mapping->bytes);
    *mapping = (fsdp__mapping){0};
}

void fsdp__close_at(const int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}

fsdp_status fsdp__file_close(int fd, const char *path)
{
    return close(fd) == 0 ? FSDP_OK : fsdp__file_error("close", path);
}

fsdp_status fsdp__file_open(const char *path, int *out_fd, size_t *out_bytes)
{
    size_t bytes = 0;

    return open_for_reading(path, false, out_fd, out_bytes ? out_bytes : &bytes);
}

fsdp_status fsdp__file_pread(int fd, const char *path, void *data, size_t bytes, uint64_t offset)
{
    char *to = data;
    size_t done = 0;

    while (done < bytes) {
        ssize_t got = pread(fd, to + done, bytes - done, (off_t)(offset + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return FSDP_FAIL(FSDP_IO, "cannot read '%s': %s at byte %llu", path, strerrordesc_np(errno),
                             (unsigned long long)(offset + done));
        if (got == 0)
            return FSDP_FAIL(FSDP_IO, "cannot read '%s': it ends at byte %llu, %zu bytes short", path,
                             (unsigned long long)(offset + done), bytes - done);
        done += (size_t)got;
    }
    return FSDP_OK;
}

fsdp_status fsdp__file_pwrite(int fd, const char *path, const void *data, size_t bytes, uint64_t offset)
{
    const char *from = data;
    size_t done = 0;

    while (done < bytes) {
        size_t some = bytes - done;
        ssize_t written = fsdp__file_is_refused(FSDP__POINT_WRITE, &some)
                              ? -1
                              : pwrite(fd, from + done, some, (off_t)(offset + done));

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return FSDP_FAIL(FSDP_IO, "cannot write '%s': %s at byte %llu%s", path, strerrordesc_np(errno),
                             (unsigned long long)(offset + done), fsdp__limit_behind(errno));
        done += (size_t)written;
    }
    return FSDP_OK;
}

fsdp_status fsdp__file_sync(int fd, const char *path)
{
    if (fsdp__file_is_refused(FSDP__POINT_WRITE, NULL) || fsync(fd) != 0)
        return fsdp__file_error("sync", path);
    return FSDP_OK;
}

fsdp_status fsdp__file_sync_names(int fd, const char *path, fsdp__point point)
{
    /* Some file systems cannot sync a directory and say so with EINVAL; one that cannot be read, with EBADF. */
    if (fsdp__file_is_refused(point, NULL) || (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EBADF))
        return fsdp__file_error("sync", path);
    return FSDP_OK;
}
