/* cases_codes.c - the calls of kernels for weights in fewer bits. */
#include <string.h>

#include "oracle/cases.h"

void amax_case(test_case *c)
{
    fsdp__span spans[SEGMENTS];
    fsdp__amax_args a = {.spans = spans, .count = between(c, 0, SEGMENTS), .dtype = c->dtype};

    for (int64_t s = 0; s < a.count; s++) {
        spans[s].numel = a_size(c, 40000);
        spans[s].src = an_input(c, c->dtype, spans[s].numel, -3.0, 3.0);
        spans[s].dst = an_output(c, FSDP_F32, 1, 0.0, 0.0);
    }
    check(c, &a, "%ld spans", (long)a.count);
}

static int64_t scale_count(fsdp__code code, int64_t numel)
{
    return code == FSDP__CODE_FLOAT8 ? 1 : (numel + FSDP__CODE_BLOCK - 1) / FSDP__CODE_BLOCK;
}

void quantize_case(test_case *c)
{
    fsdp__coded_span spans[SEGMENTS];
    fsdp__quantize_args a = {.spans = spans, .count = between(c, 0, 3), .dtype = c->dtype};

    a.code = coin(c) ? FSDP__CODE_FLOAT8 : FSDP__CODE_INT8;
    for (int64_t s = 0; s < a.count; s++) {
        double most = real(c, 0.0, 3.0);
        fsdp__coded_span *span = &spans[s];

        *span = (fsdp__coded_span){.runs = 1, .run = a_size(c, 3000)};
        span->stride = span->run;
        span->values = an_input(c, c->dtype, span->run, -most, most);
        span->codes = an_output(c, FSDP_U8, span->run, 0.0, 0.0);
        span->scales = an_output(c, FSDP_F32, scale_count(a.code, span->run), 0.0, 0.0);
        if (a.code == FSDP__CODE_INT8)
            continue;
        span->amax = an_input(c, FSDP_F32, 1, most / 2, most); /* as of other ranks, or of values that have grown */
        span->keep = coin(c);
        if (span->keep && coin(c))
            *span->scales = (float)(448.0 / (double)*span->amax);
    }
    check(c, &a, "%ld spans, code %d", (long)a.count, a.code);
}

void dequantize_case(test_case *c)
{
    fsdp__coded_span spans[SEGMENTS];
    fsdp__dequantize_args a = {.spans = spans, .count = between(c, 0, SEGMENTS), .dtype = c->dtype};

    a.code = coin(c) ? FSDP__CODE_FLOAT8 : FSDP__CODE_INT8;
    for (int64_t s = 0; s < a.count; s++) {
        fsdp__coded_span *span = &spans[s];
        int64_t numel;

        *span = (fsdp__coded_span){.runs = between(c, 0, 4), .run = a_size(c, 5000)};
        span->stride = span->run + between(c, 0, 9);
        numel = span->runs * span->run;
        span->values = an_output(c, c->dtype, span->runs * span->stride, 0.0, 0.0);
        span->codes = an_input(c, FSDP_U8, numel, 0.0, 255.0);
        span->scales = an_input(c, FSDP_F32, scale_count(a.code, numel), 0.01, 100.0);
    }
    check(c, &a, "%ld spans, code %d", (long)a.count, a.code);
}

void decode_weight_case(test_case *c)
{
    fsdp__decode_weight_args a = {.numel = a_size(c, 40000), .dtype = c->dtype};
    int64_t rows;
    uint8_t *bytes;

    a.code = coin(c) ? FSDP__WEIGHT_NF4 : FSDP__WEIGHT_INT8;
    a.row_numel = a.code == FSDP__WEIGHT_NF4 ? 64 : between(c, 1, 300);
    a.row_bytes = 4 + (a.code == FSDP__WEIGHT_NF4 ? 32 : (a.row_numel + 3) / 4 * 4);
    rows = (a.numel + a.row_numel - 1) / a.row_numel;
    /* Any bytes, on a multiple of 4. */
    bytes = (uint8_t *)(uintptr_t)an_input(c, FSDP_I32, rows * a.row_bytes / 4, INT32_MIN, INT32_MAX);
    for (int64_t r = 0; r < rows; r++)
        memcpy(bytes + r * a.row_bytes, &(float){(float)real(c, 0.0, 3.0)}, sizeof(float));
    a.rows = bytes;
    a.values = an_output(c, c->dtype, a.numel, 0.0, 0.0);
    check(c, &a, "%ld values, %ld in a row, code %d", (long)a.numel, (long)a.row_numel, a.code);
}
