/* visible_files.c - checks that every machine sees what the config names: files that are read, and folders that all
 * ranks write into. A machine that does not see something reports it at the start; a run on one machine has nothing to
 * check.
 *
 * Rank 0 lists what it sees, and the others look for the same. For a folder that is to be written the name alone proves
 * nothing, since each machine may have one: rank 0 puts a file there, or into the folder above it that exists. The
 * others look for that file, and whether they may write it: a machine that can only read would otherwise find out hours
 * later. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/host.h"
#include "checkpoint/folder.h"
#include "train/inputs.h"
#include "train/run_config.h"
#include "train/run_start.h"

enum {
    FOLDERS = 2 /* into which a run writes */
};

typedef struct sighting {
    FILE *out;
    char *probes[FOLDERS]; /* to be removed */
    int count;
} sighting;

static fsdp_status fail_to_write(const char *key, const char *path)
{
    int error = errno;

    return FSDP_FAIL(FSDP_IO, "%s: machine '%s' cannot write to '%s' (%s), but the ranks of all machines must", key,
                     FSDP__HOST_NAME, path, strerror(error));
}

/* ---- rank 0 ---- */

/* Writes an item of what rank 0 says, behind the name of its machine: "r", is read, or "w", written; the key, the path,
 * and what is there. Each ends with a zero, since a path may have any other byte in it. */
static void put(const sighting *s, const char *kind, const char *key, const char *path, const char *there)
{
    const char *const fields[] = {kind, key, path, there};

    for (size_t i = 0; i < FSDP__COUNT_OF(fields); i++)
        fwrite(fields[i], 1, strlen(fields[i]) + 1, s->out);
}

static fsdp_status list_read(const sighting *s, const char *key, const char *path)
{
    if (path && access(path, F_OK) != 0) {
        int error = errno;

        return FSDP_FAIL(FSDP_NOT_FOUND, "%s: machine '%s' (rank 0) does not see '%s': %s", key, FSDP__HOST_NAME, path,
                         strerror(error));
    }
    if (path)
        put(s, "r", key, path, path);
    return FSDP_OK;
}

/* Returns the folder itself, or the nearest one above it that exists. fsdp__free it. */
static char *existing_folder(const char *path)
{
    char *folder = fsdp__strdup(path), *slash;

    while (folder && access(folder, F_OK) != 0) {
        slash = strrchr(folder, '/');
        if (!slash) {
            fsdp__free(folder);
            return fsdp__strdup(".");
        }
        slash[slash == folder] = '\0';
    }
    return folder;
}

/* Lists a folder that is written. If nothing can be written there, there is nothing to look for: whoever needs the
 * folder reports it. */
