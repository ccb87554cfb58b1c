/* walk.h - a path is followed component by component, and its links only where they can be trusted (directory.h). */
#ifndef BASE_WALK_H
#define BASE_WALK_H

#include <stdbool.h>

#include "fsdp/status.h"

typedef enum fsdp__walk_end {
    FSDP__WALK_ALL,
    FSDP__WALK_TO_PARENT,       /* the last component is a name */
    FSDP__WALK_TO_TARGET_PARENT /* the same of where it leads, if it is a link */
} fsdp__walk_end;

typedef struct fsdp__walk {
    const char *path, *verb; /* for messages: "cannot <verb> '<path>'" */
    fsdp__walk_end end;
    bool makes; /* directories that are missing */

    /* What it came to. */
    int fd;     /* readable where the directory is; -1 on failure */
    char *at;   /* its path, absolute and without links; fsdp__free it */
    char *name; /* the last component, of the ways that leave one; fsdp__free it */
    int made;   /* how many of the last ones of `at` were missing; on failure they are gone again */
} fsdp__walk;

fsdp_status fsdp__walk_path(fsdp__walk *walk);
/* Removes the last `made` directories of a path again, as far as they hold nothing; `fd` is the last of them. */
void fsdp__walk_unmake(int fd, const char *path, int made);

/* Returns whether the name in `in` stands for the directory `held`. */
bool fsdp__stands_for(int in, const char *name, int held);
/* Removes it if it does, and holds nothing; returns whether it is gone. */
bool fsdp__remove_empty_at(int in, const char *name, int held);

/* Whether a directory is of /proc, where links are the kernel's. */
bool fsdp__is_on_proc(int fd);

struct stat;

/* Whether others than this user and root may change what names a folder has: its owner, too, whatever its mode is. */
bool fsdp__is_shared(const struct stat *folder);

#endif
