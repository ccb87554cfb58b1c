/* journal.c - files of a folder are replaced by new ones, all or none.
 *
 * Where a file lies says how far the replacement has come: a new file that is not in <staging>/new is in its place. So
 * finishing and undoing need no count, and can be repeated. */
#include "format/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/limits.h"
#include "format/json.h"

#define LIMIT_BYTES ((size_t)32 << 20)

enum {
    VERSION = 1
};

static fsdp_status out_of_memory(const char *folder)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot replace the files of '%s'", folder);
}

/* ---- the journal itself ---- */

/* Without a word where the folder itself is missing or closed: who reads it says that better. */
static bool may_exist(const char *folder, int *error)
{
    int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat info;

    *error = 0;
    if (fd < 0 || fstatat(fd, FSDP__JOURNAL_NAME, &info, AT_SYMLINK_NOFOLLOW) != 0)
        *error = errno;
    if (fd >= 0)
        (void)close(fd);
    return *error == 0 || *error == EIO || *error == ENOMEM || *error == EMFILE || *error == ENFILE;
}

static fsdp_status cannot_look_into(const char *folder, int error)
{
    return FSDP_FAIL(FSDP_IO, "cannot look into '%s': %s%s", folder, strerrordesc_np(error), fsdp__limit_behind(error));
}

bool fsdp__journal_exists(const char *folder)
{
    int error;

    return may_exist(folder, &error);
}

fsdp_status fsdp__journal_check(const char *folder)
{
    int error;

    if (!may_exist(folder, &error))
        return FSDP_OK;
    if (error)
        return cannot_look_into(folder, error);
    return FSDP_FAIL(FSDP_STATE,
                     "cannot read '%s': a save into it was interrupted, and it holds parts of two models (see "
                     "its " FSDP__JOURNAL_NAME "): 'fsdp repair %s' finishes the save",
                     folder, folder);
}

static json_t *journal_json(const fsdp__journal *journal)
{
    return json_pack("{s:s, s:i, s:o, s:o}", "about",
                     "a save into this folder was interrupted; 'fsdp repair FOLDER' finishes it", "version", VERSION,
                     "new", fsdp__file_list_json(&journal->fresh), "gone", fsdp__file_list_json(&journal->gone));
}

fsdp_status fsdp__journal_write(const fsdp__journal *journal, const char *folder, const char *staging)
{
    char *made = fsdp__path_join(staging, FSDP__JOURNAL_NAME), *path = fsdp__path_join(folder, FSDP__JOURNAL_NAME);
    fsdp_status status = FSDP_OK;

    if (!made || !path) {
        status = out_of_memory(folder);
        goto out;
    }
    FSDP_TRY_GOTO(status, fsdp__json_save(made, journal_json(journal)), out);
    FSDP_TRY_GOTO(status, fsdp__file_rename(made, path), out);
out:
    fsdp__free(path);
    fsdp__free(made);
    return status;
}

fsdp_status fsdp__journal_read(fsdp__journal *journal, const char *folder)
{
    char *path = fsdp__path_join(folder, FSDP__JOURNAL_NAME);
    fsdp_status status = FSDP_OK;
    json_t *object = NULL;
    int error;

    if (!path)
        return out_of_memory(folder);
    if (may_exist(folder, &error) && error) {
        status = cannot_look_into(folder, error);
        goto out;
    }
    if (!fsdp__path_is_file(path)) {
        status = FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is not a regular file", path);
        goto out;
    }
    FSDP_TRY_GOTO(status, fsdp__json_load(path, LIMIT_BYTES, VERSION, &object), out);
    FSDP_TRY_GOTO(status, fsdp__file_list_parse(&journal->fresh, path, json_object_get(object, "new")), out);
    FSDP_TRY_GOTO(status, fsdp__file_list_parse(&journal->gone, path, json_object_get(object, "gone")), out);
out:
    json_decref(object);
    fsdp__free(path);
    return status;
}

void fsdp__journal_release(fsdp__journal *journal)
{
    fsdp__file_list_release(&journal->fresh);
    fsdp__file_list_release(&journal->gone);
}

/* After this the folder is whole. That the removal is on disk is not waited for: a journal that a power cut brings back
 * finds everything in its place. */
static fsdp_status remove_journal(const char *folder)
{
    char *path = fsdp__path_join(folder, FSDP__JOURNAL_NAME);
    fsdp_status status = FSDP_OK;

    if (!path)
        return out_of_memory(folder);
    if (!fsdp__fault_file(FSDP__FAULT_WRITE, NULL) && (unlink(path) == 0 || errno == ENOENT))
        goto out;
    status = FSDP_FAIL(FSDP_IO, "cannot remove '%s': %s", path, strerrordesc_np(errno));
out:
    fsdp__free(path);
    return status;
}

/* ---- moving ---- */

/* The three places of a replacement. */
typedef struct places {
    const char *folder;
    char *fresh, *old;
} places;

/* A folder from elsewhere may have a link there: files would be moved to where it leads, over others. */
static fsdp_status check_place(const char *path)
{
    struct stat info;

    if (lstat(path, &info) == 0 ? S_ISDIR(info.st_mode) : errno == ENOENT)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT, "'%s' is not a folder, so no save has left it", path);
}

