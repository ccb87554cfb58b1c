/* param.c - one parameter: this rank's rows outside forward and backward, the whole one inside. */
#include "shard/shard.h"

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
     * Its bytes still lie where they were; fsdp__group_allocate moves this rank's rows. */
    tensor->shape[0] = param->my_rows;
    tensor->offset += param->first_row * param->row_numel;
    st = fsdp_tensor_set_distribution(tensor, &distribution);
    if (st != FSDP_OK) {
        tensor->shape[0] = whole_rows;
        tensor->offset -= param->first_row * param->row_numel;
        return st;
    }
    return FSDP_OK;
}

void fsdp__param_undo(fsdp__shard_param *param)
{
    fsdp_tensor *tensor = param->sharded;

    if (tensor->distribution.free_state)
        tensor->distribution.free_state(tensor->distribution.state);
    tensor->distribution = (fsdp__attachment){0};
    tensor->shape[0] = param->rows;
    tensor->offset -= param->first_row * param->row_numel;
}

void fsdp__param_release(fsdp__shard_param *param)
{
    fsdp_tensor_unref(param->accumulated);
    fsdp_tensor_unref(param->unsharded);
    fsdp_tensor_unref(param->sharded);
    fsdp__free(param->slots);
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
