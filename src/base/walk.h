/* walk.h - follows a path component by component, and a link only where it can be trusted (directory.h says where). */
#pragma once

#include <stdbool.h>

#include "fsdp/status.h"

typedef enum fsdp__walk_end {
    FSDP__WALK_ALL,
    FSDP__WALK_TO_PARENT,       /* the last component is a name */
    FSDP__WALK_TO_TARGET_PARENT /* a last component that is a link is followed; the last one then is a name */
} fsdp__walk_end;

typedef struct fsdp__walk {
    const char *path, *verb; /* for messages: "cannot <verb> '<path>'" */
    fsdp__walk_end end;
    bool makes; /* missing directories are made */

    /* These say where it ended. */
    int fd;     /* the directory, open for reading if it may be read; -1 on failure */
    char *at;   /* its path, absolute and without links; fsdp__free it */
    char *name; /* the last component unless `end` is FSDP__WALK_ALL, else NULL; fsdp__free it */
    int made;   /* how many directories were made: the last of `at`; on failure they are gone again */
} fsdp__walk;

fsdp_status fsdp__walk_path(fsdp__walk *walk);
/* Removes the last `made` directories of a path, up to the first that is not empty; `fd` is the last of them. */
void fsdp__walk_unmake(int fd, const char *path, int made);

/* Returns whether the name in `in` stands for the directory `held`. */
bool fsdp__stands_for(int in, const char *name, int held);
/* Removes that directory if the name stands for it and it is empty; returns whether it is gone. */
bool fsdp__remove_empty_at(int in, const char *name, int held);

/* Returns whether a directory is of /proc, whose links only the kernel can follow. */
bool fsdp__is_on_proc(int fd);

struct stat;

/* Returns whether anyone but this user and root may add or remove names in a folder. Its owner always may. */
bool fsdp__is_shared(const struct stat *folder);
