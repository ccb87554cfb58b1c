/* gradients.c - unsharded gradients, from the backward that computes them to the reduction that reads them. */
#include "shard/reduce/gradients.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/context.h"
#include "device/device.h"
#include "device/kernels.h"
#include "nn/layers.h"
#include "shard/reduce/buckets.h"
#include "shard/reduce/partial.h"

/* ---- memory ---- */

fsdp_dtype fsdp__param_grad_dtype(const fsdp__param *param)
{
    const fsdp__param_group *group = param->group;
    const fsdp__residence *r = &group->residence;
    bool wide = r->mesh.ranks == 1 && !group->buckets && group->buffers != &group->vector && r->device &&
                fsdp__device_wide_gradients(r->device) && fsdp_dtype_size(param->param_dtype) == 2 &&
                param->reduce_dtype == FSDP_F32 && param->orig_dtype == FSDP_F32;

    return wide ? FSDP_F32 : param->param_dtype;
}

/* Returns whether unreduced gradients add up in another dtype than they are computed in. */
static bool is_folded(const fsdp__param *param)
{
    return param->reduce_dtype != fsdp__param_grad_dtype(param);
}

static fsdp_dtype dtype_of(const fsdp__param *param, fsdp__gradient_use use)
{
    return use == FSDP__GRADIENT_ACCUMULATED ? param->reduce_dtype : fsdp__param_grad_dtype(param);
}

/* Returns the bytes of the place of one of the group's buffers, among those for `use`. */
static size_t place_bytes(const fsdp__param_group *group, int64_t buffer, fsdp__gradient_use use)
{
    const fsdp__param *p = &group->buffers[buffer];

    return fsdp__param_padded_bytes(p, group->residence.mesh.ranks, dtype_of(p, use));
}

/* Returns where an unsharded gradient begins. In a flat group gradients lie as the parameters do. */
static size_t place_of(const fsdp__param *param, fsdp__gradient_use use)
{
    const fsdp__param_group *group = param->group;
    int64_t index = fsdp__param_buffer_index(param);
    bool last = fsdp__param_lies_last(&group->buffers[index]);
    size_t offset = (size_t)param->placement.first * fsdp_dtype_size(dtype_of(param, use));

    for (int64_t i = 0; i < group->buffer_count; i++) {
        bool i_last = fsdp__param_lies_last(&group->buffers[i]);

        if (group->gradients[use].has_place[i] && (i_last == last ? i < index : last))
            offset += place_bytes(group, i, use);
    }
    return offset;
}

/* Returns whether the gradient that is computed has memory of its own: on one rank, which sends none, that of an
 * embedding, the last of a backward. Beside the head's, which a forward makes, it would lie empty at the peak. */
static bool lies_apart(const fsdp__param *param)
{
    const fsdp__param_group *group = param->group;

    return group->residence.mesh.ranks == 1 && !group->buckets && group->buffers != &group->vector &&
           param->field_count > 0 && fsdp__layer_form_of(param->fields[0].module) == FSDP__LAYER_EMBEDDING;
}

/* Returns whether some parameter of the buffer will have a gradient for `use` there. */
static bool is_wanted(const fsdp__param_group *group, int64_t buffer, fsdp__gradient_use use)
{
    fsdp__param *params;
    int64_t count = fsdp__param_group_in_buffer(group, buffer, &params);
    bool wanted = false;

    for (int64_t i = 0; i < count; i++)
        wanted = wanted || (fsdp_tensor_requires_grad(params[i].sharded) &&
                            (use == FSDP__GRADIENT_COMPUTED ? !lies_apart(&params[i]) : is_folded(&params[i])));
    return wanted;
}

static fsdp_status open_buffer(fsdp__param_group *group, const fsdp__param *asked, fsdp__gradient_use use,
                               fsdp__region **out)
{
    fsdp__gradient_buffer *buffer = &group->gradients[use];
    size_t bytes = 0;

    if (!buffer->has_place)
        buffer->has_place = fsdp__calloc((size_t)group->buffer_count, sizeof *buffer->has_place);
    FSDP__TRY_NEW(buffer->has_place);
    for (int64_t i = 0; i < group->buffer_count; i++) {
        buffer->has_place[i] = i == fsdp__param_buffer_index(asked) || is_wanted(group, i, use);
        if (buffer->has_place[i])
            bytes += place_bytes(group, i, use);
    }
    FSDP_TRY(fsdp__residence_gradients(&group->residence, fsdp__param_group_reduce_pg(group),
                                       fsdp__residence_can_share(&group->residence, group->residence.device), bytes,
                                       out));
    (*out)->weak = &buffer->region;
    buffer->region = *out;
    return FSDP_OK;
}

static void leave_buffer(fsdp__gradient_buffer *buffer)
{
    if (buffer->region)
        buffer->region->weak = NULL;
    buffer->region = NULL;
}

