/* doubling.c - twice, and half. */
#include "shard/doubling.h"

#include <string.h>

#include "device/kernels.h"
#include "support/test.h"

enum {
    HEADER = 16 /* bytes in front of the values: the measure */
};

static size_t sent_bytes(void *arg, const fsdp_gather_parameter *p)
{
    int64_t rows = (p->rows + p->ranks - 1) / p->ranks;

    (void)arg;
    return HEADER + (size_t)(p->outer * rows * p->inner) * fsdp_dtype_size(fsdp_tensor_dtype(p->sharded));
}

static fsdp_status measure(void *arg, const fsdp_gather_parameter *p, float *out, fsdp_stream *stream)
{
    const fsdp__span span = {.src = p->values, .dst = out, .numel = fsdp_tensor_numel(p->sharded)};

    (void)arg;
    return fsdp__launch_amax(stream, &(fsdp__amax_args){&span, 1, fsdp_tensor_dtype(p->sharded)});
}

/* The measure is sent, too: it is the same of all ranks, and no value is larger. */
static fsdp_status double_shard(void *arg, const fsdp_gather_parameter *p, const float *measured, bool written,
                                void *sent, fsdp_stream *stream)
{
    doubler *d = arg;
    const fsdp__span header = {.src = measured, .dst = sent, .numel = 1};
    const fsdp__scale_args args = {.x = p->values,
                                   .y = (char *)sent + HEADER,
                                   .alpha = 2.0f,
                                   .numel = fsdp_tensor_numel(p->sharded),
                                   .dtype = fsdp_tensor_dtype(p->sharded)};

    d->written += written;
    d->kept += !written;
    if (d->fail_pre)
        return FSDP_FAIL(FSDP_INVALID, "%s", d->fail_pre);
    if (measured)
        FSDP_TRY(fsdp__launch_cast_spans(stream, &(fsdp__cast_spans_args){&header, 1, FSDP_F32, FSDP_F32}));
    return args.numel > 0 ? fsdp__launch_scale(stream, &args) : FSDP_OK;
}

static fsdp_status place_half(const fsdp_gather_parameter *p, int rank, const void *from, void *unsharded,
                              fsdp_stream *stream)
{
    int64_t start, rows = fsdp_shard_range(p->rows, p->ranks, rank, &start);
    char *to = (char *)unsharded + (size_t)(start * p->inner) * fsdp_dtype_size(p->param_dtype);
    const fsdp__copy_args place = {.src = (const char *)from + HEADER,
                                   .dst = to,
                                   .src_dtype = fsdp_tensor_dtype(p->sharded),
                                   .dst_dtype = p->param_dtype,
                                   .ndim = 2,
                                   .shape = {p->outer, rows * p->inner},
                                   .src_strides = {rows * p->inner, 1},
                                   .dst_strides = {p->rows * p->inner, 1}};

    return rows * p->inner * p->outer > 0 ? fsdp__launch_copy(stream, &place) : FSDP_OK;
}

static fsdp_status halve(void *arg, const fsdp_gather_parameter *p, const void *const *received, void *unsharded,
                         fsdp_stream *stream)
{
    doubler *d = arg;
    const fsdp__scale_args args = {
        .x = unsharded, .y = unsharded, .alpha = 0.5f, .numel = p->outer * p->rows * p->inner, .dtype = p->param_dtype};

    d->halved++;
    if (d->fail_post)
        return FSDP_FAIL(FSDP_INVALID, "%s", d->fail_post);
    for (int r = 0; r < p->ranks; r++)
        FSDP_TRY(place_half(p, r, received[r], unsharded, stream));
    return fsdp__launch_scale(stream, &args);
}

fsdp_gather_extension doubling(doubler *d)
{
    return (fsdp_gather_extension){.name = "doubling",
                                   .sent_bytes = sent_bytes,
                                   .measure = d->measures ? measure : NULL,
                                   .pre = double_shard,
                                   .post = halve,
                                   .arg = d};
}

bool doubles_up(void *arg, const char *name, const fsdp_tensor *parameter)
{
    const char *up = strstr(name, "up.weight");

    (void)arg;
    (void)parameter;
    return up && strcmp(up, "up.weight") == 0;
}
