/* full.c - whole tensors, one at a time: gathered from the ranks that hold parts of them, and cut into parts again. */
#include <string.h>

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "dist/dist.h"
#include "state/check.h"
#include "state/entry.h"
#include "tensor/tensor.h"

/* ---- gathering ---- */

/* Returns whether this rank is the first of those that together hold the parts of the tensor. */
static bool is_first(const fsdp_tensor *tensor)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    bool first = true;

    for (int i = 0; distribution && i < distribution->placement_count; i++)
        first = first && (distribution->placements[i].kind == FSDP_REPLICATE ||
                          fsdp_mesh_coordinate(distribution->mesh, i) == 0);
    return first;
}

/* Returns whether this rank gets the whole tensors. */
static bool is_kept(const fsdp_state_dict *state, const fsdp_full_state_options *options)
{
    bool kept = !options->cpu_offload || fsdp_context_rank(fsdp__state_dict_context(state)) == 0;

    for (int64_t i = 0; i < state->count && options->rank0_only; i++)
        kept = kept && is_first(state->entries[i].tensor);
    return kept;
}

/* Gathers the tensor, and adds it if this rank keeps it. */
static fsdp_status gather_one(const fsdp_state_dict_entry *entry, bool offload, bool keep, fsdp_state_dict *out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL, *kept = NULL;
    fsdp_status status;

    if (!keep && !fsdp_tensor_distribution(entry->tensor))
        return FSDP_OK;
    status = fsdp_full_tensor(entry->tensor, &whole);
    if (status == FSDP_OK && keep) {
        status = offload ? fsdp__tensor_to_host(whole, &kept) : FSDP_OK;
        if (status == FSDP_OK)
            status = fsdp_state_dict_add(out, entry->name, offload ? kept : whole);
    }
    return fsdp_fail_prefix(status, "gathering '%s'", entry->name);
}

fsdp_status fsdp_state_dict_gather(const fsdp_state_dict *state, const fsdp_full_state_options *options,
                                   fsdp_state_dict **out)
{
    fsdp_full_state_options some = options ? *options : (fsdp_full_state_options){.partial = false};
    bool offload = some.cpu_offload || some.offload_to_cpu, keep;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *whole = NULL;
    fsdp_process_group *world;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot gather a state dict: there is no place for the result");
    *out = NULL;
    if (!state)
        return FSDP_FAIL(FSDP_INVALID, "cannot gather a state dict: it is NULL");
    FSDP_TRY(fsdp__state_dict_world(state, NULL, "gather", &world));
    FSDP_TRY(fsdp__state_dict_create_in(fsdp__state_dict_context(state), &whole));
    keep = is_kept(state, &some);
    FSDP_TRY(fsdp__state_dict_check_same(state, world));
    FSDP_TRY(fsdp__state_dict_check_values(state, "gather"));
    for (int64_t i = 0; i < state->count; i++)
        FSDP_TRY(gather_one(&state->entries[i], offload, keep, whole));
    *out = fsdp__take(&whole);
    return FSDP_OK;
}

/* ---- loading ---- */

/* A load in progress. */
typedef struct loading {
    const fsdp_state_dict *state, *full; /* full is NULL if only rank 0 has it */
    fsdp_process_group *world;
    bool broadcast, partial, parts;
    unsigned char *present; /* for each entry of the state: whether it is to be loaded */
} loading;

static fsdp_status check_entry(const fsdp_state_dict_entry *to, const fsdp_state_dict_entry *from, bool parts)
{
    if (from->ndim != to->ndim ||
        memcmp(from->global_shape, to->global_shape, (size_t)to->ndim * sizeof *to->global_shape) != 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot load '%s': it has shape %s, but shape %s is needed", to->name,
                         FSDP__SHOWN_SHAPE(from->ndim, from->global_shape),
                         FSDP__SHOWN_SHAPE(to->ndim, to->global_shape));
    if (!parts && fsdp_tensor_numel(from->tensor) != fsdp__shape_numel(from->ndim, from->global_shape))
        return FSDP_FAIL(FSDP_INVALID, "cannot load '%s' from a part of it: gather the state dict first", to->name);
    if (fsdp_dtype_is_floating(fsdp_tensor_dtype(from->tensor)) !=
        fsdp_dtype_is_floating(fsdp_tensor_dtype(to->tensor)))
        return FSDP_FAIL(FSDP_INVALID, "cannot load '%s', which is %s, from %s", to->name,
                         fsdp_dtype_name(fsdp_tensor_dtype(to->tensor)),
                         fsdp_dtype_name(fsdp_tensor_dtype(from->tensor)));
    return FSDP_OK;
}

