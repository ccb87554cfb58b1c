/* staging.c - a folder that is held by a lock on a file in it.
 *
 * The lock is the kernel's (flock): it ends with its process, however that ends. A lock counts only while its file is
 * the one that the name stands for, since the previous holder may have removed it between the opening and the
 * locking. */
#include "format/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/host.h"
#include "base/limits.h"
#include "base/probe.h"
#include "format/journal.h"

#define LOCK_NAME "held-by"

enum {
    HOLDER_BYTES = 200,
    ATTEMPTS = 100,
    LEVELS = 1,       /* of folders inside it, which contain only files */
    OTHERS_MAY = 0077 /* bits of a mode */
};

static fsdp_status io_error(const char *verb, const char *path)
{
    return FSDP_FAIL(FSDP_IO, "cannot %s '%s': %s%s", verb, path, strerrordesc_np(errno), fsdp__limit_behind(errno));
}

/* ---- the folder ---- */

static bool is_own(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, LOCK_NAME) == 0;
}

/* Returns whether the folder has the lock's file, or nothing yet. */
static bool looks_ours(const fsdp__directory *folder)
{
    bool locked = false, empty = true, held = fsdp_hold_error(true);
    fsdp_status status = FSDP_OK;
    struct dirent *entry;
    DIR *directory;

    (void)fsdp__directory_list(folder, &directory);
    if (!directory) {
        fsdp_release_error(held);
        return false;
    }
    while ((entry = fsdp__directory_next(directory, folder->path, &status))) {
        locked |= strcmp(entry->d_name, LOCK_NAME) == 0;
        empty &= is_own(entry->d_name);
    }
    closedir(directory);
    fsdp_release_error(held);
    return locked || (empty && status == FSDP_OK);
}

/* Returns whether there is a folder of this user's: then it is not in the way, whatever keeps it from being opened. */
static bool is_own_folder(const fsdp__directory *parent, const char *name)
{
    struct stat info;

    return fsdp__directory_look(parent, name, &info) && S_ISDIR(info.st_mode) && fsdp__directory_owns(parent, &info);
}

/* Fails because of what is in the way; `why` is given if it is a folder of this user. */
static fsdp_status in_the_way(const fsdp__directory *parent, const char *name, const char *why)
{
    bool there;
    struct stat info;
    char user[40];

    there = fsdp__directory_look(parent, name, &info);
    if (there && !S_ISDIR(info.st_mode)) {
        why = "is not a folder";
    } else if (there && !fsdp__directory_owns(parent, &info)) {
        snprintf(user, sizeof user, "belongs to user %u", (unsigned)info.st_uid);
        why = user;
    }
    return FSDP_FAIL(FSDP_INVALID,
                     "'%s/%s' is in the way: its name is needed for a temporary folder, and %s: name another folder, "
                     "or remove it if no run writes there",
                     parent->path, name, why);
}

/* Opens an existing folder of this user; `*out` stays empty when it no longer exists. */
static fsdp_status enter(const fsdp__directory *parent, const char *name, fsdp__directory *out)
{
    struct stat info;
    fsdp_status status;

    *out = (fsdp__directory){.path = NULL};
    if (!fsdp__directory_look(parent, name, &info) && errno == ENOENT)
        return FSDP_OK;
    status = fsdp__directory_enter(parent, name, out);
    if (status == FSDP_NOT_FOUND)
        return FSDP_OK;
    if (status == FSDP_OK && fstat(out->fd, &info) == 0 && fsdp__directory_owns(parent, &info))
        return FSDP_OK;
    fsdp__directory_close(out);
    return status == FSDP_NO_MEMORY || (status != FSDP_OK && is_own_folder(parent, name))
               ? status
               : in_the_way(parent, name, "cannot be opened");
}

bool fsdp__staging_is_ours(const fsdp__directory *parent, const char *name)
{
    bool held = fsdp_hold_error(true), ours;
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {0};

    ours = enter(parent, name, &folder) == FSDP_OK && folder.path && looks_ours(&folder);
    fsdp_release_error(held);
    return ours;
}

/* Closes the folder to others, who may have had access by the umask of whoever made it. Where modes mean nothing, as on
 * FAT, it stays as it is. */
static void close_to_others(const fsdp__directory *folder)
{
    struct stat info;

    if (fstat(folder->fd, &info) == 0 && (info.st_mode & OTHERS_MAY))
        (void)fchmod(folder->fd, info.st_mode & (mode_t)(07777 & ~OTHERS_MAY));
}

