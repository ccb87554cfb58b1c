/* staging.h - a folder in which something new is made ready, held by a lock: who holds it can be asked, and what a dead
 * process left can be told from what is in use. */
#ifndef FORMAT_STAGING_H
#define FORMAT_STAGING_H

#include "fsdp/status.h"

typedef struct fsdp__staging {
    char *path, *lock_path;
    int lock_fd; /* -1: not taken */
} fsdp__staging;

/* The folder is there afterwards, locked by this process, with what a dead one may have left in it. Refused with the
 * holder's own words (process, machine, since) while another holds it, and when it is somebody else's folder. */
fsdp_status fsdp__staging_take(const char *path, fsdp__staging *out);
/* Whether a folder was made by fsdp__staging_take: it has the lock's file, or nothing yet. */
bool fsdp__staging_is_ours(const char *path);
/* Gives the folder another name, which nothing has, with all that is in it. */
fsdp_status fsdp__staging_move(fsdp__staging *staging, const char *path);
/* Removes all that is in it. */
fsdp_status fsdp__staging_clear(const fsdp__staging *staging);
/* Removes it and lets go of the lock; one that was never taken is left alone. */
fsdp_status fsdp__staging_remove(fsdp__staging *staging);
/* Lets go of the lock and leaves the folder: its journal needs it. */
void fsdp__staging_leave(fsdp__staging *staging);

#endif
