/* full.c - whole tensors, one at a time: gathered from the ranks that hold parts of them, and cut into parts again. */
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/text.h"
#include "device/device.h"
#include "fsdp/state.h"
#include "tensor/tensor.h"

static fsdp_context *context_of(const fsdp_state_dict *state)
{
    return fsdp_device_context(fsdp_tensor_device(state->entries[0].tensor));
}

/* ---- what all ranks must have alike ---- */

static uint64_t hash_of(const fsdp_state_dict *state)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    for (int64_t i = 0; i < state->count; i++) {
        const fsdp_state_dict_entry *entry = &state->entries[i];

        hash = fsdp__hash_bytes(hash, entry->name, strlen(entry->name) + 1);
        hash = fsdp__hash_bytes(hash, entry->global_shape, (size_t)entry->ndim * sizeof *entry->global_shape);
    }
    return hash;
}

/* Before anybody gathers: which tensors, in which order. */
static fsdp_status check_same(const fsdp_state_dict *state, fsdp_process_group *world)
{
    uint64_t mine = hash_of(state);
    fsdp_status status = FSDP_OK;
    size_t *bytes = NULL;
    void **all = NULL;

    if (!world)
        return fsdp_last_status();
    FSDP_TRY(fsdp_gather_objects(world, &mine, sizeof mine, &all, &bytes));
    for (int rank = 0; rank < fsdp_process_group_size(world) && status == FSDP_OK; rank++)
        if (bytes[rank] != sizeof mine || memcmp(all[rank], all[0], sizeof mine) != 0)
            status = FSDP_FAIL(FSDP_MISMATCH,
                               "rank %d has a state dict of other names or shapes than rank 0: all ranks must have the "
                               "same entries in the same order",
                               rank);
    fsdp_objects_free(world, all, bytes);
    return status;
}

static fsdp_status check_bytes(const fsdp_state_dict *state, const char *what)
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

/* ---- gathering ---- */

/* Bytes in the host's memory; `*out` is the tensor itself where that is its device. */
static fsdp_status to_host(fsdp_tensor *tensor, fsdp_tensor **out)
{
    fsdp_device *cpu = fsdp_cpu(fsdp_device_context(tensor->storage->device));
    fsdp_status status = FSDP_OK;
    fsdp_tensor *copy = NULL;

    if (!cpu)
        return fsdp_last_status();
    if (tensor->storage->device == cpu) {
        *out = fsdp_tensor_ref(tensor);
        return FSDP_OK;
    }
    FSDP_TRY(fsdp_tensor_create(cpu, tensor->dtype, tensor->ndim, tensor->shape, tensor->storage->kind, &copy));
    FSDP_TRY_GOTO(status, fsdp_tensor_read(tensor, tensor->dtype, fsdp_tensor_data(copy)), out);
    *out = copy;
    copy = NULL;
out:
    fsdp_tensor_unref(copy);
    return status;
}

/* Adds the whole tensor, unless it goes to rank 0 alone and this is another. */
static fsdp_status gather_one(const fsdp_state_dict_entry *entry, bool offload, bool keep, fsdp_state_dict *out)
{
    fsdp_tensor *whole = NULL, *kept = NULL;
    fsdp_status status;

    if (!keep && !fsdp_tensor_distribution(entry->tensor))
        return FSDP_OK;
    status = fsdp_full_tensor(entry->tensor, &whole);
    if (status == FSDP_OK && keep) {
        status = offload ? to_host(whole, &kept) : FSDP_OK;
        if (status == FSDP_OK)
            status = fsdp_state_dict_add(out, entry->name, offload ? kept : whole);
    }
    fsdp_tensor_unref(kept);
    fsdp_tensor_unref(whole);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_prefix(status, "gathering '%s'", entry->name);
}

fsdp_status fsdp_state_dict_gather(const fsdp_state_dict *state, const fsdp_full_state_options *options,
                                   fsdp_state_dict **out)
{
    bool offload = options && options->cpu_offload, keep;
    fsdp_state_dict *whole = NULL;
    fsdp_status status = FSDP_OK;

    *out = NULL;
    if (!state)
        return FSDP_FAIL(FSDP_INVALID, "cannot gather a state dict: it is NULL");
    FSDP_TRY(fsdp_state_dict_create(&whole));
    if (state->count > 0) {
        keep = !offload || fsdp_context_rank(context_of(state)) == 0;
        FSDP_TRY_GOTO(status, check_same(state, fsdp_world(context_of(state))), out);
        FSDP_TRY_GOTO(status, check_bytes(state, "gather"), out);
        for (int64_t i = 0; i < state->count; i++)
            FSDP_TRY_GOTO(status, gather_one(&state->entries[i], offload, keep, whole), out);
    }
    *out = whole;
    whole = NULL;
out:
    fsdp_state_dict_free(whole);
    return status;
}

