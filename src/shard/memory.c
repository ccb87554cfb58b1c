/* memory.c - where a group's bytes lie: see [Note: three layouts of a group]. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/internal.h"
#include "shard/shard.h"

/* ---- layout ---- */

static size_t padded_bytes(const fsdp__shard_group *group, const fsdp__shard_param *param, fsdp_dtype dtype)
{
    return fsdp__device_rounded((size_t)(fsdp__param_chunk_numel(param) * group->ranks) * fsdp_dtype_size(dtype));
}

/* Whether the group's memory may be what ranks share: the caller allows it and the device computes there. */
static bool shares(const fsdp__shard_group *group)
{
    return group->ranks > 1 && group->share && fsdp__device_shared_memory(group->device);
}

static fsdp__layout choose_layout(const fsdp__shard_group *group)
{
    if (group->param_dtype == group->orig_dtype && (group->ranks == 1 || shares(group)))
        return FSDP__LAYOUT_IN_PLACE;
    return shares(group) ? FSDP__LAYOUT_CAST : FSDP__LAYOUT_COPY;
}

static void plan(fsdp__shard_group *group)
{
    group->shard_bytes = group->whole_bytes = 0;
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];

        p->shard_offset = group->shard_bytes;
        p->whole_offset = group->whole_bytes;
        group->shard_bytes +=
            fsdp__device_rounded((size_t)fsdp__param_chunk_numel(p) * fsdp_dtype_size(group->orig_dtype));
        group->whole_bytes += padded_bytes(group, p, group->param_dtype);
    }
}

/* Still without bytes. */
static fsdp_status make_regions(fsdp__shard_group *group, fsdp__layout layout)
{
    if (layout == FSDP__LAYOUT_IN_PLACE) {
        if (group->ranks == 1)
            return fsdp__region_of_device(group->device, group->whole_bytes, FSDP_MEMORY_PARAMETER_SHARD,
                                          &group->whole);
        return fsdp__region_of_ranks(group, FSDP_MEMORY_COMMON, group->whole_bytes, FSDP_MEMORY_PARAMETER_SHARD,
                                     group->shard_bytes, &group->whole);
    }
    if (layout == FSDP__LAYOUT_CAST)
        FSDP_TRY(fsdp__region_of_ranks(group, FSDP_MEMORY_COMMON, group->whole_bytes, FSDP_MEMORY_UNSHARDED_PARAMETER,
                                       0, &group->whole));
    return fsdp__region_of_device(group->device, group->shard_bytes, FSDP_MEMORY_PARAMETER_SHARD, &group->shards);
}

/* The region of this rank's rows, and where in it `param` begins. */
static fsdp__region *shard_place(const fsdp__shard_group *group, const fsdp__shard_param *param, size_t *offset)
{
    *offset = param->shard_offset;
    if (group->shards)
        return group->shards;
    *offset = param->whole_offset + (size_t)(param->first_row * param->row_numel) * fsdp_dtype_size(group->orig_dtype);
    return group->whole;
}

/* ---- gradients ---- */

/* One region for all gradients that the group can have. */
static fsdp_status open_room(fsdp__shard_group *group, const fsdp__shard_param *asked, fsdp__gradient_room room,
                             fsdp_dtype dtype, fsdp__region **out)
{
    size_t bytes = 0;
    fsdp_status st;

    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];

        p->has_room[room] = p == asked || fsdp_tensor_requires_grad(p->sharded);
        bytes += p->has_room[room] ? padded_bytes(group, p, dtype) : 0;
    }
    if (shares(group))
        FSDP_TRY(fsdp__region_of_ranks(group, FSDP_MEMORY_VISIBLE, bytes, FSDP_MEMORY_GRADIENT, bytes, out));
    else
        FSDP_TRY(fsdp__region_of_device(group->device, bytes, FSDP_MEMORY_GRADIENT, out));
    st = fsdp__region_fill(*out);
    if (st != FSDP_OK) {
        fsdp__region_unref(*out);
        return st;
    }
    (*out)->weak = &group->rooms[room];
    group->rooms[room] = *out;
    return FSDP_OK;
}

static void leave_room(fsdp__shard_group *group, fsdp__gradient_room room)
{
    if (group->rooms[room])
        group->rooms[room]->weak = NULL;
    group->rooms[room] = NULL;
}

void fsdp__group_leave_rooms(fsdp__shard_group *group)
{
    leave_room(group, FSDP__ROOM_COMPUTED);
    leave_room(group, FSDP__ROOM_KEPT);
}

