/* handover.c - passes the config of a run from the process that starts the ranks to the ranks. The file is read once,
 * so a pipe works, and a file that changes in the meantime does not make ranks differ. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/limits.h"
#include "cli/cli.h"

/* The memory has no name and stays open across exec. It is sealed, so it is the same for all who read it. */
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

    /* The file is opened again, because all ranks inherit one descriptor, and with it one position. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    status = fsdp_train_config_load(config, path);
    close(fd); /* programs that a rank starts should not have it */
    return status;
}

/* ---- ranks that somebody else has started ---- */

static fsdp_status send_config(fsdp_process_group *world, const fsdp_train_config *config)
{
    int ranks = fsdp_process_group_size(world);
    const void **texts = fsdp__calloc((size_t)ranks, sizeof *texts);
    size_t *sizes = fsdp__calloc((size_t)ranks, sizeof *sizes), bytes = 0, own_bytes = 0;
    char *text = NULL;
    void *own = NULL;
    FILE *file = texts && sizes ? open_memstream(&text, &bytes) : NULL;
    fsdp_status status = file ? fsdp_train_config_print(config, file) : FSDP_NO_MEMORY;

    if (file && fclose(file) != 0 && status == FSDP_OK)
        status = FSDP_FAIL(FSDP_NO_MEMORY, "cannot hand the config to the ranks: %s", strerror(errno));
    for (int r = 0; r < ranks && status == FSDP_OK; r++) {
        texts[r] = text;
        sizes[r] = bytes;
    }
    if (status == FSDP_OK)
        status = fsdp_scatter_objects(world, 0, texts, sizes, &own, &own_bytes);
    free(own);
    free(text);
    fsdp__free(sizes);
    fsdp__free(texts);
    return status;
}

static fsdp_status receive_config(fsdp_process_group *world, fsdp_train_config *config)
{
    size_t bytes = 0;
    void *text = NULL;
    fsdp_status status;
    int fd;

    FSDP_TRY(fsdp_scatter_objects(world, 0, NULL, NULL, &text, &bytes));
    fd = memfd_create("fsdp-config", MFD_CLOEXEC);
    status = fd < 0 ? FSDP_FAIL(FSDP_IO, "cannot take the config of rank 0: %s%s", strerror(errno),
                                fsdp__limit_behind(errno))
                    : fsdp__file_pwrite(fd, "the config of rank 0", text, bytes, 0);
    free(text);
    if (status == FSDP_OK)
        return fsdp__take_over(fd, config);
    if (fd >= 0)
        close(fd);
    return status;
}

fsdp_status fsdp__share_config(fsdp_context *context, fsdp_train_config *config)
{
    fsdp_process_group *world = fsdp_world(context);

    if (!world)
        return fsdp_last_status();
    return fsdp_context_rank(context) == 0 ? send_config(world, config) : receive_config(world, config);
}