/* ---- loading ---- */

/* A load in progress. */
typedef struct loading {
    const fsdp_state_dict *state, *full; /* full NULL: rank 0 has it */
    fsdp_process_group *world;
    bool broadcast, partial;
    unsigned char *present; /* by entry of the state: it is to be loaded */
} loading;

static fsdp_status check_entry(const fsdp_state_dict_entry *to, const fsdp_state_dict_entry *from)
{
    char wanted[FSDP__SHAPE_TEXT], got[FSDP__SHAPE_TEXT];

    if (from->ndim != to->ndim ||
        memcmp(from->global_shape, to->global_shape, (size_t)to->ndim * sizeof *to->global_shape) != 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot load '%s': it has shape %s, but shape %s is needed", to->name,
                         fsdp__shape_text(from->ndim, from->global_shape, got),
                         fsdp__shape_text(to->ndim, to->global_shape, wanted));
    if (fsdp_tensor_numel(from->tensor) != fsdp__shape_numel(from->ndim, from->global_shape))
        return FSDP_FAIL(FSDP_INVALID, "cannot load '%s' from a part of it: gather the state dict first", to->name);
    if (fsdp_dtype_is_floating(fsdp_tensor_dtype(from->tensor)) !=
        fsdp_dtype_is_floating(fsdp_tensor_dtype(to->tensor)))
        return FSDP_FAIL(FSDP_INVALID, "cannot load '%s', which is %s, from %s", to->name,
                         fsdp_dtype_name(fsdp_tensor_dtype(to->tensor)),
                         fsdp_dtype_name(fsdp_tensor_dtype(from->tensor)));
    return FSDP_OK;
}

/* Where there is a full state dict. */
static fsdp_status check_full(const loading *l)
{
    if (!l->full)
        return FSDP_FAIL(FSDP_INVALID, "cannot load a full state dict: it is NULL%s",
                         l->broadcast ? " on rank 0, which broadcasts it" : "");
    FSDP_TRY(check_bytes(l->full, "load"));
    for (int64_t i = 0; i < l->state->count; i++) {
        const fsdp_state_dict_entry *to = &l->state->entries[i], *from = fsdp_state_dict_find(l->full, to->name);

        if (!from && !l->partial)
            return FSDP_FAIL(FSDP_INVALID, "cannot load '%s': the full state dict does not have it", to->name);
        if (from)
            FSDP_TRY(check_entry(to, from));
        l->present[i] = from != NULL;
    }
    for (int64_t i = 0; i < l->full->count && !l->partial; i++)
        if (!fsdp_state_dict_find(l->state, l->full->entries[i].name))
            return FSDP_FAIL(FSDP_INVALID, "the full state dict has '%s', which belongs nowhere",
                             l->full->entries[i].name);
    return FSDP_OK;
}

/* Which entries rank 0 has. */
static fsdp_status share_present(const loading *l)
{
    bool mine = fsdp_process_group_rank(l->world) == 0;
    size_t *bytes = NULL;
    void **all = NULL;

    FSDP_TRY(fsdp_gather_objects(l->world, l->present, mine ? (size_t)l->state->count : 0, &all, &bytes));
    memcpy(l->present, all[0], (size_t)l->state->count);
    fsdp_objects_free(l->world, all, bytes);
    return FSDP_OK;
}

/* What can be wrong on one rank is wrong on all, before anything is written. */
static fsdp_status check_all(const loading *l)
{
    fsdp_status status = check_bytes(l->state, "load");

    if (status == FSDP_OK && (!l->broadcast || fsdp_process_group_rank(l->world) == 0))
        status = check_full(l);
    FSDP_TRY(fsdp_agree(l->world, status));
    FSDP_TRY(check_same(l->state, l->world));
    if (l->broadcast)
        FSDP_TRY(share_present(l));
    return FSDP_OK;
}

