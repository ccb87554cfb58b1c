/* target.c - the folder that a name stands for. */
#include "format/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

static fsdp_status out_of_memory(const char *name)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot look at '%s'", name);
}

bool fsdp__same_folder(const char *a, const char *b)
{
    struct stat info_a, info_b;

    return stat(a, &info_a) == 0 && stat(b, &info_b) == 0 && fsdp__same_file(&info_a, &info_b);
}

/* Of a link that can be followed. */
static bool link_leads_into(const char *link, const char *to)
{
    char end[PATH_MAX], *slash;

    if (!realpath(link, end))
        return false;
    slash = strrchr(end, '/');
    *slash = '\0';
    return fsdp__same_folder(slash == end ? "/" : end, to);
}

bool fsdp__leads_into(const char *from, const char *to)
{
    DIR *directory = opendir(from);
    struct dirent *entry;
    struct stat info;
    bool found = false;

    while (directory && !found && (entry = readdir(directory))) {
        char link[PATH_MAX];

        if (fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(info.st_mode))
            continue;
        if (snprintf(link, sizeof link, "%s/%s", from, entry->d_name) < (int)sizeof link)
            found = link_leads_into(link, to);
    }
    if (directory)
        closedir(directory);
    return found;
}

/* Absolute and without links; fsdp__free it. */
static fsdp_status real_path(const char *path, char **out)
{
    char buffer[PATH_MAX];

    if (!realpath(path, buffer))
        return FSDP_FAIL(errno == ENOENT ? FSDP_NOT_FOUND : FSDP_IO, "cannot follow '%s': %s", path,
                         strerrordesc_np(errno));
    *out = fsdp__strdup(buffer);
    return *out ? FSDP_OK : out_of_memory(path);
}

/* Length of the part of `path` up to its first folder that is not there; 0 when all are. */
static size_t first_missing(const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);

    for (size_t i = 1; i <= length && i < sizeof part; i++) {
        if (path[i] != '/' && i != length)
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (access(part, F_OK) != 0)
            return errno == ENOENT ? i : 0;
    }
    return 0;
}

static fsdp_status find_new(const char *name, fsdp__target *target)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    char *parent = fsdp__path_parent(name), *real = NULL, *made = NULL;
    fsdp_status status = FSDP_OK;
    size_t missing;

    if (!parent) {
        status = out_of_memory(name);
        goto out;
    }
    if (strcmp(base, "..") == 0 || strcmp(base, ".") == 0) {
        status = FSDP_FAIL(FSDP_INVALID, "it ends in '%s' below a folder that does not exist", base);
        goto out;
    }
    missing = first_missing(parent);
    FSDP_TRY_GOTO(status, fsdp__make_directories(parent), out);
    if (missing) {
        made = fsdp__sprintf("%.*s", (int)missing, parent);
        FSDP_TRY_GOTO(status, made ? real_path(made, &target->first_made) : out_of_memory(name), out);
    }
    FSDP_TRY_GOTO(status, real_path(parent, &real), out);
    target->path = fsdp__path_join(real, base);
    status = target->path ? FSDP_OK : out_of_memory(name);
out:
    fsdp__free(made);
    fsdp__free(real);
    fsdp__free(parent);
    return status;
}

static fsdp_status find(const char *name, fsdp__target *target)
{
    struct stat info;

    if (lstat(name, &info) != 0) {
        /* What is wrong above it is found with the parent. */
        if (errno == ENOENT || errno == ENOTDIR)
            return find_new(name, target);
        return FSDP_FAIL(FSDP_IO, "%s", strerrordesc_np(errno));
    }
    if (S_ISLNK(info.st_mode) && stat(name, &info) != 0)
        return FSDP_FAIL(FSDP_INVALID, "it is a symbolic link to something that does not exist (%s)",
                         strerrordesc_np(errno));
    if (!S_ISDIR(info.st_mode))
        return FSDP_FAIL(FSDP_INVALID, "it exists and is not a folder");
    target->exists = true;
    return real_path(name, &target->path);
}

fsdp_status fsdp__target_find(const char *name, fsdp__target *out)
{
    size_t length = strlen(name);
    fsdp__target target = {0};
    fsdp_status status;
    char *plain;

    while (length > 1 && name[length - 1] == '/')
        length--;
    if (length == 0)
        return FSDP_FAIL(FSDP_INVALID, "its name is empty");
    plain = fsdp__sprintf("%.*s", (int)length, name);
    status = plain ? find(plain, &target) : out_of_memory(name);
    fsdp__free(plain);
    if (status != FSDP_OK) {
        fsdp__target_unmake(&target);
        fsdp__target_release(&target);
        return status;
    }
    *out = target;
    return FSDP_OK;
}

void fsdp__target_unmake(const fsdp__target *target)
{
    char folder[PATH_MAX];

    if (!target->first_made || !target->path || strlen(target->path) >= sizeof folder)
        return;
    memcpy(folder, target->path, strlen(target->path) + 1);
    do {
        char *slash = strrchr(folder, '/');

        if (!slash || slash == folder)
            return;
        *slash = '\0';
    } while (rmdir(folder) == 0 && strcmp(folder, target->first_made) != 0);
}

void fsdp__target_release(fsdp__target *target)
{
    fsdp__free(target->path);
    fsdp__free(target->first_made);
    *target = (fsdp__target){0};
}
