/* retention.c - a checkpoint is removed: it loses its name first, then the files that its manifest lists, the manifest
 * last, so that whoever comes after a process that was killed can finish. */
#include "checkpoint/retention.h"

#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/superseded.h"
#include "format/staging.h"

/* ---- one of them ---- */

static fsdp_status unlink_in(const char *folder, const char *name)
{
    char *path = fsdp__path_join(folder, name);
    fsdp_status status = path ? fsdp__file_unlink(path) : FSDP_NO_MEMORY;

    fsdp__free(path);
    return status;
}

/* The names in it come from a manifest whose digest fits, so they are what a save has written. */
static fsdp_status unlink_listed(const char *folder, const fsdp__manifest *m)
{
    for (int64_t i = 0; i < m->file_count; i++)
        FSDP_TRY(unlink_in(folder, m->files[i].name));
    for (int64_t i = 0; i < m->small_count; i++)
        if (!strchr(m->small[i].name, '/'))
            FSDP_TRY(unlink_in(folder, m->small[i].name));
    FSDP_TRY(fsdp__file_sync_removals(folder)); /* else a power cut may leave files that nothing lists */
    return unlink_in(folder, FSDP__MANIFEST_NAME);
}

/* `path` has the name of one that is removed already. One without a manifest was emptied before. */
static fsdp_status empty(fsdp_context *context, const char *path)
{
    char *manifest = fsdp__path_join(path, FSDP__MANIFEST_NAME);
    fsdp__manifest m = {0};
    fsdp_status status = FSDP_OK;
    bool listed;

    if (!manifest)
        return FSDP_NO_MEMORY;
    listed = fsdp__path_is_file(manifest);
    if (listed)
        status = fsdp__manifest_load(manifest, &m);
    if (status == FSDP_OK && listed)
        status = unlink_listed(path, &m);
    fsdp__manifest_release(&m);
    fsdp__free(manifest);
    if (status == FSDP_OK && !fsdp__remove_empty_directory(path) && listed)
        fsdp_log(context, FSDP_LOG_WARNING, "'%s' holds files that were none of the checkpoint's: they stay", path);
    return status;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* `path`, of any name, is one of this step; it is taken over. */
static fsdp_status remove_step(fsdp_context *context, const char *folder, int64_t step, char *path)
{
    char *gone = fsdp__step_path(folder, step, FSDP__REMOVING);
    char *manifest = path ? fsdp__path_join(path, FSDP__MANIFEST_NAME) : NULL;
    fsdp__manifest m = {0};
    fsdp_status status;

    if (!path || !gone || !manifest)
        status = FSDP_NO_MEMORY;
    else if (!is_folder(path) || fsdp__path_exists(gone))
        status = FSDP_FAIL(FSDP_STATE, "'%s' is a link, or '%s' is in the way", path, gone);
    else
        status = fsdp__manifest_load(manifest, &m); /* what cannot be read is for somebody to look at */
    if (status == FSDP_OK)
        status = fsdp__file_rename(path, gone);
    if (status == FSDP_OK)
        status = empty(context, gone);
    fsdp__manifest_release(&m);
    fsdp__free(manifest);
    fsdp__free(gone);
    fsdp__free(path);
    return status;
}

/* ---- those that are not kept ---- */

bool fsdp__retention_keeps(const fsdp__retention *rule, int64_t step, int64_t newer)
{
    for (int i = 0; i < rule->pinned_count; i++)
        if (rule->pinned[i] == step)
            return true;
    return newer == 0 || rule->keep_latest_k == 0 || newer < rule->keep_latest_k ||
           (rule->keep_every > 0 && step % rule->keep_every == 0);
}

static void warn(fsdp_context *context, const char *folder)
{
    fsdp_log(context, FSDP_LOG_WARNING, "an old checkpoint in '%s' cannot be removed: %s", folder, fsdp_last_error());
}

/* They are older than any that has its name, whatever their steps are. */
static void remove_superseded(fsdp_context *context, const char *folder, const fsdp__retention *rule, int64_t newer)
{
    fsdp__superseded *list = NULL;
    int64_t count = 0;

    if (fsdp__superseded_list(folder, &list, &count) != FSDP_OK)
        warn(context, folder);
    for (int64_t i = 0; i < count; i++)
        if (newer + i >= rule->keep_latest_k &&
            remove_step(context, folder, list[i].step, fsdp__superseded_path(folder, &list[i])) != FSDP_OK)
            warn(context, folder);
    fsdp__free(list);
}

void fsdp__retention_apply(fsdp_context *context, const char *folder, const fsdp__retention *rule, int64_t saved)
{
    int64_t *steps = NULL, count = 0;

    if (fsdp__step_list(folder, "", &steps, &count) != FSDP_OK)
        warn(context, folder);
    for (int64_t i = 0; i < count; i++) /* one that cannot be removed does not keep the others */
        if (steps[i] != saved && !fsdp__retention_keeps(rule, steps[i], count - 1 - i) &&
            remove_step(context, folder, steps[i], fsdp__step_path(folder, steps[i], "")) != FSDP_OK)
            warn(context, folder);
    fsdp__free(steps);
    if (rule->keep_latest_k > 0)
        remove_superseded(context, folder, rule, count);
}

/* ---- what the dead have left ---- */

/* One that a process holds, or that somebody else has made, stays. */
static void remove_staging(const char *path)
{
    fsdp__staging staging = {.lock_fd = -1};

    if (!fsdp__staging_is_ours(path) || fsdp__staging_take(path, &staging) != FSDP_OK)
        return;
    (void)fsdp__staging_remove(&staging);
}

static void remove_with(fsdp_context *context, const char *folder, const char *suffix)
{
    int64_t *steps = NULL, count = 0;

    if (fsdp__step_list(folder, suffix, &steps, &count) != FSDP_OK)
        return;
    for (int64_t i = 0; i < count; i++) {
        char *path = fsdp__step_path(folder, steps[i], suffix);

        if (path && is_folder(path)) {
            if (strcmp(suffix, FSDP__SAVING) == 0)
                remove_staging(path);
            else
                (void)empty(context, path);
        }
        fsdp__free(path);
    }
    fsdp__free(steps);
}

void fsdp__remove_leftovers(fsdp_context *context, const char *folder)
{
    bool held = fsdp_hold_error(true);

    remove_with(context, folder, FSDP__SAVING);
    remove_with(context, folder, FSDP__REMOVING);
    fsdp_release_error(held);
}
