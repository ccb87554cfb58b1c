/* directory.h - a directory that is held open: what is made, renamed and removed in it stays in it, whatever becomes of
 * its name meanwhile.
 *
 * Where others may write, a name that was looked at a moment ago may stand for anything by now: a link to a folder of
 * the user's, a file of hers with a second name, a FIFO. So a path is walked once, component by component; all that
 * follows goes by descriptor and one plain name, no link is followed, nothing waits, and what is there already is
 * taken for ours only where it is. `name` is always such a plain name: of something directly in the directory. */
#ifndef BASE_DIRECTORY_H
#define BASE_DIRECTORY_H

#include <dirent.h>
#include <stdbool.h>
#include <sys/types.h>

#include "fsdp/status.h"

struct stat;

typedef struct fsdp__directory {
    int fd;
    char *path; /* for messages and for other processes; NULL: none is held, and `fd` says nothing */
} fsdp__directory;

/* ---- by path ---- */

/* A symbolic link on the way is followed where only this user or root can have put it there: the link is theirs, or it
 * lies in a folder of theirs that nobody else may write to. Else it is refused by name: one of another user's in his
 * own folder, too. FSDP_NOT_FOUND when there is none. */
fsdp_status fsdp__directory_open(const char *path, fsdp__directory *out);
/* The same, and its path is absolute and without links then: as those of all that follow. */
fsdp_status fsdp__directory_resolve(const char *path, fsdp__directory *out);
/* Like mkdir -p: what is missing is made, and its name is on the disk then; on failure it is removed again. `*out_made`
 * (may be NULL): how many of the last ones of its path were made. */
fsdp_status fsdp__directory_make_path(const char *path, fsdp__directory *out, int *out_made);
/* Removes the last `made` ones of its path again, as far as they hold nothing. */
void fsdp__directory_unmake(const fsdp__directory *directory, int made);
/* The directory in which a file lies, or is to; `*out_name` is its name there, fsdp__free it. */
fsdp_status fsdp__directory_of(const char *path, fsdp__directory *out, char **out_name);
/* The same of where it leads, if it is a link that may be followed. One of /proc, as /dev/stdout is, stays a name. */
fsdp_status fsdp__directory_of_target(const char *path, fsdp__directory *out, char **out_name);
fsdp_status fsdp__directory_share(const fsdp__directory *directory, fsdp__directory *out); /* a second descriptor */
/* One in it; a link is refused. */
fsdp_status fsdp__directory_enter(const fsdp__directory *in, const char *name, fsdp__directory *out);
void fsdp__directory_close(fsdp__directory *directory); /* one that is not held, too */

/* ---- whose ---- */

/* Whether something in it belongs to this user: as files do that he makes there, which some network file systems give
 * to others. */
bool fsdp__directory_owns(const fsdp__directory *in, const struct stat *of);
/* Whether others than this user and root may change what names it has: its owner, too, whatever its mode is. */
bool fsdp__directory_is_shared(const fsdp__directory *directory);
/* Whether what was found in it may be written to: in a directory that is shared it must belong to this user or to root,
 * and a file has no second name. */
bool fsdp__directory_admits(const fsdp__directory *in, const struct stat *of);
/* Whether a file that was found in it can be believed to be this user's or root's: it belongs to one of them, and in a
 * directory whose names others may change has no second name, for anyone may give it one there. */
bool fsdp__directory_trusts(const fsdp__directory *in, const struct stat *file);
/* What the name stands for, itself; false with errno. */
bool fsdp__directory_look(const fsdp__directory *in, const char *name, struct stat *out);
/* All its names; closedir it. */
fsdp_status fsdp__directory_list(const fsdp__directory *in, DIR **out);
/* The next name of a list; NULL at its end, or with `*status` where it cannot be read. `path` is for the message. */
struct dirent *fsdp__directory_next(DIR *directory, const char *path, fsdp_status *status);
/* Whether the name still stands for a directory that is held. */
bool fsdp__directory_has(const fsdp__directory *in, const char *name, const fsdp__directory *held);

/* ---- files in it ---- */

/* A regular file, to be read: links are not followed, and nothing else is opened. `out_info` may be NULL. */
fsdp_status fsdp__directory_open_file(const fsdp__directory *in, const char *name, int *out_fd, struct stat *out_info);
/* The whole of one, as fsdp__file_read. */
fsdp_status fsdp__directory_read(const fsdp__directory *in, const char *name, size_t limit_bytes, char **out,
                                 size_t *out_bytes);
/* Opens a file for writing that is not there yet. */
fsdp_status fsdp__directory_create(const fsdp__directory *in, const char *name, mode_t mode, int *out_fd);
/* A new file, whole and synced: for a folder that nobody looks at yet. */
fsdp_status fsdp__directory_write_new(const fsdp__directory *in, const char *name, const void *data, size_t bytes);
/* Writes `bytes` to a temporary file, fsyncs, renames, fsyncs the directory: `name` stands for what it stood for or for
 * all of `data`. */
fsdp_status fsdp__directory_write_atomic(const fsdp__directory *in, const char *name, const void *data, size_t bytes);
/* A file without a name in it, to be read and written, which is gone when it is closed. */
fsdp_status fsdp__directory_make_nameless(const fsdp__directory *in, int *out_fd);

typedef enum fsdp__rename_mode {
    FSDP__RENAME_REPLACES,
    FSDP__RENAME_NEW /* what has the new name is an error, but on a file system without such renames an empty folder */
} fsdp__rename_mode;

/* Links are renamed themselves. Whether it is on the disk is not waited for. */
fsdp_status fsdp__directory_rename(const fsdp__directory *from, const char *name, const fsdp__directory *to,
                                   const char *new_name, fsdp__rename_mode mode);
fsdp_status fsdp__directory_unlink(const fsdp__directory *in, const char *name); /* a missing one is fine */
fsdp_status fsdp__directory_sync(const fsdp__directory *directory);              /* its names */
fsdp_status fsdp__directory_sync_removals(const fsdp__directory *directory); /* the same, for a clean-up (fault.h) */

/* ---- directories in it ---- */

fsdp_status fsdp__directory_make(const fsdp__directory *in, const char *name, mode_t mode);
/* Removes one that is held and that this name stands for. Whether it is gone then: it stays where it holds anything. */
bool fsdp__directory_remove_empty(const fsdp__directory *in, const char *name, const fsdp__directory *held);
/* Removes all that is in it but `kept` (may be NULL): files, and directories as deep as `levels` says; what lies deeper
 * is an error. Links are removed, not followed. */
fsdp_status fsdp__directory_clear(const fsdp__directory *directory, const char *kept, int levels);

#endif
