/* publish.c - gives a folder new content when all of it is on disk. */
#include "format/publish.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/text.h"
#include "format/folder_contents.h"
#include "format/free_space.h"
#include "format/journal.h"
#include "format/staging.h"
#include "format/target_folder.h"

struct fsdp__publication {
    fsdp_context *context;
    pthread_mutex_t mutex; /* held in every call */
    pid_t process;         /* that has begun it: a child of fork() ends nothing */
    bool held;             /* it has begun, and not ended */
    bool given_up;         /* from elsewhere: it never begins again */
    bool committed;
    bool unfinished; /* our journal may be in the folder, and needs what is in staging */
    fsdp__publish_options options;
    fsdp__target target;
    fsdp__staging staging;
    fsdp__directory content; /* the folder in staging that gets the files */
};

static fsdp_status out_of_memory(void)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory");
}

/* Puts what failed in front of every error of this file. */
static fsdp_status name_failure(const fsdp__publication *p, fsdp_status status)
{
    if (status == FSDP_OK || !p->options.kind)
        return status;
    return fsdp_fail_prefix(status, "cannot write the %s to '%s'", p->options.kind->noun, p->options.folder);
}

fsdp__publication *fsdp__publication_create(fsdp_context *context)
{
    fsdp__publication *p = fsdp__calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->context = context;
    pthread_mutex_init(&p->mutex, NULL);
    return p;
}

/* Returns whether the folder exists. */
static bool exists(const fsdp__publication *p)
{
    return p->target.folder.path != NULL;
}

/* ---- begin ---- */

/* Returns whether anything of the folder's name exists by now. */
static bool has_come(const fsdp__publication *p)
{
    struct stat info;

    return exists(p) || fsdp__directory_look(&p->target.parent, p->target.name, &info) || errno != ENOENT;
}

static fsdp_status check_new(const fsdp__publication *p)
{
    if (p->options.only_new && has_come(p))
        return FSDP_FAIL(FSDP_STATE, "it exists already, and is never overwritten: remove it first");
    return FSDP_OK;
}

/* Checks the parent: whoever may write above it can have given its path to another folder. */
static fsdp_status check_parent(const fsdp__publication *p)
{
    struct stat asked, found;

    if (!p->options.parent || (fstat(p->options.parent->fd, &asked) == 0 && fstat(p->target.parent.fd, &found) == 0 &&
                               fsdp__same_file(&asked, &found)))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE,
                     "'%s' is no longer the folder that this process holds, so nothing in it was changed: give the "
                     "other one its name back",
                     p->target.parent.path);
}

/* Checks that a journal in the folder, if there is one, is this user's. */
static fsdp_status check_journal(const fsdp__directory *folder)
{
    FSDP__SCOPED(fsdp__journal_release) fsdp__journal journal = {.gone.count = 0};

    return fsdp__journal_exists(folder) ? fsdp__journal_read(&journal, folder) : FSDP_OK;
}

/* Finishes what a journal in the folder describes. */
static fsdp_status finish_interrupted(const fsdp__directory *folder, const fsdp__staging *staging)
{
    FSDP__SCOPED(fsdp__journal_release) fsdp__journal journal = {.gone.count = 0};

    FSDP_TRY(fsdp__journal_read(&journal, folder));
    return fsdp__journal_finish(&journal, folder, &staging->folder);
}

/* Removes what was prepared beside the name when it was not a folder yet. */
static fsdp_status remove_beside(const fsdp__target *target)
{
    FSDP__FREED char *beside = fsdp__sprintf("%s.saving", target->name);
    fsdp__staging staging;

    if (!beside)
        return out_of_memory();
    if (!fsdp__staging_is_ours(&target->parent, beside))
        return FSDP_OK;
    FSDP_TRY(fsdp__staging_take(&target->parent, beside, &staging));
    return fsdp__staging_remove(&staging);
}

