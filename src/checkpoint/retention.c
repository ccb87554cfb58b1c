/* retention.c - removes a checkpoint: it loses its name first, then the files that its manifest lists, and the manifest
 * last, so that the next process can finish what a killed one has begun. */
#include "checkpoint/retention.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/superseded.h"
#include "format/staging.h"

/* ---- one of them ---- */

/* Opens a checkpoint that exists and that this user has made: others must remove what they have made. */
static fsdp_status enter(const fsdp__directory *folder, const char *name, fsdp__directory *out)
{
    struct stat info;
    fsdp_status status;

    FSDP_TRY(fsdp__directory_enter(folder, name, out));
    if (fstat(out->fd, &info) != 0)
        status = fsdp__file_error("examine", out->path);
    else if (fsdp__directory_owns(folder, &info))
        return FSDP_OK;
    else
        status = FSDP_FAIL(FSDP_STATE, "'%s/%s' belongs to user %u", folder->path, name, (unsigned)info.st_uid);
    fsdp__directory_close(out);
    return status;
}

/* Removes the files that the manifest lists. Its digest matched, so its names are those that a save has written. */
static fsdp_status unlink_listed(const fsdp__directory *one, const fsdp__manifest *m)
{
    for (int64_t i = 0; i < m->file_count; i++)
        FSDP_TRY(fsdp__directory_unlink(one, m->files[i].name));
    for (int64_t i = 0; i < m->small_count; i++)
        if (fsdp__is_small_name(m->small[i].name))
            FSDP_TRY(fsdp__directory_unlink(one, m->small[i].name));
    FSDP_TRY(fsdp__directory_sync_removals(one)); /* otherwise a power cut may leave files that nothing lists */
    return fsdp__directory_unlink(one, FSDP__MANIFEST_NAME);
}

/* Empties a checkpoint that already has the name of a removed one. One without a manifest was emptied before. */
static fsdp_status empty(fsdp_context *context, const fsdp__directory *folder, const char *name,
                         const fsdp__directory *one)
{
    FSDP__SCOPED(fsdp__manifest_release) fsdp__manifest m = {0};
    struct stat info;
    bool listed = fsdp__directory_look(one, FSDP__MANIFEST_NAME, &info) && S_ISREG(info.st_mode);

    if (listed) {
        FSDP_TRY(fsdp__manifest_load_in(one, FSDP__MANIFEST_NAME, &m));
        FSDP_TRY(unlink_listed(one, &m));
    }
    if (!fsdp__directory_remove_empty(folder, name, one) && listed)
        fsdp_log(context, FSDP_LOG_WARNING,
                 "'%s/%s' holds files that do not belong to the checkpoint, so they were not removed", folder->path,
                 name);
    return FSDP_OK;
}

/* Checks that the checkpoint can be read and is that of its step: otherwise a person must look at it. */
static fsdp_status check_step(const fsdp__directory *one, int64_t step)
{
    FSDP__SCOPED(fsdp__manifest_release) fsdp__manifest m = {0};

    FSDP_TRY(fsdp__manifest_load_in(one, FSDP__MANIFEST_NAME, &m));
    if (m.step != step)
        return FSDP_FAIL(FSDP_STATE, "'%s' is a checkpoint of step %lld", one->path, (long long)m.step);
    return FSDP_OK;
}

/* Gives the checkpoint the name of a removed one. The old name may stand for another folder by now: that folder gets
 * the name back. */
static fsdp_status take_name(const fsdp__directory *folder, const char *name, const fsdp__directory *one,
                             const char *gone)
{
    FSDP_TRY(fsdp__directory_rename(folder, name, folder, gone, FSDP__RENAME_NEW));
    if (fsdp__directory_has(folder, gone, one))
        return fsdp__directory_sync(folder);
    FSDP_TRY(fsdp__directory_rename(folder, gone, folder, name, FSDP__RENAME_NEW));
    return FSDP_FAIL(FSDP_STATE, "'%s/%s' was replaced meanwhile", folder->path, name);
}

/* Removes the checkpoint of this step, whatever its name is. */
static fsdp_status remove_step(fsdp_context *context, const fsdp__directory *folder, int64_t step, const char *name)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory one = {.path = NULL};
    char gone[FSDP__STEP_NAME];
    struct stat info;

    fsdp__step_text(step, FSDP__REMOVING, gone);
    if (!fsdp__directory_look(folder, name, &info) || !S_ISDIR(info.st_mode) ||
        fsdp__directory_look(folder, gone, &info))
        return FSDP_FAIL(FSDP_STATE, "'%s/%s' is a link, or '%s' is in the way", folder->path, name, gone);
    FSDP_TRY(enter(folder, name, &one));
    FSDP_TRY(check_step(&one, step));
    FSDP_TRY(take_name(folder, name, &one, gone));
    return empty(context, folder, gone, &one);
}

