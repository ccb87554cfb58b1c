/* entry.c - what a state dict says of one tensor. */
#include "state/entry.h"

#include <string.h>

#include "base/status.h"
#include "dist/dist.h"
#include "tensor/tensor.h"

/* Sets what the entry says of its tensor. Among the ranks that hold the same box, the one whose coordinate is 0 in
 * every mesh dimension that does not split the tensor writes it. */
fsdp_status fsdp__entry_describe(fsdp_state_dict_entry *entry)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(entry->tensor);
    fsdp_context *context = fsdp_device_context(fsdp_tensor_device(entry->tensor));
    bool first = true, full = true, some = fsdp_tensor_numel(entry->tensor) > 0;

    entry->ndim = fsdp_tensor_ndim(entry->tensor);
    fsdp_tensor_box(entry->tensor, entry->offset, entry->size);
    entry->piece_count = fsdp_tensor_pieces(entry->tensor, entry->pieces);
    if (!distribution) {
        memcpy(entry->global_shape, fsdp_tensor_shape(entry->tensor), (size_t)entry->ndim * sizeof(int64_t));
        entry->replicated = true;
        entry->writer = some && fsdp_context_rank(context) == 0;
        return FSDP_OK;
    }
    entry->flat = fsdp_distribution_is_flat(distribution);
    entry->ndim = distribution->ndim;
    memcpy(entry->global_shape, distribution->global_shape, sizeof entry->global_shape);
    for (int i = 0; i < distribution->placement_count; i++) {
        fsdp_placement_kind kind = distribution->placements[i].kind;
        bool split = (kind == FSDP_SHARD || kind == FSDP_FLAT) && fsdp_mesh_size(distribution->mesh, i) > 1;

        if (kind == FSDP_PARTIAL)
            return FSDP_FAIL(FSDP_INVALID, "cannot add '%s' to a state: its value is partial over mesh dimension '%s'",
                             entry->name, fsdp_mesh_dim_name(distribution->mesh, i));
        full = full && !split;
        first = first && (split || fsdp_mesh_coordinate(distribution->mesh, i) == 0);
    }
    entry->replicated = full && fsdp_mesh_size(distribution->mesh, -1) == fsdp_context_world_size(context);
    entry->writer = some && first;
    return FSDP_OK;
}

/* Returns whether both consist of the same boxes. */
static bool same_pieces(const fsdp_state_dict_entry *a, const fsdp_state_dict_entry *b)
{
    bool same = a->piece_count == b->piece_count;

    for (int i = 0; same && i < a->piece_count; i++)
        same = memcmp(&a->pieces[i], &b->pieces[i], sizeof a->pieces[i]) == 0;
    return same;
}

fsdp_status fsdp_state_dict_entry_runs(const fsdp_state_dict_entry *entry, fsdp_box_run run, void *arg)
{
    if (!entry)
        return FSDP__FAIL_NULL("cannot go through an entry of a state dict: it is NULL");
    return fsdp__pieces_runs(entry->flat, entry->ndim, entry->global_shape, entry->pieces, entry->piece_count, run,
                             arg);
}

bool fsdp__entry_is_current(const fsdp_state_dict_entry *entry)
{
    fsdp_state_dict_entry now = {.name = entry->name, .tensor = entry->tensor};
    size_t bytes = (size_t)entry->ndim * sizeof(int64_t);

    return fsdp__entry_describe(&now) == FSDP_OK && now.ndim == entry->ndim && now.flat == entry->flat &&
           now.writer == entry->writer && memcmp(now.global_shape, entry->global_shape, bytes) == 0 &&
           memcmp(now.offset, entry->offset, bytes) == 0 && memcmp(now.size, entry->size, bytes) == 0 &&
           same_pieces(&now, entry);
}

/* Finds which dimensions of the whole mesh cut the tensor. */
static void find_cuts(const fsdp_distribution *d, bool *cuts)
{
    for (int i = 0; i < d->placement_count; i++)
        for (int a = 0; a < d->mesh->axes[i].count; a++)
            cuts[d->mesh->axes[i].axes[a]] = d->placements[i].kind != FSDP_REPLICATE;
}

/* Returns whether a rank of the world has the same coordinates in the whole mesh as this one where `cuts` says so. */
static bool has_same(const fsdp_mesh *whole, const bool *cuts, int rank)
{
    int64_t count = fsdp_mesh_size(whole, -1), index = 0;
    int coordinates[FSDP_MAX_MESH_DIMS];
    bool same = true;

    while (index < count && whole->ranks[index] != rank)
        index++;
    if (index == count)
        return false;
    fsdp__mesh_coordinates(whole, index, coordinates);
    for (int d = 0; d < whole->ndim; d++)
        same = same && (!cuts[d] || coordinates[d] == whole->coordinate[d]);
    return same;
}

bool fsdp__entry_writes(const fsdp_state_dict_entry *entry, const fsdp_process_group *group)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(entry->tensor);
    bool cuts[FSDP_MAX_MESH_DIMS] = {false};
    int before;

    if (!entry->writer || !d || !d->mesh->is_part)
        return entry->writer;
    find_cuts(d, cuts);
    before = group ? fsdp_process_group_rank(group) : fsdp_context_rank(d->mesh->context);
    for (int r = 0; r < before; r++)
        if (has_same(d->mesh->held, cuts, group ? fsdp_process_group_global_rank(group, r) : r))
            return false;
    return true;
}

fsdp_status fsdp__entry_ask_to_write(const fsdp_state_dict_entry *entry)
{
    const fsdp__storage_guard *guard = &entry->tensor->storage->guard;

    return guard->before_write ? guard->before_write(guard->arg, entry->tensor->storage) : FSDP_OK;
}