fsdp_status fsdp__group_whole_gradient(fsdp__shard_group *group, fsdp__shard_param *param, fsdp__gradient_room room,
                                       fsdp_tensor **out)
{
    fsdp_dtype dtype = room == FSDP__ROOM_KEPT ? group->reduce_dtype : group->param_dtype;
    size_t bytes = (size_t)fsdp__param_numel(param) * fsdp_dtype_size(dtype), offset = 0;
    const fsdp_tensor *like = param->unsharded;
    fsdp__storage *storage;
    fsdp__region *region;
    fsdp_status st;

    FSDP_TRY(fsdp__storage_create(group->device, bytes, FSDP_MEMORY_GRADIENT, false, &storage));
    /* Unfrozen since the room was made: another room, next to what is used of the old one. */
    if (group->rooms[room] && !param->has_room[room])
        leave_room(group, room);
    region = group->rooms[room];
    if (region)
        region->refs++;
    else
        FSDP_TRY_GOTO(st, open_room(group, param, room, dtype, &region), out);
    for (const fsdp__shard_param *p = group->params; p != param; p++)
        offset += p->has_room[room] ? padded_bytes(group, p, dtype) : 0;
    fsdp__region_lend(region, offset, storage);
    fsdp__region_unref(region); /* the storage has it now */
    st = fsdp__tensor_create_view(storage, dtype, like->ndim, like->shape, NULL, 0, out);
out:
    fsdp__storage_unref(storage);
    return st;
}

/* The first gradient of a whole parameter in a backward goes straight to where the reduction reads it. */
static fsdp_status gradient_source(void *arg, fsdp_tensor *leaf, fsdp_tensor **out)
{
    fsdp__shard_param *param = arg;

    (void)leaf;
    return fsdp__group_whole_gradient(param->group, param, FSDP__ROOM_COMPUTED, out);
}

/* ---- building ---- */

static fsdp_status refuse_write(void *arg, fsdp__storage *storage)
{
    fsdp__shard_state *state = arg;
    char text[128];

    for (int64_t i = 0; state && i < state->group.param_count; i++)
        if (state->group.params[i].unsharded->storage == storage)
            return FSDP_FAIL(FSDP_STATE,
                             "cannot write to the gathered tensor of parameter %s: what is written there goes to no "
                             "rank; reshard its module and write to the shard",
                             fsdp__param_text(&state->group.params[i], text, sizeof text));
    return FSDP_FAIL(FSDP_STATE, "cannot write to a gathered parameter whose module is gone");
}

static fsdp_status before_shard_write(void *arg, fsdp__storage *storage)
{
    fsdp__region *region = arg;

    if (region->state)
        return fsdp__state_begin_write(region->state, storage);
    if (!region->comm)
        return FSDP_OK;
    /* The model is gone here, but peers may be in their last use of it. */
    return fsdp__group_await_readers(region->comm, region->data, fsdp_device_stream(region->device));
}

static fsdp_status make_unsharded(fsdp__shard_state *state, fsdp__shard_param *param)
{
    fsdp__shard_group *group = &state->group;
    size_t bytes = (size_t)fsdp__param_numel(param) * fsdp_dtype_size(group->param_dtype);
    const fsdp_distribution *distribution = fsdp_tensor_distribution(param->sharded);
    fsdp__storage *storage;
    fsdp_status st;

    FSDP_TRY(fsdp__storage_create(group->device, bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, false, &storage));
    storage->guard = (fsdp__storage_guard){refuse_write, state};
    st = fsdp__tensor_create_view(storage, group->param_dtype, distribution->ndim, distribution->global_shape, NULL, 0,
                                  &param->unsharded);
    fsdp__storage_unref(storage);
    FSDP_TRY(st);
    FSDP_TRY(fsdp_tensor_set_requires_grad(param->unsharded, fsdp_tensor_requires_grad(param->sharded)));
    FSDP_TRY(fsdp__param_own(param, param->unsharded));
    return fsdp__set_grad_source(param->unsharded, gradient_source, param);
}

/* Everything of this rank alone: objects, and the storages that the shards will move to. */
static fsdp_status prepare(fsdp__shard_state *state, fsdp__layout layout, fsdp__storage **storages)
{
    fsdp__shard_group *group = &state->group;

    plan(group);
    FSDP_TRY(fsdp_event_create(group->device, &group->gathered));
    FSDP_TRY(make_regions(group, layout));
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];
        size_t bytes = (size_t)fsdp__param_shard_numel(p) * fsdp_dtype_size(group->orig_dtype);

        FSDP_TRY(make_unsharded(state, p));
        FSDP_TRY(fsdp__storage_create(group->device, bytes, FSDP_MEMORY_PARAMETER_SHARD, false, &storages[i]));
    }
    if (group->shards)
        FSDP_TRY(fsdp__region_fill(group->shards));
    return fsdp_stream_synchronize(fsdp_device_stream(group->device)); /* who made the values has made them */
}

/* Gives the new storages their memory, and the values that the shards had if they had any. */
static fsdp_status fill_storages(const fsdp__shard_group *group, fsdp__storage **storages)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__shard_param *p = &group->params[i];
        const void *values = fsdp_tensor_data(p->sharded);
        size_t offset;
        fsdp__region *region = shard_place(group, p, &offset);

        fsdp__region_lend(region, offset, storages[i]);
        if (values)
            FSDP_TRY(
                fsdp__copy_on_device(fsdp_device_stream(group->device), storages[i]->data, values, storages[i]->bytes));
    }
    return FSDP_OK;
}