void fsdp__param_group_leave_gradient_buffers(fsdp__param_group *group)
{
    leave_buffer(&group->gradients[FSDP__GRADIENT_COMPUTED]);
    leave_buffer(&group->gradients[FSDP__GRADIENT_ACCUMULATED]);
    for (int64_t i = 0; group->buckets && i < group->buckets->count; i++)
        fsdp__bucket_leave_region(&group->buckets->items[i]);
}

/* Makes memory for an unsharded gradient of `param`. The caller owns `*out`. */
static fsdp_status make_gradient(fsdp__param *param, fsdp__gradient_use use, fsdp_tensor **out)
{
    fsdp__param_group *group = param->group;
    fsdp__gradient_buffer *buffer = &group->gradients[use];
    fsdp_dtype dtype = dtype_of(param, use);
    const fsdp_tensor *like = param->unsharded;
    FSDP__SCOPED(fsdp__region_unref_at) fsdp__region *region = NULL; /* the tensor holds it in the end */

    if (use == FSDP__GRADIENT_COMPUTED && lies_apart(param))
        return fsdp_tensor_create(group->residence.device, dtype, like->ndim, like->shape, FSDP_MEMORY_GRADIENT, out);
    /* A parameter that was unfrozen since has no place: make another buffer, beside what is in use of the old one. */
    if (buffer->region && !buffer->has_place[fsdp__param_buffer_index(param)])
        leave_buffer(buffer);
    region = buffer->region;
    if (region)
        region->refs++;
    else
        FSDP_TRY(open_buffer(group, param, use, &region));
    FSDP_TRY(fsdp__region_tensor(region, place_of(param, use), dtype, like->ndim, like->shape, out));
    fsdp__device_name_memory(region->device, (*out)->storage->data, (*out)->storage->bytes, FSDP_MEMORY_GRADIENT,
                             param->name);
    return FSDP_OK;
}

static fsdp_status give_gradient(fsdp__param *param, fsdp_tensor **out)
{
    fsdp__buckets *buckets = param->group->buckets;
    fsdp__region *region;
    fsdp_status status;
    int64_t bucket = buckets ? buckets->places[param - param->group->params].bucket : -1;

    if (bucket < 0)
        return make_gradient(param, FSDP__GRADIENT_COMPUTED, out);
    FSDP_TRY(fsdp__bucket_region(param->group, &buckets->items[bucket], &region));
    status = fsdp__bucket_tensor(param, region, out);
    fsdp__region_unref(region); /* the tensor holds it now */
    return status;
}

fsdp_status fsdp__param_gradient_source(void *arg, fsdp_tensor *leaf, fsdp_tensor **out)
{
    fsdp__param *param = arg;
    fsdp_context *context = fsdp_device_context(leaf->storage->device);
    fsdp__taker before = fsdp__context_enter(context, param->group->owner);
    fsdp_status status = give_gradient(param, out);

    fsdp__context_set_taker(context, before);
    return status;
}

/* ---- gradients of shards ---- */

fsdp_status fsdp__distribute_like(const fsdp_tensor *like, fsdp_tensor **gradient)
{
    fsdp_status status = fsdp_tensor_set_distribution(*gradient, fsdp_tensor_distribution(like));

    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_tensor_unref(fsdp__take(gradient));
    return status;
}

fsdp_status fsdp__param_make_grad_contiguous(fsdp__param *param)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *copy = NULL;
    fsdp_tensor *grad = fsdp_tensor_grad(param->sharded);

    if (!grad || fsdp_tensor_is_contiguous(grad))
        return FSDP_OK;
    FSDP_TRY(
        fsdp_tensor_create(grad->storage->device, grad->dtype, grad->ndim, grad->shape, FSDP_MEMORY_GRADIENT, &copy));
    FSDP_TRY(fsdp__tensor_copy(copy, grad, false));
    FSDP_TRY(fsdp_tensor_set_distribution(copy, fsdp_tensor_distribution(param->sharded)));
    fsdp__put_grad(param->sharded, copy);
    return FSDP_OK;
}

/* ---- gradients that stay unsharded ---- */

fsdp_tensor *fsdp__param_unreduced(const fsdp__param *param)
{
    return param->accumulated_grad ? param->accumulated_grad : fsdp_tensor_grad(param->unsharded);
}

bool fsdp__param_is_due(const fsdp__param *param)
{
    return param->due || fsdp__param_unreduced(param);
}

void fsdp__param_drop_gradients(fsdp__param *param)
{
    bool had = param->accumulated_grad || (param->unsharded && fsdp_tensor_grad(param->unsharded));

    if (param->unsharded)
        fsdp__put_grad(param->unsharded, NULL);
    fsdp_tensor_unref(fsdp__take(&param->accumulated_grad));
    fsdp__param_drop_partial(param);
    /* A kept graph may hold the dropped gradient (fused head), so its place is not given out again. */
    if (had)
        fsdp__param_group_leave_gradient_buffers(param->group);
}

