/* directory.c - what is done in a directory that is held open. */
#include "base/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/probe.h"
#include "base/temporary.h"
#include "base/walk.h"

enum {
    ATTEMPTS = 1000 /* to find a name that nobody has */
};

static bool write_is_refused(void)
{
    return fsdp__file_is_refused(FSDP__POINT_WRITE, NULL);
}

static bool folder_is_refused(void)
{
    return fsdp__file_is_refused(FSDP__POINT_FOLDER, NULL);
}

/* Says with errno what cannot be done to something in the directory. */
static fsdp_status cannot(const char *verb, const fsdp__directory *in, const char *name)
{
    int error = errno;
    FSDP__FREED char *path = fsdp__path_join(in->path, name);

    errno = error;
    return fsdp__file_error(verb, path ? path : name);
}

static fsdp_status out_of_memory(const char *path)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot use '%s'", path);
}

/* ---- by path ---- */

/* `*out` takes over what the walk came to; its path is `path`, or where that is NULL the walk's. */
static fsdp_status take(fsdp__walk *walk, const char *path, fsdp__directory *out)
{
    char *own = path ? fsdp__strdup(path) : walk->at;

    if (path)
        fsdp__free(walk->at);
    if (!own) {
        (void)close(walk->fd);
        fsdp__free(walk->name);
        return out_of_memory(walk->path);
    }
    *out = (fsdp__directory){.fd = walk->fd, .path = own};
    return FSDP_OK;
}

static fsdp_status open_path(const char *path, const char *own_path, fsdp__directory *out)
{
    fsdp__walk walk = {.path = path, .verb = "open"};

    *out = (fsdp__directory){.path = NULL};
    FSDP_TRY(fsdp__walk_path(&walk));
    return take(&walk, own_path, out);
}

fsdp_status fsdp__directory_open(const char *path, fsdp__directory *out)
{
    return open_path(path, path, out);
}

fsdp_status fsdp__directory_resolve(const char *path, fsdp__directory *out)
{
    return open_path(path, NULL, out);
}

fsdp_status fsdp__directory_make_path(const char *path, fsdp__directory *out, int *out_made)
{
    fsdp__walk walk = {.path = path, .verb = "make directory", .makes = true};
    fsdp_status status;

    *out = (fsdp__directory){.path = NULL};
    status = fsdp__walk_path(&walk);
    if (out_made)
        *out_made = walk.made;
    FSDP_TRY(status);
    return take(&walk, NULL, out);
}

static fsdp_status find(const char *path, fsdp__walk_end end, fsdp__directory *out, char **out_name)
{
    fsdp__walk walk = {.path = path, .verb = "create", .end = end};

    *out = (fsdp__directory){.path = NULL};
    *out_name = NULL;
    FSDP_TRY(fsdp__walk_path(&walk));
    FSDP_TRY(take(&walk, NULL, out));
    *out_name = walk.name;
    return FSDP_OK;
}

fsdp_status fsdp__directory_of(const char *path, fsdp__directory *out, char **out_name)
{
    return find(path, FSDP__WALK_TO_PARENT, out, out_name);
}

fsdp_status fsdp__directory_of_target(const char *path, fsdp__directory *out, char **out_name)
{
    return find(path, FSDP__WALK_TO_TARGET_PARENT, out, out_name);
}

fsdp_status fsdp__directory_share(const fsdp__directory *directory, fsdp__directory *out)
{
    fsdp__directory shared = {.path = fsdp__strdup(directory->path)};

    *out = (fsdp__directory){.path = NULL};
    if (!shared.path)
        return out_of_memory(directory->path);
    shared.fd = fcntl(directory->fd, F_DUPFD_CLOEXEC, 0);
    if (shared.fd < 0) {
        fsdp__free(shared.path);
        return fsdp__file_error("open", directory->path);
    }
    *out = shared;
    return FSDP_OK;
}

