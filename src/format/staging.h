/* staging.h - a folder in which something new is prepared, held by a lock: the holder can be identified, and what a
 * dead process left can be told from what is in use. It belongs to this user, and nobody else can look into it or
 * change it: so it may lie where others may write. */
#pragma once

#include "base/directory.h"

typedef struct fsdp__staging {
    fsdp__directory parent, folder; /* the folder's path is NULL if it was not taken */
    char *name;                     /* in the parent */
    int lock_fd;
} fsdp__staging;

/* Takes the folder: afterwards it exists and is locked by this process, with what a dead process may have left in it.
 * Fails with the holder's own words (process, machine, since) while another holds it, and names it when it is another
 * user's, a link, or a folder that no staging has left. */
fsdp_status fsdp__staging_take(const fsdp__directory *parent, const char *name, fsdp__staging *out);
/* Returns whether a folder of this user was made by fsdp__staging_take: it has the lock's file, or nothing yet. */
bool fsdp__staging_is_ours(const fsdp__directory *parent, const char *name);
/* Opens <staging>/<name>, which another process of this user holds. */
fsdp_status fsdp__staging_join(const char *path, fsdp__directory *out);
/* Moves the folder, with all that is in it, to another name, which must be free. */
fsdp_status fsdp__staging_move(fsdp__staging *staging, const fsdp__directory *parent);
/* Removes all that is in it: files, and folders of files. */
fsdp_status fsdp__staging_clear(const fsdp__staging *staging);
/* Removes it and releases the lock; a folder that was never taken is left alone. */
fsdp_status fsdp__staging_remove(fsdp__staging *staging);
/* Releases the lock and leaves the folder: its journal needs it. */
void fsdp__staging_leave(fsdp__staging *staging);
