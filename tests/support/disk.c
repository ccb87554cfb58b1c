/* disk.c - the calls that are written down. They stand in for those of the C library, which has them, too, for itself:
 * what stdio writes is not seen. */
#include "support/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/test.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* from before a call until it is written down */
static disk *recording;

/* ---- what there is ---- */

static void *grow(void *items, int count, size_t bytes)
{
    void *grown = (count & (count - 1)) == 0 ? realloc(items, (size_t)(count ? 2 * count : 1) * bytes) : items;

    if (!grown)
        abort();
    return grown;
}

static int add_node(const struct stat *info)
{
    disk *d = recording;

    for (int i = 0; i < d->node_count; i++)
        if (d->nodes[i].device == info->st_dev && d->nodes[i].number == info->st_ino)
            d->nodes[i].gone = true;
    d->nodes = grow(d->nodes, d->node_count, sizeof *d->nodes);
    d->nodes[d->node_count] =
        (disk_node){.device = info->st_dev, .number = info->st_ino, .folder = S_ISDIR(info->st_mode)};
    return d->node_count++;
}

static int find_node(const struct stat *info)
{
    for (int i = 0; i < recording->node_count; i++) {
        const disk_node *node = &recording->nodes[i];

        if (!node->gone && node->device == info->st_dev && node->number == info->st_ino)
            return i;
    }
    return DISK_NONE;
}

static void scan(const char *path, int folder)
{
    DIR *directory = opendir(path);
    struct dirent *entry;

    if (!directory)
        abort();
    while ((entry = readdir(directory))) {
        disk_change name = {.folder = folder, .from = DISK_NONE};
        struct stat info;
        char *below;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        below = test_path(path, entry->d_name);
        snprintf(name.name, sizeof name.name, "%s", entry->d_name);
        if (lstat(below, &info) != 0)
            abort();
        name.to = add_node(&info);
        recording->names = grow(recording->names, recording->name_count, sizeof *recording->names);
        recording->names[recording->name_count++] = name;
        if (S_ISDIR(info.st_mode))
            scan(below, name.to);
        else
            recording->nodes[name.to].data = (unsigned char *)test_read_file(below, &recording->nodes[name.to].bytes);
    }
    closedir(directory);
}

disk *disk_record(const char *folder)
{
    disk *d = calloc(1, sizeof *d);
    struct stat info;

    if (!d || stat(folder, &info) != 0)
        abort();
    pthread_mutex_lock(&mutex);
    recording = d;
    scan(folder, add_node(&info));
    pthread_mutex_unlock(&mutex);
    return d;
}

int disk_calls(const disk *d)
{
    int count;

    pthread_mutex_lock(&mutex);
    count = d->count;
    pthread_mutex_unlock(&mutex);
    return count;
}

void disk_stop(void)
{
    pthread_mutex_lock(&mutex);
    recording = NULL;
    pthread_mutex_unlock(&mutex);
}

void disk_free(disk *d)
{
    for (int i = 0; i < d->count; i++) /* what a node held at first is the case's */
        free(d->calls[i].data);
    free(d->nodes);
    free(d->names);
    free(d->calls);
    free(d);
}

/* ---- writing down ---- */

static disk_call *add_call(const disk_call *call)
{
    recording->calls = grow(recording->calls, recording->count, sizeof *call);
    recording->calls[recording->count] = *call;
    return &recording->calls[recording->count++];
}

/* A name as a call has it: where it is, and what it stands for. */
static disk_change look(int fd, const char *path)
{
    const char *slash = strrchr(path, '/');
    disk_change found = {.folder = DISK_NONE, .from = DISK_NONE, .to = DISK_NONE};
    char parent[PATH_MAX];
    struct stat info;

    if (!recording)
        return found;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    snprintf(found.name, sizeof found.name, "%s", slash ? slash + 1 : path);
    if (fstatat(fd, parent, &info, 0) == 0)
        found.folder = find_node(&info);
    if (fstatat(fd, path, &info, AT_SYMLINK_NOFOLLOW) == 0)
        found.from = find_node(&info);
    return found;
}

