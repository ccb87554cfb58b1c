/* folder.c - finds out which steps a folder has, from its names alone. */
#include "checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/sort.h"

#define PREFIX "step-"

enum {
    MOST_DIGITS = 18 /* all such numbers are int64 */
};

bool fsdp__step_name(const char *name, const char *suffix, int64_t *out_step)
{
    size_t digits;

    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0)
        return false;
    name += sizeof PREFIX - 1;
    digits = strspn(name, "0123456789");
    if (digits == 0 || digits > MOST_DIGITS || (name[0] == '0' && digits > 1) || strcmp(name + digits, suffix) != 0)
        return false;
    *out_step = strtoll(name, NULL, 10);
    return true;
}

bool fsdp__is_step_best(const char *path)
{
    size_t length = strlen(path), name = sizeof FSDP__STEP_BEST - 1;

    while (length > 1 && path[length - 1] == '/')
        length--;
    return length >= name && strncmp(path + length - name, FSDP__STEP_BEST, name) == 0 &&
           (length == name || path[length - name - 1] == '/');
}

const char *fsdp__step_text(int64_t step, const char *suffix, char name[FSDP__STEP_NAME])
{
    snprintf(name, FSDP__STEP_NAME, PREFIX "%lld%s", (long long)step, suffix);
    return name;
}

char *fsdp__step_path(const char *folder, int64_t step)
{
    return fsdp__path_join(folder, fsdp__step_text(step, "", (char[FSDP__STEP_NAME]){0}));
}

/* Finds out whether a name is a folder. What cannot be looked at may be a checkpoint, as behind a link to a disk that
 * is not mounted: so it is not skipped. */
static fsdp_status look(DIR *directory, const char *folder, const char *name, bool *is_folder)
{
    struct stat info = {0};
    int error;

    *is_folder = false;
    if (fstatat(dirfd(directory), name, &info, 0) == 0) {
        *is_folder = S_ISDIR(info.st_mode);
        return FSDP_OK;
    }
    error = errno;
    /* it has been removed meanwhile */
    if (fstatat(dirfd(directory), name, &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_IO, "cannot look into '%s/%s': %s%s", folder, name, strerrordesc_np(error),
                     S_ISLNK(info.st_mode) ? " (it is a link: bring back what it leads to, or remove it)" : "");
}

static fsdp_status scan(DIR *directory, const char *folder, const char *suffix, int64_t **steps, int64_t *count)
{
    int64_t capacity = 0;
    struct dirent *entry;

    while (errno = 0, (entry = readdir(directory))) {
        bool is_folder;
        int64_t step;

        if (!fsdp__step_name(entry->d_name, suffix, &step))
            continue;
        FSDP_TRY(look(directory, folder, entry->d_name, &is_folder));
        if (!is_folder)
            continue;
        if (fsdp__grow(steps, *count, &capacity, sizeof **steps) != 0)
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot list checkpoints");
        (*steps)[(*count)++] = step;
    }
    return errno == 0 ? FSDP_OK
                      : FSDP_FAIL(FSDP_IO, "cannot look for checkpoints in '%s': %s", folder, strerrordesc_np(errno));
}

/* Lists the steps, and closes the directory. */
static fsdp_status list(DIR *directory, const char *folder, const char *suffix, int64_t **out, int64_t *out_count)
{
    fsdp_status status = scan(directory, folder, suffix, out, out_count);

    closedir(directory);
    if (status != FSDP_OK) {
        fsdp__free(fsdp__take(out));
        *out_count = 0;
    } else if (*out_count > 1) {
        qsort(*out, (size_t)*out_count, sizeof **out, fsdp__by_integer);
    }
    return status;
}

fsdp_status fsdp__step_list(const char *folder, int64_t **out, int64_t *out_count)
{
    DIR *directory = opendir(folder);

    *out = NULL;
    *out_count = 0;
    if (!directory && errno == ENOENT)
        return FSDP_OK;
    if (!directory)
        return FSDP_FAIL(FSDP_IO, "cannot look for checkpoints in '%s': %s%s", folder, strerrordesc_np(errno),
                         fsdp__limit_behind(errno));
    return list(directory, folder, "", out, out_count);
}

fsdp_status fsdp__step_list_in(const fsdp__directory *folder, const char *suffix, int64_t **out, int64_t *out_count)
{
    DIR *directory;

    *out = NULL;
    *out_count = 0;
    FSDP_TRY(fsdp__directory_list(folder, &directory));
    return list(directory, folder->path, suffix, out, out_count);
}

fsdp_status fsdp_checkpoint_list(const char *folder, int64_t **out, int64_t *out_count)
{
    if (!folder || !out || !out_count)
        return FSDP_FAIL(FSDP_INVALID, "cannot list checkpoints: folder and places for the list are required");
    return fsdp__step_list(folder, out, out_count);
}

bool fsdp_checkpoint_exists(const char *folder, int64_t step)
{
    FSDP__FREED char *path = folder && step >= 0 ? fsdp__step_path(folder, step) : NULL;

    return path && fsdp__path_exists(path);
}
