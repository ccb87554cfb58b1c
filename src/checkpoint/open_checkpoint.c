/* open_checkpoint.c - finds a checkpoint, opens it, and reads and checks everything but its tensors. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest_check.h"
#include "checkpoint/reader.h"

/* ---- is it whole ---- */

/* Returns whether the checkpoint may still be whole, and is only out of reach: no permission, a disk that fails, too
 * many open files. Then nobody is told to remove it. */
static bool is_out_of_reach(fsdp_status status)
{
    return status == FSDP_IO || status == FSDP_NO_MEMORY;
}

/* Checks the size of a file; `path` is that of the checkpoint. */
static fsdp_status check_size(const char *path, const char *name, uint64_t bytes)
{
    FSDP__FREED char *file = fsdp__path_join(path, name);
    struct stat info;

    if (!file)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
    if (stat(file, &info) != 0)
        return FSDP_FAIL(errno == ENOENT ? FSDP_FORMAT : FSDP_IO, "cannot read '%s': %s", file,
                         errno == ENOENT ? "the manifest lists it, but it is not there" : strerrordesc_np(errno));
    if (!S_ISREG(info.st_mode))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is not a regular file", file);
    if ((uint64_t)info.st_size != bytes)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it has %llu bytes, but the manifest says %llu", file,
                         (unsigned long long)info.st_size, (unsigned long long)bytes);
    return FSDP_OK;
}

/* Checks the step. The folder may have any name except that of another step. */
static fsdp_status check_step(const char *path, const fsdp__manifest *m)
{
    const char *slash = strrchr(path, '/');
    int64_t step;

    if (fsdp__step_name(slash ? slash + 1 : path, "", &step) && step != m->step)
        return FSDP_FAIL(FSDP_FORMAT, "'%s/%s' is the manifest of step %lld", path, FSDP__MANIFEST_NAME,
                         (long long)m->step);
    return FSDP_OK;
}

static fsdp_status load_manifest(const char *path, fsdp__manifest *out)
{
    FSDP__FREED char *name = fsdp__path_join(path, FSDP__MANIFEST_NAME);
    fsdp_status status;

    if (!name)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
    status = fsdp__manifest_load(name, out);
    if (status == FSDP_OK)
        status = fsdp__manifest_check(name, out);
    if (status == FSDP_OK)
        status = check_step(path, out);
    for (int64_t i = 0; i < out->file_count && status == FSDP_OK; i++)
        status = check_size(path, out->files[i].name, out->files[i].bytes);
    for (int64_t i = 0; i < out->small_count && status == FSDP_OK; i++)
        status = check_size(path, out->small[i].name, out->small[i].bytes);
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp__manifest_release(out);
    if (is_out_of_reach(status))
        return fsdp_fail_prefix(status, "cannot tell whether '%s' is a whole checkpoint", path);
    return FSDP_FAIL(status == FSDP_NOT_FOUND ? FSDP_FORMAT : status, "'%s' is not a whole checkpoint: %s", path,
                     fsdp_last_error());
}

/* ---- finding ---- */

static fsdp_status newest(const char *folder, int64_t *out_step)
{
    int64_t *steps = NULL, count = 0;

    FSDP_TRY(fsdp__step_list(folder, &steps, &count));
    if (count > 0)
        *out_step = steps[count - 1];
    fsdp__free(steps);
    return count > 0 ? FSDP_OK : FSDP_FAIL(FSDP_NOT_FOUND, "there is no checkpoint in '%s'", folder);
}

/* Returns a copy of the path to the caller. */
static fsdp_status give_path(const char *path, char **out)
{
    *out = fsdp__strdup(path);
    return *out ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot name '%s'", path);
}

static fsdp_status find(const char *folder, int64_t step, char *path, char **out)
{
    FSDP__SCOPED(fsdp__manifest_release) fsdp__manifest m = {0};

    if (!fsdp__path_exists(path))
        return FSDP_FAIL(FSDP_NOT_FOUND, "there is no checkpoint of step %lld in '%s'", (long long)step, folder);
    FSDP_TRY(load_manifest(path, &m));
    return give_path(path, out);
}