/* Makes a folder with the user's umask, since it gets its final name later. */
static fsdp_status make_folder(const fsdp__staging *staging, const char *name, fsdp__directory *out)
{
    *out = (fsdp__directory){.path = NULL};
    FSDP_TRY(fsdp__directory_make(&staging->folder, name, 0777));
    return fsdp__directory_enter(&staging->folder, name, out);
}

static fsdp_status take_beside(fsdp__publication *p)
{
    FSDP__FREED char *name = fsdp__sprintf("%s.saving", p->target.name);

    return name ? fsdp__staging_take(&p->target.parent, name, &p->staging) : out_of_memory();
}

static fsdp_status take_staging(fsdp__publication *p)
{
    const fsdp__directory *folder = &p->target.folder;

    FSDP_TRY(exists(p) ? fsdp__staging_take(folder, FSDP__STAGING_NAME, &p->staging) : take_beside(p));
    if (exists(p) && fsdp__journal_exists(folder)) {
        p->unfinished = true;
        FSDP_TRY(finish_interrupted(folder, &p->staging));
        p->unfinished = false;
        fsdp_log(p->context, FSDP_LOG_INFO, "a save into '%s' that was interrupted is now finished", p->options.folder);
    }
    FSDP_TRY(fsdp__staging_clear(&p->staging));
    return make_folder(&p->staging, FSDP__CONTENT_NAME, &p->content);
}

static fsdp_status check_source(const fsdp__publication *p)
{
    if (!p->options.source || !exists(p))
        return FSDP_OK;
    if (fsdp__same_folder(p->options.source, p->target.folder.path))
        return FSDP_FAIL(FSDP_INVALID, "the files are read from this folder ('%s'): name another", p->options.source);
    if (fsdp__leads_into(p->options.source, p->target.folder.path))
        return FSDP_FAIL(FSDP_INVALID, "its files are read, through a link in '%s': name another", p->options.source);
    return FSDP_OK;
}

static fsdp__content_rules rules(const fsdp__publication *p)
{
    return (fsdp__content_rules){.folder = &p->target.folder,
                                 .alone = p->options.kind->alone,
                                 .overwrite = p->options.overwrite,
                                 .hint = p->options.overwrite_hint};
}

static fsdp_status begin(fsdp__publication *p)
{
    fsdp__content_rules r;

    FSDP_TRY(fsdp__target_find(p->options.folder, &p->target));
    FSDP_TRY(check_new(p));
    FSDP_TRY(check_parent(p));
    FSDP_TRY(check_source(p));
    if (!exists(p))
        return take_staging(p);
    FSDP_TRY(remove_beside(&p->target));
    r = rules(p);
    /* Check before anything is made in it. A folder with a journal is one that this library has written, and is whole
     * once the journal is finished. */
    FSDP_TRY(fsdp__journal_exists(&p->target.folder) ? check_journal(&p->target.folder) : fsdp__contents_check(&r));
    FSDP_TRY(take_staging(p));
    return fsdp__contents_check(&r);
}

/* ---- the end ---- */

/* Removes what was made, unless it was committed. */
static void let_go(fsdp__publication *p)
{
    bool held = fsdp_hold_error(true), own = getpid() == p->process;

    p->held = false;
    fsdp__directory_close(&p->content);
    if (p->target.made == 0)
        fsdp__target_release(&p->target); /* where no more files may be open, this gives one for the removal */
    if (p->unfinished || !own)
        fsdp__staging_leave(&p->staging);
    else if (fsdp__staging_remove(&p->staging) != FSDP_OK && p->context)
        fsdp_log(p->context, FSDP_LOG_WARNING, "cannot remove all temporary files beside or in '%s': %s",
                 p->options.folder, fsdp_last_error());
    if (!p->committed && own)
        fsdp__target_unmake(&p->target);
    fsdp__target_release(&p->target);
    fsdp_release_error(held);
}

