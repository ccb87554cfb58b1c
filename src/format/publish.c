/* publish.c - a folder takes the place of another when all of it is on disk. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/file.h"
#include "format/publish.h"

/* Whether this write must fail; it then fails like a full disk. */
static bool write_fault(void)
{
    if (!fsdp__fault(FSDP__FAULT_WRITE))
        return false;
    errno = ENOSPC;
    return true;
}

static fsdp_status is_empty(const char *folder, bool *out)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;

    if (!directory)
        return FSDP_FAIL(FSDP_IO, "cannot open '%s': %s", folder, strerrordesc_np(errno));
    *out = true;
    while ((entry = readdir(directory)))
        *out &= strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(directory);
    return FSDP_OK;
}

char *fsdp__publish_name(const char *folder)
{
    size_t length = strlen(folder);

    while (length > 1 && folder[length - 1] == '/')
        length--;
    return fsdp__sprintf("%.*s", (int)length, folder);
}

/* Of a name without a slash at its end; fsdp__free it, NULL when out of memory. */
static char *parent_name(const char *folder)
{
    const char *slash = strrchr(folder, '/');

    return slash ? fsdp__sprintf("%.*s", (int)(slash == folder ? 1 : slash - folder), folder) : fsdp__strdup(".");
}

/* What stands under the name, if anything, may be replaced. */
static fsdp_status check_replaced(const char *folder, const fsdp__folder_kind *kind)
{
    struct stat info;
    bool empty = false, marked;
    char *mark;

    if (stat(folder, &info) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) /* nothing there; what is wrong above it is found with the parent */
            return FSDP_OK;
        return FSDP_FAIL(FSDP_IO, "cannot write the %s to '%s': %s", kind->noun, folder, strerrordesc_np(errno));
    }
    if (!S_ISDIR(info.st_mode))
        return FSDP_FAIL(FSDP_INVALID, "cannot write the %s to '%s': it exists and is not a folder", kind->noun,
                         folder);
    FSDP_TRY(is_empty(folder, &empty));
    mark = fsdp__path_join(folder, kind->mark);
    if (!mark)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the %s to '%s'", kind->noun, folder);
    marked = fsdp__path_exists(mark);
    fsdp__free(mark);
    if (!empty && !marked)
        return FSDP_FAIL(
            FSDP_INVALID,
            "cannot write the %s to '%s': it holds files but no %s, so it is not a %s folder: name another", kind->noun,
            folder, kind->mark, kind->noun);
    return FSDP_OK;
}

/* The folder it will stand in: is there afterwards, and can be written to. */
static fsdp_status check_parent(const char *folder, const fsdp__folder_kind *kind)
{
    char *parent = parent_name(folder);
    fsdp_status status = parent ? fsdp__make_directories(parent) : FSDP_NO_MEMORY;

    if (status != FSDP_OK)
        fsdp_fail_prefix(status, "cannot write the %s to '%s'", kind->noun, folder);
    else if (access(parent, W_OK) != 0)
        status = FSDP_FAIL(FSDP_IO, "cannot write the %s to '%s': %s", kind->noun, folder, strerrordesc_np(errno));
    fsdp__free(parent);
    return status;
}

fsdp_status fsdp__publish_check(const char *folder, const fsdp__folder_kind *kind)
{
    char *name = fsdp__publish_name(folder);
    fsdp_status status;

    if (!name)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the %s to '%s'", kind->noun, folder);
    status = check_replaced(name, kind);
    if (status == FSDP_OK)
        status = check_parent(name, kind);
    fsdp__free(name);
    return status;
}

fsdp_status fsdp__publish_begin(const char *folder, const fsdp__folder_kind *kind, char **out)
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        char *name = fsdp__sprintf("%s.saving-%ld-%d", folder, (long)getpid(), attempt);

        if (!name)
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the %s to '%s'", kind->noun, folder);
        if (!write_fault() && mkdir(name, 0777) == 0) {
            *out = name;
            return FSDP_OK;
        }
        fsdp__free(name);
        if (errno != EEXIST)
            break;
    }
    return FSDP_FAIL(FSDP_IO, "cannot make a folder beside '%s': %s", folder, strerrordesc_np(errno));
}

static fsdp_status move(const char *from, const char *to)
{
    if (write_fault() || rename(from, to) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot rename '%s' to '%s': %s", from, to, strerrordesc_np(errno));
    return FSDP_OK;
}

/* For file systems that cannot exchange two names: three renames, undone when one fails. Between the first two nothing
 * has the name. */
static fsdp_status swap_by_renames(const char *temporary, const char *folder)
{
    char *aside = fsdp__sprintf("%s.old", temporary);
    fsdp_status status = FSDP_OK;

    if (!aside)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot replace '%s'", folder);
    FSDP_TRY_GOTO(status, move(folder, aside), out);
    status = move(temporary, folder);
    if (status == FSDP_OK)
        status = move(aside, temporary);
    else
        FSDP_KEEP_FIRST(status, move(aside, folder));
out:
    fsdp__free(aside);
    return status;
}

/* Exchanges what two names stand for. */
static fsdp_status swap(const char *temporary, const char *folder)
{
    if (write_fault())
        return FSDP_FAIL(FSDP_IO, "cannot replace '%s': %s", folder, strerrordesc_np(errno));
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, folder, RENAME_EXCHANGE) == 0)
        return FSDP_OK;
    return swap_by_renames(temporary, folder);
}

static fsdp_status sync_parent(const char *folder)
{
    char *parent = parent_name(folder);
    fsdp_status status = parent ? fsdp__file_sync_directory(parent)
                                : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot sync the directory of '%s'", folder);

    fsdp__free(parent);
    return status;
}

static fsdp_status exchange(const char *temporary, const char *folder, bool replaces)
{
    return replaces ? swap(temporary, folder) : move(temporary, folder);
}

fsdp_status fsdp__publish(const char *temporary, const char *folder, bool *out_replaced)
{
    bool replaces = fsdp__path_exists(folder) != 0;
    fsdp_status status;

    /* The names in it before the exchange, the name of it after: a crash finds a full folder under either name. */
    FSDP_TRY(fsdp__file_sync_directory(temporary));
    FSDP_TRY(exchange(temporary, folder, replaces));
    status = sync_parent(folder);
    if (status != FSDP_OK)
        FSDP_KEEP_FIRST(status, fsdp__publish_undo(temporary, folder, replaces));
    *out_replaced = replaces;
    return status;
}

fsdp_status fsdp__publish_undo(const char *temporary, const char *folder, bool replaced)
{
    return replaced ? swap(temporary, folder) : move(folder, temporary);
}

/* A left-over is not worth an error once the new folder is in place. */
void fsdp__publish_finish(fsdp_context *context, const char *temporary)
{
    bool held = fsdp_hold_error(true);

    if (fsdp__remove_tree(temporary) != FSDP_OK)
        fsdp_log(context, FSDP_LOG_WARNING, "cannot remove '%s', the folder that was replaced", temporary);
    fsdp_release_error(held);
}
