/* publish.h - gives a folder new content when all of it is on disk: readers see the old content or the new one, and
 * always a whole one.
 *
 * A publication holds its folder from its beginning, which may be hours before the content is there. Problems with
 * path, permissions or space are found early, by making the folder in which the content will be prepared (staging), and
 * a second process is told who holds it.
 *
 *     the folder does not exist    staging is beside it, <name>.saving; one rename gives it the name
 *     the folder exists            it stays what it is (a mount point, a work tree of git); staging is inside it,
 *                                  .saving, and its files are replaced under a journal (journal.h)
 *
 * What lies where others may write is accessed through descriptors (base/directory.h): the staging folder is this
 * user's alone, and lists and journals that another user may have put there are refused.
 *
 * A publication leaves a list of its files (file_list.h). A folder whose list still matches is replaced: listed files
 * are removed, others stay. Any other folder that is not empty is refused, or, if overwriting is asked for, loses the
 * files that have names of new ones and nothing else. */
#pragma once

#include "base/directory.h"
#include "format/file_list.h"
#include "fsdp/context.h"

/* Describes the folders of a kind: messages call it `noun`, and each folder has a file `mark`. A folder must not
 * hold other files of the names in `alone` (which ends with NULL) than those that were published with it: readers would
 * choose wrongly. */
typedef struct fsdp__folder_kind {
    const char *noun, *mark;
    const char *const *alone;
} fsdp__folder_kind;

typedef struct fsdp__publish_options {
    const char *folder;
    const fsdp__folder_kind *kind;
    /* the folder must lie in this directory, which the caller holds; NULL: anywhere its path leads */
    const fsdp__directory *parent;
    const char *source;         /* a folder that must never be written to; NULL: none */
    const char *overwrite_hint; /* for messages: how to ask for overwriting; NULL: it cannot be asked for */
    bool overwrite;
    /* The folder must not exist, now and when the content takes its place; it gets no list of its files, since the
     * content itself says what it is. */
    bool only_new;
} fsdp__publish_options;

typedef struct fsdp__publication fsdp__publication;

/* Creates a publication that holds nothing yet. NULL when out of memory. */
fsdp__publication *fsdp__publication_create(fsdp_context *context);
/* Finds and holds the folder: checks all that does not depend on the content, finishes a replacement that was
 * interrupted, and removes what a dead process left. Fails if the publication was given up; it may begin again once it
 * has ended. `options` is copied, the strings are borrowed until the end. */
fsdp_status fsdp__publication_begin(fsdp__publication *p, const fsdp__publish_options *options);
/* Opens the folder in which the content is prepared, empty at first: files, each synced by its writer. The caller
 * closes it; other processes open it by its path (fsdp__staging_join). */
fsdp_status fsdp__publication_content(fsdp__publication *p, fsdp__directory *out);
/* Opens the directory in which the folder has its name, or gets it. The caller closes it. */
fsdp_status fsdp__publication_parent(fsdp__publication *p, fsdp__directory *out);
/* Makes a folder for files beside the content, which is removed with the publication; it is never made after the
 * publication has ended. The caller closes it. */
fsdp_status fsdp__publication_scratch(fsdp__publication *p, const char *name, fsdp__directory *out);
/* Checks whether content of these names and sizes can take its place: space, limits, files of others in the way. */
fsdp_status fsdp__publication_check(fsdp__publication *p, const fsdp__file_list *files);
/* Puts the content in its place, and ends. On failure everything is as it was, or the message says how to finish it. */
fsdp_status fsdp__publication_commit(fsdp__publication *p);
/* Returns FSDP_INTERRUPTED when the publication was given up from elsewhere: this is then the reason of any other
 * failure. */
fsdp_status fsdp__publication_held(fsdp__publication *p);
/* Removes what was made, unless it was committed. Does nothing before the beginning and after the end, or
 * for NULL. */
void fsdp__publication_end(fsdp__publication *p);
/* Gives the publication up: ends it, after a commit under way, and it never begins again. May be called from any
 * thread. [thread-safe] */
void fsdp__publication_abandon(fsdp__publication *p);
/* Ends the publication first. NULL is allowed. */
void fsdp__publication_free(fsdp__publication *p);

/* Finishes a replacement that was interrupted; *out_finished says whether there was one. */
fsdp_status fsdp__publish_repair(const char *folder, bool *out_finished);
