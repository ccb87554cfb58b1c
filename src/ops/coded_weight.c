/* coded_weight.c - the layout of weights in fewer bits, and the way from values to codes and back. */
#include "ops/coded_weight.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "ops/op.h"

/* ---- layout ---- */

int64_t fsdp__coded_row_numel(const fsdp__coded_weight *weight)
{
    return weight->code == FSDP__WEIGHT_NF4 ? FSDP__NF4_BLOCK : weight->cols;
}

int64_t fsdp__coded_rows(const fsdp__coded_weight *weight)
{
    return weight->code == FSDP__WEIGHT_NF4 ? (weight->rows * weight->cols + FSDP__NF4_BLOCK - 1) / FSDP__NF4_BLOCK
                                            : weight->rows;
}

int64_t fsdp__coded_row_bytes(const fsdp__coded_weight *weight)
{
    int64_t codes = weight->code == FSDP__WEIGHT_NF4 ? FSDP__NF4_BLOCK / 2 : weight->cols, word = sizeof(float);

    return word + FSDP__ROUND_UP(codes, word); /* rows begin where a float may lie */
}

/* ---- values to codes ---- */

/* Returns the largest magnitude; a NaN counts as larger than any. */
static float largest(const float *values, int64_t n)
{
    uint32_t most = 0;
    float result;

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &values[i], sizeof bits);
        most = FSDP__MAX(most, bits & 0x7fffffffu);
    }
    memcpy(&result, &most, sizeof result);
    return result;
}

/* Returns the nearest level; of two as near, the lower. */
static uint8_t nf4_code(float x)
{
    static const float levels[] = FSDP__NF4_LEVELS;
    uint8_t code = 0;

    for (size_t i = 1; i < FSDP__COUNT_OF(levels); i++)
        code += (double)x > ((double)levels[i - 1] + (double)levels[i]) / 2;
    return code;
}

static void encode_nf4(const float *values, int64_t n, float inverse, uint8_t *codes)
{
    for (int64_t i = 0; i < FSDP__NF4_BLOCK; i += 2) {
        uint8_t first = nf4_code(i < n ? values[i] * inverse : 0),
                second = nf4_code(i + 1 < n ? values[i + 1] * inverse : 0);

        codes[i / 2] = (uint8_t)(first << 4 | second);
    }
}

static void encode_int8(const float *values, int64_t n, float factor, uint8_t *codes)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(int8_t)lrintf(values[i] * factor);
}

/* If the inverse of the scale is not finite, all values are next to nothing, and become zeros. If the scale itself is
 * not, the codes do not matter. */
static void encode_row(const fsdp__coded_weight *weight, const float *values, int64_t n, uint8_t *row)
{
    bool nf4 = weight->code == FSDP__WEIGHT_NF4;
    float scale = largest(values, n), factor = (nf4 ? 1.0f : 127.0f) / scale;

    if (isinf(factor))
        scale = 0;
    if (isinf(factor) || !isfinite(scale))
        n = 0;
    memset(row, 0, (size_t)fsdp__coded_row_bytes(weight));
    memcpy(row, &scale, sizeof scale);
    if (nf4)
        encode_nf4(values, n, factor, row + sizeof scale);
    else
        encode_int8(values, n, factor, row + sizeof scale);
}

void fsdp__encode_weight(const fsdp__coded_weight *weight, const float *values, int64_t numel, uint8_t *bytes)
{
    int64_t row_numel = fsdp__coded_row_numel(weight), row_bytes = fsdp__coded_row_bytes(weight);

    for (int64_t at = 0; at < numel; at += row_numel, bytes += row_bytes)
        encode_row(weight, values + at, FSDP__MIN(numel - at, row_numel), bytes);
}

/* ---- codes to values ---- */

fsdp_status fsdp__decode_weight_rows(fsdp_stream *stream, const fsdp__coded_weight *weight, const void *bytes,
                                     int64_t numel, fsdp_dtype dtype, void *values)
{
    const fsdp__decode_weight_args args = {.rows = bytes,
                                           .values = values,
                                           .numel = numel,
                                           .row_numel = fsdp__coded_row_numel(weight),
                                           .row_bytes = fsdp__coded_row_bytes(weight),
                                           .code = weight->code,
                                           .dtype = dtype};

    return numel > 0 ? fsdp__launch_decode_weight(stream, &args) : FSDP_OK;
}

fsdp_status fsdp__decode_weight(const fsdp__coded_weight *weight, const fsdp_tensor *bytes, fsdp_dtype dtype,
                                fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *decoded = NULL;

    FSDP_TRY(fsdp_tensor_create(bytes->storage->device, dtype, FSDP_SHAPE(weight->rows, weight->cols),
                                FSDP_MEMORY_ACTIVATION, &decoded));
    FSDP_TRY(fsdp__decode_weight_rows(fsdp__op_stream(bytes), weight, fsdp_tensor_data(bytes),
                                      fsdp_tensor_numel(decoded), dtype, fsdp_tensor_data(decoded)));
    *out = fsdp__take(&decoded);
    return FSDP_OK;
}