static fsdp_status find_places(const char *folder, const char *staging, places *out)
{
    *out = (places){.folder = folder,
                    .fresh = fsdp__path_join(staging, FSDP__CONTENT_NAME),
                    .old = fsdp__path_join(staging, "old")};
    if (!out->fresh || !out->old)
        return out_of_memory(folder);
    FSDP_TRY(check_place(out->fresh));
    return check_place(out->old);
}

static void release_places(places *p)
{
    fsdp__free(p->fresh);
    fsdp__free(p->old);
}

/* Links count as they are: they are renamed, not followed. */
static fsdp_status is_in(const char *folder, const char *name, bool *out, uint64_t *bytes)
{
    char *path = fsdp__path_join(folder, name);
    struct stat info;

    if (!path)
        return out_of_memory(folder);
    *out = lstat(path, &info) == 0;
    if (*out && bytes)
        *bytes = (uint64_t)info.st_size;
    fsdp__free(path);
    return FSDP_OK;
}

/* A file that is not in `from` has been moved already. */
static fsdp_status move(const char *name, const char *from, const char *to)
{
    char *old_path = fsdp__path_join(from, name), *new_path = fsdp__path_join(to, name);
    fsdp_status status = FSDP_OK;

    if (!old_path || !new_path)
        status = out_of_memory(to);
    else if (fsdp__fault_file(FSDP__FAULT_WRITE, NULL) || (rename(old_path, new_path) != 0 && errno != ENOENT))
        status = FSDP_FAIL(FSDP_IO, "cannot rename '%s' to '%s': %s", old_path, new_path, strerrordesc_np(errno));
    fsdp__free(old_path);
    fsdp__free(new_path);
    return status;
}

/* Old files whose new ones are still to come, and those without one. The mark of the kind, which is the last of the new
 * files, goes first: in between nobody takes the folder for a model. */
static fsdp_status move_old_out(const fsdp__journal *journal, const places *p)
{
    for (int64_t i = journal->fresh.count - 1; i >= 0; i--) {
        const char *name = journal->fresh.files[i].name;
        bool waits = false;

        FSDP_TRY(is_in(p->fresh, name, &waits, NULL));
        if (waits)
            FSDP_TRY(move(name, p->folder, p->old));
    }
    for (int64_t i = 0; i < journal->gone.count; i++)
        FSDP_TRY(move(journal->gone.files[i].name, p->folder, p->old));
    return FSDP_OK;
}

static fsdp_status move_new_in(const fsdp__journal *journal, const places *p)
{
    for (int64_t i = 0; i < journal->fresh.count; i++)
        FSDP_TRY(move(journal->fresh.files[i].name, p->fresh, p->folder));
    return FSDP_OK;
}

/* Somebody may have removed the staging folder by hand. */
static fsdp_status check_whole(const fsdp__journal *journal, const char *folder)
{
    for (int64_t i = 0; i < journal->fresh.count; i++) {
        const fsdp__listed_file *file = &journal->fresh.files[i];
        uint64_t bytes = 0;
        bool there = false;

        FSDP_TRY(is_in(folder, file->name, &there, &bytes));
        if (!there || bytes != file->bytes)
            return FSDP_FAIL(FSDP_STATE,
                             "'%s' has not all files of the save that was interrupted: '%s' %s; remove the folder, or "
                             "its " FSDP__JOURNAL_NAME " to keep what is left",
                             folder, file->name, there ? "has another size" : "is missing");
    }
    return FSDP_OK;
}

static fsdp_status finish(const fsdp__journal *journal, const places *p)
{
    bool there = false;

    FSDP_TRY(is_in(p->fresh, ".", &there, NULL));
    if (there) {
        FSDP_TRY(fsdp__make_directories(p->old));
        FSDP_TRY(move_old_out(journal, p));
        FSDP_TRY(move_new_in(journal, p));
    }
    FSDP_TRY(check_whole(journal, p->folder));
    /* The new names before the old ones can go. */
    FSDP_TRY(fsdp__file_sync_directory(p->folder));
    return remove_journal(p->folder);
}

static fsdp_status undo(const fsdp__journal *journal, const places *p)
{
    for (int64_t i = journal->fresh.count - 1; i >= 0; i--) {
        const char *name = journal->fresh.files[i].name;
        bool waits = false;

        FSDP_TRY(is_in(p->fresh, name, &waits, NULL));
        if (!waits)
            FSDP_TRY(move(name, p->folder, p->fresh));
    }
    for (int64_t i = 0; i < journal->gone.count; i++)
        FSDP_TRY(move(journal->gone.files[i].name, p->old, p->folder));
    for (int64_t i = 0; i < journal->fresh.count; i++)
        FSDP_TRY(move(journal->fresh.files[i].name, p->old, p->folder));
    FSDP_TRY(fsdp__file_sync_directory(p->folder));
    return remove_journal(p->folder);
}

/* Finishes, or undoes. */
static fsdp_status move_by(fsdp_status (*way)(const fsdp__journal *, const places *), const fsdp__journal *journal,
                           const char *folder, const char *staging)
{
    places p;
    fsdp_status status = find_places(folder, staging, &p);

    if (status == FSDP_OK)
        status = way(journal, &p);
    release_places(&p);
    return status;
}

fsdp_status fsdp__journal_finish(const fsdp__journal *journal, const char *folder, const char *staging)
{
    return move_by(finish, journal, folder, staging);
}

fsdp_status fsdp__journal_undo(const fsdp__journal *journal, const char *folder, const char *staging)
{
    return move_by(undo, journal, folder, staging);
}
