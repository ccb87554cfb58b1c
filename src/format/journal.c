/* journal.c - replaces files of a folder by new ones, all or none.
 *
 * The place of a file says how far the replacement has come: a new file that is not in <staging>/new has been moved. So
 * finishing and undoing need no counter, and can be repeated. */
#include "format/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/probe.h"
#include "base/text.h"
#include "format/file_digest.h"
#include "format/json.h"

/* ---- the journal itself ---- */

/* Returns whether there may be a journal. It reports nothing where the folder cannot be searched: its reader says that
 * better. */
static bool may_exist(int folder, int *error)
{
    struct stat info;

    *error = 0;
    if (folder < 0 || fstatat(folder, FSDP__JOURNAL_NAME, &info, AT_SYMLINK_NOFOLLOW) != 0)
        *error = errno;
    return *error == 0 || *error == EIO || *error == ENOMEM || *error == EMFILE || *error == ENFILE;
}

bool fsdp__journal_exists(const fsdp__directory *folder)
{
    int error;

    return may_exist(folder->fd, &error);
}

fsdp_status fsdp__journal_check(const char *folder)
{
    int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), error;
    bool may = may_exist(fd, &error);

    if (fd >= 0)
        (void)close(fd);
    if (!may)
        return FSDP_OK;
    if (error)
        return FSDP_FAIL(FSDP_IO, "cannot look into '%s': %s%s", folder, strerrordesc_np(error),
                         fsdp__limit_behind(error));
    return FSDP_FAIL(FSDP_STATE,
                     "cannot read '%s': a save into it was interrupted, and it holds parts of two models (see "
                     "its " FSDP__JOURNAL_NAME "): fsdp repair %s finishes the save",
                     folder, FSDP__SHELL_WORD(folder));
}

static json_t *journal_json(const fsdp__journal *journal)
{
    return json_pack("{s:s, s:i, s:o, s:o}", "about",
                     "a save into this folder was interrupted; 'fsdp repair FOLDER' finishes it", "version",
                     FSDP__JSON_VERSION, "new", fsdp__file_list_json(&journal->fresh), "gone",
                     fsdp__file_list_json(&journal->gone));
}

fsdp_status fsdp__journal_write(const fsdp__journal *journal, const fsdp__directory *folder,
                                const fsdp__directory *staging)
{
    FSDP_TRY(fsdp__json_save(staging, FSDP__JOURNAL_NAME, journal_json(journal)));
    FSDP_TRY(fsdp__directory_rename(staging, FSDP__JOURNAL_NAME, folder, FSDP__JOURNAL_NAME, FSDP__RENAME_REPLACES));
    return fsdp__directory_sync(folder);
}

fsdp_status fsdp__journal_read(fsdp__journal *journal, const fsdp__directory *folder)
{
    FSDP__FREED char *path = fsdp__path_join(folder->path, FSDP__JOURNAL_NAME);
    json_auto_t *object = NULL;

    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot replace the files of '%s'", folder->path);
    FSDP_TRY(fsdp__json_load(folder, FSDP__JOURNAL_NAME, &object));
    FSDP_TRY(fsdp__file_list_parse(&journal->fresh, path, json_object_get(object, "new")));
    return fsdp__file_list_parse(&journal->gone, path, json_object_get(object, "gone"));
}

void fsdp__journal_release(fsdp__journal *journal)
{
    fsdp__file_list_release(&journal->fresh);
    fsdp__file_list_release(&journal->gone);
}

/* Removes the journal; after this the folder is whole. It does not wait until the removal is on disk: a journal that a
 * power cut brings back finds everything in its place. */
static fsdp_status remove_journal(const fsdp__directory *folder)
{
    if (!fsdp__file_is_refused(FSDP__POINT_WRITE, NULL) &&
        (unlinkat(folder->fd, FSDP__JOURNAL_NAME, 0) == 0 || errno == ENOENT))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_IO, "cannot remove '%s/%s': %s", folder->path, FSDP__JOURNAL_NAME, strerrordesc_np(errno));
}

/* ---- the places ---- */

