/* handover.c - the config of a run on its way from the process that starts the ranks to the ranks. The file is read
 * once, so a pipe will do, and a file that changes meanwhile does not make ranks differ. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/cli.h"

/* The memory has no name and is not closed by exec; sealed, it is the same for all who read it. */
fsdp_status fsdp__hand_over(const fsdp_train_config *config, int *out)
{
    int fd = memfd_create("fsdp-config", MFD_ALLOW_SEALING), written = fd < 0 ? -1 : dup(fd);
    FILE *file = written < 0 ? NULL : fdopen(written, "w");
    fsdp_status status = FSDP_OK;

    if (!file)
        status =
            FSDP_FAIL(FSDP_IO, "cannot hand the config to the ranks: %s%s", strerror(errno), fsdp__limit_behind(errno));
    if (file) {
        FSDP_KEEP_FIRST(status, fsdp_train_config_print(config, file));
        if (fclose(file) != 0 && status == FSDP_OK)
            status = FSDP_FAIL(FSDP_IO, "cannot hand the config to the ranks: %s", strerror(errno));
    }
    if (!file && written >= 0)
        close(written);
    if (status != FSDP_OK) {
        if (fd >= 0)
            close(fd);
        return status;
    }
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    *out = fd;
    return FSDP_OK;
}

fsdp_status fsdp__take_over(int fd, fsdp_train_config *config)
{
    char path[40];
    fsdp_status status;

    /* Opened anew: all ranks inherit one descriptor, and with it one position. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    status = fsdp_train_config_load(config, path);
    close(fd); /* programs that a rank starts have no business there */
    return status;
}
