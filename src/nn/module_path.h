/* module_path.h - names modules and their tensors in messages. */
#pragma once

#include "base/context.h"
#include "nn/module.h"

/* Describes the module from which others are named. */
typedef struct fsdp__viewpoint {
    const fsdp_module *module; /* the outermost that is being called; NULL: none is */
    const char *path;          /* its own path, "" if it has none; borrowed until the end */
} fsdp__viewpoint;
/* Makes messages name modules as seen from `module`, whose own path is `path`, until the end, which restores `*before`.
 * With a NULL path they are named from the outermost module that is being called already, or if there is none, from
 * this one. */
fsdp_status fsdp__viewpoint_begin(const fsdp_module *module, const char *path, fsdp__viewpoint *before);
void fsdp__viewpoint_end(const fsdp_context *context, fsdp__viewpoint before);

/* Returns the dotted name, as in state dicts; "" for the outermost module, and for one that does not lie below it. */
#define FSDP__PATH_TEXT 256
const char *fsdp__module_path(const fsdp_module *module, char text[FSDP__PATH_TEXT]);
/* Returns a module that has this one as a child; NULL: there is none. */
const fsdp_module *fsdp__module_parent(const fsdp_module *module);
/* Returns the dotted name from the outermost module that has this one, whichever module is being called; "" for an
 * outermost module. */
const char *fsdp__module_path_from_root(const fsdp_module *module, char text[FSDP__PATH_TEXT]);
/* Returns what stands for the module as an owner of memory (fsdp__taker): its number, because another module may take
 * its address when it is gone, while what it has taken is still there. */
const void *fsdp__module_owner(const fsdp_module *module);
/* Makes memory that is taken from now on the module's, and has it named when somebody asks whose it is, even if it is
 * gone by then. Returns what was before, for fsdp__context_set_taker. */
fsdp__taker fsdp__module_enter(const fsdp_module *module);
/* Puts "blocks.0 (Linear): " in front of the message, or the type alone if there is no path, unless the message names a
 * module already. */
void fsdp__module_say(const fsdp_module *module, fsdp_status status);