#define OLD_NAME "old" /* in the staging folder */

/* Names the three folders of a replacement. */
typedef struct places {
    const fsdp__directory *folder;
    fsdp__directory fresh, old; /* a path is NULL where the folder does not exist */
} places;

/* Opens one of these folders. A folder from elsewhere may have a link there: then files would be moved to where it
 * leads, over others. */
static fsdp_status find_place(const fsdp__directory *staging, const char *name, fsdp__directory *out)
{
    struct stat info;

    *out = (fsdp__directory){.path = NULL};
    if (!fsdp__directory_look(staging, name, &info) && errno == ENOENT)
        return FSDP_OK;
    if (!S_ISDIR(info.st_mode))
        return FSDP_FAIL(FSDP_FORMAT, "'%s/%s' is not a folder, so no save has left it", staging->path, name);
    return fsdp__directory_enter(staging, name, out);
}

static fsdp_status find_places(const fsdp__directory *folder, const fsdp__directory *staging, places *out)
{
    *out = (places){.folder = folder};
    FSDP_TRY(find_place(staging, FSDP__CONTENT_NAME, &out->fresh));
    return find_place(staging, OLD_NAME, &out->old);
}

static fsdp_status make_old(const fsdp__directory *staging, places *p)
{
    if (p->old.path)
        return FSDP_OK;
    FSDP_TRY(fsdp__directory_make(staging, OLD_NAME, 0700));
    FSDP_TRY(fsdp__directory_sync(staging));
    return fsdp__directory_enter(staging, OLD_NAME, &p->old);
}

/* Returns whether the name is there. Links count as themselves: they are renamed, not followed. */
static bool is_in(const fsdp__directory *folder, const char *name)
{
    struct stat info;

    return folder->path && fsdp__directory_look(folder, name, &info);
}

/* Returns whether the file is the listed one: somebody may have put another there since. */
static bool is_listed(const fsdp__directory *folder, const fsdp__listed_file *file)
{
    struct stat info;

    return fsdp__directory_look(folder, file->name, &info) && S_ISREG(info.st_mode) &&
           (uint64_t)info.st_size == file->bytes;
}

/* ---- moving ---- */

/* Moves a file. One that is not in `from` has been moved already. What turns out to be a folder was not listed as a
 * file, and is moved back: whoever may write to `from` can give it such a name. */
static fsdp_status move(const char *name, const fsdp__directory *from, const fsdp__directory *to)
{
    struct stat info;
    fsdp_status status;

    if (!is_in(from, name))
        return FSDP_OK;
    status = fsdp__directory_rename(from, name, to, name, FSDP__RENAME_REPLACES);
    if (status != FSDP_OK)
        return status == FSDP_NOT_FOUND ? FSDP_OK : status;
    if (!fsdp__directory_look(to, name, &info) || !S_ISDIR(info.st_mode))
        return FSDP_OK;
    FSDP_TRY(fsdp__directory_rename(to, name, from, name, FSDP__RENAME_NEW));
    return FSDP_FAIL(FSDP_STATE, "'%s/%s' has become a folder, which is not moved", from->path, name);
}

/* Moves out the old files whose new ones are still to come, and those without a new one. The mark of the kind, which is
 * the last of the new files, goes first: so nobody takes the folder for a model meanwhile. */
static fsdp_status move_old_out(const fsdp__journal *journal, const places *p)
{
    for (int64_t i = journal->fresh.count - 1; i >= 0; i--)
        if (is_in(&p->fresh, journal->fresh.files[i].name))
            FSDP_TRY(move(journal->fresh.files[i].name, p->folder, &p->old));
    for (int64_t i = 0; i < journal->gone.count; i++)
        if (is_listed(p->folder, &journal->gone.files[i]))
            FSDP_TRY(move(journal->gone.files[i].name, p->folder, &p->old));
    return FSDP_OK;
}