/* Finds the best step, which the newest checkpoint records. */
static fsdp_status best(const char *folder, int64_t *out_step)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;
    fsdp_status status;
    int64_t last, step = 0;

    FSDP_TRY(fsdp_checkpoint_open(folder, &reader));
    last = fsdp_checkpoint_step(reader);
    status = fsdp_checkpoint_get_integer(reader, FSDP_CHECKPOINT_BEST_STEP, &step);
    if (status == FSDP_NOT_FOUND)
        return FSDP_FAIL(status,
                         "there is no best checkpoint in '%s': its newest, of step %lld, was saved without a "
                         "validation (validation.path or validation.share)",
                         folder, (long long)last);
    FSDP_TRY(status);
    if (!fsdp_checkpoint_exists(folder, step))
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "the best checkpoint of '%s' is gone: the best validation was after step %lld, and what was "
                         "saved there was not kept (validation.keep_best)",
                         folder, (long long)step);
    *out_step = step;
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_find(const char *folder, int64_t step, char **out)
{
    bool any = step == FSDP_CHECKPOINT_NEWEST;
    FSDP__FREED char *path = NULL;
    fsdp_status status;

    if (!folder || !out || step < FSDP_CHECKPOINT_BEST)
        return FSDP_FAIL(FSDP_INVALID, "cannot find a checkpoint: a folder, a step from 0, the newest (-1) or the best "
                                       "(-2), and a place for the path are required");
    *out = NULL;
    if (any)
        FSDP_TRY(newest(folder, &step));
    if (step == FSDP_CHECKPOINT_BEST)
        FSDP_TRY(best(folder, &step));
    path = fsdp__step_path(folder, step);
    status = path ? find(folder, step, path, out) : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot look into '%s'", folder);
    if (status != FSDP_OK && !is_out_of_reach(status) && any)
        return FSDP_FAIL(status, "%s; it is the newest in '%s': remove it, or ask for the step of an older one",
                         fsdp_last_error(), folder);
    return status;
}

/* Finds the best checkpoint for a path that ends in step-best. */
static fsdp_status find_best(const char *path, char **out)
{
    FSDP__FREED char *folder = fsdp__path_parent(path);

    return folder ? fsdp_checkpoint_find(folder, FSDP_CHECKPOINT_BEST, out)
                  : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot look into '%s'", path);
}

fsdp_status fsdp__checkpoint_resolve(const char *path, char **out)
{
    FSDP__FREED char *manifest = fsdp__path_join(path, FSDP__MANIFEST_NAME);
    FSDP__FREED char *given = fsdp__strdup(path);
    const char *name = given;
    int64_t step;
    bool is_one;

    if (!manifest || !given)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", path);
    for (size_t end = strlen(given); end > 1 && given[end - 1] == '/';)
        given[--end] = '\0';
    name = strrchr(given, '/') ? strrchr(given, '/') + 1 : given;
    is_one = fsdp__path_exists(manifest) || fsdp__step_name(name, "", &step);
    if (!fsdp__path_exists(path))
        return fsdp__is_step_best(given) ? find_best(given, out) : FSDP_FAIL(FSDP_NOT_FOUND, "there is no '%s'", path);
    return is_one ? give_path(given, out) : fsdp_checkpoint_find(given, -1, out);
}

/* ---- opening ---- */

static fsdp_status read_small(fsdp_checkpoint_reader *r, int64_t index)
{
    const fsdp__small_file *small = &r->manifest.small[index];
    FSDP__FREED char *path = fsdp__path_join(r->path, small->name), *data = NULL;
    size_t bytes = 0;

    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", r->path);
    FSDP_TRY(fsdp__file_read(path, (size_t)small->bytes, &data, &bytes));
    if (bytes != small->bytes || fsdp__checksum(data, bytes) != small->checksum)
        return FSDP_FAIL(FSDP_FORMAT, "'%s' is damaged, or was changed after the save: its checksum does not fit",
                         path);
    r->small[index] = (fsdp_checkpoint_file){.name = small->name, .data = fsdp__take(&data), .bytes = bytes};
    return FSDP_OK;
}

static fsdp_status fill(fsdp_checkpoint_reader *r)
{
    FSDP_TRY(load_manifest(r->path, &r->manifest));
    r->small = fsdp__calloc((size_t)r->manifest.small_count, sizeof *r->small);
    if (!r->small)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", r->path);
    for (int64_t i = 0; i < r->manifest.small_count; i++)
        FSDP_TRY(read_small(r, i));
    for (int64_t i = 0; i < r->manifest.file_count; i++)
        FSDP_TRY(fsdp__reader_check_header(r, i));
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_open(const char *path, fsdp_checkpoint_reader **out)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;

    if (!path || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot open a checkpoint: its path and a place for it are required");
    *out = NULL;
    reader = fsdp__calloc(1, sizeof *reader);
    if (!reader)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", path);
    fsdp__windows_init(reader);
    FSDP_TRY(fsdp__checkpoint_resolve(path, &reader->path));
    FSDP_TRY(fill(reader));
    *out = fsdp__take(&reader);
    return FSDP_OK;
}

void fsdp_checkpoint_close(fsdp_checkpoint_reader *reader)
{
    if (!reader)
        return;
    fsdp__windows_release(reader);
    for (int64_t i = 0; i < reader->manifest.small_count && reader->small; i++)
        fsdp__free((void *)reader->small[i].data);
    fsdp__manifest_release(&reader->manifest);
    FSDP__FREE_ALL(reader->small, reader->path, reader);
}
