/* publish.c - a folder gets new content when all of it is on disk. */
#include "format/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/file.h"
#include "format/contents.h"
#include "format/journal.h"
#include "format/room.h"
#include "format/staging.h"
#include "format/target.h"

struct fsdp__publication {
    fsdp_context *context;
    pthread_mutex_t mutex; /* around begin, scratch, check, commit and abandon */
    bool abandoned;
    bool given_up; /* from elsewhere, before its end */
    bool committed;
    fsdp__publish_options options;
    fsdp__target target;
    fsdp__staging staging;
    char *content; /* the folder in staging that gets the files */
};

static fsdp_status out_of_memory(void)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory");
}

/* In front of every failure of this file. */
static fsdp_status name_failure(const fsdp__publication *p, fsdp_status status)
{
    if (status == FSDP_OK)
        return status;
    return fsdp_fail_prefix(status, "cannot write the %s to '%s'", p->options.kind->noun, p->options.folder);
}

fsdp__publication *fsdp__publication_create(fsdp_context *context)
{
    fsdp__publication *p = fsdp__calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->context = context;
    p->staging.lock_fd = -1;
    pthread_mutex_init(&p->mutex, NULL);
    return p;
}

const char *fsdp__publication_staging(const fsdp__publication *p)
{
    return p->content;
}

/* ---- begin ---- */

static fsdp_status check_new(const fsdp__publication *p)
{
    if (p->options.only_new && fsdp__path_exists(p->target.path))
        return FSDP_FAIL(FSDP_STATE, "it is there already, and is never written again: remove it first");
    return FSDP_OK;
}

/* Finishes what a journal in the folder says. */
static fsdp_status finish_interrupted(const char *folder, const fsdp__staging *staging)
{
    fsdp__journal journal = {0};
    fsdp_status status = fsdp__journal_read(&journal, folder);

    if (status == FSDP_OK)
        status = fsdp__journal_finish(&journal, folder, staging->path);
    fsdp__journal_release(&journal);
    return status;
}

/* What stood ready beside a name that was no folder then. */
static fsdp_status remove_beside(const fsdp__target *target)
{
    char *beside = fsdp__sprintf("%s.saving", target->path);
    fsdp__staging staging = {.lock_fd = -1};
    fsdp_status status = FSDP_OK;

    if (!beside)
        return out_of_memory();
    if (fsdp__path_exists(beside) && fsdp__staging_is_ours(beside)) {
        status = fsdp__staging_take(beside, &staging);
        if (status == FSDP_OK)
            status = fsdp__staging_remove(&staging);
    }
    fsdp__free(beside);
    return status;
}

static fsdp_status make_folder(const fsdp__staging *staging, const char *name, char **out)
{
    fsdp_status status = FSDP_OK;

    *out = fsdp__path_join(staging->path, name);
    if (!*out)
        return out_of_memory();
    if (fsdp__fault_file(FSDP__FAULT_FOLDER, NULL) || mkdir(*out, 0777) != 0)
        status = FSDP_FAIL(FSDP_IO, "cannot make a folder in '%s': %s", staging->path, strerrordesc_np(errno));
    if (status != FSDP_OK) {
        fsdp__free(*out);
        *out = NULL;
    }
    return status;
}

static fsdp_status take_staging(fsdp__publication *p)
{
    char *path = p->target.exists ? fsdp__path_join(p->target.path, FSDP__STAGING_NAME)
                                  : fsdp__sprintf("%s.saving", p->target.path);
    fsdp_status status = path ? fsdp__staging_take(path, &p->staging) : out_of_memory();

    fsdp__free(path);
    FSDP_TRY(status);
    if (p->target.exists && fsdp__journal_exists(p->target.path)) {
        FSDP_TRY(finish_interrupted(p->target.path, &p->staging));
        fsdp_log(p->context, FSDP_LOG_INFO, "a save into '%s' that was interrupted is now finished", p->options.folder);
    }
    FSDP_TRY(fsdp__staging_clear(&p->staging));
    return make_folder(&p->staging, FSDP__CONTENT_NAME, &p->content);
}

static fsdp_status check_source(const fsdp__publication *p)
{
    if (!p->options.source || !p->target.exists)
        return FSDP_OK;
    if (fsdp__same_folder(p->options.source, p->target.path))
        return FSDP_FAIL(FSDP_INVALID, "it is the folder that is read from ('%s'): name another", p->options.source);
    if (fsdp__leads_into(p->options.source, p->target.path))
        return FSDP_FAIL(FSDP_INVALID, "it is read from, through a link in '%s': name another", p->options.source);
    return FSDP_OK;
}

static fsdp__content_rules rules(const fsdp__publication *p)
{
    return (fsdp__content_rules){.folder = p->target.path,
                                 .alone = p->options.kind->alone,
                                 .overwrite = p->options.overwrite,
                                 .hint = p->options.overwrite_hint};
}

