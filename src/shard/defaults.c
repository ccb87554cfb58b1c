/* defaults.c - the default mesh, and the order of settings. */
#include "shard/defaults.h"

#include "base/alloc.h"
#include "base/context.h"

typedef struct defaults {
    fsdp_mesh *mesh;
    int64_t settings;
} defaults;

static void defaults_free(void *state)
{
    defaults *d = state;

    fsdp_mesh_unref(d->mesh);
    fsdp__free(d);
}

static defaults *defaults_of(fsdp_context *context)
{
    return fsdp__context_get_or_make(context, FSDP__SLOT_SHARD, sizeof(defaults), defaults_free);
}

fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out)
{
    defaults *d = defaults_of(context);
    int64_t world = fsdp_context_world_size(context);

    if (!d)
        return FSDP_NO_MEMORY;
    if (!d->mesh)
        FSDP_TRY(fsdp_mesh_create(context, 1, &world, NULL, &d->mesh));
    *out = d->mesh;
    return FSDP_OK;
}

int64_t fsdp__next_setting(fsdp_context *context)
{
    defaults *d = defaults_of(context);

    return d ? ++d->settings : 0;
}