/* This rank's box of a whole tensor; the caller owns `*out`. */
static fsdp_status narrow(const fsdp_tensor *whole, const fsdp_state_dict_entry *entry, fsdp_tensor **out)
{
    fsdp_tensor *view = NULL, *next;
    fsdp_status status = FSDP_OK;
    int64_t numel = fsdp_tensor_numel(whole);

    if (entry->flat)
        FSDP_TRY(fsdp__view_reshape(whole, 1, &numel, &view));
    else
        FSDP_TRY(fsdp__tensor_alias(whole, &view));
    for (int d = 0; d < (entry->flat ? 1 : entry->ndim); d++) {
        FSDP_TRY_GOTO(status, fsdp__view_narrow(view, d, entry->offset[d], entry->size[d], &next), out);
        fsdp_tensor_unref(view);
        view = next;
    }
    *out = view;
    view = NULL;
out:
    fsdp_tensor_unref(view);
    return status;
}

static fsdp_status take_own(const fsdp_state_dict_entry *entry, const fsdp_tensor *whole)
{
    fsdp_tensor *own = NULL;
    fsdp_status status;

    FSDP_TRY(narrow(whole, entry, &own));
    status = fsdp__tensor_copy_across(entry->tensor, own);
    fsdp_tensor_unref(own);
    return status;
}

/* The whole tensor as it is sent: on the entry's device, in its dtype. Rank 0's own where it is like that. */
static fsdp_status make_whole(const loading *l, const fsdp_state_dict_entry *entry, fsdp_tensor **out)
{
    fsdp_device *device = fsdp_tensor_device(entry->tensor);
    fsdp_dtype dtype = fsdp_tensor_dtype(entry->tensor);
    const fsdp_state_dict_entry *from = l->full ? fsdp_state_dict_find(l->full, entry->name) : NULL;
    bool mine = fsdp_process_group_rank(l->world) == 0;
    fsdp_status status;

    if (mine && from->tensor->storage->device == device && from->tensor->dtype == dtype) {
        *out = fsdp_tensor_ref(from->tensor);
        return FSDP_OK;
    }
    FSDP_TRY(fsdp_tensor_create(device, dtype, entry->ndim, entry->global_shape, FSDP_MEMORY_WORKSPACE, out));
    status = mine ? fsdp__tensor_copy_across(*out, from->tensor) : FSDP_OK;
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_tensor_unref(*out);
    *out = NULL;
    return status;
}

static fsdp_status receive(const loading *l, const fsdp_state_dict_entry *entry)
{
    fsdp_device *device = fsdp_tensor_device(entry->tensor);
    fsdp_tensor *whole = NULL;
    fsdp_status status;

    FSDP_TRY(make_whole(l, entry, &whole));
    status = fsdp_broadcast(l->world, fsdp_tensor_data(whole), fsdp_tensor_numel(whole), whole->dtype, 0,
                            fsdp_device_stream(device));
    if (status == FSDP_OK)
        status = take_own(entry, whole);
    fsdp_tensor_unref(whole);
    return status;
}

static fsdp_status load(loading *l)
{
    FSDP_TRY(check_all(l));
    for (int64_t i = 0; i < l->state->count; i++) {
        const fsdp_state_dict_entry *entry = &l->state->entries[i];
        fsdp_status status;

        if (!l->present[i])
            continue;
        status = l->broadcast ? receive(l, entry) : take_own(entry, fsdp_state_dict_find(l->full, entry->name)->tensor);
        if (status != FSDP_OK)
            return fsdp_fail_prefix(status, "loading '%s'", entry->name);
    }
    return FSDP_OK;
}

fsdp_status fsdp_state_dict_load_full(const fsdp_state_dict *state, const fsdp_state_dict *full,
                                      const fsdp_full_state_options *options)
{
    loading l = {.state = state,
                 .full = full,
                 .broadcast = options && options->broadcast_from_rank0,
                 .partial = options && options->partial};
    fsdp_status status;

    if (!state)
        return FSDP_FAIL(FSDP_INVALID, "cannot load into a state dict: it is NULL");
    if (state->count == 0)
        return FSDP_OK;
    l.world = fsdp_world(context_of(state));
    if (!l.world)
        return fsdp_last_status();
    l.present = fsdp__calloc((size_t)state->count, 1);
    if (!l.present)
        return FSDP_NO_MEMORY;
    status = load(&l);
    fsdp__free(l.present);
    return status;
}