static fsdp_status begin(fsdp__publication *p)
{
    fsdp__content_rules r;

    FSDP_TRY(fsdp__target_find(p->options.folder, &p->target));
    FSDP_TRY(check_new(p));
    FSDP_TRY(check_source(p));
    if (p->target.exists)
        FSDP_TRY(remove_beside(&p->target));
    r = rules(p);
    /* Before anything is made in it; a folder with a journal is somebody's of ours, and whole after it is finished. */
    if (p->target.exists && !fsdp__journal_exists(p->target.path))
        FSDP_TRY(fsdp__contents_check(&r));
    FSDP_TRY(take_staging(p));
    return p->target.exists ? fsdp__contents_check(&r) : FSDP_OK;
}

/* ---- the end without success ---- */

/* A folder with a journal needs what is in staging. */
static void give_up(fsdp__publication *p)
{
    bool held = fsdp_hold_error(true);

    p->abandoned = true;
    if (p->target.path && p->target.exists && fsdp__journal_exists(p->target.path))
        fsdp__staging_leave(&p->staging);
    else if (fsdp__staging_remove(&p->staging) != FSDP_OK && p->context)
        fsdp_log(p->context, FSDP_LOG_WARNING, "cannot remove all temporary files beside or in '%s'",
                 p->options.folder);
    if (!p->committed)
        fsdp__target_unmake(&p->target);
    fsdp_release_error(held);
}

void fsdp__publication_abandon(fsdp__publication *p)
{
    pthread_mutex_lock(&p->mutex);
    if (!p->abandoned) {
        p->given_up = true;
        give_up(p);
    }
    pthread_mutex_unlock(&p->mutex);
}

void fsdp__publication_free(fsdp__publication *p)
{
    if (!p)
        return;
    fsdp__publication_abandon(p);
    fsdp__target_release(&p->target);
    fsdp__free(p->content);
    pthread_mutex_destroy(&p->mutex);
    fsdp__free(p);
}

static fsdp_status given_up(void)
{
    return FSDP_FAIL(FSDP_INTERRUPTED, "it was given up");
}

fsdp_status fsdp__publication_held(fsdp__publication *p)
{
    fsdp_status status;

    pthread_mutex_lock(&p->mutex);
    status = p->given_up ? name_failure(p, given_up()) : FSDP_OK;
    pthread_mutex_unlock(&p->mutex);
    return status;
}

fsdp_status fsdp__publication_begin(fsdp__publication *p, const fsdp__publish_options *options)
{
    fsdp_status status;

    pthread_mutex_lock(&p->mutex);
    p->options = *options;
    status = name_failure(p, p->abandoned ? given_up() : begin(p));
    if (status != FSDP_OK && !p->abandoned)
        give_up(p);
    pthread_mutex_unlock(&p->mutex);
    return status;
}

fsdp_status fsdp__publication_scratch(fsdp__publication *p, const char *name, char **out)
{
    fsdp_status status;

    *out = NULL;
    pthread_mutex_lock(&p->mutex);
    status = name_failure(p, p->abandoned ? given_up() : make_folder(&p->staging, name, out));
    pthread_mutex_unlock(&p->mutex);
    return status;
}

/* ---- check ---- */

fsdp_status fsdp__publication_check(fsdp__publication *p, const fsdp__file_list *files)
{
    fsdp_status status;

    pthread_mutex_lock(&p->mutex);
    status = p->abandoned ? given_up() : fsdp__room_check(p->staging.path, files);
    if (status == FSDP_OK && p->target.exists) {
        fsdp__content_rules r = rules(p);

        status = fsdp__contents_check_new(&r, files);
    }
    status = name_failure(p, status);
    pthread_mutex_unlock(&p->mutex);
    return status;
}

/* ---- commit ---- */

static fsdp_status rename_whole(const char *from, const char *to)
{
    bool failed = fsdp__fault_file(FSDP__FAULT_WRITE, NULL);

    /* Not over a folder that came to be in the meantime; where the file system has no such rename, rename refuses one
     * that is not empty. */
    if (!failed && (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0 ||
                    ((errno == EINVAL || errno == ENOSYS) && rename(from, to) == 0)))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_IO, "cannot rename '%s' to '%s': %s", from, to, strerrordesc_np(errno));
}

static fsdp_status commit_new(fsdp__publication *p)
{
    fsdp_status status;

    FSDP_TRY(rename_whole(p->content, p->target.path));
    status = fsdp__file_sync_parent(p->target.path);
    if (status != FSDP_OK)
        FSDP_KEEP_FIRST(status, rename_whole(p->target.path, p->content));
    return status;
}

