/* publish.h - a folder takes the place of another when all of it is on disk: whoever looks sees the old one or the new
 * one, whole. */
#ifndef FORMAT_PUBLISH_H
#define FORMAT_PUBLISH_H

#include "fsdp/context.h"

/* What the folders of a kind hold: messages call it `noun`, and each has a file `mark`. */
typedef struct fsdp__folder_kind {
    const char *noun, *mark;
} fsdp__folder_kind;

/* The folder's name without a slash at its end; fsdp__free it, NULL when out of memory. */
char *fsdp__publish_name(const char *folder);
/* FSDP_OK when one of this kind may be written to `folder`: it does not exist, is empty, or holds one, and the folder
 * it stands in can be written to. That one is made if it is not there. */
fsdp_status fsdp__publish_check(const char *folder, const fsdp__folder_kind *kind);
/* A new, empty folder beside `folder`, which is a fsdp__publish_name and has been checked; fsdp__free its name. */
fsdp_status fsdp__publish_begin(const char *folder, const fsdp__folder_kind *kind, char **out);
/* `temporary` takes the name `folder`; what had that name is under `temporary` now, if it was there. On failure
 * everything is as it was. */
fsdp_status fsdp__publish(const char *temporary, const char *folder, bool *out_replaced);
/* Takes it back. */
fsdp_status fsdp__publish_undo(const char *temporary, const char *folder, bool replaced);
/* Removes what was replaced. */
void fsdp__publish_finish(fsdp_context *context, const char *temporary);

#endif