/* Moves the shards onto the group's memory. */
static void commit(fsdp__shard_state *state, fsdp__layout layout, fsdp__storage **storages)
{
    fsdp__shard_group *group = &state->group;

    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];
        size_t offset;
        fsdp__region *region = shard_place(group, p, &offset);

        storages[i]->guard = (fsdp__storage_guard){before_shard_write, region};
        region->state = state;
        fsdp__storage_unref(p->sharded->storage);
        p->sharded->storage = storages[i];
        p->sharded->offset = 0;
        storages[i] = NULL;
    }
    group->layout = layout;
}

static void undo(fsdp__shard_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp_tensor_unref(group->params[i].unsharded);
        group->params[i].unsharded = NULL;
    }
    fsdp__region_unref(group->shards);
    fsdp__region_unref(group->whole);
    fsdp_event_free(group->gathered);
    group->shards = group->whole = NULL;
    group->gathered = NULL;
    group->device = NULL;
}

fsdp_status fsdp__state_allocate(fsdp__shard_state *state, fsdp_device *device)
{
    fsdp__shard_group *group = &state->group;
    fsdp__storage **storages;
    fsdp__layout layout;
    fsdp_status st;

    if (group->layout != FSDP__LAYOUT_NONE || group->param_count == 0)
        return FSDP_OK;
    if (fsdp_device_is_meta(device))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot materialize sharded parameters on the meta device");
    group->device = device;
    layout = choose_layout(group);
    storages = fsdp__calloc((size_t)group->param_count, sizeof *storages);
    st = storages ? prepare(state, layout, storages) : FSDP_NO_MEMORY;
    /* Common memory is taken by all ranks or by none, so nobody goes there before all are ready. */
    if (group->ranks > 1)
        FSDP_TRY_GOTO(st, fsdp_agree(group->comm, st), out);
    FSDP_TRY_GOTO(st, st, out);
    if (group->whole)
        FSDP_TRY_GOTO(st, fsdp__region_fill(group->whole), out);
    FSDP_TRY_GOTO(st, fill_storages(group, storages), out);
    commit(state, layout, storages);
out:
    if (st != FSDP_OK)
        undo(group);
    for (int64_t i = 0; storages && i < group->param_count; i++)
        fsdp__storage_unref(storages[i]);
    fsdp__free(storages);
    return st;
}

/* ---- releasing ---- */

/* The tensors may outlive the group in an optimizer, a graph, or the caller's hands. */
static void let_go(fsdp__shard_param *param)
{
    (void)fsdp__set_leaf_owner(param->sharded, NULL, NULL);
    if (!param->unsharded)
        return;
    (void)fsdp__set_leaf_owner(param->unsharded, NULL, NULL);
    (void)fsdp__set_grad_source(param->unsharded, NULL, NULL);
    param->unsharded->storage->guard.arg = NULL;
}

void fsdp__group_release(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    if (group->layout != FSDP__LAYOUT_NONE)
        fsdp__group_reshard(group, tree);
    fsdp__group_drop_whole_gradients(group);
    fsdp__group_leave_rooms(group);
    for (int64_t i = 0; i < group->param_count; i++) {
        let_go(&group->params[i]);
        fsdp__param_release(&group->params[i]);
    }
    fsdp__free(group->params);
    if (group->shards)
        group->shards->state = NULL;
    if (group->whole)
        group->whole->state = NULL;
    fsdp__region_unref(group->shards);
    fsdp__region_unref(group->whole);
    fsdp_event_free(group->gathered);
    fsdp_mesh_unref(group->mesh);
    *group = (fsdp__shard_group){0};
}

/* ---- the whole parameters come and go ---- */

fsdp_status fsdp__group_whole_begin(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    if (group->layout == FSDP__LAYOUT_COPY) {
        fsdp_status st;

        FSDP_TRY(fsdp__tree_take_spare(tree, group->whole_bytes, &group->whole));
        group->fresh_whole = !group->whole;
        if (group->fresh_whole) {
            FSDP_TRY(fsdp__region_of_device(group->device, group->whole_bytes, FSDP_MEMORY_UNSHARDED_PARAMETER,
                                            &group->whole));
            st = fsdp__region_fill(group->whole);
            if (st != FSDP_OK) {
                fsdp__region_unref(group->whole);
                group->whole = NULL;
                return st;
            }
        }
        tree->regions_out++;
    } else {
        fsdp__device_account(group->device, FSDP_MEMORY_UNSHARDED_PARAMETER, (int64_t)group->whole_bytes, true);
    }
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__storage_adopt(group->params[i].unsharded->storage,
                            (char *)group->whole->data + group->params[i].whole_offset, NULL, NULL);
    return FSDP_OK;
}

void fsdp__group_whole_end(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__storage_drop(group->params[i].unsharded->storage);
    if (group->layout == FSDP__LAYOUT_COPY) {
        tree->regions_out--;
        fsdp__tree_give_spare(tree, group->device, group->whole);
        group->whole = NULL;
    } else {
        fsdp__device_account(group->device, FSDP_MEMORY_UNSHARDED_PARAMETER, -(int64_t)group->whole_bytes, true);
    }
}
