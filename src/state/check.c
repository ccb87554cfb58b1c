/* check.c - checks on state dicts before tensors are communicated, and where the tensors are put. */
#include "state/check.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/text.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "state/entry.h"
#include "tensor/tensor.h"

fsdp_status fsdp__state_dict_world(const fsdp_state_dict *state, const fsdp_state_dict *other, const char *what,
                                   fsdp_process_group **out)
{
    fsdp_context *context = fsdp__state_dict_context(state);

    context = context || !other ? context : fsdp__state_dict_context(other);
    if (!context)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot %s a state dict that nothing was added to: it does not know its ranks; take that of a "
                         "module or of an optimizer",
                         what);
    FSDP__TRY_MADE(*out = fsdp_world(context));
    return FSDP_OK;
}

static uint64_t hash_number(uint64_t hash, int64_t number)
{
    return fsdp__hash_bytes(hash, &number, sizeof number);
}

static uint64_t hash_placement(uint64_t hash, fsdp_placement p)
{
    hash = hash_number(hash, p.kind);
    if (p.kind == FSDP_FLAT)
        return hash_number(hash_number(hash, p.first), p.chunk);
    if (p.kind != FSDP_SHARD)
        return hash;
    hash = hash_number(hash_number(hash, p.dim), p.split_factor > 1 ? p.split_factor : 1);
    for (int i = 0; i < p.segment_count; i++)
        hash = hash_number(hash, p.segments[i]);
    return hash;
}

uint64_t fsdp__entry_hash(uint64_t hash, const fsdp_state_dict_entry *entry)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(entry->tensor);

    hash = fsdp__hash_bytes(hash, entry->name, strlen(entry->name) + 1);
    hash = fsdp__hash_bytes(hash, entry->global_shape, (size_t)entry->ndim * sizeof *entry->global_shape);
    for (int i = 0; d && i < d->placement_count; i++)
        hash = hash_placement(hash_number(hash, fsdp_mesh_size(d->mesh, i)), d->placements[i]);
    return hash;
}

static uint64_t hash_of(const fsdp_state_dict *state)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    for (int64_t i = 0; i < state->count; i++)
        hash = fsdp__entry_hash(hash, &state->entries[i]);
    return hash;
}

fsdp_status fsdp__state_dict_check_same(const fsdp_state_dict *state, fsdp_process_group *world)
{
    uint64_t mine = hash_of(state);
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};

    FSDP__TRY_MADE(world);
    FSDP_TRY(fsdp__gather(world, &mine, sizeof mine, &all));
    for (int rank = 0; rank < fsdp_process_group_size(world); rank++)
        if (all.bytes[rank] != sizeof mine || memcmp(all.objects[rank], all.objects[0], sizeof mine) != 0)
            return FSDP_FAIL(
                FSDP_MISMATCH,
                "rank %d has a state dict with other names, shapes or placements than rank 0: all ranks must "
                "have the same entries in the same order",
                rank);
    return FSDP_OK;
}

fsdp_status fsdp__state_dict_check_values(const fsdp_state_dict *state, const char *what)
{
    fsdp__names meta = {.count = 0};

    for (int64_t i = 0; i < state->count; i++)
        fsdp__name_without_values(state->entries[i].tensor, state->entries[i].name, &meta, NULL);
    if (meta.count > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot %s what is still on the meta device: %s: call fsdp_module_materialize first", what,
                         fsdp__names_text(&meta));
    return FSDP_OK;
}

fsdp_status fsdp__state_dict_check_current(const fsdp_state_dict *state, const char *what)
{
    for (int64_t i = 0; i < state->count; i++)
        if (!fsdp__entry_is_current(&state->entries[i]))
            return FSDP_FAIL(FSDP_STATE,
                             "cannot %s '%s': it was sharded after the state dict was made: make another one", what,
                             FSDP__SHOWN_NAME(state->entries[i].name));
    return FSDP_OK;
}

fsdp_status fsdp__state_dict_keys_add(char ***names, int64_t *count, const char *name)
{
    char **more = fsdp__realloc(*names, (size_t)(*count + 1) * sizeof *more);

    FSDP__TRY_NEW(more);
    *names = more;
    FSDP__TRY_NEW(more[*count] = fsdp__strdup(name));
    ++*count;
    return FSDP_OK;
}

static void free_names(char **names, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        fsdp__free(names[i]);
    fsdp__free(names);
}

void fsdp_state_dict_keys_release(fsdp_state_dict_keys *keys)
{
    if (!keys)
        return;
    free_names(keys->missing, keys->missing_count);
    free_names(keys->unexpected, keys->unexpected_count);
    *keys = (fsdp_state_dict_keys){.missing_count = 0};
}

fsdp_status fsdp__tensor_to_host(fsdp_tensor *tensor, fsdp_tensor **out)
{
    fsdp_device *cpu = fsdp_cpu(fsdp_device_context(tensor->storage->device));
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *copy = NULL;

    FSDP__TRY_MADE(cpu);
    if (tensor->storage->device == cpu) {
        *out = fsdp_tensor_ref(tensor);
        return FSDP_OK;
    }
    FSDP_TRY(fsdp_tensor_create(cpu, tensor->dtype, tensor->ndim, tensor->shape, tensor->storage->kind, &copy));
    FSDP_TRY(fsdp_tensor_read(tensor, tensor->dtype, fsdp_tensor_data(copy)));
    *out = fsdp__take(&copy);
    return FSDP_OK;
}

fsdp_status fsdp__state_dict_add_to(fsdp_state_dict *out, const char *name, fsdp_tensor *tensor, bool offload)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *kept = NULL;

    if (!offload)
        return fsdp_state_dict_add(out, name, tensor);
    FSDP_TRY(fsdp__tensor_to_host(tensor, &kept));
    FSDP_TRY(d && kept != tensor ? fsdp_tensor_set_distribution(kept, d) : FSDP_OK);
    return fsdp_state_dict_add(out, name, kept);
}
