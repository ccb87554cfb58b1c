/* bucket_wire.c - what goes over the wire for a bucket. */
#include "shard/reduce/bucket_wire.h"

#include <stdio.h>

#include "comm/internal.h"

static fsdp__buckets *buckets_of(const fsdp__bucket_wire *wire)
{
    return wire->group->buckets;
}

static int replicas_of(const fsdp__bucket_wire *wire)
{
    return wire->group->residence.mesh.replicas;
}

/* Returns what the sum of all ranks is divided by. */
static float divisor_of(const fsdp__bucket_wire *wire)
{
    const fsdp__buckets *b = buckets_of(wire);

    if (wire->settings->divide_factor > 0)
        return wire->settings->divide_factor;
    return b->divisor > 0 ? b->divisor : (float)replicas_of(wire);
}

/* Returns whether this is the last bucket, with which each rank says whether it is complete. */
static bool asks(const fsdp__bucket_wire *wire)
{
    const fsdp__buckets *b = buckets_of(wire);

    return wire->bucket == &b->items[b->last] && !b->options.find_unused_parameters;
}

static fsdp_status all_reduce(const fsdp__bucket_wire *wire, const void *from, void *to, fsdp_dtype dtype,
                              fsdp_reduce_op op)
{
    fsdp__buckets *b = buckets_of(wire);
    fsdp_process_group *pg = wire->group->residence.mesh.replicate_pg;
    bool ask = asks(wire);
    char label[32];
    fsdp_status status;

    if (replicas_of(wire) == 1)
        return FSDP_OK; /* `from` and `to` are the same */
    snprintf(label, sizeof label, "bucket %lld", (long long)(wire->bucket - b->items));
    fsdp__process_group_set_label(pg, label);
    status = fsdp__process_group_any(pg, &(fsdp__any){.flags = ask ? &b->complete : NULL,
                                                      .count = ask,
                                                      .lacking = ask ? &b->lacking : NULL,
                                                      .stream = wire->stream,
                                                      .send = from,
                                                      .recv = to,
                                                      .numel = wire->bucket->numel,
                                                      .dtype = dtype,
                                                      .op = op,
                                                      .labelled = true});
    fsdp__process_group_set_label(pg, NULL);
    return status;
}

/* Converts and divides all elements of the bucket. */
static fsdp_status convert(const fsdp__bucket_wire *wire, const void *from, fsdp_dtype from_dtype, void *to,
                           fsdp_dtype to_dtype, float divisor)
{
    if (from == to && divisor == 1)
        return FSDP_OK;
    return fsdp__divide_run(wire->stream, from, from_dtype, to, to_dtype, wire->bucket->numel, divisor, false);
}

static fsdp_status average_as_it_lies(const fsdp__bucket_wire *wire)
{
    float divisor = divisor_of(wire);
    bool average = divisor == (float)replicas_of(wire) && !wire->settings->force_sum;
    void *to = wire->to->data;
    fsdp_dtype dtype = wire->bucket->dtype;

    FSDP_TRY(all_reduce(wire, wire->from->data, to, dtype, average ? FSDP_AVG : FSDP_SUM));
    return average ? FSDP_OK : convert(wire, to, dtype, to, dtype, divisor);
}

/* ---- in 16 bits ---- */

/* Averages as PyTorch's compression hooks do: casts, divides by the ranks, sums, and casts back. */
static fsdp_status average_compressed(const fsdp__bucket_wire *wire)
{
    fsdp_dtype dtype = wire->bucket->dtype, sent = buckets_of(wire)->options.compress;
    fsdp__bucket like = {.numel = wire->bucket->numel, .dtype = sent};
    fsdp__region *region;
    fsdp_status status;

    FSDP_TRY(fsdp__bucket_make_region(wire->group, &like, &region));
    status = fsdp__storage_create(wire->group->residence.device, fsdp__bucket_bytes(&like), FSDP_MEMORY_GRADIENT, false,
                                  wire->scratch);
    if (status == FSDP_OK)
        fsdp__region_lend(region, 0, *wire->scratch);
    if (status == FSDP_OK) /* the memory is available in the order of the device's stream */
        status = fsdp__comm_context_follow_compute_on(wire->comm, wire->group->residence.device, wire->stream);
    FSDP_TRY_GOTO(status, status, out);
    FSDP_TRY_GOTO(status, convert(wire, wire->from->data, dtype, region->data, sent, divisor_of(wire)), out);
    FSDP_TRY_GOTO(status, all_reduce(wire, region->data, region->data, sent, FSDP_SUM), out);
    status = convert(wire, region->data, sent, wire->to->data, dtype, 1);
out:
    fsdp__region_unref(region); /* the scratch holds it now */
    return status;
}

/* ---- by a function of the caller's ---- */

/* Makes a view of `region` in one dimension. The caller owns `*out`. */
static fsdp_status view_of(const fsdp__bucket_wire *wire, fsdp__region *region, fsdp_tensor **out)
{
    return fsdp__region_tensor(region, 0, wire->bucket->dtype, 1, &wire->bucket->numel, out);
}

/* Lets the caller's hook average in place, and then copies the average to where it belongs. */
static fsdp_status average_by_caller(const fsdp__bucket_wire *wire)
{
    fsdp__buckets *b = buckets_of(wire);
    fsdp_process_group *pg = wire->group->residence.mesh.replicate_pg;
    fsdp_gradient_bucket call = {
        .index = wire->bucket - b->items, .last = wire->bucket == &b->items[b->last], .group = pg};
    fsdp_status status;

    FSDP_TRY(view_of(wire, wire->from, &call.gradients));
    status = b->hook(b->hook_arg, &call, wire->stream);
    fsdp_tensor_unref(call.gradients);
    FSDP_TRY(status);
    if (asks(wire) && replicas_of(wire) > 1) {
        b->incomplete = !b->complete;
        FSDP_TRY(
            fsdp__process_group_any(pg, &(fsdp__any){.flags = &b->incomplete, .count = 1, .stream = wire->stream}));
    }
    if (wire->from == wire->to)
        return FSDP_OK;
    return convert(wire, wire->from->data, wire->bucket->dtype, wire->to->data, wire->bucket->dtype, 1);
}

/* Shows the average to the hook of fsdp_module_set_all_reduce_hook, which may change it. */
static fsdp_status show(const fsdp__bucket_wire *wire)
{
    fsdp_tensor *gradients;
    fsdp_status status;

    FSDP_TRY(view_of(wire, wire->to, &gradients));
    status = wire->settings->hook(wire->settings->hook_arg, gradients, wire->stream);
    fsdp_tensor_unref(gradients);
    return status;
}

fsdp_status fsdp__bucket_average(const fsdp__bucket_wire *wire)
{
    fsdp_dtype compress = buckets_of(wire)->options.compress;

    if (buckets_of(wire)->hook)
        FSDP_TRY(average_by_caller(wire));
    else if (compress != FSDP_DTYPE_NONE && compress != wire->bucket->dtype && replicas_of(wire) > 1)
        FSDP_TRY(average_compressed(wire));
    else
        FSDP_TRY(average_as_it_lies(wire));
    return wire->settings->hook ? show(wire) : FSDP_OK;
}
