/* target_folder.c - finds the folder that a name stands for. */
#include "format/target_folder.h"

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

/* Returns whether a link that can be followed leads into `to`. */
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

/* Finds the folder that `path` is in, which is made if it does not exist, and the name in it. */
static fsdp_status find_parent(const char *path, fsdp__target *target)
{
    const char *slash = strrchr(path, '/');
    FSDP__FREED char *parent = fsdp__path_parent(path);

    target->name = fsdp__strdup(slash ? slash + 1 : path);
    if (!parent || !target->name)
        return out_of_memory(path);
    return fsdp__directory_make_path(parent, &target->parent, &target->made);
}

/* Refuses to go up from a folder that does not exist: making it would lead elsewhere than a look before that. */
static fsdp_status check_ups(const char *path)
{
    for (const char *up = strstr(path, "/../"); up; up = strstr(up + 1, "/../")) {
        FSDP__FREED char *from = fsdp__sprintf("%.*s", (int)(up - path), path);

        FSDP__TRY_NEW(from);
        if (up > path && access(from, F_OK) != 0)
            return FSDP_FAIL(FSDP_INVALID, "it goes up ('..') from '%s', which does not exist: write it without", from);
    }
    return FSDP_OK;
}

static fsdp_status find_new(const char *path, fsdp__target *target)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;

    if (strcmp(base, "..") == 0 || strcmp(base, ".") == 0)
        return FSDP_FAIL(FSDP_INVALID, "it ends in '%s' below a folder that does not exist", base);
    FSDP_TRY(check_ups(path));
    return find_parent(path, target);
}

/* Says what is wrong with a name that cannot be opened as a folder; FSDP_OK when nothing has that name. */
static fsdp_status what_is_wrong(const char *name)
{
    struct stat info;

    if (lstat(name, &info) != 0) {
        /* What is wrong above it is found with the parent. */
        return errno == ENOENT || errno == ENOTDIR ? FSDP_OK : FSDP_FAIL(FSDP_IO, "%s", strerrordesc_np(errno));
    }
    if (S_ISLNK(info.st_mode) && stat(name, &info) != 0)
        return FSDP_FAIL(FSDP_INVALID, "it is a symbolic link to something that does not exist (%s)",
                         strerrordesc_np(errno));
    if (!S_ISDIR(info.st_mode))
        return FSDP_FAIL(FSDP_INVALID, "it exists and is not a folder");
    return FSDP_OK;
}

static fsdp_status find(const char *name, fsdp__target *target)
{
    fsdp_status status = fsdp__directory_resolve(name, &target->folder);

    if (status == FSDP_OK)
        return find_parent(target->folder.path, target);
    if (status == FSDP_INVALID || status == FSDP_NO_MEMORY)
        return status;
    FSDP_TRY(what_is_wrong(name));
    return status == FSDP_NOT_FOUND || access(name, F_OK) != 0 ? find_new(name, target) : status;
}

fsdp_status fsdp__target_find(const char *name, fsdp__target *out)
{
    size_t length = strlen(name);
    fsdp__target target = {.name = NULL};
    FSDP__FREED char *plain = NULL;
    fsdp_status status;

    while (length > 1 && name[length - 1] == '/')
        length--;
    if (length == 0)
        return FSDP_FAIL(FSDP_INVALID, "its name is empty");
    plain = fsdp__sprintf("%.*s", (int)length, name);
    status = plain ? find(plain, &target) : out_of_memory(name);
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
    if (target->parent.path)
        fsdp__directory_unmake(&target->parent, target->made);
}

void fsdp__target_release(fsdp__target *target)
{
    fsdp__directory_close(&target->folder);
    fsdp__directory_close(&target->parent);
    fsdp__free(target->name);
    *target = (fsdp__target){.name = NULL};
}