/* Checks the full state dict on a rank that must have one, and notes which entries it has. */
static fsdp_status check_full(const loading *l)
{
    if (!l->full)
        return FSDP_FAIL(FSDP_INVALID, "cannot load a state dict: it is NULL%s",
                         l->broadcast ? " on rank 0, which broadcasts it" : "");
    FSDP_TRY(fsdp__state_dict_check_values(l->full, "load"));
    for (int64_t i = 0; i < l->state->count; i++) {
        const fsdp_state_dict_entry *to = &l->state->entries[i], *from = fsdp_state_dict_find(l->full, to->name);

        if (!from && !l->partial)
            return FSDP_FAIL(FSDP_INVALID, "cannot load '%s': the state dict does not have it", to->name);
        if (from)
            FSDP_TRY(check_entry(to, from, l->parts));
        l->present[i] = from != NULL;
    }
    for (int64_t i = 0; i < l->full->count && !l->partial; i++)
        if (!fsdp_state_dict_find(l->state, l->full->entries[i].name))
            return FSDP_FAIL(FSDP_INVALID, "the state dict has '%s', which nothing takes", l->full->entries[i].name);
    return FSDP_OK;
}

/* Tells all ranks which entries rank 0 has. */
static fsdp_status share_present(const loading *l)
{
    bool mine = fsdp_process_group_rank(l->world) == 0;
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};

    FSDP_TRY(fsdp__gather(l->world, l->present, mine ? (size_t)l->state->count : 0, &all));
    memcpy(l->present, all.objects[0], (size_t)l->state->count);
    return FSDP_OK;
}

/* Asks for all entries first: if one may not be written now, the others stay as they were, too. */
static fsdp_status ask_to_write(const loading *l)
{
    for (int64_t i = 0; i < l->state->count; i++) {
        const fsdp_state_dict_entry *entry = &l->state->entries[i];

        if (l->present[i] && fsdp__entry_ask_to_write(entry) != FSDP_OK)
            return fsdp_fail_prefix(fsdp_last_status(), "loading '%s'", entry->name);
    }
    return FSDP_OK;
}

/* Checks everything before anything is written: if something is wrong on one rank, all ranks fail. */
static fsdp_status check_all(const loading *l)
{
    fsdp_status status = fsdp__state_dict_check_values(l->state, "load");

    if (status == FSDP_OK)
        status = fsdp__state_dict_check_current(l->state, "load into");
    if (status == FSDP_OK && (!l->broadcast || fsdp_process_group_rank(l->world) == 0))
        status = check_full(l);
    if (status == FSDP_OK && l->parts && l->broadcast)
        status = FSDP_FAIL(FSDP_INVALID,
                           "from_parts and broadcast_from_rank0 contradict each other: rank 0 does not have all parts");
    FSDP_TRY(fsdp_agree(l->world, status));
    FSDP_TRY(fsdp__state_dict_check_same(l->state, l->world));
    if (l->parts)
        FSDP_TRY(fsdp__state_dict_check_same(l->full, l->world));
    if (l->broadcast)
        FSDP_TRY(share_present(l));
    return fsdp_agree(l->world, ask_to_write(l));
}

/* Copies a run of a whole tensor to a flat part. */
static fsdp_status take_run(const fsdp_state_dict_entry *entry, const fsdp_tensor *whole)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *line = NULL, *own = NULL;

    FSDP_TRY(fsdp__view_reshape(whole, FSDP_SHAPE(fsdp_tensor_numel(whole)), &line));
    FSDP_TRY(fsdp__view_narrow(line, 0, entry->offset[0], entry->size[0], &own));
    return fsdp__tensor_copy_across(entry->tensor, own);
}

static fsdp_status take_piece(const fsdp_state_dict_entry *entry, const fsdp_piece *piece, const fsdp_tensor *whole)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *to = NULL, *from = NULL;

    FSDP_TRY(fsdp__piece_views(piece, entry->tensor, whole, &to, &from));
    return fsdp__tensor_copy_across(entry->piece_count == 1 ? entry->tensor : to, from);
}