/* Notes the names of a call that has been made. */
static void note_names(disk_change *first, disk_change *second)
{
    disk_call call = {.kind = DISK_NAMES_CHANGE};

    if (first && first->folder != DISK_NONE)
        call.changes[call.change_count++] = *first;
    if (second && second->folder != DISK_NONE)
        call.changes[call.change_count++] = *second;
    if (call.change_count > 0)
        add_call(&call);
}

static void note_file(int fd, const disk_call *call, const void *data)
{
    disk_call noted = *call;
    struct stat info;

    if (!recording || fstat(fd, &info) != 0)
        return;
    noted.node = find_node(&info);
    if (noted.node == DISK_NONE)
        return;
    if (data) {
        noted.data = malloc(call->bytes + 1);
        if (!noted.data)
            abort();
        memcpy(noted.data, data, call->bytes);
    }
    add_call(&noted);
}

/* What was made gets a node of its own. */
static void note_made(disk_change *name, int fd, const char *path)
{
    struct stat info;

    if (name->folder == DISK_NONE || fstatat(fd, path, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    name->to = add_node(&info);
    note_names(name, NULL);
}

/* ---- the calls ---- */

static void begin(int fd, const char *path, disk_change *out)
{
    pthread_mutex_lock(&mutex);
    *out = look(fd, path);
}

static int end(long result)
{
    int error = errno;

    pthread_mutex_unlock(&mutex);
    errno = error;
    return (int)result;
}

static int open_at(int fd, const char *path, int flags, mode_t mode)
{
    disk_change name;
    long opened;

    begin(fd, path, &name);
    opened = syscall(SYS_openat, fd, path, flags, mode);
    if (opened >= 0 && (flags & O_CREAT) && name.from == DISK_NONE)
        note_made(&name, fd, path);
    return end(opened);
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    mode_t mode;

    va_start(rest, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int fd, const char *path, int flags, ...)
{
    va_list rest;
    mode_t mode;

    va_start(rest, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_at(fd, path, flags, mode);
}

int mkdirat(int fd, const char *path, mode_t mode)
{
    disk_change name;
    long result;

    begin(fd, path, &name);
    result = syscall(SYS_mkdirat, fd, path, mode);
    if (result == 0)
        note_made(&name, fd, path);
    return end(result);
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int unlinkat(int fd, const char *path, int flags)
{
    disk_change name;
    long result;

    begin(fd, path, &name);
    result = syscall(SYS_unlinkat, fd, path, flags);
    if (result == 0)
        note_names(&name, NULL);
    return end(result);
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned int flags)
{
    disk_change old, new;
    long result;

    begin(from_fd, from, &old);
    new = look(to_fd, to);
    result = syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    if (result == 0) {
        new.to = old.from;
        note_names(&old, &new);
    }
    return end(result);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t written;

    pthread_mutex_lock(&mutex);
    written = syscall(SYS_pwrite64, fd, data, bytes, offset);
    if (written > 0)
        note_file(fd, &(disk_call){.kind = DISK_WRITE, .offset = (uint64_t)offset, .bytes = (size_t)written}, data);
    end(0);
    return written;
}

int ftruncate(int fd, off_t bytes)
{
    long result;

    pthread_mutex_lock(&mutex);
    result = syscall(SYS_ftruncate, fd, bytes);
    if (result == 0)
        note_file(fd, &(disk_call){.kind = DISK_RESIZE, .bytes = (size_t)bytes}, NULL);
    return end(result);
}

int fsync(int fd)
{
    long result;

    pthread_mutex_lock(&mutex);
    result = syscall(SYS_fsync, fd);
    if (result == 0)
        note_file(fd, &(disk_call){.kind = DISK_SYNC}, NULL);
    return end(result);
}
