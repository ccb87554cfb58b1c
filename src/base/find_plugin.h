/* find_plugin.h - loads plug-ins: libraries of their own, so that the program also runs where what they need is
 * missing. */
#pragma once

#include <stdbool.h>

#include "fsdp/status.h"

typedef struct fsdp__plugin {
    const char *name;   /* of libfsdp-NAME.so */
    const char *symbol; /* a function without arguments, which returns a table that begins with its version, an int */
    int version;        /* the one that is needed */
    /* The texts below are for messages. */
    const char *built; /* where it is built: "where Open MPI is found" */
    const char *needs; /* what it needs to be loaded: "Open MPI must be installed" */
    bool global;       /* its symbols are seen by what it loads */
} fsdp__plugin;

/* Loads libfsdp-NAME.so from the first folder that has it, of these: those of FSDP_PLUGIN_PATH (separated by colons);
 * that of this library, or of the program that contains it; and the two folders that lie relative to that one as in an
 * installation, and the folder of the installation itself. `*out` is its table; the plug-in stays loaded until the
 * process ends. */
fsdp_status fsdp__plugin_load(const fsdp__plugin *plugin, const void **out);
