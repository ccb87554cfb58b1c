/* publish.h - a folder gets new content when all of it is on disk: whoever looks sees the old one or the new one,
 * whole.
 *
 * A publication holds its folder from its beginning, which may be hours before the content is there: what can be wrong
 * with path, permissions or space is found by making the folder in which the content will be made ready (staging), and
 * a second process is told who is there.
 *
 *     a folder that is not there     staging is beside it, <name>.saving; one rename gives it the name
 *     a folder that is there         stays what it is (a mount point, a work tree of git); staging is inside it,
 *                                    .saving, and its files are replaced under a journal (journal.h)
 *
 * What lies where others may write is done by descriptors (base/directory.h): the staging folder is this user's alone,
 * and lists and journals that another user may have put there are refused.
 *
 * A publication leaves a list of its files (file_list.h). A folder whose list still fits is replaced: listed files go,
 * others stay. Anything else that is not empty is refused, or, where overwriting is asked for, loses files of the names
 * of new ones and nothing else. */
#ifndef FORMAT_PUBLISH_H
#define FORMAT_PUBLISH_H

#include "base/directory.h"
#include "format/file_list.h"
#include "fsdp/context.h"

/* What the folders of a kind hold: messages call it `noun`, each has a file `mark`, and of its files `alone` (NULL:
 * end) a folder must hold no others than those that were published with it: readers would choose wrongly. */
typedef struct fsdp__folder_kind {
    const char *noun, *mark;
    const char *const *alone;
} fsdp__folder_kind;

typedef struct fsdp__publish_options {
    const char *folder;
    const fsdp__folder_kind *kind;
    const fsdp__directory *parent; /* in which it must lie, held by the caller; NULL: wherever its path leads */
    const char *source;            /* a folder that is never written to; NULL: none */
    const char *overwrite_hint;    /* how to ask for overwriting, for messages; NULL: there is no way */
    bool overwrite;
    /* The folder must not be there, now and when the content takes its place; it gets no list of its files, since the
     * content says itself what it is. */
    bool only_new;
} fsdp__publish_options;

typedef struct fsdp__publication fsdp__publication;

/* Holds nothing yet. NULL when out of memory. */
fsdp__publication *fsdp__publication_create(fsdp_context *context);
/* Finds and holds the folder: all that does not depend on the content is checked, a replacement that was interrupted is
 * finished, and what a dead process left is removed. `options` is copied, the strings are borrowed until the end. */
fsdp_status fsdp__publication_begin(fsdp__publication *p, const fsdp__publish_options *options);
/* The folder in which the content is made ready, empty at first: files, each synced by whoever wrote it. The caller
 * closes it; other processes open it by its path (fsdp__staging_join). */
fsdp_status fsdp__publication_content(fsdp__publication *p, fsdp__directory *out);
/* The directory in which the folder has its name, or gets it. The caller closes it. */
fsdp_status fsdp__publication_parent(fsdp__publication *p, fsdp__directory *out);
/* A folder beside it, for files, which goes with the publication: never made behind its end. The caller closes it. */
fsdp_status fsdp__publication_scratch(fsdp__publication *p, const char *name, fsdp__directory *out);
/* Whether content of these names and sizes will find its place: space, limits, files of others in the way. */
fsdp_status fsdp__publication_check(fsdp__publication *p, const fsdp__file_list *files);
/* The content takes its place. On failure everything is as it was, or the message says how to finish it. */
fsdp_status fsdp__publication_commit(fsdp__publication *p);
/* FSDP_INTERRUPTED when it was given up from elsewhere: that is then the reason of whatever else has failed. */
fsdp_status fsdp__publication_held(fsdp__publication *p);
/* Removes what was made, unless it was committed; waits for a commit under way. From any thread. [thread-safe] */
void fsdp__publication_abandon(fsdp__publication *p);
/* Abandons it first. NULL is allowed. */
void fsdp__publication_free(fsdp__publication *p);

/* Finishes a replacement that was interrupted; *out_finished says whether there was one. */
fsdp_status fsdp__publish_repair(const char *folder, bool *out_finished);

#endif