/* Compares a new file with its entry in the list: its size, and its bytes if it has not been moved yet. */
static fsdp_status compare(const fsdp__listed_file *file, const places *p, const char **out_wrong)
{
    bool waits = is_in(&p->fresh, file->name);
    const fsdp__directory *place = waits ? &p->fresh : p->folder;
    uint64_t digest = file->digest;
    struct stat info;

    *out_wrong = NULL;
    if (!fsdp__directory_look(place, file->name, &info))
        *out_wrong = "is missing";
    else if ((uint64_t)info.st_size != file->bytes)
        *out_wrong = "has another size";
    else if (waits && digest)
        FSDP_TRY(fsdp__file_digest(place, file->name, &digest));
    if (!*out_wrong && digest != file->digest)
        *out_wrong = "has other content";
    return FSDP_OK;
}

/* Checks that all new files are there: somebody may have removed the staging folder by hand, or the journal may be that
 * of another folder. */
static fsdp_status check_whole(const fsdp__journal *journal, const places *p)
{
    for (int64_t i = 0; i < journal->fresh.count; i++) {
        const char *wrong;

        FSDP_TRY(compare(&journal->fresh.files[i], p, &wrong));
        if (wrong)
            return FSDP_FAIL(FSDP_STATE,
                             "'%s' lacks files of the save that was interrupted: '%s' %s; remove the folder, or "
                             "its " FSDP__JOURNAL_NAME " to keep what is left",
                             p->folder->path, journal->fresh.files[i].name, wrong);
    }
    return FSDP_OK;
}

static fsdp_status move_new_in(const fsdp__journal *journal, const places *p)
{
    for (int64_t i = 0; i < journal->fresh.count; i++)
        FSDP_TRY(move(journal->fresh.files[i].name, &p->fresh, p->folder));
    return FSDP_OK;
}

static fsdp_status finish(const fsdp__journal *journal, const fsdp__directory *staging, places *p)
{
    FSDP_TRY(check_whole(journal, p));
    if (p->fresh.path) {
        FSDP_TRY(make_old(staging, p));
        FSDP_TRY(move_old_out(journal, p));
        FSDP_TRY(move_new_in(journal, p));
    }
    FSDP_TRY(check_whole(journal, p));
    /* The new names must be on disk before the old files can go. */
    FSDP_TRY(fsdp__directory_sync(p->folder));
    return remove_journal(p->folder);
}

static fsdp_status undo(const fsdp__journal *journal, const fsdp__directory *staging, places *p)
{
    if (!p->fresh.path)
        return FSDP_FAIL(FSDP_STATE, "'%s' no longer has its '%s'", staging->path, FSDP__CONTENT_NAME);
    for (int64_t i = journal->fresh.count - 1; i >= 0; i--)
        if (!is_in(&p->fresh, journal->fresh.files[i].name))
            FSDP_TRY(move(journal->fresh.files[i].name, p->folder, &p->fresh));
    for (int64_t i = 0; i < journal->gone.count; i++)
        FSDP_TRY(move(journal->gone.files[i].name, &p->old, p->folder));
    for (int64_t i = 0; i < journal->fresh.count; i++)
        FSDP_TRY(move(journal->fresh.files[i].name, &p->old, p->folder));
    FSDP_TRY(fsdp__directory_sync(p->folder));
    return remove_journal(p->folder);
}

/* Moves the files by `way`: finishes, or undoes. */
static fsdp_status move_by(fsdp_status (*way)(const fsdp__journal *, const fsdp__directory *, places *),
                           const fsdp__journal *journal, const fsdp__directory *folder, const fsdp__directory *staging)
{
    places p;
    fsdp_status status = find_places(folder, staging, &p);

    if (status == FSDP_OK)
        status = way(journal, staging, &p);
    fsdp__directory_close(&p.fresh);
    fsdp__directory_close(&p.old);
    return status;
}

fsdp_status fsdp__journal_finish(const fsdp__journal *journal, const fsdp__directory *folder,
                                 const fsdp__directory *staging)
{
    return move_by(finish, journal, folder, staging);
}

fsdp_status fsdp__journal_undo(const fsdp__journal *journal, const fsdp__directory *folder,
                               const fsdp__directory *staging)
{
    return move_by(undo, journal, folder, staging);
}