/* Makes the folder; `*out` stays empty when it was removed meanwhile. */
static fsdp_status make(const fsdp__directory *parent, const char *name, fsdp__directory *out)
{
    bool made = !fsdp__file_is_refused(FSDP__POINT_FOLDER, NULL) && mkdirat(parent->fd, name, 0700) == 0, ours;
    fsdp_status status;

    *out = (fsdp__directory){.path = NULL};
    if (!made && errno != EEXIST)
        return FSDP_FAIL(FSDP_IO, "cannot make a folder '%s/%s': %s", parent->path, name, strerrordesc_np(errno));
    status = enter(parent, name, out);
    if (status != FSDP_OK && made)
        (void)unlinkat(parent->fd, name, AT_REMOVEDIR);
    if (status != FSDP_OK || !out->path)
        return status;
    ours = made || looks_ours(out);
    if (ours) {
        close_to_others(out);
        ours = made || looks_ours(out); /* until now others may have put something into it */
    }
    if (ours)
        return FSDP_OK;
    fsdp__directory_close(out);
    return in_the_way(parent, name, "holds files that no save has made");
}

/* ---- the lock ---- */

/* Fails with the words of the process that has the lock. */
static fsdp_status held(int fd)
{
    char text[HOLDER_BYTES + 1];
    ssize_t bytes = pread(fd, text, HOLDER_BYTES, 0);

    text[bytes > 0 ? bytes : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    for (char *c = text; *c; c++)
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    return FSDP_FAIL(FSDP_STATE, "another run writes there: %s", *text ? text : "it does not say which");
}

static fsdp_status sign(int fd, const char *path)
{
    char since[40] = "?", text[HOLDER_BYTES];
    time_t now = time(NULL);
    struct tm utc;

    if (gmtime_r(&now, &utc))
        strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", &utc);
    snprintf(text, sizeof text, "process %ld on %s, since %s\n", (long)getpid(), FSDP__HOST_NAME, since);
    if (fsdp__file_is_refused(FSDP__POINT_WRITE, NULL) || ftruncate(fd, 0) != 0)
        return io_error("write", path);
    return fsdp__file_pwrite(fd, path, text, strlen(text), 0);
}

/* Returns whether the lock file's name still stands for it. */
static bool is_named(const fsdp__staging *s, int fd)
{
    struct stat mine, named;

    return fstat(fd, &mine) == 0 && fsdp__directory_look(&s->folder, LOCK_NAME, &named) &&
           fsdp__same_file(&mine, &named) && fsdp__directory_has(&s->parent, s->name, &s->folder);
}

/* Takes the lock. FSDP_OK with s->lock_fd < 0: the file was removed meanwhile, try again. `made`: the file is new. */
static fsdp_status lock(fsdp__staging *s, int fd, const char *path, bool made)
{
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return held(fd);
        if (!made) /* there are no locks on this file system: a living holder cannot be told from a dead one */
            return FSDP_FAIL(FSDP_IO, "cannot lock '%s': %s; remove its folder if no run uses it", path,
                             strerrordesc_np(errno));
    }
    if (!is_named(s, fd))
        return FSDP_OK;
    FSDP_TRY(sign(fd, path));
    /* A power cut must not leave a folder with content and without this file: nobody would dare to remove it. */
    FSDP_TRY(fsdp__directory_sync(&s->folder));
    s->lock_fd = fd;
    return FSDP_OK;
}

/* Opens the lock file. It writes only to a file of this user that has no other name: the folder may once have been open
 * to others. */
