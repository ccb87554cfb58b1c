/* byte_adam.c - Adam and AdamW with moments that are bytes, block by block. */
#include <math.h>

#include "backend/cpu/kernels/judged.h"
#include "base/byte_map.h"

/* The numbers of the codes, and what lies between each and the next. */
typedef struct byte_map {
    float values[FSDP__BYTE_CODES], between[FSDP__BYTE_CODES - 1];
} byte_map;

typedef struct byte_plan {
    const fsdp__byte_adam_args *k;
    float grad_scale, beta2, one_minus_beta1, one_minus_beta2, step_size, root_correction, decay_factor;
    byte_map first, second; /* of m and of v */
} byte_plan;

static void make_map(byte_map *map, bool has_sign)
{
    for (int c = 0; c < FSDP__BYTE_CODES; c++)
        map->values[c] = fsdp__byte_map_value(c, has_sign);
    for (int c = 0; c + 1 < FSDP__BYTE_CODES; c++)
        map->between[c] = 0.5f * (map->values[c] + map->values[c + 1]);
}

/* Returns the code of the nearest number; of two the lower. */
static uint8_t encode(const byte_map *map, float x)
{
    int low = 0;

    for (int step = FSDP__BYTE_CODES / 2; step > 0; step /= 2)
        low += x > map->between[low + step - 1] ? step : 0;
    return (uint8_t)low;
}

/* Encodes a block by its largest magnitude, which becomes its scale. */
static void store_block(const byte_map *map, const float *x, int64_t n, uint8_t *codes, float *scale)
{
    float largest = 0.0f;

    for (int64_t i = 0; i < n; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    *scale = largest;
    for (int64_t i = 0; i < n; i++)
        codes[i] = encode(map, largest > 0.0f ? x[i] / largest : 0.0f);
}

/* Steps a block of `n` elements, which begin at element `at`. */
FSDP__INLINE void step_block(fsdp_dtype param_dtype, fsdp_dtype dtype, const byte_plan *p, const fsdp__byte_span *s,
                             int64_t block, int64_t at, int64_t n)
{
    float m[FSDP__BYTE_BLOCK], v[FSDP__BYTE_BLOCK], scale1 = s->scales1[block], scale2 = s->scales2[block];
    float eps = (float)p->k->eps, decay = p->k->decoupled ? 0.0f : (float)p->k->weight_decay;

    for (int64_t i = 0; i < n; i++) {
        float w = fsdp__load(param_dtype, s->param, at + i) * p->decay_factor;
        float g = fsdp__load(dtype, s->grad, at + i) * p->grad_scale + decay * w;
        float old1 = p->first.values[s->codes1[at + i]] * scale1, old2 = p->second.values[s->codes2[at + i]] * scale2;

        m[i] = old1 + p->one_minus_beta1 * (g - old1);
        v[i] = p->beta2 * old2 + p->one_minus_beta2 * g * g;
        fsdp__store(param_dtype, s->param, at + i, w - p->step_size * m[i] / (sqrtf(v[i]) / p->root_correction + eps));
    }
    store_block(&p->first, m, n, s->codes1 + at, &s->scales1[block]);
    store_block(&p->second, v, n, s->codes2 + at, &s->scales2[block]);
}

/* Writes elements [at, at + n) of the parameter to its copy, if it has one. */
static void copy_run(const fsdp__byte_adam_args *k, const fsdp__byte_span *s, int64_t at, int64_t n)
{
    if (s->copy)
        EACH_PAIR(k->param_dtype, k->copy_dtype, P, C,
                  for (int64_t i = at; i < at + n; i++) fsdp__store(C, s->copy, i, fsdp__load(P, s->param, i)));
}

static void step_span(const byte_plan *p, const fsdp__byte_span *s)
{
    int64_t in_row = fsdp__ceil_div(s->cols, FSDP__BYTE_BLOCK), blocks = s->rows * in_row;

#pragma omp parallel for schedule(static) if (s->rows * s->cols > FSDP__PARALLEL_MIN)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t column = b % in_row * FSDP__BYTE_BLOCK, n = FSDP__MIN(s->cols - column, FSDP__BYTE_BLOCK);
        int64_t at = b / in_row * s->cols + column;

        EACH_PAIR(p->k->param_dtype, p->k->grad_dtype, P, G, step_block(P, G, p, s, b, at, n));
        copy_run(p->k, s, at, n);
    }
}

FSDP__KERNEL(byte_adam, k)
{
    judged by = judged_of(k->verdict, k->grad_scale, k->step, k->behind);
    byte_plan p = {.k = k, ADAM_FACTORS(k, by)};

    for (int64_t i = 0; by.left_out && i < k->count; i++)
        copy_run(k, &k->spans[i], 0, k->spans[i].rows * k->spans[i].cols);
    if (by.left_out)
        return FSDP_OK;
    make_map(&p.first, true);
    make_map(&p.second, false);
    for (int64_t i = 0; i < k->count; i++)
        step_span(&p, &k->spans[i]);
    return FSDP_OK;
}
