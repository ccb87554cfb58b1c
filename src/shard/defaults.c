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

static defaults *get_or_create(fsdp_context *context)
{
    defaults *d = fsdp__context_get(context, FSDP__SLOT_SHARD);

    if (d)
        return d;
    d = fsdp__calloc(1, sizeof *d);
    if (d)
        fsdp__context_attach(context, FSDP__SLOT_SHARD, d, defaults_free);
    return d;
}

fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out)
{
    defaults *d = get_or_create(context);
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
    defaults *d = get_or_create(context);

    return d ? ++d->settings : 0;
}
