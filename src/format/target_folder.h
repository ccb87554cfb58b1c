/* target_folder.h - the folder that a name stands for, whether it exists or not. */
#pragma once

#include "base/directory.h"

typedef struct fsdp__target {
    /* Held open, so that they stay the same folders whatever becomes of their names. */
    fsdp__directory parent, folder; /* the folder's path is NULL if it does not exist */
    char *name;                     /* of the folder, in its parent */
    int made;                       /* number of folders that were made for it: the last ones of the parent's path */
} fsdp__target;

/* Finds the target. A link is followed if it can be trusted. What is not a folder, or a dangling link, is refused; the
 * folders above it are made. */
fsdp_status fsdp__target_find(const char *name, fsdp__target *out);
/* Removes again the folders that were made above it, if they are empty. */
void fsdp__target_unmake(const fsdp__target *target);
void fsdp__target_release(fsdp__target *target);

/* Returns whether two names are one folder, by whatever path. */
bool fsdp__same_folder(const char *a, const char *b);
/* Returns whether a link in folder `from` leads to something in folder `to`. */
bool fsdp__leads_into(const char *from, const char *to);
