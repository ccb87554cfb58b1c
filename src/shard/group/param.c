/* param.c - one parameter: this rank's rows outside forward and backward, the unsharded one inside. */
#include "shard/group/param.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/device.h"
#include "dist/dist.h"

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
    return param->part.outer <= 1 || param->chunk_numel == fsdp__param_numel(param);
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

/* Gives a tensor on the meta device contiguous strides: it has no values that could lie apart. */
static void make_meta_contiguous(fsdp_tensor *tensor)
{
    if (fsdp_device_is_meta(fsdp_tensor_device(tensor)))
        fsdp__shape_contiguous_strides(tensor->ndim, tensor->shape, tensor->strides);
}

/* ---- parts of parameters that another mesh cuts ---- */

/* Checks that what the other mesh has done to the tensor can be said with the dimensions of both meshes in the order of
 * `joint`, where the left one of two that cut the same dimension cuts first. */
static fsdp_status check_parallel(const fsdp_distribution *parallel, const fsdp_mesh *joint)
{
    for (int i = 0; i < parallel->placement_count; i++) {
        const fsdp_placement *p = &parallel->placements[i];
        const char *name = fsdp_mesh_dim_name(parallel->mesh, i);

        if (p->kind != FSDP_SHARD && p->kind != FSDP_REPLICATE)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "it is %s over mesh dimension '%s': only what is cut or replicated there "
                             "can be sharded as well",
                             p->kind == FSDP_PARTIAL ? "partial" : "a part of a flat vector", name);
        for (int j = 0; j < i; j++)
            if (fsdp_mesh_find_dim(joint, fsdp_mesh_dim_name(parallel->mesh, j)) > fsdp_mesh_find_dim(joint, name))
                return FSDP_FAIL(
                    FSDP_UNSUPPORTED,
                    "its mesh has dimension '%s' before '%s', and the mesh that both are of has it behind: "
                    "slice it in that order",
                    fsdp_mesh_dim_name(parallel->mesh, j), name);
    }
    return FSDP_OK;
}

fsdp_status fsdp__param_join(fsdp__param *param, fsdp__mesh_info *mesh)
{
    const fsdp_distribution *parallel = fsdp_tensor_distribution(param->sharded);

    FSDP_TRY(fsdp__mesh_join(mesh->mesh, parallel->mesh, &param->joint));
    FSDP_TRY(check_parallel(parallel, param->joint));
    param->parallel = parallel;
    return fsdp__mesh_info_add_parallel(mesh, parallel->mesh);
}

bool fsdp__param_is_contributed(const fsdp__param *param)
{
    const fsdp_distribution *d = param->parallel;
    bool contributed = false;

    for (int i = 0; d && i < d->placement_count; i++)
        contributed = contributed || (d->partial_gradients >> i & 1 && fsdp_mesh_size(d->mesh, i) > 1);
    return contributed;
}

/* Adds the placements of the mesh that cut the tensor before. The group's own placement cuts after those, also where
 * they are to its right. */
static void place_in_joint(const fsdp__param *param, fsdp_distribution *out)
{
    const fsdp_distribution *parallel = param->parallel;
    fsdp_distribution own = *out;
    int64_t parts = 1;

    out->mesh = param->joint;
    out->placement_count = fsdp_mesh_ndim(param->joint);
    memcpy(out->global_shape, parallel->global_shape, sizeof out->global_shape);
    for (int i = out->placement_count - 1; i >= 0; i--) {
        const char *name = fsdp_mesh_dim_name(param->joint, i);
        int before = fsdp_mesh_find_dim(parallel->mesh, name);
        fsdp_placement *p = &out->placements[i];

        *p = before >= 0 ? parallel->placements[before] : own.placements[fsdp_mesh_find_dim(own.mesh, name)];
        if (p->kind != FSDP_SHARD || p->dim != param->dim)
            continue;
        if (before >= 0)
            parts *= fsdp_mesh_size(param->joint, i);
        else
            p->split_factor = parts > 1 ? parts : 0;
    }
}

/* Describes the parameter's distribution over all meshes. */
static void place(const fsdp__param *param, const fsdp__mesh_info *mesh, fsdp_distribution *out)
{
    *out = (fsdp_distribution){.ndim = param->sharded->ndim};
    fsdp__mesh_info_place(mesh, param->placement, out);
    memcpy(out->global_shape, param->sharded->shape, (size_t)out->ndim * sizeof *out->global_shape);
    if (param->parallel)
        place_in_joint(param, out);
}

int fsdp__param_whole_shape(const fsdp__param *param, int64_t shape[FSDP_MAX_DIMS])
{
    const fsdp_tensor *tensor = param->sharded;
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);

    if (d && fsdp_distribution_is_flat(d)) {
        memcpy(shape, d->global_shape, sizeof d->global_shape);
        return d->ndim;
    }
    memcpy(shape, tensor->shape, sizeof tensor->shape);
    shape[param->dim] = param->extent.rows;
    return tensor->ndim;
}

/* ---- sharded, and whole again ---- */

/* Restores the tensor as it was before, from the distribution that it was to get. */
static void set_whole(fsdp__param *param, const fsdp_distribution *distribution)
{
    fsdp_tensor *tensor = param->sharded;

    tensor->offset -= param->part.at;
    if (!fsdp_distribution_is_flat(distribution)) {
        tensor->shape[param->dim] = param->extent.rows;
        make_meta_contiguous(tensor);
        return;
    }
    tensor->ndim = distribution->ndim;
    memcpy(tensor->shape, distribution->global_shape, (size_t)tensor->ndim * sizeof(int64_t));
    fsdp__shape_contiguous_strides(tensor->ndim, tensor->shape, tensor->strides);
}

/* Gives the tensor the distribution that it had. */
static void set_before(fsdp__param *param)
{
    fsdp__attachment *now = &param->sharded->distribution;

    if (now->state)
        now->free_state(now->state);
    *now = param->before;
    param->before = (fsdp__attachment){0};
}

/* Narrows the tensor to this rank's part: rows, or a run. */
static void set_part(fsdp__param *param, const fsdp__mesh_info *mesh)
{
    fsdp_tensor *tensor = param->sharded;

    tensor->offset += param->part.at;
    if (param->placement.kind == FSDP_SHARD) {
        tensor->shape[param->dim] = fsdp_shard_range(param->extent.rows, mesh->ranks, mesh->rank, &(int64_t){0});
        make_meta_contiguous(tensor);
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
    fsdp_distribution distribution;
    fsdp_status status;

    place(param, mesh, &distribution);
    set_part(param, mesh);
    param->before = tensor->distribution;
    tensor->distribution = (fsdp__attachment){0};
    status = fsdp_tensor_set_distribution(tensor, &distribution);
    if (status == FSDP_OK)
        return FSDP_OK;
    set_whole(param, &distribution);
    set_before(param);
    return status;
}

void fsdp__param_unwrap(fsdp__param *param)
{
    set_whole(param, fsdp_tensor_distribution(param->sharded));
    set_before(param);
}

void fsdp__param_release(fsdp__param *param)
{
    if (param->before.state)
        param->before.free_state(param->before.state);
    fsdp_mesh_unref(param->joint);
    fsdp_tensor_unref(param->accumulated_grad);
    fsdp_tensor_unref(param->summoned);
    fsdp_tensor_unref(param->unsharded);
    fsdp_tensor_unref(param->sharded);
    FSDP__FREE_ALL(param->fields, param->name, param->unit_name);
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