void fsdp__publication_end(fsdp__publication *p)
{
    if (!p)
        return;
    FSDP__HELD(&p->mutex);
    if (p->held)
        let_go(p);
    p->options = (fsdp__publish_options){.folder = NULL};
}

void fsdp__publication_abandon(fsdp__publication *p)
{
    FSDP__HELD(&p->mutex);
    p->given_up = true;
    if (p->held)
        let_go(p);
}

void fsdp__publication_free(fsdp__publication *p)
{
    if (!p)
        return;
    fsdp__publication_end(p);
    pthread_mutex_destroy(&p->mutex);
    fsdp__free(p);
}

static fsdp_status given_up(void)
{
    return FSDP_FAIL(FSDP_INTERRUPTED, "it was given up");
}

fsdp_status fsdp__publication_held(fsdp__publication *p)
{
    FSDP__HELD(&p->mutex);
    return p->given_up ? name_failure(p, given_up()) : FSDP_OK;
}

fsdp_status fsdp__publication_begin(fsdp__publication *p, const fsdp__publish_options *options)
{
    fsdp_status status;

    FSDP__HELD(&p->mutex);
    p->options = *options;
    p->process = getpid();
    p->held = !p->given_up;
    p->committed = p->unfinished = false;
    status = name_failure(p, p->held ? begin(p) : given_up());
    if (status != FSDP_OK && p->held)
        let_go(p);
    return status;
}

static fsdp_status share(fsdp__publication *p, const fsdp__directory *directory, fsdp__directory *out)
{
    *out = (fsdp__directory){.path = NULL};
    FSDP__HELD(&p->mutex);
    return name_failure(p, p->held ? fsdp__directory_share(directory, out) : given_up());
}

fsdp_status fsdp__publication_content(fsdp__publication *p, fsdp__directory *out)
{
    return share(p, &p->content, out);
}

fsdp_status fsdp__publication_parent(fsdp__publication *p, fsdp__directory *out)
{
    return share(p, &p->target.parent, out);
}

fsdp_status fsdp__publication_scratch(fsdp__publication *p, const char *name, fsdp__directory *out)
{
    *out = (fsdp__directory){.path = NULL};
    FSDP__HELD(&p->mutex);
    return name_failure(p, p->held ? make_folder(&p->staging, name, out) : given_up());
}

/* ---- check ---- */

fsdp_status fsdp__publication_check(fsdp__publication *p, const fsdp__file_list *files)
{
    fsdp_status status;

    FSDP__HELD(&p->mutex);
    status = p->held ? fsdp__room_check(p->staging.folder.path, files) : given_up();
    if (status == FSDP_OK && exists(p)) {
        fsdp__content_rules r = rules(p);

        status = fsdp__contents_check_new(&r, files);
    }
    status = name_failure(p, status);
    return status;
}

/* ---- commit ---- */

/* Gives the content its name, unless a folder of that name has come to exist meanwhile. */
static fsdp_status commit_new(fsdp__publication *p)
{
    const fsdp__target *target = &p->target;
    const fsdp__directory *staging = &p->staging.folder;
    fsdp_status status;

    FSDP_TRY(fsdp__directory_rename(staging, FSDP__CONTENT_NAME, &target->parent, target->name, FSDP__RENAME_NEW));
    status = fsdp__directory_sync(&target->parent);
    if (status != FSDP_OK && fsdp__directory_has(&target->parent, target->name, &p->content))
        FSDP_KEEP_FIRST(status, fsdp__directory_rename(&target->parent, target->name, staging, FSDP__CONTENT_NAME,
                                                       FSDP__RENAME_NEW));
    return status;
}

