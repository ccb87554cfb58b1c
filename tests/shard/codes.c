/* codes.c - there and back. */
#include "shard/codes.h"

#include <math.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "oracle/oracle.h"

const fsdp_gather_extension *coded_extension(coded how)
{
    return how == CODED_FLOAT8 ? fsdp_gather_float8() : how == CODED_INT8 ? fsdp_gather_int8() : NULL;
}

static float largest_of(const float *x, int64_t n)
{
    float largest = 0.0f;

    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}

static void round_float8(float *x, int64_t n)
{
    float scale = (float)(448.0 / fmax((double)largest_of(x, n), 1e-12));

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)oracle_float8_value(oracle_float8_code((double)(x[i] * scale))) / scale;
}

static void round_block(float *x, int64_t n)
{
    float amax = largest_of(x, n), inverse = amax < 1e-30f ? 0.0f : 127.0f / amax;
    float scale = amax < 1e-30f ? 0.0f : amax / 127.0f;

    for (int64_t i = 0; i < n; i++)
        x[i] = rintf(x[i] * inverse) * scale;
}

/* The part of each rank by itself. */
static void round_int8(float *x, int64_t outer, int64_t rows, int64_t inner, int ranks)
{
    float *part = malloc((size_t)(outer * rows * inner + 1) * sizeof *part);

    for (int r = 0; r < ranks; r++) {
        int64_t start, run = fsdp_shard_range(rows, ranks, r, &start) * inner, n = outer * run;

        for (int64_t i = 0; i < n; i++)
            part[i] = x[i / run * rows * inner + start * inner + i % run];
        for (int64_t at = 0; at < n; at += FSDP__CODE_BLOCK)
            round_block(part + at, FSDP__MIN(n - at, FSDP__CODE_BLOCK));
        for (int64_t i = 0; i < n; i++)
            x[i / run * rows * inner + start * inner + i % run] = part[i];
    }
    free(part);
}

void coded_round(coded how, float *values, int64_t outer, int64_t rows, int64_t inner, int ranks)
{
    if (how == CODED_FLOAT8)
        round_float8(values, outer * rows * inner);
    else if (how == CODED_INT8)
        round_int8(values, outer, rows, inner, ranks);
}
