/* rows.c - makes parts by the chunk rule over dimension 0 from whatever parts there are. */
#include "base/alloc.h"
#include "dist/dist.h"
#include "state/check.h"
#include "state/entry.h"

/* Decides which placements the entry gets; returns false if it has them already, or if nothing cuts it. */
static bool choose(const fsdp_state_dict_entry *entry, bool over_replicas, fsdp_placement *out)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(entry->tensor);
    const fsdp_placement rows = {.kind = FSDP_SHARD};
    bool split = false, changes = false;

    for (int i = 0; d && i < d->placement_count; i++)
        split = split || (d->placements[i].kind != FSDP_REPLICATE && fsdp_mesh_size(d->mesh, i) > 1);
    for (int i = 0; d && i < d->placement_count; i++) {
        bool whole = d->placements[i].kind == FSDP_REPLICATE;

        out[i] = !whole || (!split && over_replicas) ? rows : d->placements[i];
        changes = changes || !fsdp__placement_equal(out[i], d->placements[i]);
    }
    return changes && entry->ndim > 0;
}

static fsdp_status cut(const fsdp_state_dict_entry *entry, const fsdp_sharded_state_options *options,
                       fsdp_state_dict *out)
{
    fsdp_placement placements[FSDP_MAX_MESH_DIMS] = {{0}};
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *parts = NULL;
    fsdp_status status;

    if (!choose(entry, options->over_replicas, placements))
        return fsdp__state_dict_add_to(out, entry->name, entry->tensor, options->offload_to_cpu);
    status = fsdp_redistribute(entry->tensor, placements, &parts);
    if (status == FSDP_OK)
        status = fsdp__state_dict_add_to(out, entry->name, parts, options->offload_to_cpu);
    return fsdp_fail_prefix(status, "cutting '%s' by rows", entry->name);
}

fsdp_status fsdp_state_dict_shard_rows(const fsdp_state_dict *state, const fsdp_sharded_state_options *options,
                                       fsdp_state_dict **out)
{
    const fsdp_sharded_state_options none = {.offload_to_cpu = false};
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *rows = NULL;
    fsdp_process_group *world;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot cut a state dict by rows: there is no place for the result");
    *out = NULL;
    if (!state)
        return FSDP_FAIL(FSDP_INVALID, "cannot cut a state dict by rows: it is NULL");
    FSDP_TRY(fsdp__state_dict_world(state, NULL, "cut by rows", &world));
    FSDP_TRY(fsdp__state_dict_create_in(fsdp__state_dict_context(state), &rows));
    FSDP_TRY(fsdp__state_dict_check_same(state, world));
    FSDP_TRY(fsdp__state_dict_check_values(state, "cut by rows"));
    for (int64_t i = 0; i < state->count; i++)
        FSDP_TRY(cut(&state->entries[i], options ? options : &none, rows));
    *out = fsdp__take(&rows);
    return FSDP_OK;
}
