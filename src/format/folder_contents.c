/* folder_contents.c - what may be replaced in a folder, and what belongs to somebody else. */
#include "format/folder_contents.h"

#include <string.h>
#include <sys/stat.h>

#include "base/compiler.h"
#include "format/file_digest.h"
#include "format/journal.h"

/* ---- how to go on ---- */

static fsdp_status refuse(const fsdp__content_rules *rules, const char *name, const char *why)
{
    if (rules->hint)
        return FSDP_FAIL(FSDP_INVALID,
                         "it holds '%s', %s: name another folder, or set %s to replace files of the new names and "
                         "leave all others",
                         name, why, rules->hint);
    return FSDP_FAIL(FSDP_INVALID, "it holds '%s', %s: name another folder", name, why);
}

/* ---- one file ---- */

enum presence {
    ABSENT,
    UNCHANGED, /* a regular file of this size and digest */
    CHANGED
};

/* Looks at a file. `listed` is what an export wrote there; NULL: nothing, so a file that is there counts as changed. */
static fsdp_status look(const fsdp__directory *folder, const char *name, const fsdp__listed_file *listed,
                        enum presence *out, bool *is_directory)
{
    uint64_t digest = 0;
    struct stat info;

    *out = ABSENT;
    *is_directory = false;
    if (!fsdp__directory_look(folder, name, &info))
        return FSDP_OK;
    *out = listed && S_ISREG(info.st_mode) && (uint64_t)info.st_size == listed->bytes ? UNCHANGED : CHANGED;
    *is_directory = S_ISDIR(info.st_mode);
    if (*out == UNCHANGED && listed->digest) {
        FSDP_TRY(fsdp__file_digest(folder, name, &digest));
        *out = digest == listed->digest ? UNCHANGED : CHANGED;
    }
    return FSDP_OK;
}

/* ---- the whole folder ---- */

/* Returns whether the name does not count: it was made by this library, or when the file system was made. */
static bool is_nothing(const char *name)
{
    static const char *const names[] = {".", "..", FSDP__STAGING_NAME, "lost+found"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Gets the alphabetically first name that makes the folder not empty; "" when it is empty. */
static fsdp_status first_name(const fsdp__directory *folder, char *out, size_t out_bytes)
{
    fsdp_status status = FSDP_OK;
    struct dirent *entry;
    DIR *directory;

    *out = '\0';
    FSDP_TRY(fsdp__directory_list(folder, &directory));
    while ((entry = fsdp__directory_next(directory, folder->path, &status))) {
        size_t length = strlen(entry->d_name);

        if (!is_nothing(entry->d_name) && length < out_bytes && (!*out || strcmp(entry->d_name, out) < 0))
            memcpy(out, entry->d_name, length + 1);
    }
    closedir(directory);
    return status;
}

static fsdp_status check_listed(const fsdp__content_rules *rules, const fsdp__file_list *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        enum presence presence = ABSENT;
        bool is_directory = false;

        FSDP_TRY(look(rules->folder, list->files[i].name, &list->files[i], &presence, &is_directory));
        if (presence == CHANGED)
            return refuse(rules, list->files[i].name, "which was changed after the export that wrote it");
    }
    return FSDP_OK;
}

fsdp_status fsdp__contents_check(const fsdp__content_rules *rules)
{
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list list = {0};
    bool found = false;
    char name[300];

    if (rules->overwrite)
        return FSDP_OK;
    FSDP_TRY(fsdp__file_list_load(&list, rules->folder, &found));
    if (found)
        return check_listed(rules, &list);
    FSDP_TRY(first_name(rules->folder, name, sizeof name));
    return *name ? refuse(rules, name, "which no export wrote") : FSDP_OK;
}

/* ---- what comes and what goes ---- */

static fsdp_status check_name(const fsdp__content_rules *rules, const fsdp__file_list *list, const char *name)
{
    const fsdp__listed_file *listed = fsdp__file_list_find(list, name);
    enum presence presence = ABSENT;
    bool is_directory = false;

    FSDP_TRY(look(rules->folder, name, listed, &presence, &is_directory));
    if (is_directory)
        return FSDP_FAIL(FSDP_INVALID, "it holds a folder '%s', where a file is to be: name another", name);
    if (presence != ABSENT && !listed && !rules->overwrite && strcmp(name, FSDP__LIST_NAME) != 0)
        return refuse(rules, name, "which no export wrote");
    return FSDP_OK;
}

/* Loads the list. One that cannot be read counts as none where overwriting is asked for. */
static fsdp_status load_list(const fsdp__content_rules *rules, fsdp__file_list *list)
{
    bool found = false, held = fsdp_hold_error(rules->overwrite);
    fsdp_status status = fsdp__file_list_load(list, rules->folder, &found);

    fsdp_release_error(held);
    if (status != FSDP_OK && rules->overwrite) {
        fsdp__file_list_release(list);
        return FSDP_OK;
    }
    return status;
}

/* Checks for files that would be read in place of the new files, or together with them. */
static fsdp_status check_alone(const fsdp__content_rules *rules, const fsdp__file_list *list,
                               const fsdp__file_list *fresh)
{
    for (const char *const *name = rules->alone; name && *name; name++) {
        const fsdp__listed_file *listed = fsdp__file_list_find(list, *name);
        enum presence presence = ABSENT;
        bool is_directory = false;

        if (fsdp__file_list_find(fresh, *name))
            continue;
        FSDP_TRY(look(rules->folder, *name, listed, &presence, &is_directory));
        if (presence != ABSENT && !(listed && presence == UNCHANGED))
            return FSDP_FAIL(FSDP_INVALID,
                             "it holds '%s', which would stay beside the new files and belongs to another model: "
                             "remove it, or name another folder",
                             *name);
    }
    return FSDP_OK;
}

fsdp_status fsdp__contents_check_new(const fsdp__content_rules *rules, const fsdp__file_list *fresh)
{
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list list = {0};

    FSDP_TRY(load_list(rules, &list));
    if (!rules->overwrite)
        FSDP_TRY(check_listed(rules, &list));
    for (int64_t i = 0; i < fresh->count; i++)
        FSDP_TRY(check_name(rules, &list, fresh->files[i].name));
    FSDP_TRY(check_name(rules, &list, FSDP__LIST_NAME));
    return check_alone(rules, &list, fresh);
}

fsdp_status fsdp__contents_gone(const fsdp__content_rules *rules, const fsdp__file_list *fresh, fsdp__file_list *gone)
{
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list list = {0};

    FSDP_TRY(load_list(rules, &list));
    for (int64_t i = 0; i < list.count; i++) {
        enum presence presence = ABSENT;
        bool is_directory = false;

        if (fsdp__file_list_find(fresh, list.files[i].name))
            continue;
        FSDP_TRY(look(rules->folder, list.files[i].name, &list.files[i], &presence, &is_directory));
        if (presence == UNCHANGED)
            FSDP_TRY(fsdp__file_list_add(gone, list.files[i].name, list.files[i].bytes));
    }
    return FSDP_OK;
}