fsdp_status fsdp__directory_enter(const fsdp__directory *in, const char *name, fsdp__directory *out)
{
    FSDP__FREED char *path = fsdp__path_join(in->path, name);
    int fd;

    *out = (fsdp__directory){.path = NULL};
    if (!path)
        return out_of_memory(name);
    fd = openat(in->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return fsdp__file_error("open", path);
    *out = (fsdp__directory){.path = fsdp__take(&path), .fd = fd};
    return FSDP_OK;
}

void fsdp__directory_close(fsdp__directory *directory)
{
    if (directory->path)
        (void)close(directory->fd);
    fsdp__free(directory->path);
    *directory = (fsdp__directory){.path = NULL};
}

/* ---- whose ---- */

/* Makes a new file, to which no name leads when this returns; -1 with errno. */
static int make_nameless(const fsdp__directory *in)
{
    int fd = openat(in->fd, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);

    for (int i = 0; i < ATTEMPTS && fd < 0; i++) {
        char name[64];

        snprintf(name, sizeof name, ".fsdp-nameless-%ld-%d", (long)getpid(), i);
        fd = openat(in->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return -1;
        if (fd >= 0)
            (void)unlinkat(in->fd, name, 0);
    }
    return fd;
}

bool fsdp__directory_owns(const fsdp__directory *in, const struct stat *of)
{
    struct stat info;
    FSDP__CLOSED int fd = -1;

    if (of->st_uid == geteuid())
        return true;
    fd = make_nameless(in);
    return fd >= 0 && fstat(fd, &info) == 0 && info.st_uid == of->st_uid;
}

bool fsdp__directory_is_shared(const fsdp__directory *directory)
{
    struct stat info;

    return fstat(directory->fd, &info) != 0 || fsdp__is_shared(&info);
}

bool fsdp__directory_admits(const fsdp__directory *in, const struct stat *of)
{
    return !fsdp__directory_is_shared(in) ||
           ((!S_ISREG(of->st_mode) || of->st_nlink == 1) && (of->st_uid == 0 || fsdp__directory_owns(in, of)));
}

bool fsdp__directory_trusts(const fsdp__directory *in, const struct stat *file)
{
    return (file->st_uid == 0 || fsdp__directory_owns(in, file)) &&
           (file->st_nlink == 1 || !fsdp__directory_is_shared(in));
}

bool fsdp__directory_look(const fsdp__directory *in, const char *name, struct stat *out)
{
    return fstatat(in->fd, name, out, AT_SYMLINK_NOFOLLOW) == 0;
}

fsdp_status fsdp__directory_list(const fsdp__directory *in, DIR **out)
{
    int fd = openat(in->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fsdp_status status;

    *out = fd < 0 ? NULL : fdopendir(fd);
    if (*out)
        return FSDP_OK;
    status = fsdp__file_error("open", in->path);
    if (fd >= 0)
        (void)close(fd);
    return status;
}

struct dirent *fsdp__directory_next(DIR *directory, const char *path, fsdp_status *status)
{
    struct dirent *entry;

    errno = 0;
    entry = readdir(directory);
    if (!entry && errno != 0)
        *status = fsdp__file_error("list", path);
    return entry;
}

bool fsdp__directory_has(const fsdp__directory *in, const char *name, const fsdp__directory *held)
{
    return fsdp__stands_for(in->fd, name, held->fd);
}

/* ---- files in it ---- */

fsdp_status fsdp__directory_open_file(const fsdp__directory *in, const char *name, int *out_fd, struct stat *out_info)
{
    /* Without O_NONBLOCK the open of a FIFO would wait for somebody who writes to it. */
    FSDP__CLOSED int fd = openat(in->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat info;

    if (fd < 0 && errno != ELOOP && errno != ENXIO)
        return cannot("open", in, name);
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s/%s': it is not a regular file", in->path, name);
    if (out_info)
        *out_info = info;
    *out_fd = fd;
    fd = -1;
    return FSDP_OK;
}

fsdp_status fsdp__directory_read(const fsdp__directory *in, const char *name, size_t limit_bytes, char **out,
                                 size_t *out_bytes)
{
    FSDP__FREED char *path = fsdp__path_join(in->path, name);
    FSDP__CLOSED int fd = -1;

    *out = NULL;
    *out_bytes = 0;
    if (!path)
        return out_of_memory(name);
    FSDP_TRY(fsdp__directory_open_file(in, name, &fd, NULL));
    return fsdp__file_read_all(fd, path, limit_bytes, out, out_bytes);
}

/* Makes a new file; returns -1 with errno if that fails. */
static int create(const fsdp__directory *in, const char *name, mode_t mode)
{
    return write_is_refused() ? -1 : openat(in->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

fsdp_status fsdp__directory_create(const fsdp__directory *in, const char *name, int *out_fd)
{
    int fd = create(in, name, 0666);

    if (fd < 0)
        return cannot("create", in, name);
    *out_fd = fd;
    return FSDP_OK;
}

/* Makes a new file and notes its name; returns -1 with errno if that fails. */
static int create_noted(const fsdp__directory *in, const char *name, int *out_note)
{
    fsdp__making making = fsdp__temporary_begin();
    int fd = create(in, name, 0666);

    *out_note = fsdp__temporary_made(&making, in->fd, fd >= 0 ? name : NULL);
    return fd;
}

fsdp_status fsdp__directory_create_temporary(const fsdp__directory *in, const char *name, int *out_fd, int *out_note)
{
    int note, fd = create_noted(in, name, &note);

    if (fd < 0)
        return cannot("create", in, name);
    *out_fd = fd;
    *out_note = note;
    return FSDP_OK;
}

/* Writes all of the data, with `sync` to the disk, and closes the file. */
static fsdp_status fill(const fsdp__directory *in, const char *name, int fd, const void *data, size_t bytes, bool sync)
{
    FSDP__FREED char *path = fsdp__path_join(in->path, name);
    fsdp_status status = path ? fsdp__file_pwrite(fd, path, data, bytes, 0) : out_of_memory(name);

    if (status == FSDP_OK && sync)
        status = fsdp__file_sync(fd, path);
    FSDP_KEEP_FIRST(status, fsdp__file_close(fd, path ? path : name)); /* network file systems may fail only here */
    return status;
}

fsdp_status fsdp__directory_write_new(const fsdp__directory *in, const char *name, const void *data, size_t bytes)
{
    int fd = -1;

    FSDP_TRY(fsdp__directory_create(in, name, &fd));
    return fill(in, name, fd, data, bytes, true);
}

/* Makes a new file for what is to become `name`, which no other process or thread uses. */
static fsdp_status create_beside(const fsdp__directory *in, const char *name, char **out_name, int *out_fd,
                                 int *out_note)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        char *own = fsdp__sprintf("%s.tmp-%ld-%d", name, (long)getpid(), attempt);
        fsdp_status status;

        if (!own)
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write '%s/%s'", in->path, name);
        *out_fd = create_noted(in, own, out_note);
        if (*out_fd >= 0) {
            *out_name = own;
            return FSDP_OK;
        }
        status = errno == EEXIST ? FSDP_OK : cannot("create", in, own);
        fsdp__free(own);
        FSDP_TRY(status);
    }
    return FSDP_FAIL(FSDP_IO, "cannot write '%s/%s': too many temporary files beside it", in->path, name);
}

fsdp_status fsdp__directory_prepare(const fsdp__directory *in, const char *name, const void *data, size_t bytes,
                                    bool sync, fsdp__prepared *out)
{
    fsdp_status status;
    int fd = -1;

    *out = (fsdp__prepared){.in = in, .name = name};
    FSDP_TRY(create_beside(in, name, &out->temporary, &fd, &out->note));
    status = fill(in, out->temporary, fd, data, bytes, sync);
    if (status != FSDP_OK)
        fsdp__prepared_release(out);
    return status;
}

fsdp_status fsdp__prepared_publish(fsdp__prepared *file)
{
    FSDP_TRY(fsdp__directory_rename(file->in, file->temporary, file->in, file->name, FSDP__RENAME_REPLACES));
    fsdp__temporary_gone(file->note);
    fsdp__free(fsdp__take(&file->temporary));
    return FSDP_OK;
}

void fsdp__prepared_release(fsdp__prepared *file)
{
    if (!file->temporary)
        return;
    (void)unlinkat(file->in->fd, file->temporary, 0);
    fsdp__temporary_gone(file->note);
    fsdp__free(fsdp__take(&file->temporary));
}

static fsdp_status replace(const fsdp__directory *in, const char *name, const void *data, size_t bytes, bool sync)
{
    FSDP__SCOPED(fsdp__prepared_release) fsdp__prepared file = {.temporary = NULL};

    FSDP_TRY(fsdp__directory_prepare(in, name, data, bytes, sync, &file));
    FSDP_TRY(fsdp__prepared_publish(&file));
    return sync ? fsdp__directory_sync(in) : FSDP_OK;
}

fsdp_status fsdp__directory_write_atomic(const fsdp__directory *in, const char *name, const void *data, size_t bytes)
{
    return replace(in, name, data, bytes, true);
}

fsdp_status fsdp__directory_replace(const fsdp__directory *in, const char *name, const void *data, size_t bytes)
{
    return replace(in, name, data, bytes, false);
}

/* `name` is not a link, or one of /proc. */
static fsdp_status append(const fsdp__directory *in, const char *name, const char *path, int *out_fd)
{
    struct stat info;
    bool link = fsdp__directory_look(in, name, &info) && S_ISLNK(info.st_mode) && fsdp__is_on_proc(in->fd);
    int fd = openat(in->fd, name,
                    O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (link ? 0 : O_NOFOLLOW), 0666);

    if (fd < 0 || fstat(fd, &info) != 0 || fcntl(fd, F_SETFL, O_APPEND) != 0) {
        fsdp_status status = fsdp__file_error("write", path);

        if (fd >= 0)
            (void)close(fd);
        return status;
    }
    *out_fd = fd;
    if (fsdp__directory_admits(in, &info))
        return FSDP_OK;
    (void)close(fd);
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot write '%s': user %u owns it, or it has a second name, in a folder that others may write "
                     "to: remove it, or name another",
                     path, (unsigned)info.st_uid);
}

fsdp_status fsdp__file_append(const char *path, int *out_fd)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory in = {0};
    FSDP__FREED char *name = NULL;

    FSDP_TRY(fsdp__directory_of_target(path, &in, &name));
    return append(&in, name, path, out_fd);
}

fsdp_status fsdp__directory_make_nameless(const fsdp__directory *in, int *out_fd)
{
    *out_fd = make_nameless(in);
    return *out_fd >= 0 ? FSDP_OK : fsdp__file_error("make a temporary file in", in->path);
}

static bool rename_names(const fsdp__directory *from, const char *name, const fsdp__directory *to, const char *new_name,
                         fsdp__rename_mode mode)
{
    if (write_is_refused())
        return false;
    if (mode == FSDP__RENAME_NEW) {
        if (renameat2(from->fd, name, to->fd, new_name, RENAME_NOREPLACE) == 0)
            return true;
        if (errno != EINVAL && errno != ENOSYS)
            return false;
    }
    return renameat2(from->fd, name, to->fd, new_name, 0) == 0;
}

fsdp_status fsdp__directory_rename(const fsdp__directory *from, const char *name, const fsdp__directory *to,
                                   const char *new_name, fsdp__rename_mode mode)
{
    const char *reason;

    if (rename_names(from, name, to, new_name, mode))
        return FSDP_OK;
    reason = strerrordesc_np(errno);
    return FSDP_FAIL(errno == ENOENT ? FSDP_NOT_FOUND : FSDP_IO, "cannot rename '%s/%s' to '%s/%s': %s", from->path,
                     name, to->path, new_name, reason);
}

fsdp_status fsdp__directory_unlink(const fsdp__directory *in, const char *name)
{
    if (folder_is_refused() || (unlinkat(in->fd, name, 0) != 0 && errno != ENOENT))
        return cannot("remove", in, name);
    return FSDP_OK;
}

fsdp_status fsdp__directory_sync(const fsdp__directory *directory)
{
    return fsdp__file_sync_names(directory->fd, directory->path, FSDP__POINT_WRITE);
}

fsdp_status fsdp__directory_sync_removals(const fsdp__directory *directory)
{
    return fsdp__file_sync_names(directory->fd, directory->path, FSDP__POINT_FOLDER);
}

/* ---- directories in it ---- */

fsdp_status fsdp__directory_make(const fsdp__directory *in, const char *name, mode_t mode)
{
    if (folder_is_refused() || mkdirat(in->fd, name, mode) != 0)
        return cannot("make directory", in, name);
    return FSDP_OK;
}

bool fsdp__directory_remove_empty(const fsdp__directory *in, const char *name, const fsdp__directory *held)
{
    return fsdp__remove_empty_at(in->fd, name, held->fd);
}

void fsdp__directory_unmake(const fsdp__directory *directory, int made)
{
    fsdp__walk_unmake(directory->fd, directory->path, made);
}

/* Removes a file, or gives the name of a folder. */
static fsdp_status remove_file(const fsdp__directory *in, const char *name, int levels, char out_folder[NAME_MAX + 1])
{
    if (!folder_is_refused() && (unlinkat(in->fd, name, 0) == 0 || errno == ENOENT))
        return FSDP_OK;
    if (errno != EISDIR && errno != EPERM)
        return cannot("remove", in, name);
    if (levels == 0)
        return FSDP_FAIL(FSDP_STATE, "'%s' holds '%s', which this program has not made, so it was not removed",
                         in->path, name);
    snprintf(out_folder, NAME_MAX + 1, "%s", name);
    return FSDP_OK;
}

/* Removes all files in `from` but `kept`, and gives the name of a folder in it, "" if there is none. It closes the
 * list, which is of `from` and may have its descriptor. */
static fsdp_status remove_files(DIR *list, const fsdp__directory *from, const char *kept, int levels,
                                char out_folder[NAME_MAX + 1])
{
    fsdp_status status = FSDP_OK;
    struct dirent *entry;

    *out_folder = '\0';
    while (status == FSDP_OK && (entry = fsdp__directory_next(list, from->path, &status)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            (!kept || strcmp(entry->d_name, kept) != 0))
            status = remove_file(from, entry->d_name, levels, out_folder);
    closedir(list);
    return status;
}

static fsdp_status remove_folder(const fsdp__directory *in, const char *name, int levels);

/* Removes folder after folder, each when the list above it is closed: a process that has run out of descriptors, and
 * has just closed one, can clean up. */
static fsdp_status remove_entries(const fsdp__directory *from, const char *kept, int levels)
{
    char folder[NAME_MAX + 1];
    fsdp_status status;
    DIR *list;

    do {
        FSDP_TRY(fsdp__directory_list(from, &list));
        status = remove_files(list, from, kept, levels, folder);
        if (status == FSDP_OK && *folder)
            status = remove_folder(from, folder, levels - 1);
    } while (status == FSDP_OK && *folder);
    return status;
}

/* Empties a folder, and closes it. One that holds only files needs no second descriptor. */
static fsdp_status empty_folder(const fsdp__directory *folder, int levels)
{
    char none[NAME_MAX + 1];
    fsdp_status status;
    DIR *list = levels == 0 ? fdopendir(folder->fd) : NULL;

    if (list)
        return remove_files(list, folder, NULL, 0, none);
    status = levels == 0 ? fsdp__file_error("open", folder->path) : remove_entries(folder, NULL, levels);
    (void)close(folder->fd);
    return status;
}

/* What is cleaned up after a lack of memory needs none. */
static fsdp_status remove_folder(const fsdp__directory *in, const char *name, int levels)
{
    char path[PATH_MAX];
    fsdp__directory folder = {.path = path};

    snprintf(path, sizeof path, "%s/%s", in->path, name);
    folder.fd = openat(in->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder.fd < 0)
        return cannot("remove", in, name);
    FSDP_TRY(empty_folder(&folder, levels));
    if ((folder_is_refused() || unlinkat(in->fd, name, AT_REMOVEDIR) != 0) && errno != ENOENT)
        return cannot("remove", in, name);
    return FSDP_OK;
}

fsdp_status fsdp__directory_clear(const fsdp__directory *directory, const char *kept, int levels)
{
    return remove_entries(directory, kept, levels);
}

/* ---- by path, again ---- */

fsdp_status fsdp__make_directories(const char *path)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory made = {.path = NULL};

    return fsdp__directory_make_path(path, &made, NULL);
}