/* ---- those that are not kept ---- */

/* Returns whether a step stays that has `newer` newer ones in its folder. */
static bool keeps(const fsdp__retention *rule, int64_t step, int64_t newer)
{
    for (int i = 0; i < rule->pinned_count; i++)
        if (rule->pinned[i] == step)
            return true;
    return newer == 0 || rule->keep_latest_k == 0 || newer < rule->keep_latest_k ||
           (rule->keep_every > 0 && step % rule->keep_every == 0);
}

static void warn(fsdp_context *context, const fsdp__directory *folder)
{
    fsdp_log(context, FSDP_LOG_WARNING, "an old checkpoint in '%s' cannot be removed: %s", folder->path,
             fsdp_last_error());
}

/* Removes superseded checkpoints. They count as older than any that has a step's name, whatever their steps are. */
static void remove_superseded(fsdp_context *context, const fsdp__directory *folder, const fsdp__retention *rule,
                              int64_t newer)
{
    FSDP__FREED fsdp__superseded *list = NULL;
    char name[FSDP__STEP_NAME];
    int64_t count = 0;

    if (fsdp__superseded_list(folder, &list, &count) != FSDP_OK)
        warn(context, folder);
    for (int64_t i = 0; i < count; i++)
        if (newer + i >= rule->keep_latest_k &&
            remove_step(context, folder, list[i].step, fsdp__superseded_text(&list[i], name)) != FSDP_OK)
            warn(context, folder);
}

void fsdp__retention_apply(fsdp_context *context, const fsdp__directory *folder, const fsdp__retention *rule,
                           int64_t saved)
{
    int64_t *steps = NULL, count = 0;
    char name[FSDP__STEP_NAME];

    if (fsdp__step_list_in(folder, "", &steps, &count) != FSDP_OK)
        warn(context, folder);
    for (int64_t i = 0; i < count; i++) /* one that cannot be removed does not stop the removal of the others */
        if (steps[i] != saved && !keeps(rule, steps[i], count - 1 - i) &&
            remove_step(context, folder, steps[i], fsdp__step_text(steps[i], "", name)) != FSDP_OK)
            warn(context, folder);
    fsdp__free(steps);
    if (rule->keep_latest_k > 0)
        remove_superseded(context, folder, rule, count);
}

/* ---- what the dead have left ---- */

/* Removes a staging folder; one that a process holds, or that somebody else has made, stays. */
static void remove_staging(fsdp_context *context, const fsdp__directory *folder, const char *name)
{
    fsdp__staging staging;

    if (fsdp__staging_is_ours(folder, name) && fsdp__staging_take(folder, name, &staging) == FSDP_OK &&
        fsdp__staging_remove(&staging) == FSDP_OK)
        fsdp_log(context, FSDP_LOG_INFO, "'%s/%s' is removed: a run has left it that died in a save", folder->path,
                 name);
}

static void finish_removal(fsdp_context *context, const fsdp__directory *folder, const char *name)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory one;

    if (enter(folder, name, &one) == FSDP_OK)
        (void)empty(context, folder, name, &one);
}

static void remove_with(fsdp_context *context, const fsdp__directory *folder, const char *suffix)
{
    int64_t *steps = NULL, count = 0;
    char name[FSDP__STEP_NAME];

    if (fsdp__step_list_in(folder, suffix, &steps, &count) != FSDP_OK)
        return;
    for (int64_t i = 0; i < count; i++) {
        fsdp__step_text(steps[i], suffix, name);
        if (strcmp(suffix, FSDP__SAVING) == 0)
            remove_staging(context, folder, name);
        else
            finish_removal(context, folder, name);
    }
    fsdp__free(steps);
}

void fsdp__remove_leftovers(fsdp_context *context, const fsdp__directory *folder)
{
    bool held = fsdp_hold_error(true);

    remove_with(context, folder, FSDP__SAVING);
    remove_with(context, folder, FSDP__REMOVING);
    fsdp_release_error(held);
}

/* Takes the name for a moment, as a save would. */
static fsdp_status try_saving_name(const fsdp__directory *folder, const char *name)
{
    fsdp__staging staging;

    FSDP_TRY(fsdp__staging_take(folder, name, &staging));
    return fsdp__staging_remove(&staging);
}

fsdp_status fsdp__check_saving_names(const fsdp__directory *folder, int64_t after)
{
    fsdp_status status = FSDP_OK;
    struct dirent *entry;
    DIR *directory;
    int64_t step;

    FSDP_TRY(fsdp__directory_list(folder, &directory));
    while (status == FSDP_OK && (entry = readdir(directory)))
        if (fsdp__step_name(entry->d_name, FSDP__SAVING, &step) && step > after)
            status = try_saving_name(folder, entry->d_name);
    closedir(directory);
    return status;
}
