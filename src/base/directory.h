/* directory.h - a directory that is held open. Whatever becomes of its path meanwhile, files are made, renamed and
 * removed in that directory and nowhere else.
 *
 * Where others may write, a name that was checked a moment ago may stand for anything by now: a link to one of the
 * user's folders, a second name of one of her files, a FIFO. So a path is walked once, component by component.
 * Everything after that goes by the descriptor and one plain name: no link is followed, no open waits, and a file that
 * is there already is used only if it is the user's own. A `name` is always the name of an entry of the directory,
 * never a path. */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <sys/types.h>

#include "fsdp/status.h"

struct stat;

typedef struct fsdp__directory {
    int fd;
    char *path; /* for messages and for other processes; NULL: no directory is held, and `fd` has no meaning */
} fsdp__directory;

/* ---- by path ---- */

/* Opens the directory at `path`. A symbolic link on the way is followed only if no one but this user or root can have
 * put it there: the link belongs to one of them, or lies in a folder of theirs that nobody else may write to. Any other
 * link is refused by name, even one in the folder of the user that it belongs to. Returns FSDP_NOT_FOUND when nothing
 * is there. */
fsdp_status fsdp__directory_open(const char *path, fsdp__directory *out);
/* Opens it likewise; `out->path` is absolute and free of links, as it is from the functions below. */
fsdp_status fsdp__directory_resolve(const char *path, fsdp__directory *out);
/* Opens it and first makes the directories that are missing, like mkdir -p. Their names are on the disk when it
 * returns; if it fails they are gone again. `*out_made` (may be NULL) is how many were made: the last of the path. */
fsdp_status fsdp__directory_make_path(const char *path, fsdp__directory *out, int *out_made);
/* Removes the last `made` directories of its path again, up to the first that is not empty. */
void fsdp__directory_unmake(const fsdp__directory *directory, int made);
/* Opens the directory in which a file lies or is to be made; `*out_name` is its name there, fsdp__free it. */
fsdp_status fsdp__directory_of(const char *path, fsdp__directory *out, char **out_name);
/* Opens the directory of the file that `path` leads to, if it is a link that may be followed. A link of /proc, such as
 * /dev/stdout leads to, is left as a name. */
fsdp_status fsdp__directory_of_target(const char *path, fsdp__directory *out, char **out_name);
fsdp_status fsdp__directory_share(const fsdp__directory *directory, fsdp__directory *out); /* by a second descriptor */
/* Opens a directory in it; a link is refused. */
fsdp_status fsdp__directory_enter(const fsdp__directory *in, const char *name, fsdp__directory *out);
void fsdp__directory_close(fsdp__directory *directory); /* does nothing when none is held */

/* ---- whose ---- */

/* Returns whether an entry belongs to this user, or to whom the files belong that she makes there: some network file
 * systems give them to another user. */
bool fsdp__directory_owns(const fsdp__directory *in, const struct stat *of);
/* Returns whether anyone but this user and root may add or remove names in it. Its owner always may, whatever its
 * mode. */
bool fsdp__directory_is_shared(const fsdp__directory *directory);
/* Returns whether an entry may be written to: in a shared directory it must belong to this user or root, and a regular
 * file must have no second name. */
bool fsdp__directory_admits(const fsdp__directory *in, const struct stat *of);
/* Returns whether the content of a file can be believed to be this user's or root's: it belongs to one of them, and in
 * a shared directory, where anyone may have linked it, it has no second name. */
bool fsdp__directory_trusts(const fsdp__directory *in, const struct stat *file);
/* Examines an entry, and a link as a link; false with errno. */
bool fsdp__directory_look(const fsdp__directory *in, const char *name, struct stat *out);
/* Lists its names; closedir it. */
fsdp_status fsdp__directory_list(const fsdp__directory *in, DIR **out);
/* Returns the next name of a list; NULL at its end and, with `*status` set, on failure. `path` is for the message. */
struct dirent *fsdp__directory_next(DIR *directory, const char *path, fsdp_status *status);
/* Returns whether the name still stands for the directory `held`. */
bool fsdp__directory_has(const fsdp__directory *in, const char *name, const fsdp__directory *held);

