/* jinja_run.h - what runs a parsed template. */
#pragma once

#include "chat/jinja_call.h"
#include "chat/jinja_nodes.h"

/* Names and their values. A loop's turn, a macro's call and a block have a scope of their own; what is set there ends
 * with it. */
typedef struct fsdp__scope {
    struct fsdp__scope *around;
    fsdp__jinja_map names;
} fsdp__scope;

struct fsdp__macro {
    const fsdp__jinja_node *node;
    fsdp__scope *around; /* where it was defined */
};

typedef struct fsdp__runner {
    fsdp__render render;
    fsdp__scope *scope;
    fsdp__builder text;               /* all that is written */
    const fsdp__jinja_list *messages; /* the variable as it was given; NULL: it is no list */
    fsdp__rendered *result;           /* where `generation` blocks are noted */
    fsdp_status (*call_macro)(struct fsdp__runner *run, const struct fsdp__macro *macro,
                              const fsdp__arguments *arguments, fsdp__jinja_value *out);
} fsdp__runner;

fsdp_status fsdp__evaluate(fsdp__runner *run, const fsdp__jinja_node *node, fsdp__jinja_value *out);
/* Sets a name in the innermost scope. */
fsdp_status fsdp__scope_set(fsdp__runner *run, fsdp__jinja_string name, fsdp__jinja_value value);
