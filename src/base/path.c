/* path.c - names of files. */
#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"

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
