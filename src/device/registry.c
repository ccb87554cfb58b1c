/* registry.c - the only list of backends: those that are compiled in, and those that were registered. A backend of an
 * optional folder is in it if its FSDP_HAVE_... is defined (cmake/optional.cmake). */
#include <string.h>

#include "base/compiler.h"
#include "device/impl.h"

static const fsdp__backend *const backends[] = {
    &fsdp__backend_cpu,
    &fsdp__backend_meta,
    &fsdp__backend_dry,
};

static fsdp__registered_backend *registered;

void fsdp__backend_register(fsdp__registered_backend *place)
{
    place->next = registered;
    registered = place;
}

const fsdp__backend *fsdp__backend_find(const char *name)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(backends); i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    for (const fsdp__registered_backend *place = registered; place; place = place->next)
        if (strcmp(place->backend->name, name) == 0)
            return place->backend;
    return NULL;
}