/* The mark comes last. */
static void put_mark_last(const fsdp__publication *p, fsdp__file_list *files)
{
    for (int64_t i = 0; i + 1 < files->count; i++) {
        if (strcmp(files->files[i].name, p->options.kind->mark) == 0) {
            fsdp__listed_file mark = files->files[i];

            files->files[i] = files->files[files->count - 1];
            files->files[files->count - 1] = mark;
        }
    }
}

static fsdp_status replace(fsdp__publication *p, const fsdp__journal *journal)
{
    const char *folder = p->target.path, *staging = p->staging.path;
    fsdp_status status, undone;
    bool held;

    /* What the journal names is on the disk before the journal is. */
    FSDP_TRY(fsdp__file_sync_directory(staging));
    FSDP_TRY(fsdp__file_sync_directory(folder));
    status = fsdp__journal_write(journal, folder, staging);
    if (status == FSDP_OK)
        status = fsdp__journal_finish(journal, folder, staging);
    if (status == FSDP_OK)
        return FSDP_OK;
    held = fsdp_hold_error(true);
    undone = fsdp__journal_undo(journal, folder, staging);
    fsdp_release_error(held);
    if (undone != FSDP_OK)
        return fsdp_fail_prefix(status,
                                "the folder holds parts of the old and of the new one, and 'fsdp repair %s' "
                                "finishes the save",
                                p->options.folder);
    return status;
}

static fsdp_status commit_replacing(fsdp__publication *p)
{
    fsdp__content_rules r = rules(p);
    fsdp__journal journal = {0};
    fsdp_status status = FSDP_OK;

    FSDP_TRY_GOTO(status, fsdp__file_list_scan(&journal.fresh, p->content), out);
    put_mark_last(p, &journal.fresh);
    FSDP_TRY_GOTO(status, fsdp__contents_check_new(&r, &journal.fresh), out); /* hours may lie between */
    FSDP_TRY_GOTO(status, fsdp__contents_gone(&r, &journal.fresh, &journal.gone), out);
    FSDP_TRY_GOTO(status, replace(p, &journal), out);
out:
    fsdp__journal_release(&journal);
    return status;
}

/* Somebody has made the folder since: the content goes into it, as into one that was there from the start. */
static fsdp_status move_in(fsdp__publication *p)
{
    char *path = fsdp__path_join(p->target.path, FSDP__STAGING_NAME), *content = NULL;
    fsdp_status status = path ? fsdp__staging_move(&p->staging, path) : out_of_memory();

    fsdp__free(path);
    FSDP_TRY(status);
    p->target.exists = true;
    content = fsdp__path_join(p->staging.path, FSDP__CONTENT_NAME);
    if (!content)
        return out_of_memory();
    fsdp__free(p->content);
    p->content = content;
    return FSDP_OK;
}

static fsdp_status leave_list(const fsdp__publication *p)
{
    fsdp__file_list files = {0};
    fsdp_status status = fsdp__file_list_scan(&files, p->content);

    if (status == FSDP_OK)
        status = fsdp__file_list_save(&files, p->content);
    fsdp__file_list_release(&files);
    return status;
}

static fsdp_status commit(fsdp__publication *p)
{
    FSDP_TRY(p->options.only_new ? check_new(p) : leave_list(p));
    FSDP_TRY(fsdp__file_sync_directory(p->content));
    if (!p->target.exists && fsdp__path_exists(p->target.path))
        FSDP_TRY(move_in(p));
    FSDP_TRY(p->target.exists ? commit_replacing(p) : commit_new(p));
    p->committed = true;
    return FSDP_OK;
}

fsdp_status fsdp__publication_commit(fsdp__publication *p)
{
    fsdp_status status;

    pthread_mutex_lock(&p->mutex);
    status = name_failure(p, p->abandoned ? given_up() : commit(p));
    if (status == FSDP_OK)
        give_up(p);
    pthread_mutex_unlock(&p->mutex);
    return status;
}

/* ---- repair ---- */

fsdp_status fsdp__publish_repair(const char *folder, bool *out_finished)
{
    fsdp__staging staging = {.lock_fd = -1};
    fsdp_status status = FSDP_OK;
    char *path;

    *out_finished = false;
    if (!fsdp__path_exists(folder))
        return FSDP_FAIL(FSDP_NOT_FOUND, "cannot repair '%s': there is no such folder", folder);
    if (!fsdp__journal_exists(folder))
        return FSDP_OK;
    path = fsdp__path_join(folder, FSDP__STAGING_NAME);
    status = path ? fsdp__staging_take(path, &staging) : out_of_memory();
    fsdp__free(path);
    if (status == FSDP_OK)
        status = finish_interrupted(folder, &staging);
    if (status == FSDP_OK)
        status = fsdp__staging_remove(&staging);
    else
        fsdp__staging_leave(&staging);
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "cannot repair '%s'", folder);
    *out_finished = true;
    return FSDP_OK;
}