/* Copies this rank's part of a whole tensor. */
static fsdp_status take_own(const fsdp_state_dict_entry *entry, const fsdp_tensor *whole)
{
    if (entry->flat)
        return take_run(entry, whole);
    if (entry->piece_count == 0)
        return fsdp_tensor_begin_write(entry->tensor);
    for (int i = 0; i < entry->piece_count; i++)
        FSDP_TRY(take_piece(entry, &entry->pieces[i], whole));
    return FSDP_OK;
}

/* Gives the whole tensor as it is sent: on the entry's device, in its dtype. On rank 0 it is that of the full state
 * dict if that is so already. */
static fsdp_status make_whole(const loading *l, const fsdp_state_dict_entry *entry, fsdp_tensor **out)
{
    fsdp_device *device = fsdp_tensor_device(entry->tensor);
    fsdp_dtype dtype = fsdp_tensor_dtype(entry->tensor);
    const fsdp_state_dict_entry *from = l->full ? fsdp_state_dict_find(l->full, entry->name) : NULL;
    bool mine = fsdp_process_group_rank(l->world) == 0;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *made = NULL;

    if (mine && from->tensor->storage->device == device && from->tensor->dtype == dtype) {
        *out = fsdp_tensor_ref(from->tensor);
        return FSDP_OK;
    }
    FSDP_TRY(fsdp_tensor_create(device, dtype, entry->ndim, entry->global_shape, FSDP_MEMORY_WORKSPACE, &made));
    if (mine)
        FSDP_TRY(fsdp__tensor_copy_across(made, from->tensor));
    *out = fsdp__take(&made);
    return FSDP_OK;
}

static fsdp_status receive(const loading *l, const fsdp_state_dict_entry *entry)
{
    fsdp_device *device = fsdp_tensor_device(entry->tensor);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL;

    FSDP_TRY(make_whole(l, entry, &whole));
    FSDP_TRY(fsdp_broadcast(l->world, fsdp_tensor_data(whole), fsdp_tensor_numel(whole), whole->dtype, 0,
                            fsdp_device_stream(device)));
    return take_own(entry, whole);
}

/* Returns whether every rank has the same part of both. */
static bool same_parts(const fsdp_tensor *a, const fsdp_tensor *b)
{
    const fsdp_distribution *x = fsdp_tensor_distribution(a), *y = fsdp_tensor_distribution(b);
    bool same = x && y && fsdp_mesh_equal(x->mesh, y->mesh);

    for (int i = 0; same && i < x->placement_count; i++)
        same = fsdp__placement_equal(x->placements[i], y->placements[i]);
    return same;
}

static fsdp_status take_part(const fsdp_state_dict_entry *entry, const fsdp_tensor *from)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL;

    if (!fsdp_tensor_distribution(from))
        return take_own(entry, from);
    if (same_parts(entry->tensor, from))
        return fsdp__tensor_copy_across(entry->tensor, from);
    FSDP_TRY(fsdp_full_tensor(from, &whole));
    return take_own(entry, whole);
}

static fsdp_status load(loading *l)
{
    FSDP_TRY(check_all(l));
    for (int64_t i = 0; i < l->state->count; i++) {
        const fsdp_state_dict_entry *entry = &l->state->entries[i];
        fsdp_status status;

        if (!l->present[i])
            continue;
        status =
            l->broadcast ? receive(l, entry) : take_part(entry, fsdp_state_dict_find(l->full, entry->name)->tensor);
        FSDP_TRY(fsdp_fail_prefix(status, "loading '%s'", entry->name));
    }
    return FSDP_OK;
}

fsdp_status fsdp_state_dict_load_full(const fsdp_state_dict *state, const fsdp_state_dict *full,
                                      const fsdp_full_state_options *options)
{
    FSDP__FREED unsigned char *present = NULL;
    loading l = {.state = state,
                 .full = full,
                 .broadcast = options && options->broadcast_from_rank0,
                 .partial = options && options->partial,
                 .parts = options && options->from_parts};

    if (!state)
        return FSDP_FAIL(FSDP_INVALID, "cannot load into a state dict: it is NULL");
    FSDP_TRY(fsdp__state_dict_world(state, full, "load into", &l.world));
    FSDP__TRY_NEW(l.present = present = fsdp__calloc((size_t)state->count, 1));
    return load(&l);
}