/* Puts the mark at the end of the list. */
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
    const fsdp__directory *folder = &p->target.folder, *staging = &p->staging.folder;
    fsdp_status status, undone;
    bool held;

    /* What the journal names must be on disk before the journal is. */
    FSDP_TRY(fsdp__directory_sync(staging));
    FSDP_TRY(fsdp__directory_sync(folder));
    p->unfinished = true;
    status = fsdp__journal_write(journal, folder, staging);
    if (status == FSDP_OK)
        status = fsdp__journal_finish(journal, folder, staging);
    if (status == FSDP_OK) {
        p->unfinished = false;
        return FSDP_OK;
    }
    held = fsdp_hold_error(true);
    undone = fsdp__journal_undo(journal, folder, staging);
    fsdp_release_error(held);
    p->unfinished = undone != FSDP_OK && fsdp__journal_exists(folder);
    if (undone != FSDP_OK)
        return fsdp_fail_prefix(status,
                                "the folder holds parts of the old and of the new one (fsdp repair %s finishes the "
                                "save)",
                                FSDP__SHELL_WORD(p->options.folder));
    return status;
}

static fsdp_status commit_replacing(fsdp__publication *p)
{
    fsdp__content_rules r = rules(p);
    FSDP__SCOPED(fsdp__journal_release) fsdp__journal journal = {0};

    FSDP_TRY(fsdp__file_list_scan(&journal.fresh, &p->content));
    put_mark_last(p, &journal.fresh);
    /* hours may have passed since the last check */
    FSDP_TRY(fsdp__contents_check_new(&r, &journal.fresh));
    FSDP_TRY(fsdp__contents_gone(&r, &journal.fresh, &journal.gone));
    return replace(p, &journal);
}

/* Moves the content into a folder that somebody has made since, as if it had been there from the start. */
static fsdp_status move_in(fsdp__publication *p)
{
    FSDP_TRY(fsdp__directory_enter(&p->target.parent, p->target.name, &p->target.folder));
    FSDP_TRY(check_journal(&p->target.folder));
    return fsdp__staging_move(&p->staging, &p->target.folder);
}

static fsdp_status leave_list(const fsdp__publication *p)
{
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list files = {0};

    FSDP_TRY(fsdp__file_list_scan(&files, &p->content));
    return fsdp__file_list_save(&files, &p->content);
}

static fsdp_status commit(fsdp__publication *p)
{
    FSDP_TRY(p->options.only_new ? check_new(p) : leave_list(p));
    FSDP_TRY(fsdp__directory_sync(&p->content));
    if (!exists(p) && has_come(p))
        FSDP_TRY(move_in(p));
    FSDP_TRY(exists(p) ? commit_replacing(p) : commit_new(p));
    p->committed = true;
    return FSDP_OK;
}

fsdp_status fsdp__publication_commit(fsdp__publication *p)
{
    fsdp_status status;

    FSDP__HELD(&p->mutex);
    status = name_failure(p, p->held ? commit(p) : given_up());
    if (status == FSDP_OK)
        let_go(p);
    return status;
}

/* ---- repair ---- */

static fsdp_status repair(const fsdp__directory *folder, bool *out_finished)
{
    fsdp__staging staging;
    fsdp_status status;

    if (!fsdp__journal_exists(folder))
        return FSDP_OK;
    FSDP_TRY(check_journal(folder));
    FSDP_TRY(fsdp__staging_take(folder, FSDP__STAGING_NAME, &staging));
    status = finish_interrupted(folder, &staging);
    if (status == FSDP_OK)
        status = fsdp__staging_remove(&staging);
    else
        fsdp__staging_leave(&staging);
    *out_finished = status == FSDP_OK;
    return status;
}

fsdp_status fsdp__publish_repair(const char *folder, bool *out_finished)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory held = {.path = NULL};
    fsdp_status status;

    *out_finished = false;
    if (!fsdp__path_exists(folder))
        return FSDP_FAIL(FSDP_NOT_FOUND, "cannot repair '%s': there is no such folder", folder);
    status = fsdp__directory_open(folder, &held);
    if (status == FSDP_OK)
        status = repair(&held, out_finished);
    return fsdp_fail_prefix(status, "cannot repair '%s'", folder);
}
