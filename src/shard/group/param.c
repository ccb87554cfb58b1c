/* param.c - one parameter: this rank's rows outside forward and backward, the unsharded one inside. */
#include "shard/group/param.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/device.h"

void fsdp__param_name_memory(const fsdp__param *param)
{
    const fsdp__storage *sharded = param->sharded->storage, *unsharded = param->unsharded->storage;

    fsdp__device_name_memory(sharded->device, sharded->data, sharded->bytes, FSDP_MEMORY_PARAMETER_SHARD, param->name);
    /* Last, since in place the shard is a part of it. */
    fsdp__device_name_memory(unsharded->device, unsharded->data, unsharded->bytes, FSDP_MEMORY_UNSHARDED_PARAMETER,
                             param->name);
}

int64_t fsdp__param_numel(const fsdp__param *param)
{
    return param->extent.outer * param->extent.rows * param->extent.inner;
}

int64_t fsdp__param_shard_numel(const fsdp__param *param)
{
    return param->part.outer * param->part.inner;
}

bool fsdp__param_is_one_run(const fsdp__param *param)
{
    return param->part.outer <= 1 || param->part.stride == param->part.inner;
}

fsdp_sharded_buffer fsdp__param_buffer(const fsdp__param *param)
{
    const fsdp__extent *e = &param->extent;

    if (e->outer == 0)
        return (fsdp_sharded_buffer){0};
    return (fsdp_sharded_buffer){
        .numel = e->rows * e->inner, .chunk = param->chunk_numel / e->outer, .outer = e->outer};
}

size_t fsdp__param_padded_bytes(const fsdp__param *param, int ranks, fsdp_dtype dtype)
{
    return fsdp__device_rounded((size_t)(param->chunk_numel * ranks) * fsdp_dtype_size(dtype));
}

fsdp_status fsdp__param_set_name(fsdp__param *param, const char *module, const char *field)
{
    char *name = fsdp__dotted(module, field);

    FSDP__TRY_NEW(name);
    if (param->name && strcmp(param->name, name) == 0) {
        fsdp__free(name); /* callers may hold the one that is there */
        return FSDP_OK;
    }
    fsdp__free(param->name);
    param->name = name;
    return FSDP_OK;
}

const char *fsdp__param_text(const fsdp__param *param, char *text, size_t bytes)
{
    const fsdp__param_field *field = param->fields;
    const char *name = "?";

    if (param->name) {
        snprintf(text, bytes, "'%s'", param->name);
        return text;
    }
    for (int64_t i = 0; param->field_count > 0 && i < field->module->parts->parameter_count; i++)
        if (field->module->parts->parameters[i].slot == field->field)
            name = field->module->parts->parameters[i].name;
    snprintf(text, bytes, "'%s' of a %s", name, param->field_count > 0 ? field->module->type->name : "module");
    return text;
}

/* ---- life cycle ---- */

fsdp_dtype fsdp__param_dtype_by(fsdp_dtype wanted, fsdp_dtype own)
{
    return wanted && fsdp_dtype_is_floating(own) ? wanted : own;
}

void fsdp__param_init(fsdp__param *param, fsdp_tensor *tensor)
{
    *param = (fsdp__param){.sharded = fsdp_tensor_ref(tensor), .orig_dtype = tensor->dtype};
    fsdp__param_set_dim(param, 0);
}

void fsdp__param_set_dim(fsdp__param *param, int dim)
{
    const fsdp_tensor *tensor = param->sharded;

    param->dim = dim;
    param->extent = (fsdp__extent){.outer = fsdp__shape_numel(dim, tensor->shape),
                                   .rows = tensor->shape[dim],
                                   .inner = fsdp__shape_numel(tensor->ndim - dim - 1, tensor->shape + dim + 1)};
}

/* Makes the tensor contiguous if it is on the meta device: without values nothing can lie apart. */
static void set_strides(fsdp_tensor *tensor)
{
    if (fsdp_device_is_meta(fsdp_tensor_device(tensor)))
        fsdp__shape_contiguous_strides(tensor->ndim, tensor->shape, tensor->strides);
}

/* Restores the tensor as it was before, from the distribution that it was to get. */
static void set_whole(fsdp__param *param, const fsdp_distribution *distribution)
{
    fsdp_tensor *tensor = param->sharded;
    bool flat = fsdp_distribution_is_flat(distribution);

    tensor->ndim = distribution->ndim;
    memcpy(tensor->shape, distribution->global_shape, (size_t)tensor->ndim * sizeof(int64_t));
    tensor->offset -= param->part.at;
    if (flat)
        fsdp__shape_contiguous_strides(tensor->ndim, tensor->shape, tensor->strides);
    else
        set_strides(tensor);
}

