/* partial.c - the memory of partial gradients. */
#include "shard/reduce/partial.h"

#include <string.h>

#include "base/alloc.h"
#include "device/kernels.h"

bool fsdp__param_has_partial(const fsdp__param *param)
{
    const fsdp__partial *partial = &param->group->partial;

    return partial->storage && partial->places[param - param->group->params] >= 0;
}

static void *place_in(const fsdp__partial *partial, int64_t i)
{
    return (char *)partial->storage->data + partial->places[i];
}

void *fsdp__param_partial(const fsdp__param *param)
{
    return place_in(&param->group->partial, param - param->group->params);
}

fsdp__storage *fsdp__param_group_take_partial(fsdp__param_group *group)
{
    fsdp__storage *storage = group->partial.storage;

    fsdp__free(group->partial.places);
    group->partial = (fsdp__partial){0};
    return storage;
}

void fsdp__param_drop_partial(fsdp__param *param)
{
    fsdp__param_group *group = param->group;

    if (!group || !fsdp__param_has_partial(param)) /* no group: the parameter was chosen, and never sharded */
        return;
    group->partial.places[param - group->params] = -1;
    param->partial_used = false;
    for (int64_t i = 0; i < group->param_count; i++)
        if (group->partial.places[i] >= 0)
            return;
    fsdp__storage_unref(fsdp__param_group_take_partial(group));
}

/* ---- places ---- */

/* Gives the parameters of a buffer that have a place their places; returns whether there are any. */
static bool lay_buffer(const fsdp__param_group *group, int64_t buffer, size_t size, int64_t at, int64_t *places)
{
    fsdp__param *params;
    int64_t count = fsdp__param_group_in_buffer(group, buffer, &params);
    bool any = false;

    places += params - group->params;
    for (int64_t i = 0; i < count; i++) {
        if (places[i] < 0)
            continue;
        places[i] = at + params[i].part.in_shard * (int64_t)size;
        any = true;
    }
    return any;
}

/* Lays out this rank's parts of the buffers that are sent in `dtype` and have a parameter with a place, one after the
 * other from `at` on. Returns the end. */
static int64_t lay_run(const fsdp__param_group *group, fsdp_dtype dtype, int64_t at, fsdp__partial *out)
{
    fsdp__partial_run *run = &out->runs[out->run_count];
    size_t size = fsdp_dtype_size(dtype);

    *run = (fsdp__partial_run){.dtype = dtype, .at = at};
    for (int64_t i = 0; i < group->buffer_count; i++) {
        const fsdp__param *buffer = &group->buffers[i];

        if (fsdp__param_sent_dtype(buffer) != dtype ||
            !lay_buffer(group, i, size, at + run->numel * (int64_t)size, out->places))
            continue;
        run->numel += buffer->chunk_numel;
    }
    out->run_count += run->numel > 0;
    return at + run->numel * (int64_t)size;
}

/* Lays out the parameters that have a place, and `params`. Gives the bytes. */
static fsdp_status lay_out(const fsdp__param_group *group, fsdp__param *const *params, int64_t count,
                           fsdp__partial *out, size_t *bytes)
{
    /* Dtypes are in order of decreasing size, so that all places are aligned. */
    static const fsdp_dtype dtypes[FSDP__PARTIAL_RUNS] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    int64_t end = 0;

    FSDP__TRY_NEW(out->places = fsdp__malloc((size_t)group->param_count * sizeof *out->places));
    for (int64_t i = 0; i < group->param_count; i++)
        out->places[i] = fsdp__param_has_partial(&group->params[i]) ? 0 : -1;
    for (int64_t i = 0; i < count; i++)
        out->places[params[i] - group->params] = 0;
    for (int i = 0; i < FSDP__PARTIAL_RUNS; i++)
        end = lay_run(group, dtypes[i], end, out);
    *bytes = (size_t)end;
    return FSDP_OK;
}

/* Fills the chunk with zeros from its element `first` on. */
static fsdp_status zero(fsdp_stream *stream, const fsdp__partial *partial, const fsdp__param *param, int64_t first)
{
    fsdp_dtype dtype = fsdp__param_sent_dtype(param);
    char *place = place_in(partial, param - param->group->params);

    return fsdp__launch_fill_run(stream, place + (size_t)first * fsdp_dtype_size(dtype), dtype,
                                 param->chunk_numel - first, 0.0);
}

fsdp_status fsdp__param_zero_partial(const fsdp__param *param)
{
    const fsdp__param_group *group = param->group;

    return zero(fsdp_device_stream(group->residence.device), &group->partial, param, 0);
}

static fsdp_status copy(fsdp_stream *stream, const fsdp__partial *from, const fsdp__partial *to,
                        const fsdp__param *param)
{
    int64_t i = param - param->group->params;
    fsdp_dtype dtype = fsdp__param_sent_dtype(param);
    const fsdp__span span = {.src = place_in(from, i), .dst = place_in(to, i), .numel = param->chunk_numel};

    return fsdp__launch_cast_spans(
        stream, &(fsdp__cast_spans_args){.spans = &span, .count = 1, .src_dtype = dtype, .dst_dtype = dtype});
}

/* Moves existing gradients. New places, and padding, become zero if something will be added to them. */
static fsdp_status fill(const fsdp__param_group *group, const fsdp__partial *from, const fsdp__partial *to)
{
    fsdp_stream *stream = fsdp_device_stream(group->residence.device);

    FSDP_TRY(group->cut->clear(group, stream, to->storage->data, to->runs[0].dtype));
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];

        if (to->places[i] < 0)
            continue;
        if (from->storage && from->places[i] >= 0)
            FSDP_TRY(copy(stream, from, to, p));
        else
            FSDP_TRY(zero(stream, to, p, from->storage ? 0 : fsdp__param_shard_numel(p)));
    }
    return FSDP_OK;
}

fsdp_status fsdp__param_group_make_partial(fsdp__param_group *group, fsdp__param *const *params, int64_t count,
                                           bool *adds)
{
    fsdp__partial *old = &group->partial, made = {0};
    size_t bytes, bytes_of_places = (size_t)group->param_count * sizeof *made.places;
    fsdp_status status = FSDP_OK;

    *adds = old->storage != NULL;
    FSDP_TRY(lay_out(group, params, count, &made, &bytes));
    if (*adds && bytes == old->storage->bytes && memcmp(made.places, old->places, bytes_of_places) == 0)
        goto out; /* the normal case, unless what is reduced changes between backwards */
    FSDP_TRY_GOTO(status,
                  fsdp__storage_create(group->residence.device, bytes, FSDP_MEMORY_GRADIENT, true, &made.storage), out);
    FSDP_TRY_GOTO(status, fill(group, old, &made), out);
    fsdp__storage_unref(fsdp__param_group_take_partial(group));
    *old = made;
    return FSDP_OK;
out:
    fsdp__storage_unref(made.storage);
    fsdp__free(made.places);
    return status;
}
