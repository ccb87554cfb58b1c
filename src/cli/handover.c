/* handover.c - passes the config of a run from the process that starts the ranks to the ranks. The file is read once,
 * so a pipe works, and a file that changes in the meantime does not make ranks differ. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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
    FSDP__CLOSED int fd = memfd_create("fsdp-config", MFD_ALLOW_SEALING);
    FSDP__CLOSED int second = fd < 0 ? -1 : dup(fd);
    FILE *file = second < 0 ? NULL : fdopen(second, "w");
    fsdp_status status;

    if (!file)
        return FSDP_FAIL(FSDP_IO, "cannot hand the config to the ranks: %s%s", strerror(errno),
                         fsdp__limit_behind(errno));
    second = -1; /* the file's from here on */
    status = fsdp_train_config_print(config, file);
    if (fclose(file) != 0 && status == FSDP_OK)
        status =
            FSDP_FAIL(FSDP_IO, "cannot hand the config to the ranks: %s%s", strerror(errno), fsdp__limit_behind(errno));
    FSDP_TRY(status);
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    *out = fd;
    fd = -1;
    return FSDP_OK;
}

/* Loads a config from a descriptor. The file is opened again, because all ranks inherit one descriptor, and with it one
 * position. */
static fsdp_status load(int fd, fsdp_train_config *config)
{
    char path[40];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return fsdp_train_config_load(config, path);
}

fsdp_status fsdp__take_over(int fd, fsdp_train_config *config)
{
    FSDP__CLOSED int own = fd; /* programs that a rank starts should not have it */

    return load(own, config);
}

/* ---- ranks that somebody else has started ---- */

static fsdp_status send_config(fsdp_process_group *world, const fsdp_train_config *config)
{
    int ranks = fsdp_process_group_size(world);
    FSDP__FREED const void **texts = fsdp__calloc((size_t)ranks, sizeof *texts);
    FSDP__FREED size_t *sizes = fsdp__calloc((size_t)ranks, sizeof *sizes);
    FSDP__FREED char *text = NULL;
    FSDP__FREED void *own = NULL;
    size_t bytes = 0, own_bytes = 0;
    FILE *file = texts && sizes ? fsdp__begin_text(&text, &bytes) : NULL;
    fsdp_status status = file ? fsdp_train_config_print(config, file) : FSDP_OK;

    FSDP_KEEP_FIRST(status, fsdp__end_text(file));
    FSDP_TRY(status);
    for (int r = 0; r < ranks; r++) {
        texts[r] = text;
        sizes[r] = bytes;
    }
    return fsdp_scatter_objects(world, 0, texts, sizes, &own, &own_bytes);
}

static fsdp_status receive_config(fsdp_process_group *world, fsdp_train_config *config)
{
    size_t bytes = 0;
    FSDP__FREED void *text = NULL;
    FSDP__CLOSED int fd = -1;

    FSDP_TRY(fsdp_scatter_objects(world, 0, NULL, NULL, &text, &bytes));
    fd = memfd_create("fsdp-config", MFD_CLOEXEC);
    if (fd < 0)
        return FSDP_FAIL(FSDP_IO, "cannot take the config of rank 0: %s%s", strerror(errno), fsdp__limit_behind(errno));
    FSDP_TRY(fsdp__file_pwrite(fd, "the config of rank 0", text, bytes, 0));
    return load(fd, config);
}

fsdp_status fsdp__share_config(fsdp_context *context, fsdp_train_config *config)
{
    fsdp_process_group *world = fsdp_world(context);

    if (!world)
        return fsdp_last_status();
    return fsdp_context_rank(context) == 0 ? send_config(world, config) : receive_config(world, config);
}
