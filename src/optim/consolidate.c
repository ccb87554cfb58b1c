/* consolidate.c - brings the state of all ranks together on one of them. */
#include "base/alloc.h"
#include "comm/group_calls.h"
#include "optim/partition.h"
#include "state/entry.h"
#include "tensor/tensor.h"

enum {
    NO_STATE = -1 /* in place of steps */
};

/* Gives how often each parameter has stepped, as its owner counts it. */
static fsdp_status gather_steps(const fsdp_optimizer *optimizer, int64_t *steps)
{
    fsdp_process_group *group = optimizer->partition->group;
    int64_t count = fsdp__optimizer_count(optimizer), at = 0;
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};

    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);)
        steps[at++] = w.param->steps > 0 || w.param->moment1 ? w.param->steps : NO_STATE;
    FSDP_TRY(fsdp__gather(group, steps, (size_t)count * sizeof *steps, &all));
    at = 0;
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w); at++)
        if (all.bytes[w.param->owner] == (size_t)count * sizeof *steps)
            steps[at] = ((const int64_t *)all.objects[w.param->owner])[at];
    return FSDP_OK;
}

/* Brings a tensor from its owner to rank `to`, which gets it on the host. The other ranks join the broadcast. */
static fsdp_status bring(const fsdp_optimizer *optimizer, const fsdp__optimizer_param *param,
                         const fsdp__optimizer_part *part, int to, fsdp_state_dict *state)
{
    fsdp_process_group *group = optimizer->partition->group;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *moved = NULL, *kept = NULL;
    const fsdp_tensor *like = param->tensor;
    int64_t shape[FSDP_MAX_DIMS];
    int ndim = fsdp__optimizer_part_shape(like, part, shape), rank = fsdp_process_group_rank(group);
    fsdp_context *context = fsdp_process_group_context(group);

    if (rank == param->owner)
        moved = fsdp_tensor_ref(*part->moment);
    else if (param->owner != to)
        FSDP_TRY(fsdp_tensor_create(like->storage->device, part->dtype, ndim, shape, FSDP_MEMORY_WORKSPACE, &moved));
    if (param->owner != to)
        FSDP_TRY(fsdp_broadcast(group, fsdp_tensor_data(moved), fsdp_tensor_numel(moved), part->dtype, param->owner,
                                fsdp_device_stream(like->storage->device)));
    if (rank != to)
        return FSDP_OK;
    FSDP_TRY(fsdp_tensor_create(fsdp_cpu(context), part->dtype, ndim, shape, FSDP_MEMORY_OPTIMIZER_STATE, &kept));
    FSDP_TRY(fsdp__tensor_copy_across(kept, moved));
    return fsdp__optimizer_add_part(state, param, part->name, kept);
}

static fsdp_status bring_param(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                               fsdp__optimizer_param *param, int64_t steps, int to, fsdp_state_dict *state)
{
    fsdp_process_group *ranks = optimizer->partition->group;
    fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS];

    FSDP_TRY(fsdp__partition_check(optimizer, param));
    if (steps == NO_STATE)
        return FSDP_OK;
    fsdp__optimizer_parts(group, param, parts);
    if (fsdp_process_group_rank(ranks) == to)
        FSDP_TRY(fsdp__optimizer_add_step(state, param, fsdp_cpu(fsdp_process_group_context(ranks)), steps));
    for (int p = 0; p < FSDP__OPTIMIZER_PARTS; p++)
        if (parts[p].moment)
            FSDP_TRY(bring(optimizer, param, &parts[p], to, state));
    return FSDP_OK;
}

static fsdp_status consolidate(const fsdp_optimizer *optimizer, int to, fsdp_state_dict *state)
{
    FSDP__FREED int64_t *steps = fsdp__calloc((size_t)fsdp__optimizer_count(optimizer), sizeof *steps);
    int64_t at = 0;

    FSDP__TRY_NEW(steps);
    FSDP_TRY(gather_steps(optimizer, steps));
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);)
        FSDP_TRY(bring_param(optimizer, w.group, w.param, steps[at++], to, state));
    return FSDP_OK;
}

fsdp_status fsdp_optimizer_consolidate_state_dict(fsdp_optimizer *optimizer, int to)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__optimizer_check(optimizer, "consolidate the state"));
    if (!optimizer->partition)
        return FSDP_FAIL(FSDP_STATE, "nothing to consolidate: the optimizer's state is not partitioned");
    if (to < 0 || to >= fsdp_process_group_size(optimizer->partition->group))
        return FSDP_FAIL(FSDP_INVALID, "cannot consolidate the optimizer's state on rank %d of %d", to,
                         fsdp_process_group_size(optimizer->partition->group));
    fsdp__partition_forget(optimizer);
    status = fsdp__state_dict_create_in(fsdp_process_group_context(optimizer->partition->group), &state);
    if (status == FSDP_OK)
        status = consolidate(optimizer, to, state);
    if (status == FSDP_OK && fsdp_process_group_rank(optimizer->partition->group) == to)
        optimizer->partition->consolidated = fsdp__take(&state);
    return fsdp__partition_abort(optimizer, status);
}