static fsdp_status open_lock(const fsdp__staging *s, const char *path, int *out_fd, bool *made)
{
    struct stat info;
    int fd = fsdp__file_is_refused(FSDP__POINT_FOLDER, NULL)
                 ? -1
                 : openat(s->folder.fd, LOCK_NAME, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

    *out_fd = fd;
    *made = fd >= 0;
    if (fd >= 0 || (errno != EEXIST && errno != ENOENT))
        return fd >= 0 ? FSDP_OK : io_error("open", path);
    fd = openat(s->folder.fd, LOCK_NAME, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return FSDP_OK;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1 &&
        fsdp__directory_owns(&s->folder, &info)) {
        *out_fd = fd;
        return FSDP_OK;
    }
    if (fd >= 0)
        close(fd);
    return FSDP_FAIL(FSDP_INVALID, "cannot lock '%s': no run of this user has left it: remove its folder", path);
}

static fsdp_status take_lock(fsdp__staging *s)
{
    FSDP__FREED char *path = fsdp__path_join(s->folder.path, LOCK_NAME);
    fsdp_status status = path ? FSDP_OK : FSDP_NO_MEMORY;
    bool made = false;
    int fd = -1;

    if (status == FSDP_OK)
        status = open_lock(s, path, &fd, &made);
    if (status == FSDP_OK && fd >= 0)
        status = lock(s, fd, path, made);
    if (s->lock_fd < 0 && fd >= 0) {
        if (status != FSDP_OK && made) /* the file could not be signed */
            (void)unlinkat(s->folder.fd, LOCK_NAME, 0);
        close(fd);
    }
    return status;
}

/* ---- all ---- */

static fsdp_status try_to_take(fsdp__staging *s)
{
    fsdp_status status;

    FSDP_TRY(make(&s->parent, s->name, &s->folder));
    if (!s->folder.path)
        return FSDP_OK;
    status = take_lock(s);
    if (s->lock_fd < 0) {
        if (status != FSDP_OK) /* if the folder is empty, it was made just now or is of no use */
            (void)fsdp__directory_remove_empty(&s->parent, s->name, &s->folder);
        fsdp__directory_close(&s->folder);
    }
    return status;
}

fsdp_status fsdp__staging_take(const fsdp__directory *parent, const char *name, fsdp__staging *out)
{
    fsdp__staging staging = {.name = fsdp__strdup(name), .lock_fd = -1};
    fsdp_status status = staging.name ? fsdp__directory_share(parent, &staging.parent) : FSDP_NO_MEMORY;

    *out = (fsdp__staging){.name = NULL};
    for (int i = 0; i < ATTEMPTS && status == FSDP_OK && staging.lock_fd < 0; i++)
        status = try_to_take(&staging);
    if (status == FSDP_OK && staging.lock_fd < 0)
        status =
            FSDP_FAIL(FSDP_IO, "cannot lock '%s/%s': other processes keep making and removing it", parent->path, name);
    if (status == FSDP_OK) {
        *out = staging;
        return FSDP_OK;
    }
    fsdp__staging_leave(&staging);
    return status;
}

fsdp_status fsdp__staging_join(const char *path, fsdp__directory *out)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory above = {.path = NULL}, folder = {.path = NULL};
    FSDP__FREED char *whole = fsdp__path_parent(path), *name = NULL;

    *out = (fsdp__directory){.path = NULL};
    FSDP__TRY_NEW(whole);
    FSDP_TRY(fsdp__directory_of(whole, &above, &name));
    FSDP_TRY(enter(&above, name, &folder));
    if (!folder.path)
        return FSDP_FAIL(FSDP_NOT_FOUND, "there is no '%s'", whole);
    return fsdp__directory_enter(&folder, strrchr(path, '/') + 1, out);
}

/* Renames the folder. The old name may stand for another folder by now: that folder gets it back. */
static fsdp_status rename_folder(const fsdp__staging *s, const fsdp__directory *parent, const char *name)
{
    FSDP_TRY(fsdp__directory_rename(&s->parent, s->name, parent, name, FSDP__RENAME_REPLACES));
    if (fsdp__directory_has(parent, name, &s->folder))
        return FSDP_OK;
    (void)fsdp__directory_rename(parent, name, &s->parent, s->name, FSDP__RENAME_NEW);
    return FSDP_FAIL(FSDP_STATE, "'%s/%s' is no longer the folder that this run has made", s->parent.path, s->name);
}

fsdp_status fsdp__staging_move(fsdp__staging *staging, const fsdp__directory *parent)
{
    const char *name = FSDP__STAGING_NAME;
    FSDP__FREED char *own = fsdp__strdup(name), *path = fsdp__path_join(parent->path, name);
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory shared = {.path = NULL};

    FSDP__TRY_NEW(own && path);
    FSDP_TRY(fsdp__directory_share(parent, &shared));
    FSDP_TRY(rename_folder(staging, parent, name));
    fsdp__directory_close(&staging->parent);
    FSDP__FREE_ALL(staging->name, staging->folder.path);
    staging->parent = shared;
    shared.path = NULL;
    staging->name = fsdp__take(&own);
    staging->folder.path = fsdp__take(&path);
    return FSDP_OK;
}

fsdp_status fsdp__staging_clear(const fsdp__staging *staging)
{
    fsdp_status status = FSDP_IO;

    /* A save in progress is given up from another thread, while files are still being made: try several times. */
    for (int i = 0; i < ATTEMPTS && status != FSDP_OK && status != FSDP_STATE; i++)
        status = fsdp__directory_clear(&staging->folder, LOCK_NAME, LEVELS);
    return status;
}

fsdp_status fsdp__staging_remove(fsdp__staging *staging)
{
    fsdp_status status = FSDP_OK;

    if (!staging->folder.path)
        return FSDP_OK;
    status = fsdp__staging_clear(staging);
    if (status == FSDP_OK)
        status = fsdp__directory_sync_removals(&staging->folder);
    if (status == FSDP_OK)
        status = fsdp__directory_unlink(&staging->folder, LOCK_NAME);
    if (status == FSDP_OK && fsdp__directory_has(&staging->parent, staging->name, &staging->folder) &&
        !fsdp__directory_remove_empty(&staging->parent, staging->name, &staging->folder) && errno != ENOENT &&
        errno != ENOTEMPTY)
        status = io_error("remove", staging->folder.path); /* not empty: the next holder has taken it already */
    fsdp__staging_leave(staging);
    return status;
}

void fsdp__staging_leave(fsdp__staging *staging)
{
    if (staging->folder.path)
        close(staging->lock_fd);
    fsdp__directory_close(&staging->folder);
    fsdp__directory_close(&staging->parent);
    fsdp__free(staging->name);
    *staging = (fsdp__staging){.name = NULL};
}
