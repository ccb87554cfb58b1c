/* default_groups.c - the default mesh and process groups, and the order of settings. */
#include "shard/group/default_groups.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/context.h"

typedef struct subgroup {
    fsdp_mesh *mesh; /* a reference, so that `of` stays a valid address */
    const fsdp_process_group *of;
    fsdp_process_group *pg;
} subgroup;

typedef struct defaults {
    fsdp_mesh *mesh;
    fsdp_process_group *alone;
    int64_t settings;
    subgroup *subgroups;
    int64_t subgroup_count, subgroup_capacity;
} defaults;

static void defaults_free(void *state)
{
    defaults *d = state;

    for (int64_t i = d->subgroup_count - 1; i >= 0; i--) {
        fsdp_process_group_free(d->subgroups[i].pg);
        fsdp_mesh_unref(d->subgroups[i].mesh);
    }
    fsdp__free(d->subgroups);
    fsdp_process_group_free(d->alone);
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

    FSDP__TRY_NEW(d);
    if (!d->mesh)
        FSDP_TRY(fsdp_mesh_create(context, 1, &world, NULL, &d->mesh));
    *out = d->mesh;
    return FSDP_OK;
}

static fsdp_status make_subgroup(const fsdp__mesh_info *mesh, int k, fsdp_process_group **out)
{
    fsdp_context *context = fsdp_mesh_context(mesh->mesh);
    FSDP__FREED int *ranks = fsdp__malloc((size_t)k * sizeof *ranks);
    int first = mesh->rank / k * k;
    char name[32];

    FSDP__TRY_NEW(ranks);
    for (int i = 0; i < k; i++)
        ranks[i] = fsdp_process_group_global_rank(mesh->shard_pg, first + i);
    snprintf(name, sizeof name, "%.20s by %d", fsdp_process_group_name(mesh->shard_pg), k);
    return fsdp_process_group_create(context, ranks, k, name, out);
}

fsdp_status fsdp__default_subgroup(const fsdp__mesh_info *mesh, int k, fsdp_process_group **out)
{
    defaults *d = defaults_of(fsdp_mesh_context(mesh->mesh));
    subgroup *s;

    FSDP__TRY_NEW(d);
    for (int64_t i = 0; i < d->subgroup_count; i++)
        if (d->subgroups[i].of == mesh->shard_pg && fsdp_process_group_size(d->subgroups[i].pg) == k) {
            *out = d->subgroups[i].pg;
            return FSDP_OK;
        }
    FSDP_TRY(fsdp__grow(&d->subgroups, d->subgroup_count, &d->subgroup_capacity, sizeof *d->subgroups));
    s = &d->subgroups[d->subgroup_count];
    FSDP_TRY(make_subgroup(mesh, k, &s->pg));
    s->mesh = fsdp_mesh_ref(mesh->mesh);
    s->of = mesh->shard_pg;
    d->subgroup_count++;
    *out = s->pg;
    return FSDP_OK;
}

fsdp_status fsdp__default_alone(fsdp_context *context, fsdp_process_group **out)
{
    defaults *d = defaults_of(context);
    int rank = fsdp_context_rank(context);

    FSDP__TRY_NEW(d);
    if (!d->alone)
        FSDP_TRY(fsdp_process_group_create(context, &rank, 1, "alone", &d->alone));
    *out = d->alone;
    return FSDP_OK;
}

int64_t fsdp__next_setting(fsdp_context *context)
{
    defaults *d = defaults_of(context);

    return d ? ++d->settings : 0;
}