/* Narrows the tensor to this rank's part: rows, or a run. */
static void set_part(fsdp__param *param, const fsdp__mesh_info *mesh)
{
    fsdp_tensor *tensor = param->sharded;

    tensor->offset += param->part.at;
    if (param->placement.kind == FSDP_SHARD) {
        tensor->shape[param->dim] = fsdp_shard_range(param->extent.rows, mesh->ranks, mesh->rank, &(int64_t){0});
        set_strides(tensor);
        return;
    }
    tensor->ndim = 1;
    tensor->shape[0] = param->part.inner;
    tensor->strides[0] = 1;
}

/* The model's tensor keeps its identity: from now on every field of the model, and an optimizer made earlier, see the
 * shard. Its bytes still lie where they were; fsdp__param_groups_allocate moves this rank's rows. */
fsdp_status fsdp__param_shard(fsdp__param *param, const fsdp__mesh_info *mesh)
{
    fsdp_tensor *tensor = param->sharded;
    fsdp_distribution distribution = {.ndim = tensor->ndim};
    fsdp_status status;

    fsdp__mesh_info_place(mesh, param->placement, &distribution);
    memcpy(distribution.global_shape, tensor->shape, (size_t)tensor->ndim * sizeof(int64_t));
    set_part(param, mesh);
    status = fsdp_tensor_set_distribution(tensor, &distribution);
    if (status != FSDP_OK)
        set_whole(param, &distribution);
    return status;
}

void fsdp__param_unwrap(fsdp__param *param)
{
    fsdp_tensor *tensor = param->sharded;

    set_whole(param, fsdp_tensor_distribution(tensor));
    tensor->distribution.free_state(tensor->distribution.state);
    tensor->distribution = (fsdp__attachment){0};
}

void fsdp__param_release(fsdp__param *param)
{
    fsdp_tensor_unref(param->accumulated_grad);
    fsdp_tensor_unref(param->summoned);
    fsdp_tensor_unref(param->unsharded);
    fsdp_tensor_unref(param->sharded);
    fsdp__free(param->fields);
    fsdp__free(param->name);
    fsdp__free(param->unit_name);
    *param = (fsdp__param){0};
}

/* ---- fields ---- */

/* Returns whether the field is another name of a parameter that was registered first elsewhere. */
static bool is_tied(const fsdp__param_field *field)
{
    const struct fsdp__module_parts *parts = field->module->parts;
    bool tied = false;

    for (int64_t i = 0; i < parts->parameter_count; i++)
        tied = tied || (parts->parameters[i].slot == field->field && parts->parameters[i].tied);
    return tied;
}

fsdp_status fsdp__param_add_field(fsdp__param *param, fsdp__param_field field)
{
    fsdp__param_field *last;

    FSDP_TRY(fsdp__grow(&param->fields, param->field_count, &param->field_capacity, sizeof *param->fields));
    last = &param->fields[param->field_count++];
    *last = field;
    if (last == param->fields || is_tied(&field) || !is_tied(param->fields))
        return FSDP_OK;
    *last = param->fields[0]; /* modules may come in another order than they were built in */
    param->fields[0] = field;
    return FSDP_OK;
}

void fsdp__param_forget_user(fsdp__param *param, const void *user)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < param->field_count; i++)
        if (param->fields[i].user != user)
            param->fields[kept++] = param->fields[i];
    param->field_count = kept;
}

void fsdp__param_set_fields(fsdp__param *param, fsdp_tensor *tensor)
{
    for (int64_t i = 0; i < param->field_count; i++) {
        fsdp_tensor **field = param->fields[i].field;

        if (*field == tensor)
            continue;
        fsdp_tensor_unref(*field);
        *field = fsdp_tensor_ref(tensor);
    }
}

void fsdp__param_publish(fsdp__param *param, bool unsharded)
{
    fsdp_tensor *tensor = unsharded ? param->unsharded : param->sharded;

    /* A comparison of versions gives the same under either name, and in both runs of a recomputed function. */
    if (unsharded)
        tensor->storage->version = param->sharded->storage->version;
    fsdp__param_set_fields(param, tensor);
}
