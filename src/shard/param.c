/* param.c - one parameter: this rank's rows outside forward and backward, the whole one inside. */
#include "shard/shard.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"

int64_t fsdp__param_numel(const fsdp__shard_param *param)
{
    return param->rows * param->row_numel;
}

int64_t fsdp__param_chunk_numel(const fsdp__shard_param *param)
{
    return param->chunk_rows * param->row_numel;
}

int64_t fsdp__param_shard_numel(const fsdp__shard_param *param)
{
    return param->my_rows * param->row_numel;
}

/* ---- what callers do to the two tensors ---- */

/* A gradient that the caller sets or drops is all there is: of a shard, what waits to be reduced goes; of a gathered
 * parameter, where it is what waits to be reduced, the shard's goes, and what backwards without reduction kept. */
static void grad_set(void *arg, fsdp_tensor *leaf)
{
    fsdp__shard_param *param = arg;
    fsdp_tensor *set = leaf == param->unsharded ? fsdp_tensor_ref(fsdp_tensor_grad(leaf)) : NULL;

    if (leaf == param->unsharded)
        fsdp__put_grad(param->sharded, NULL);
    fsdp__param_drop_whole_gradient(param);
    if (set)
        fsdp__put_grad(leaf, set);
    fsdp_tensor_unref(set);
}

/* A shard's gradient is a distributed tensor like it, wherever it comes from. */
static fsdp_status grad_made(void *arg, fsdp_tensor *leaf, fsdp_tensor *grad)
{
    const fsdp__shard_param *param = arg;

    if (leaf != param->sharded || fsdp_tensor_distribution(grad))
        return FSDP_OK;
    return fsdp_tensor_set_distribution(grad, fsdp_tensor_distribution(leaf));
}

static void requires_grad_set(void *arg, bool requires_grad)
{
    const fsdp__shard_param *param = arg;

    fsdp__mirror_requires_grad(param->sharded, requires_grad);
    if (param->unsharded)
        fsdp__mirror_requires_grad(param->unsharded, requires_grad);
}

static const fsdp__leaf_owner leaf_owner = {grad_made, grad_set, requires_grad_set};

fsdp__shard_param *fsdp__param_of(const fsdp_tensor *tensor)
{
    return fsdp__leaf_owner_arg(tensor, &leaf_owner);
}

fsdp_status fsdp__param_own(fsdp__shard_param *param, fsdp_tensor *leaf)
{
    return fsdp__set_leaf_owner(leaf, &leaf_owner, param);
}

const char *fsdp__param_text(const fsdp__shard_param *param, char *text, size_t bytes)
{
    const fsdp__shard_slot *slot = param->slots;
    const char *name = "?";

    if (param->name) {
        snprintf(text, bytes, "'%s'", param->name);
        return text;
    }
    for (int64_t i = 0; param->slot_count > 0 && i < slot->module->parts->parameter_count; i++)
        if (slot->module->parts->parameters[i].slot == slot->field)
            name = slot->module->parts->parameters[i].name;
    snprintf(text, bytes, "'%s' of a %s", name, param->slot_count > 0 ? slot->module->type->name : "module");
    return text;
}

/* ---- life ---- */

fsdp_status fsdp__param_init(fsdp__shard_param *param, fsdp_tensor *tensor, fsdp_mesh *mesh)
{
    fsdp_distribution distribution = {.mesh = mesh, .placement_count = 1, .ndim = tensor->ndim};
    int64_t ranks = fsdp_mesh_size(mesh, -1), whole_rows = tensor->shape[0];
    fsdp_status st;

    distribution.placements[0] = (fsdp_placement){.kind = FSDP_SHARD, .dim = 0};
    memcpy(distribution.global_shape, tensor->shape, (size_t)tensor->ndim * sizeof(int64_t));
    param->rows = whole_rows;
    param->row_numel = fsdp__shape_numel(tensor->ndim - 1, tensor->shape + 1);
    param->chunk_rows = (param->rows + ranks - 1) / ranks;
    param->my_rows = fsdp_shard_range(param->rows, ranks, fsdp_mesh_coordinate(mesh, 0), &param->first_row);

    /* The tensor keeps its identity: every field of the model and an optimizer made earlier see the shard from now on.
     * Its bytes still lie where they were; fsdp__state_allocate moves this rank's rows. */
    FSDP_TRY(fsdp__param_own(param, tensor));
    tensor->shape[0] = param->my_rows;
    tensor->offset += param->first_row * param->row_numel;
    st = fsdp_tensor_set_distribution(tensor, &distribution);
    if (st != FSDP_OK) {
        (void)fsdp__set_leaf_owner(tensor, NULL, NULL);
        tensor->shape[0] = whole_rows;
        tensor->offset -= param->first_row * param->row_numel;
        return st;
    }
    return FSDP_OK;
}

void fsdp__param_undo(fsdp__shard_param *param)
{
    fsdp_tensor *tensor = param->sharded;

    (void)fsdp__set_leaf_owner(tensor, NULL, NULL);
    if (tensor->distribution.free_state)
        tensor->distribution.free_state(tensor->distribution.state);
    tensor->distribution = (fsdp__attachment){0};
    tensor->shape[0] = param->rows;
    tensor->offset -= param->first_row * param->row_numel;
}

void fsdp__param_release(fsdp__shard_param *param)
{
    fsdp_tensor_unref(param->kept);
    fsdp_tensor_unref(param->unsharded);
    fsdp_tensor_unref(param->sharded);
    fsdp__free(param->slots);
    fsdp__free(param->name);
    *param = (fsdp__shard_param){0};
}

fsdp_status fsdp__param_add_slot(fsdp__shard_param *param, fsdp_module *module, fsdp_tensor **field)
{
    if (fsdp__grow(&param->slots, param->slot_count, &param->slot_capacity, sizeof *param->slots))
        return FSDP_NO_MEMORY;
    param->slots[param->slot_count++] = (fsdp__shard_slot){.module = module, .field = field};
    return FSDP_OK;
}

void fsdp__param_publish(fsdp__shard_param *param, bool unsharded)
{
    fsdp_tensor *tensor = unsharded ? param->unsharded : param->sharded;

    for (int64_t i = 0; i < param->slot_count; i++) {
        fsdp_tensor **field = param->slots[i].field;

        if (*field == tensor)
            continue;
        fsdp_tensor_unref(*field);
        *field = fsdp_tensor_ref(tensor);
    }
}
