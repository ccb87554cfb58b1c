/* walk.c - a path is followed component by component. */
#include "base/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/probe.h"

enum {
    MOST_LINKS = 40, /* as the kernel */
    PROC_MAGIC = 0x9fa0
};

/* Holds the state of a walk. */
typedef struct steps {
    fsdp__walk *walk;
    int fd; /* where it is */
    int links;
    char at[PATH_MAX];
    char rest[PATH_MAX]; /* what is left */
} steps;

static fsdp_status cannot(const fsdp__walk *w)
{
    return fsdp__file_error(w->verb, w->path);
}

static fsdp_status out_of_memory(const fsdp__walk *w)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot %s '%s'", w->verb, w->path);
}

/* The walk goes on from there; a negative one is an error, in errno. */
static fsdp_status go_to(steps *s, int fd)
{
    if (fd < 0)
        return cannot(s->walk);
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = fd;
    return FSDP_OK;
}

static fsdp_status go_to_root(steps *s)
{
    memcpy(s->at, "/", 2);
    s->walk->made = 0;
    return go_to(s, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/* Takes the next component from what is left, and says whether it is the last. */
static bool take_name(steps *s, char name[NAME_MAX + 1])
{
    size_t length = strcspn(s->rest, "/"), end = length + strspn(s->rest + length, "/");

    snprintf(name, NAME_MAX + 1, "%.*s", (int)length, s->rest);
    memmove(s->rest, s->rest + end, strlen(s->rest + end) + 1);
    return s->rest[0] == '\0';
}

/* ---- one step ---- */

static void add_to_text(steps *s, const char *name)
{
    size_t length = strlen(s->at);

    snprintf(s->at + length, sizeof s->at - length, "%s%s", length > 0 && s->at[length - 1] == '/' ? "" : "/", name);
}

static fsdp_status go_up(steps *s)
{
    char *slash = strrchr(s->at, '/');

    if (slash)
        slash[slash == s->at] = '\0';
    if (s->walk->made > 0)
        s->walk->made--;
    return go_to(s, openat(s->fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/* What is in a folder is on the disk when its own name is, too. In one that may be written to, and not read, nobody can
 * wait for that. */
static fsdp_status sync_names(const steps *s)
{
    FSDP__CLOSED int fd = openat(s->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 && errno == EACCES)
        return FSDP_OK;
    return fd < 0 ? fsdp__file_error("sync", s->at) : fsdp__file_sync_names(fd, s->at, FSDP__POINT_WRITE);
}

static fsdp_status make(steps *s, const char *name, bool *made)
{
    fsdp_status status;

    if (fsdp__file_is_refused(FSDP__POINT_FOLDER, NULL) || mkdirat(s->fd, name, 0777) != 0)
        return errno == EEXIST ? FSDP_OK : cannot(s->walk); /* somebody was faster */
    status = sync_names(s);
    *made = status == FSDP_OK;
    if (!*made)
        (void)unlinkat(s->fd, name, AT_REMOVEDIR);
    return status;
}

bool fsdp__is_on_proc(int fd)
{
    struct statfs system;

    return fstatfs(fd, &system) == 0 && system.f_type == PROC_MAGIC;
}

static bool is_ours(const struct stat *info)
{
    return info->st_uid == geteuid() || info->st_uid == 0;
}

bool fsdp__is_shared(const struct stat *folder)
{
    return (folder->st_mode & (S_IWGRP | S_IWOTH)) != 0 || !is_ours(folder);
}

/* `link` is open as itself: what is asked of it and what it says are of one and the same. */
static fsdp_status follow(steps *s, const char *name, int link)
{
    struct stat folder, info;
    char text[PATH_MAX];
    ssize_t length;
    size_t rest = strlen(s->rest) + 1;

    if (++s->links > MOST_LINKS) {
        errno = ELOOP;
        return cannot(s->walk);
    }
    length = readlinkat(link, "", text, sizeof text);
    if (length < 0 || fstat(link, &info) != 0 || fstat(s->fd, &folder) != 0)
        return cannot(s->walk);
    if (fsdp__is_shared(&folder) && !is_ours(&info))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot %s '%s': '%s' in '%s' is a symbolic link that user %u owns, in a folder that others "
                         "may write to, so it is not followed: remove it, or give a path without it",
                         s->walk->verb, s->walk->path, name, s->at, (unsigned)info.st_uid);
    if ((size_t)length + 1 + rest > sizeof s->rest) {
        errno = ENAMETOOLONG;
        return cannot(s->walk);
    }
    memmove(s->rest + length + 1, s->rest, rest);
    memcpy(s->rest, text, (size_t)length);
    s->rest[length] = rest > 1 ? '/' : '\0';
    return text[0] == '/' ? go_to_root(s) : FSDP_OK;
}

/* Opens a link as itself; -1: it is none. */
static int open_link(const steps *s, const char *name)
{
    int fd = openat(s->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;

    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISLNK(info.st_mode))
        return fd;
    if (fd >= 0) {
        (void)close(fd);
        errno = ENOTDIR;
    }
    return -1;
}

static fsdp_status follow_name(steps *s, const char *name)
{
    FSDP__CLOSED int link = open_link(s, name);

    if (link >= 0)
        return follow(s, name, link);
    if (errno != ENOTDIR || (s->rest[0] == '\0' && !s->walk->makes))
        return cannot(s->walk);
    if (s->rest[0] == '\0')
        return FSDP_FAIL(FSDP_IO, "cannot make directory '%s': a file of that name exists", s->walk->path);
    add_to_text(s, name);
    return FSDP_FAIL(FSDP_IO, "cannot %s '%s': '%s' is a file, not a folder", s->walk->verb, s->walk->path, s->at);
}

/* Goes into the directory of that name, or to where a link leads. */
static fsdp_status step(steps *s, const char *name)
{
    /* The links of /proc are the kernel's, and no text leads where they do. */
    int flags = O_PATH | O_DIRECTORY | O_CLOEXEC | (fsdp__is_on_proc(s->fd) ? 0 : O_NOFOLLOW);
    bool made = false;
    fsdp_status status;
    int fd;

    if (strlen(s->at) + 1 + strlen(name) >= sizeof s->at) {
        errno = ENAMETOOLONG;
        return cannot(s->walk);
    }
    fd = openat(s->fd, name, flags);
    if (fd < 0 && errno == ENOENT && s->walk->makes) {
        FSDP_TRY(make(s, name, &made));
        fd = openat(s->fd, name, flags);
    }
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return follow_name(s, name);
    status = go_to(s, fd);
    if (status != FSDP_OK && made)
        (void)unlinkat(s->fd, name, AT_REMOVEDIR);
    FSDP_TRY(status);
    add_to_text(s, name);
    s->walk->made = made ? s->walk->made + 1 : 0;
    return FSDP_OK;
}

/* ---- all of them ---- */

/* Returns whether the walk ends here, at a name. */
static fsdp_status look_at_last(steps *s, const char *name, bool *ends)
{
    FSDP__CLOSED int link = -1;

    if (s->walk->end == FSDP__WALK_TO_TARGET_PARENT && !fsdp__is_on_proc(s->fd))
        link = open_link(s, name);
    *ends = link < 0;
    return link < 0 ? FSDP_OK : follow(s, name, link);
}

static fsdp_status walk_on(steps *s)
{
    while (s->rest[0] != '\0') {
        char name[NAME_MAX + 1];
        bool last;

        if (strcspn(s->rest, "/") > NAME_MAX) {
            errno = ENAMETOOLONG;
            return cannot(s->walk);
        }
        last = take_name(s, name);
        if (strcmp(name, ".") == 0 || name[0] == '\0')
            continue;
        if (strcmp(name, "..") == 0) {
            FSDP_TRY(go_up(s));
            continue;
        }
        if (last && s->walk->end != FSDP__WALK_ALL) {
            FSDP_TRY(look_at_last(s, name, &last));
            if (!last)
                continue;
            s->walk->name = fsdp__strdup(name);
            return s->walk->name ? FSDP_OK : out_of_memory(s->walk);
        }
        FSDP_TRY(step(s, name));
    }
    if (s->walk->end == FSDP__WALK_ALL)
        return FSDP_OK;
    errno = EISDIR;
    return cannot(s->walk);
}

static fsdp_status start(steps *s)
{
    size_t bytes = strlen(s->walk->path) + 1;

    if (bytes == 1 || bytes > sizeof s->rest) {
        errno = bytes == 1 ? ENOENT : ENAMETOOLONG;
        return cannot(s->walk);
    }
    memcpy(s->rest, s->walk->path, bytes);
    if (s->rest[0] == '/')
        return go_to_root(s);
    if (!getcwd(s->at, sizeof s->at))
        memcpy(s->at, ".", 2); /* it has none any more */
    return go_to(s, open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/* Opens the folder for more than looking at names. A folder that may be written to, but not read, stays as it is. */
static fsdp_status open_to_read(steps *s)
{
    int fd = openat(s->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 && errno == EACCES ? FSDP_OK : go_to(s, fd);
}

bool fsdp__stands_for(int in, const char *name, int held)
{
    struct stat named, mine;

    return fstatat(in, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && fstat(held, &mine) == 0 &&
           fsdp__same_file(&named, &mine);
}

bool fsdp__remove_empty_at(int in, const char *name, int held)
{
    return fsdp__stands_for(in, name, held) && !fsdp__file_is_refused(FSDP__POINT_FOLDER, NULL) &&
           unlinkat(in, name, AT_REMOVEDIR) == 0;
}

void fsdp__walk_unmake(int fd, const char *directory, int made)
{
    int at = made > 0 ? openat(fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s", directory);
    for (char *slash; made > 0 && at >= 0 && (slash = strrchr(path, '/')); made--) {
        int parent = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);

        if (parent >= 0 && !fsdp__remove_empty_at(parent, slash + 1, at))
            made = 0;
        (void)close(at);
        at = parent;
        *slash = '\0';
    }
    if (at >= 0)
        (void)close(at);
}

fsdp_status fsdp__walk_path(fsdp__walk *walk)
{
    steps s = {.walk = walk, .fd = -1};
    fsdp_status status;

    walk->name = NULL;
    walk->made = 0;
    walk->at = fsdp__malloc(sizeof s.at); /* before anything is made */
    status = walk->at ? start(&s) : out_of_memory(walk);
    if (status == FSDP_OK)
        status = walk_on(&s);
    if (status == FSDP_OK)
        status = open_to_read(&s);
    walk->fd = s.fd;
    if (status == FSDP_OK) {
        memcpy(walk->at, s.at, strlen(s.at) + 1);
        return FSDP_OK;
    }
    if (s.fd >= 0) {
        fsdp__walk_unmake(s.fd, s.at, walk->made);
        (void)close(s.fd);
    }
    walk->made = 0;
    FSDP__FREE_ALL(walk->name, walk->at);
    walk->at = walk->name = NULL;
    walk->fd = -1;
    return status;
}
