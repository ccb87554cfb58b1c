/* output.c - whether what was printed has arrived, and where else a command may write. */
#include <errno.h>
#include <stdio.h>
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

fsdp_status fsdp__output_check(const fsdp_train_config *config, const char *option, const char *path)
{
    char *folder = path ? fsdp__path_parent(path) : NULL;
    fsdp_status status = FSDP_OK;
    struct stat info;

    if (!path)
        return FSDP_OK;
    if (!folder)
        return FSDP_NO_MEMORY;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        status = FSDP_FAIL(FSDP_IO, "%s: '%s' is there and is no file: name another", option, path);
    else if (access(folder, W_OK | X_OK) != 0)
        status = FSDP_FAIL(FSDP_IO, "%s: cannot write '%s': %s", option, path, strerrordesc_np(errno));
    else
        status = fsdp__inputs_spare(config, option, path);
    fsdp__free(folder);
    return status;
}
