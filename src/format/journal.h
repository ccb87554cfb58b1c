/* journal.h - replaces files of a folder by new ones, all or none.
 *
 * The new files lie in <staging>/new, on disk. Then a journal with their names is put into the folder, and from there
 * on any process that finds it can finish the replacement: the old files are moved to <staging>/old, the new ones to
 * their places, and the journal is removed. Until then the folder holds neither model, and readers refuse it. */
#pragma once

#include "format/file_list.h"

/* Lies in the folder while files are replaced. People are meant to understand the name, too. */
#define FSDP__JOURNAL_NAME "unfinished-save.json"
/* Names the folder in which the new files are prepared, inside an existing folder. */
#define FSDP__STAGING_NAME ".saving"
#define FSDP__CONTENT_NAME "new" /* in the staging folder */

typedef struct fsdp__journal {
    /* new files, in the order in which they are moved; the last one makes the folder one of its kind */
    fsdp__file_list fresh;
    fsdp__file_list gone; /* old files that no new one replaces */
} fsdp__journal;

/* Returns FSDP_OK when no replacement was left unfinished in the folder, otherwise an error that says how to finish
 * it. */
fsdp_status fsdp__journal_check(const char *folder);
bool fsdp__journal_exists(const fsdp__directory *folder);
/* Puts the journal into the folder: afterwards the replacement can be finished. */
fsdp_status fsdp__journal_write(const fsdp__journal *journal, const fsdp__directory *folder,
                                const fsdp__directory *staging);
/* Reads the journal. One that another user may have put there is refused. */
fsdp_status fsdp__journal_read(fsdp__journal *journal, const fsdp__directory *folder);
void fsdp__journal_release(fsdp__journal *journal);

/* Moves what has not been moved yet, and removes the journal. Nothing is moved unless the new files are those that the
 * journal lists; a folder is never moved. */
fsdp_status fsdp__journal_finish(const fsdp__journal *journal, const fsdp__directory *folder,
                                 const fsdp__directory *staging);
/* Moves everything back, and removes the journal. */
fsdp_status fsdp__journal_undo(const fsdp__journal *journal, const fsdp__directory *folder,
                               const fsdp__directory *staging);