static fsdp_status list_written(sighting *s, const char *key, const char *path)
{
    FSDP__FREED char *folder = NULL, *probe = NULL;
    uint64_t random = 0;
    int fd;

    if (!path)
        return FSDP_OK;
    (void)!getrandom(&random, sizeof random, 0);
    folder = existing_folder(path);
    FSDP__TRY_NEW(probe = folder ? fsdp__sprintf("%s/.fsdp-seen-%016llx", folder, (unsigned long long)random) : NULL);
    fd = open(probe, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail_to_write(key, path);
    close(fd);
    put(s, "w", key, path, probe);
    s->probes[s->count++] = fsdp__take(&probe);
    return FSDP_OK;
}

/* Lists the initial weights; for a step-best, which is the name of nothing, its folder. */
static fsdp_status list_initial(const sighting *s, const char *path)
{
    bool best = path && fsdp__is_step_best(path) && !fsdp__path_exists(path);
    char *folder = best ? fsdp__path_parent(path) : NULL;
    fsdp_status status =
        best && !folder ? FSDP_NO_MEMORY : list_read(s, "checkpoint.initial_load_path", best ? folder : path);

    fsdp__free(folder);
    return status;
}

static fsdp_status list_all(const fsdp_train_config *c, sighting *s)
{
    FSDP_TRY(list_read(s, "model.path", c->model.path));
    FSDP_TRY(list_read(s, "data.tokenizer", fsdp__inputs_named_tokenizer(c)));
    for (int64_t i = 0; i < c->data.path_count; i++)
        FSDP_TRY(list_read(s, "data.path", c->data.paths[i]));
    for (int64_t i = 0; i < c->data.mixture_count; i++)
        FSDP_TRY(list_read(s, "data.mixture", c->data.mixture[i].path));
    for (int64_t i = 0; i < c->validation.path_count; i++)
        FSDP_TRY(list_read(s, "validation.path", c->validation.paths[i]));
    FSDP_TRY(list_initial(s, c->checkpoint.initial_load_path));
    if (fsdp__train_saves(c))
        FSDP_TRY(list_written(s, "checkpoint.folder", c->checkpoint.folder));
    return list_written(s, "export.path", c->save.path);
}

static void remove_probes(sighting *s)
{
    for (int i = 0; i < s->count; i++) {
        (void)unlink(s->probes[i]);
        fsdp__free(s->probes[i]);
    }
}

/* ---- the others ---- */

static fsdp_status look(const char *first_host, const char *kind, const char *key, const char *path, const char *there)
{
    const char *host = FSDP__HOST_NAME; /* before errno is set */

    if (access(there, F_OK) == 0)
        return *kind == 'w' && access(there, W_OK) != 0 ? fail_to_write(key, path) : FSDP_OK;
    if (*kind == 'w')
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "%s: machine '%s' does not see what machine '%s' (rank 0) writes to '%s': all "
                         "machines must share that folder",
                         key, host, first_host, path);
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "%s: machine '%s' does not see '%s' (%s), which exists on machine '%s' (rank 0): share it, or "
                     "copy it to the same place on every machine",
                     key, host, path, strerror(errno), first_host);
}

/* Returns what follows a text in a list, which ends with a zero of its own. */
static const char *behind(const char *text)
{
    return text + strlen(text) + 1;
}

static fsdp_status look_for_all(const char *list, size_t bytes)
{
    fsdp_status status = FSDP_OK;

    for (const char *kind = behind(list); status == FSDP_OK && kind < list + bytes;) {
        const char *key = behind(kind), *path = behind(key), *there = behind(path);

        status = look(list, kind, key, path, there);
        kind = behind(there);
    }
    return status;
}

/* ---- both ---- */

static fsdp_status make_list(const fsdp_train_run *run, sighting *s, char **text, size_t *bytes)
{
    fsdp_status status;

    FSDP__TRY_NEW(s->out = fsdp__begin_text(text, bytes));
    fprintf(s->out, "%s%c", FSDP__HOST_NAME, '\0');
    status = list_all(run->config, s);
    FSDP_KEEP_FIRST(status, fsdp__end_text(s->out));
    return status;
}

/* Compares. A list that could not be made is empty, and its failure is that of rank 0. */
static fsdp_status compare(const fsdp_train_run *run, fsdp_process_group *world, sighting *s)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0, *sizes = NULL;
    void **all = NULL;
    fsdp_status status = FSDP_OK;

    if (fsdp_context_rank(run->context) == 0)
        status = make_list(run, s, &text, &bytes);
    FSDP_TRY(fsdp_gather_objects(world, text ? text : "", status == FSDP_OK ? bytes : 0, &all, &sizes));
    if (status == FSDP_OK && sizes[0] > 0)
        status = look_for_all(all[0], sizes[0]);
    fsdp_objects_free(world, all, sizes);
    return status;
}

fsdp_status fsdp__train_check_visible(fsdp_train_run *run)
{
    fsdp_process_group *world;
    sighting s = {.out = NULL};
    fsdp_status status;

    if (fsdp_context_machines(run->context) == 1)
        return FSDP_OK;
    world = fsdp_world(run->context);
    if (!world)
        return fsdp_last_status();
    status = fsdp__train_agree(run, compare(run, world, &s));
    remove_probes(&s); /* when all ranks have looked */
    return status;
}
