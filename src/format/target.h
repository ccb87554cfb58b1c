/* target.h - the folder that a name stands for, whether it is there or not. */
#ifndef FORMAT_TARGET_H
#define FORMAT_TARGET_H

#include "base/directory.h"

typedef struct fsdp__target {
    /* Held, so that they stay the same folders whatever becomes of their names. */
    fsdp__directory parent, folder; /* the folder's path is NULL: it is not there */
    char *name;                     /* of the folder, in its parent */
    int made;                       /* folders, for it: the last ones of the parent's path */
} fsdp__target;

/* A link is followed, where it can be trusted. What is no folder, and a link to nothing, is refused; the folders above
 * it are made. */
fsdp_status fsdp__target_find(const char *name, fsdp__target *out);
/* Removes again what was made above it, as far as it is empty. */
void fsdp__target_unmake(const fsdp__target *target);
void fsdp__target_release(fsdp__target *target);

/* Whether two names are one folder, by whatever path. */
bool fsdp__same_folder(const char *a, const char *b);
/* Whether a link in folder `from` leads to something in folder `to`. */
bool fsdp__leads_into(const char *from, const char *to);

#endif