/* ---- files in it ---- */

/* Opens a regular file for reading; links and everything else are refused. `out_info` may be NULL. */
fsdp_status fsdp__directory_open_file(const fsdp__directory *in, const char *name, int *out_fd, struct stat *out_info);
/* Reads a whole regular file, as fsdp__file_read does. */
fsdp_status fsdp__directory_read(const fsdp__directory *in, const char *name, size_t limit_bytes, char **out,
                                 size_t *out_bytes);
/* Opens a file for writing that is not there yet. */
fsdp_status fsdp__directory_create(const fsdp__directory *in, const char *name, int *out_fd);
/* Does the same for a name that the file has only until it is whole. Whoever has renamed or removed it gives the note
 * to fsdp__temporary_gone (base/temporary.h). */
fsdp_status fsdp__directory_create_temporary(const fsdp__directory *in, const char *name, int *out_fd, int *out_note);
/* Writes a new file and syncs it. A reader may see a part of it, so it is for folders that nobody reads yet. */
fsdp_status fsdp__directory_write_new(const fsdp__directory *in, const char *name, const void *data, size_t bytes);
/* Writes to a temporary file, fsyncs it, renames it to `name`, and fsyncs the directory. At every moment `name` stands
 * for what it stood for before or for all of `data`. */
fsdp_status fsdp__directory_write_atomic(const fsdp__directory *in, const char *name, const void *data, size_t bytes);
/* Does the same without waiting for the disk: readers never see a part, but after a loss of power the file may be empty
 * or gone. */
fsdp_status fsdp__directory_replace(const fsdp__directory *in, const char *name, const void *data, size_t bytes);
/* Says what has been written and does not have its name yet. */
typedef struct fsdp__prepared {
    const fsdp__directory *in; /* borrowed, as is the name */
    const char *name;
    char *temporary; /* the name that it has; NULL: there is no file */
    int note;        /* of that name (base/temporary.h) */
} fsdp__prepared;

/* Writes all of the data beside `name`, and with `sync` to the disk, for whoever publishes several files together. */
fsdp_status fsdp__directory_prepare(const fsdp__directory *in, const char *name, const void *data, size_t bytes,
                                    bool sync, fsdp__prepared *out);
fsdp_status fsdp__prepared_publish(fsdp__prepared *file); /* gives it its name; does not wait for the disk */
void fsdp__prepared_release(fsdp__prepared *file);        /* removes it, unless it was published */
/* Makes a file without a name, for reading and writing, that is gone when it is closed. */
fsdp_status fsdp__directory_make_nameless(const fsdp__directory *in, int *out_fd);

typedef enum fsdp__rename_mode {
    FSDP__RENAME_REPLACES,
    FSDP__RENAME_NEW /* fails if the new name is taken; where the file system cannot, an empty folder is replaced */
} fsdp__rename_mode;

/* Renames an entry, and a link as a link. Does not wait for the disk. */
fsdp_status fsdp__directory_rename(const fsdp__directory *from, const char *name, const fsdp__directory *to,
                                   const char *new_name, fsdp__rename_mode mode);
fsdp_status fsdp__directory_unlink(const fsdp__directory *in, const char *name); /* a missing name is no error */
fsdp_status fsdp__directory_sync(const fsdp__directory *directory);              /* fsync: its names */
fsdp_status
fsdp__directory_sync_removals(const fsdp__directory *directory); /* the same, for a clean-up (FSDP__POINT_FOLDER) */

/* ---- directories in it ---- */

fsdp_status fsdp__directory_make(const fsdp__directory *in, const char *name, mode_t mode);
/* Removes the directory `held` if the name stands for it and it is empty; returns whether it is gone. */
bool fsdp__directory_remove_empty(const fsdp__directory *in, const char *name, const fsdp__directory *held);
/* Removes everything in it except `kept` (may be NULL): files, and directories down to `levels` levels. Anything deeper
 * is an error. Links are removed, not followed. */
fsdp_status fsdp__directory_clear(const fsdp__directory *directory, const char *kept, int levels);
