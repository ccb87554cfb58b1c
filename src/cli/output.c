/* output.c - whether what was printed has arrived, and where else a command may write. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "train/inputs.h"

bool fsdp__output_failed(char *text, size_t text_bytes)
{
    bool failed = ferror(stdout) != 0;

    errno = 0;
    if (fflush(stdout) != 0)
        failed = true;
    else if (failed) /* of the first failure only the fact is left: ask once more for the reason */
        (void)(putchar('\n') == EOF || fflush(stdout) != 0);
    if (!failed)
        return false;
    if (errno)
        snprintf(text, text_bytes, "cannot write to standard output: %s%s", strerror(errno), fsdp__limit_behind(errno));
    else
        snprintf(text, text_bytes, "cannot write to standard output: a part of it is lost");
    return true;
}

/* ---- files ---- */

/* Where a file is written: where a symbolic link leads, as for exports, or the link would be lost. The caller frees it.
 */
static fsdp_status find_place(const char *option, const char *path, char **out)
{
    struct stat info;

    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode)) {
        char place[PATH_MAX];

        if (!realpath(path, place))
            return FSDP_FAIL(FSDP_IO, "%s: cannot write '%s': it is a symbolic link that leads nowhere: %s", option,
                             path, strerrordesc_np(errno));
        *out = fsdp__strdup(place);
    } else {
        *out = fsdp__strdup(path);
    }
    return *out ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status check_place(const char *option, const char *place)
{
    char *folder = fsdp__path_parent(place);
    fsdp_status status = FSDP_OK;
    struct stat info;

    if (!folder)
        return FSDP_NO_MEMORY;
    if (stat(place, &info) == 0 && !S_ISREG(info.st_mode))
        status = FSDP_FAIL(FSDP_IO, "%s: '%s' is there and is no file: name another", option, place);
    else if (access(folder, W_OK | X_OK) != 0)
        status = FSDP_FAIL(FSDP_IO, "%s: cannot write '%s': %s", option, place, strerrordesc_np(errno));
    fsdp__free(folder);
    return status;
}

fsdp_status fsdp__output_check(const fsdp_train_config *config, const char *option, const char *path)
{
    fsdp_status status;
    char *place;

    if (!path)
        return FSDP_OK;
    FSDP_TRY(find_place(option, path, &place));
    status = check_place(option, place);
    fsdp__free(place);
    return status == FSDP_OK ? fsdp__inputs_spare(config, option, path) : status;
}

fsdp_status fsdp__output_write(const char *option, const char *path, fsdp_status (*print)(const void *, FILE *),
                               const void *what)
{
    char *text = NULL, *place = NULL;
    size_t bytes = 0;
    fsdp_status status = FSDP_OK;
    bool complete;
    FILE *out;

    if (!path)
        return FSDP_OK;
    out = open_memstream(&text, &bytes);
    if (out)
        status = print(what, out);
    complete = out && !ferror(out);
    complete = out && fclose(out) == 0 && complete;
    if (!complete && status == FSDP_OK)
        status = FSDP_FAIL(FSDP_NO_MEMORY, "%s: cannot write '%s': out of memory", option, path);
    if (status == FSDP_OK)
        status = find_place(option, path, &place);
    if (status == FSDP_OK && fsdp__file_write_atomic(place, text, bytes) != FSDP_OK)
        status = fsdp_fail_prefix(fsdp_last_status(), "%s", option);
    fsdp__free(place);
    free(text);
    return status;
}
