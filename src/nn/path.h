/* path.h - what modules and their tensors are called in messages. */
#ifndef NN_PATH_H
#define NN_PATH_H

#include "nn/module.h"

/* From where modules are named. */
typedef struct fsdp__viewpoint {
    const fsdp_module *module; /* the outermost that is called; NULL: none is */
    const char *path;          /* that it has itself, "" for none. Borrowed until the end */
} fsdp__viewpoint;
/* Messages name modules as seen from `module`, which has this path itself, until the end, which brings `*before` back.
 * A NULL path: from the outermost module that is called already, or else from this one. */
fsdp_status fsdp__viewpoint_begin(const fsdp_module *module, const char *path, fsdp__viewpoint *before);
void fsdp__viewpoint_end(const fsdp_context *context, fsdp__viewpoint before);

/* The dotted name, as state dicts have it; "" for the outermost one, and for a module that lies not below it. */
#define FSDP__PATH_TEXT 256
const char *fsdp__module_path(const fsdp_module *module, char text[FSDP__PATH_TEXT]);
/* Puts "blocks.0 (Linear): " in front of the message, or the type alone where there is no path, unless a module has
 * done that already. */
void fsdp__module_say(const fsdp_module *module, fsdp_status status);

#endif
