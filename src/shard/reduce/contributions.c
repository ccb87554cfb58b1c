/* contributions.c - adds up gradients of which each rank has only its own contribution. */
#include "shard/reduce/contributions.h"

#include "base/alloc.h"
#include "comm/group_calls.h"

/* Returns whether the sum can take the gradient's place: its dtype is right, and nobody holds it but the leaf, or the
 * parameter, and the flight. A graph that is kept may hold one that a forward has computed. `result` may be in its
 * memory: that of a rank without others to reduce with is. */
static bool is_own(const fsdp__param *param, const fsdp_tensor *gradient, const fsdp_tensor *result)
{
    return gradient && gradient->dtype == param->reduce_dtype && fsdp_tensor_is_contiguous(gradient) &&
           gradient->refs == 2 && gradient->storage->refs == 1 + (result && result->storage == gradient->storage);
}

/* Makes a tensor for the sum, where the reduction reads gradients. */
static fsdp_status make_sum(const fsdp__param *param, fsdp_tensor **out)
{
    fsdp__param_group *group = param->group;
    const fsdp__residence *r = &group->residence;
    const fsdp_tensor *like = param->unsharded;
    FSDP__SCOPED(fsdp__region_unref_at) fsdp__region *region = NULL; /* the tensor holds it in the end */

    FSDP_TRY(fsdp__residence_gradients(r, fsdp__param_group_reduce_pg(group), fsdp__residence_can_share(r, r->device),
                                       fsdp__param_padded_bytes(param, r->mesh.ranks, param->reduce_dtype), &region));
    return fsdp__region_tensor(region, 0, param->reduce_dtype, like->ndim, like->shape, out);
}

static fsdp_status prepare(fsdp__reduction *r, int64_t i)
{
    const fsdp__param *param = r->params[i];
    fsdp_tensor **gradient = &r->comm->in_flight.unsharded[i];
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *sum = NULL;

    r->buffers[i].unsharded_dtype = param->reduce_dtype;
    if (is_own(param, *gradient, r->complete ? r->comm->in_flight.gradients[i] : NULL))
        return FSDP_OK;
    FSDP_TRY(make_sum(param, &sum));
    FSDP_TRY(*gradient ? fsdp__tensor_copy(sum, *gradient, false) : fsdp_tensor_fill_(sum, 0));
    fsdp_tensor_unref(*gradient);
    *gradient = fsdp__take(&sum);
    return FSDP_OK;
}

fsdp_status fsdp__contributions_prepare(fsdp__reduction *r)
{
    for (int64_t i = 0; i < r->scattered; i++)
        if (fsdp__param_is_contributed(r->params[i]))
            FSDP_TRY(prepare(r, i));
    return FSDP_OK;
}

/* Adds over one dimension. `*has`: this rank has something to add; afterwards some rank has. */
static fsdp_status add_over(const fsdp__reduction *r, const fsdp__param *param, fsdp_process_group *pg, void *data,
                            uint8_t *has)
{
    bool lacks = !*has;
    fsdp_status status;

    fsdp__process_group_set_label(pg, param->name);
    status = fsdp__process_group_any(pg, &(fsdp__any){.flags = lacks ? has : NULL,
                                                      .count = 1,
                                                      .stream = r->stream,
                                                      .send = data,
                                                      .recv = data,
                                                      .numel = fsdp__param_numel(param),
                                                      .dtype = param->reduce_dtype,
                                                      .op = FSDP_SUM,
                                                      .labelled = true});
    fsdp__process_group_set_label(pg, NULL);
    if (lacks) /* even after a failure: the stream may be about to write the flag */
        FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(r->stream));
    return status;
}

static fsdp_status add(const fsdp__reduction *r, int64_t i)
{
    const fsdp__param *param = r->params[i];
    const fsdp_distribution *d = param->parallel;
    fsdp_tensor *sum = r->comm->in_flight.unsharded[i];
    uint8_t has = fsdp__param_unreduced(param) != NULL;

    for (int dim = 0; dim < d->placement_count; dim++)
        if (d->partial_gradients >> dim & 1 && fsdp_mesh_size(d->mesh, dim) > 1)
            FSDP_TRY(add_over(r, param, fsdp_mesh_process_group(d->mesh, dim), fsdp_tensor_data(sum), &has));
    r->buffers[i].unsharded = !has ? NULL : fsdp_tensor_numel(sum) > 0 ? fsdp_tensor_data(sum) : sum;
    r->comm->in_flight.contributed[i] |= has;
    return FSDP_OK;
}

fsdp_status fsdp__contributions_add(fsdp__reduction *r)
{
    for (int64_t i = 0; i < r->scattered; i++)
        if (fsdp__param_is_contributed(r->params[i]))
            FSDP_TRY(add(r, i));
    return FSDP_OK;
}
