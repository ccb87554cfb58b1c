/* staging.h - a folder in which something new is made ready, held by a lock: who holds it can be asked, and what a dead
 * process left can be told from what is in use. It is this user's, and nobody else can look into it or change it: so it
 * may lie where others may write. */
#ifndef FORMAT_STAGING_H
#define FORMAT_STAGING_H

#include "base/directory.h"

typedef struct fsdp__staging {
    fsdp__directory parent, folder; /* the folder's path is NULL: it was not taken */
    char *name;                     /* in the parent */
    int lock_fd;
} fsdp__staging;

/* The folder is there afterwards, locked by this process, with what a dead one may have left in it. Refused with the
 * holder's own words (process, machine, since) while another holds it, and by name when it is another user's, a link,
 * or a folder that no staging has left. */
fsdp_status fsdp__staging_take(const fsdp__directory *parent, const char *name, fsdp__staging *out);
/* Whether a folder of this user's was made by fsdp__staging_take: it has the lock's file, or nothing yet. */
bool fsdp__staging_is_ours(const fsdp__directory *parent, const char *name);
/* Opens <staging>/<name>, which another process of this user's holds. */
fsdp_status fsdp__staging_join(const char *path, fsdp__directory *out);
/* Gives the folder another name, which nothing has, with all that is in it. */
fsdp_status fsdp__staging_move(fsdp__staging *staging, const fsdp__directory *parent, const char *name);
/* Removes all that is in it: files, and folders of files. */
fsdp_status fsdp__staging_clear(const fsdp__staging *staging);
/* Removes it and lets go of the lock; one that was never taken is left alone. */
fsdp_status fsdp__staging_remove(fsdp__staging *staging);
/* Lets go of the lock and leaves the folder: its journal needs it. */
void fsdp__staging_leave(fsdp__staging *staging);

#endif