void fsdp__param_group_drop_gradients(fsdp__param_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param_drop_gradients(&group->params[i]);
        group->params[i].due = false;
    }
    group->kept = false;
    if (group->buckets)
        fsdp__buckets_reset(group->buckets);
}

fsdp_status fsdp__param_group_fold_gradients(fsdp__param_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];
        fsdp_tensor *grad = fsdp_tensor_grad(p->unsharded);
        bool first = p->accumulated_grad == NULL;

        if (!grad || !is_folded(p))
            continue; /* they add up in place */
        if (first)
            FSDP_TRY(make_gradient(p, FSDP__GRADIENT_ACCUMULATED, &p->accumulated_grad));
        FSDP_TRY(fsdp__tensor_copy(p->accumulated_grad, grad, !first));
        fsdp__put_grad(p->unsharded, NULL);
    }
    return FSDP_OK;
}

fsdp_status fsdp__param_group_keep_gradients(fsdp__param_group *group)
{
    group->kept = true;
    return fsdp__param_group_fold_gradients(group);
}

/* ---- the vector of a flat group ---- */

/* Makes one tensor of the whole buffer. */
static fsdp_status make_vector(fsdp__param_group *group, fsdp__gradient_use use, fsdp_tensor **out)
{
    const fsdp__param *v = &group->vector;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *first = NULL; /* holds the buffer, which may be new */

    FSDP_TRY(make_gradient(&group->params[0], use, &first));
    return fsdp__region_tensor(group->gradients[use].region, 0, dtype_of(v, use), 1, &v->extent.rows, out);
}

/* Fills elements [from, to) of the vector with zeros. */
static fsdp_status clear(const fsdp_tensor *vector, int64_t from, int64_t to)
{
    char *place = (char *)vector->storage->data + (size_t)from * fsdp_dtype_size(vector->dtype);

    return fsdp__launch_fill_run(fsdp_device_stream(vector->storage->device), place, vector->dtype, to - from, 0.0);
}

static bool lies_there(const fsdp_tensor *vector, const fsdp__param *param)
{
    const fsdp_tensor *grad = fsdp__param_unreduced(param);
    size_t at = (size_t)param->placement.first * fsdp_dtype_size(vector->dtype);

    return grad && grad->storage->data == (char *)vector->storage->data + at;
}

/* Returns whether all places belong to gradients that are being reduced: a forward may have reserved one for a later
 * backward (fused head). */
static bool is_free(const fsdp__param_group *group, fsdp__gradient_use use, const fsdp_tensor *vector)
{
    int64_t known = 1; /* the vector itself */

    for (int64_t i = 0; i < group->param_count; i++)
        known += lies_there(vector, &group->params[i]);
    return group->gradients[use].region->refs == known;
}

/* Copies a gradient to its place if it lies elsewhere, because the caller has set it or because it was made beside
 * others. */
static fsdp_status bring_there(const fsdp_tensor *vector, const fsdp__param *param)
{
    const fsdp_tensor *grad = fsdp__param_unreduced(param);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *place = NULL;

    if (lies_there(vector, param))
        return FSDP_OK;
    FSDP_TRY(fsdp__tensor_create_view(vector->storage, vector->dtype, grad->ndim, grad->shape, NULL,
                                      param->placement.first, &place));
    return fsdp__tensor_copy(place, grad, false);
}

static fsdp_status fill_vector(const fsdp__param_group *group, const fsdp_tensor *vector)
{
    int64_t at = 0;

    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        int64_t end = p->placement.first + fsdp__param_numel(p);

        FSDP_TRY(clear(vector, at, p->placement.first));
        FSDP_TRY(fsdp__param_unreduced(p) ? bring_there(vector, p) : clear(vector, p->placement.first, end));
        at = end;
    }
    return clear(vector, at, vector->shape[0]);
}

fsdp_status fsdp__param_group_flat_gradient(fsdp__param_group *group, fsdp_tensor **out)
{
    fsdp__gradient_use use = FSDP__GRADIENT_COMPUTED;
    fsdp_status status;
    bool any = false;

    *out = NULL;
    for (int64_t i = 0; i < group->param_count; i++) {
        any = any || fsdp__param_unreduced(&group->params[i]);
        if (group->params[i].accumulated_grad)
            use = FSDP__GRADIENT_ACCUMULATED;
    }
    if (!any)
        return FSDP_OK;
    FSDP_TRY(make_vector(group, use, out));
    if (!is_free(group, use, *out)) { /* make another one, and copy all of them there */
        fsdp_tensor_unref(fsdp__take(out));
        leave_buffer(&group->gradients[use]);
        FSDP_TRY(make_vector(group, use, out));
    }
    status = fill_vector(group, *out);
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_tensor_unref(fsdp__take(out));
    return status;
}
