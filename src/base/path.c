/* path.c - directories and names of files. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/limits.h"

static fsdp_status path_error(const char *verb, const char *path)
{
    return FSDP_FAIL(errno == ENOENT ? FSDP_NOT_FOUND : FSDP_IO, "cannot %s '%s': %s%s", verb, path,
                     strerrordesc_np(errno), fsdp__limit_behind(errno));
}

static fsdp_status sync_directory(const char *path, fsdp__fault_kind kind)
{
    fsdp_status status = FSDP_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return path_error("open", path);
    /* Some file systems cannot sync a directory and say so with EINVAL. */
    if (fsdp__fault_file(kind, NULL) || (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP))
        status = path_error("sync", path);
    close(fd);
    return status;
}

fsdp_status fsdp__file_sync_directory(const char *path)
{
    return sync_directory(path, FSDP__FAULT_WRITE);
}

fsdp_status fsdp__file_sync_removals(const char *path)
{
    return sync_directory(path, FSDP__FAULT_FOLDER);
}

fsdp_status fsdp__file_sync_parent(const char *path)
{
    char *directory = fsdp__path_parent(path);
    fsdp_status status;

    if (!directory)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot sync the directory of '%s'", path);
    status = fsdp__file_sync_directory(directory);
    fsdp__free(directory);
    return status;
}

/* What is in a folder is on the disk when its own name is, too. In one that may be written to, and not read, nobody can
 * wait for that. */
static fsdp_status sync_name(const char *path)
{
    char *parent = fsdp__path_parent(path);
    fsdp_status status = FSDP_OK;

    if (!parent)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make directory '%s'", path);
    if (access(parent, R_OK) == 0)
        status = fsdp__file_sync_directory(parent);
    fsdp__free(parent);
    return status;
}

static fsdp_status make_directory(const char *path)
{
    struct stat info;

    if (!fsdp__fault_file(FSDP__FAULT_FOLDER, NULL) && mkdir(path, 0777) == 0) {
        fsdp_status status = sync_name(path);

        if (status != FSDP_OK)
            (void)rmdir(path);
        return status;
    }
    if (errno != EEXIST)
        return path_error("make directory", path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_IO, "cannot make directory '%s': a file of that name exists", path);
}

fsdp_status fsdp__make_directories(const char *path)
{
    char *part = fsdp__strdup(path);
    fsdp_status status = FSDP_OK;

    if (!part)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make directory '%s'", path);
    for (char *end = part; *end && status == FSDP_OK; end++) {
        if (*end != '/' || end == part)
            continue;
        *end = '\0';
        status = make_directory(part);
        *end = '/';
    }
    if (status == FSDP_OK)
        status = make_directory(part);
    fsdp__free(part);
    return status;
}

static fsdp_status remove_entry(int parent_fd, const char *name, const char *path);

/* `kept` stays; NULL: nothing does. */
static fsdp_status remove_entries(DIR *directory, const char *path, const char *kept)
{
    struct dirent *entry;

    while ((entry = readdir(directory))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            (kept && strcmp(entry->d_name, kept) == 0))
            continue;
        FSDP_TRY(remove_entry(dirfd(directory), entry->d_name, path));
    }
    return FSDP_OK;
}

/* `path` is for the message. Symbolic links are removed, not followed. */
static fsdp_status remove_entry(int parent_fd, const char *name, const char *path)
{
    fsdp_status status;
    DIR *directory;
    int fd;

    if (!fsdp__fault_file(FSDP__FAULT_FOLDER, NULL) && (unlinkat(parent_fd, name, 0) == 0 || errno == ENOENT))
        return FSDP_OK;
    if (errno != EISDIR && errno != EPERM)
        return path_error("remove", path);
    fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        status = path_error("remove", path);
        if (fd >= 0)
            close(fd);
        return status;
    }
    status = remove_entries(directory, path, NULL);
    closedir(directory);
    if (status == FSDP_OK &&
        (fsdp__fault_file(FSDP__FAULT_FOLDER, NULL) || unlinkat(parent_fd, name, AT_REMOVEDIR) != 0) && errno != ENOENT)
        status = path_error("remove", path);
    return status;
}

fsdp_status fsdp__remove_tree(const char *path)
{
    return remove_entry(AT_FDCWD, path, path);
}

fsdp_status fsdp__remove_contents(const char *path, const char *kept)
{
    DIR *directory = opendir(path);
    fsdp_status status;

    if (!directory)
        return path_error("open", path);
    status = remove_entries(directory, path, kept);
    closedir(directory);
    return status;
}

char *fsdp__path_join(const char *directory, const char *name)
{
    size_t length = strlen(directory);

    if (length == 0 || name[0] == '/')
        return fsdp__strdup(name);
    return fsdp__sprintf("%s%s%s", directory, directory[length - 1] == '/' ? "" : "/", name);
}

char *fsdp__path_parent(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? fsdp__sprintf("%.*s", (int)(slash == path ? 1 : slash - path), path) : fsdp__strdup(".");
}

bool fsdp__same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

int fsdp__path_exists(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

int fsdp__path_is_file(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISREG(info.st_mode);
}
