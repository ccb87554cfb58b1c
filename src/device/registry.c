/* registry.c - the only list of the backends that are compiled in. A backend of an optional folder is in it if its
 * FSDP_HAVE_... is defined (cmake/optional.cmake). */
#include <string.h>

#include "base/compiler.h"
#include "device/impl.h"

static const fsdp__backend *const backends[] = {
    &fsdp__backend_cpu,
    &fsdp__backend_meta,
    &fsdp__backend_dry,
    &fsdp__backend_sim,
};

const fsdp__backend *fsdp__backend_find(const char *name)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(backends); i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}
