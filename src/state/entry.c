/* entry.c - what a state dict says of one tensor. */
#include "state/entry.h"

#include <string.h>

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

bool fsdp__entry_is_current(const fsdp_state_dict_entry *entry)
{
    fsdp_state_dict_entry now = {.name = entry->name, .tensor = entry->tensor};
    size_t bytes = (size_t)entry->ndim * sizeof(int64_t);

    return fsdp__entry_describe(&now) == FSDP_OK && now.ndim == entry->ndim && now.flat == entry->flat &&
           now.writer == entry->writer && memcmp(now.global_shape, entry->global_shape, bytes) == 0 &&
           memcmp(now.offset, entry->offset, bytes) == 0 && memcmp(now.size, entry->size, bytes) == 0;
}

fsdp_status fsdp__entry_ask_to_write(const fsdp_state_dict_entry *entry)
{
    const fsdp__storage_guard *guard = &entry->tensor->storage->guard;

    return guard->before_write ? guard->before_write(guard->arg, entry->tensor->storage) : FSDP_OK;
}
