/* staging.c - a folder held by a lock on a file in it.
 *
 * The lock is the kernel's (flock): it ends with its process, however that ends. A lock counts only while its file is
 * the one that the name stands for, since the holder before may have removed it between the opening and the locking. */
#include "format/staging.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/host.h"

#define LOCK_NAME "held-by"

enum {
    HOLDER_BYTES = 200,
    ATTEMPTS = 100
};

static fsdp_status io_error(const char *verb, const char *path)
{
    return FSDP_FAIL(FSDP_IO, "cannot %s '%s': %s", verb, path, strerrordesc_np(errno));
}

static bool is_own(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, LOCK_NAME) == 0;
}

bool fsdp__staging_is_ours(const char *path)
{
    bool locked = false, empty = true;
    struct dirent *entry;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);

    if (!directory) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while ((entry = readdir(directory))) {
        locked |= strcmp(entry->d_name, LOCK_NAME) == 0;
        empty &= is_own(entry->d_name);
    }
    closedir(directory);
    return locked || empty;
}

static fsdp_status make(const char *path)
{
    if (!fsdp__fault_file(FSDP__FAULT_FOLDER, NULL) && mkdir(path, 0777) == 0)
        return FSDP_OK;
    if (errno != EEXIST)
        return io_error("make a folder", path);
    if (fsdp__staging_is_ours(path) || access(path, F_OK) != 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "'%s' is in the way: it is needed as a temporary folder, and was made by another",
                     path);
}

/* The words of the process that has the lock. */
static fsdp_status held(int fd)
{
    char text[HOLDER_BYTES + 1];
    ssize_t bytes = pread(fd, text, HOLDER_BYTES, 0);

    text[bytes > 0 ? bytes : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    for (char *c = text; *c; c++)
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    return FSDP_FAIL(FSDP_STATE, "another run writes there: %s", *text ? text : "it does not say who it is");
}

static fsdp_status sign(int fd, const char *path)
{
    char host[FSDP__HOST_BYTES], since[40] = "?", text[HOLDER_BYTES];
    time_t now = time(NULL);
    struct tm utc;

    fsdp__host_name(host);
    if (gmtime_r(&now, &utc))
        strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", &utc);
    snprintf(text, sizeof text, "process %ld on %s, since %s\n", (long)getpid(), host, since);
    if (fsdp__fault_file(FSDP__FAULT_WRITE, NULL) || ftruncate(fd, 0) != 0)
        return io_error("write", path);
    return fsdp__file_pwrite(fd, path, text, strlen(text), 0);
}

/* FSDP_OK with *out_fd < 0: it went away meanwhile, try again. `made`: nobody had this file before. */
static fsdp_status lock(int fd, const char *path, bool made, int *out_fd)
{
    struct stat mine, named;

    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return held(fd);
        if (!made) /* no locks on this file system: dead and alive cannot be told apart */
            return FSDP_FAIL(FSDP_IO, "cannot lock '%s': %s; remove its folder if no run uses it", path,
                             strerrordesc_np(errno));
    }
    if (fstat(fd, &mine) != 0 || stat(path, &named) != 0 || !fsdp__same_file(&mine, &named))
        return FSDP_OK;
    FSDP_TRY(sign(fd, path));
    /* A power cut must not leave a folder of content without it: nobody would dare to remove that. */
    FSDP_TRY(fsdp__file_sync_parent(path));
    *out_fd = fd;
    return FSDP_OK;
}

static fsdp_status try_to_take(const char *folder, const char *path, int *out_fd)
{
    bool made = true;
    fsdp_status status;
    int fd;

    FSDP_TRY(make(folder));
    fd = fsdp__fault_file(FSDP__FAULT_FOLDER, NULL)
             ? -1
             : open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) {
        made = false;
        fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0)
        return errno == ENOENT ? FSDP_OK : io_error("open", path);
    status = lock(fd, path, made, out_fd);
    if (*out_fd < 0) {
        if (status != FSDP_OK && made) /* it could not be signed */
            (void)unlink(path);
        close(fd);
    }
    return status;
}

fsdp_status fsdp__staging_take(const char *path, fsdp__staging *out)
{
    fsdp__staging staging = {.path = fsdp__strdup(path), .lock_path = fsdp__path_join(path, LOCK_NAME), .lock_fd = -1};
    fsdp_status status = FSDP_OK;

    *out = (fsdp__staging){.lock_fd = -1};
    if (!staging.path || !staging.lock_path)
        status = fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make '%s'", path);
    for (int i = 0; i < ATTEMPTS && status == FSDP_OK && staging.lock_fd < 0; i++)
        status = try_to_take(path, staging.lock_path, &staging.lock_fd);
    if (status == FSDP_OK && staging.lock_fd < 0)
        status = FSDP_FAIL(FSDP_IO, "cannot lock '%s': others make and remove it all the time", path);
    if (status == FSDP_OK) {
        *out = staging;
        return FSDP_OK;
    }
    (void)rmdir(path); /* if it is empty, it was made just now or is of no use */
    fsdp__staging_leave(&staging);
    return status;
}

fsdp_status fsdp__staging_move(fsdp__staging *staging, const char *path)
{
    char *own = fsdp__strdup(path), *lock_path = fsdp__path_join(path, LOCK_NAME);
    fsdp_status status = FSDP_OK;

    if (!own || !lock_path)
        status = fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot rename '%s'", staging->path);
    else if (fsdp__fault_file(FSDP__FAULT_WRITE, NULL) || rename(staging->path, path) != 0)
        status = io_error("make a folder", path);
    if (status != FSDP_OK) {
        fsdp__free(own);
        fsdp__free(lock_path);
        return status;
    }
    fsdp__free(staging->path);
    fsdp__free(staging->lock_path);
    staging->path = own;
    staging->lock_path = lock_path;
    return FSDP_OK;
}

fsdp_status fsdp__staging_clear(const fsdp__staging *staging)
{
    fsdp_status status = FSDP_IO;

    /* Whoever gives up a save in progress does so from another thread, while files are still being made. */
    for (int i = 0; i < ATTEMPTS && status != FSDP_OK; i++)
        status = fsdp__remove_contents(staging->path, LOCK_NAME);
    return status == FSDP_NOT_FOUND ? FSDP_OK : status;
}

fsdp_status fsdp__staging_remove(fsdp__staging *staging)
{
    fsdp_status status = FSDP_OK;

    if (!staging->path)
        return FSDP_OK;
    status = fsdp__staging_clear(staging);
    if (status == FSDP_OK && fsdp__path_exists(staging->path)) /* as above */
        status = fsdp__file_sync_removals(staging->path);
    if (status == FSDP_OK)
        status = fsdp__remove_tree(staging->lock_path);
    if (status == FSDP_OK && (fsdp__fault_file(FSDP__FAULT_FOLDER, NULL) || rmdir(staging->path) != 0) &&
        errno != ENOENT && errno != ENOTEMPTY)
        status = io_error("remove", staging->path); /* not empty: the next one has taken it already */
    fsdp__staging_leave(staging);
    return status;
}

void fsdp__staging_leave(fsdp__staging *staging)
{
    if (staging->lock_fd >= 0)
        close(staging->lock_fd);
    fsdp__free(staging->path);
    fsdp__free(staging->lock_path);
    *staging = (fsdp__staging){.lock_fd = -1};
}
