/* gather_codes.c - the extensions that the library brings along: e4m3 with one scale, and int8 with one scale for each
 * block.
 *
 * For a parameter a rank sends its scales, rounded up, and then one code for each element of its part. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "device/kernels.h"
#include "fsdp/shard.h"
#include "tensor/tensor.h"

enum {
    ALIGN = 16
};

/* An extension's `arg` is the address of one of these. */
static const fsdp__code float8 = FSDP__CODE_FLOAT8, int8 = FSDP__CODE_INT8;

/* Returns the elements of the longest part that a rank may have. */
static int64_t longest_part(const fsdp_gather_parameter *p)
{
    return p->outer * ((p->rows + p->ranks - 1) / p->ranks) * p->inner;
}

static size_t scale_bytes(fsdp__code code, const fsdp_gather_parameter *p)
{
    int64_t blocks = (longest_part(p) + FSDP__CODE_BLOCK - 1) / FSDP__CODE_BLOCK;
    int64_t scales = code == FSDP__CODE_FLOAT8 ? 1 : blocks;

    return FSDP__ROUND_UP((size_t)scales * sizeof(float), ALIGN);
}

static size_t sent_bytes(void *arg, const fsdp_gather_parameter *p)
{
    return scale_bytes(*(const fsdp__code *)arg, p) + (size_t)longest_part(p);
}

static fsdp_status amax(void *arg, const fsdp_gather_parameter *p, float *out, fsdp_stream *stream)
{
    const fsdp__span span = {.src = p->values, .dst = out, .numel = fsdp_tensor_numel(p->sharded)};

    (void)arg;
    return fsdp__launch_amax(stream, &(fsdp__amax_args){&span, 1, p->sharded->dtype});
}

static fsdp_status pre(void *arg, const fsdp_gather_parameter *p, const float *measured, bool written, void *sent,
                       fsdp_stream *stream)
{
    fsdp__code code = *(const fsdp__code *)arg;
    int64_t numel = fsdp_tensor_numel(p->sharded);
    const fsdp__coded_span span = {.values = (void *)(uintptr_t)p->values,
                                   .codes = (uint8_t *)sent + scale_bytes(code, p),
                                   .scales = sent,
                                   .amax = measured,
                                   .runs = 1,
                                   .run = numel,
                                   .stride = numel,
                                   .keep = !written};

    if (code == FSDP__CODE_INT8 && !written)
        return FSDP_OK;
    return fsdp__launch_quantize(stream, &(fsdp__quantize_args){&span, 1, p->sharded->dtype, code});
}

static fsdp_status post(void *arg, const fsdp_gather_parameter *p, const void *const *received, void *unsharded,
                        fsdp_stream *stream)
{
    fsdp__code code = *(const fsdp__code *)arg;
    FSDP__FREED fsdp__coded_span *spans = fsdp__calloc((size_t)p->ranks, sizeof *spans);

    FSDP__TRY_NEW(spans);
    for (int r = 0; r < p->ranks; r++) {
        char *from = (char *)(uintptr_t)received[r];
        int64_t start, rows = fsdp_shard_range(p->rows, p->ranks, r, &start);

        spans[r] = (fsdp__coded_span){.values = (char *)unsharded +
                                                (size_t)(start * p->inner) * fsdp_dtype_size(p->param_dtype),
                                      .codes = (uint8_t *)from + scale_bytes(code, p),
                                      .scales = (float *)(uintptr_t)from,
                                      .runs = rows * p->inner > 0 ? p->outer : 0,
                                      .run = rows * p->inner,
                                      .stride = p->rows * p->inner};
    }
    return fsdp__launch_dequantize(stream, &(fsdp__dequantize_args){spans, p->ranks, p->param_dtype, code});
}

const fsdp_gather_extension *fsdp_gather_float8(void)
{
    static const fsdp_gather_extension extension = {.name = "float8",
                                                    .sent_bytes = sent_bytes,
                                                    .measure = amax,
                                                    .pre = pre,
                                                    .post = post,
                                                    .arg = (void *)(uintptr_t)&float8};

    return &extension;
}

const fsdp_gather_extension *fsdp_gather_int8(void)
{
    static const fsdp_gather_extension extension = {
        .name = "int8", .sent_bytes = sent_bytes, .pre = pre, .post = post, .arg = (void *)(uintptr_t)&int8};

    return &extension;
}
