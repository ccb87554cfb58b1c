/* load.c - the plug-in of an MPI. */
#include "comm/mpi/load.h"

#include <stdio.h>

#include "base/find_plugin.h"

enum {
    TEXT = 160
};

fsdp_status fsdp__mpi_load(const fsdp__mpi_kind *kind, const fsdp__network_ops **out)
{
    char built[TEXT], needs[TEXT];
    /* Its symbols are global: Open MPI loads parts of itself, which look for them. */
    const fsdp__plugin plugin = {.name = kind->name,
                                 .symbol = FSDP__NETWORK_SYMBOL,
                                 .version = FSDP__NETWORK_VERSION,
                                 .built = built,
                                 .needs = needs,
                                 .global = true};
    const void *ops = NULL;

    *out = NULL;
    snprintf(built, sizeof built, "where %s is found (Debian: %s)", kind->title, kind->build);
    snprintf(needs, sizeof needs, "%s must be installed on every machine (Debian: %s)", kind->title, kind->runtime);
    FSDP_TRY(fsdp__plugin_load(&plugin, &ops));
    *out = ops;
    return FSDP_OK;
}
