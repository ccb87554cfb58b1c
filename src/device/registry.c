/* registry.c - the only list of backends: those that are compiled in, those that were registered, and plug-ins. A
 * backend of an optional folder is in it if its FSDP_HAVE_... is defined (cmake/optional.cmake). */
#include <string.h>

#include "base/compiler.h"
#include "device/dry.h"
#include "device/impl.h"
#include "device/plugin.h"

static const fsdp__backend *const backends[] = {
    &fsdp__backend_cpu,
    &fsdp__backend_meta,
    &fsdp__backend_dry,
    &fsdp__backend_dry_gpu,
};

static fsdp__registered_backend *registered;

void fsdp__backend_register(fsdp__registered_backend *place)
{
    place->next = registered;
    registered = place;
}

fsdp_status fsdp__backend_find(const char *name, const fsdp__backend **out)
{
    *out = NULL;
    for (size_t i = 0; i < FSDP__COUNT_OF(backends) && !*out; i++)
        if (strcmp(backends[i]->name, name) == 0)
            *out = backends[i];
    for (const fsdp__registered_backend *place = registered; place && !*out; place = place->next)
        if (strcmp(place->backend->name, name) == 0)
            *out = place->backend;
    if (!*out)
        FSDP_TRY(fsdp__device_plugin_backend(name, out));
    return FSDP_OK;
}
