/* index.c - gathers elements by index along a dimension, and scatters them. */
#include "backend/cpu/kernels/dtype.h"
#include "base/alloc.h"

/* Returns the index of element (o, j, i), clamped: one that is out of range was refused before, where it could be
 * read. */
FSDP__INLINE int64_t index_at(const fsdp__index_map *m, int64_t o, int64_t j, int64_t i)
{
    int64_t index = m->index[o * m->index_outer + j * m->index_along + i * m->index_inner];

    return index < 0 ? 0 : index >= m->size ? m->size - 1 : index;
}

/* ---- gather: any dtype, bytes are moved ---- */

#define GATHER(type)                       \
    for (int64_t i = 0; i < m->inner; i++) \
    ((type *)k->y)[row * m->inner + i] = ((const type *)k->x)[(o * m->size + index_at(m, o, j, i)) * m->inner + i]

static void gather_rows(const void *args, int64_t begin, int64_t end)
{
    const fsdp__gather_args *k = args;
    const fsdp__index_map *m = &k->map;
    size_t size = fsdp_dtype_size(k->dtype);

    for (int64_t row = begin; row < end; row++) {
        int64_t o = row / m->count, j = row % m->count;

        if (m->index_inner == 0) {
            memcpy((char *)k->y + (size_t)(row * m->inner) * size,
                   (const char *)k->x + (size_t)((o * m->size + index_at(m, o, j, 0)) * m->inner) * size,
                   (size_t)m->inner * size);
        } else if (size == 4) {
            GATHER(uint32_t);
        } else if (size == 2) {
            GATHER(uint16_t);
        } else if (size == 8) {
            GATHER(uint64_t);
        } else {
            GATHER(uint8_t);
        }
    }
}

FSDP__KERNEL(gather, k)
{
    if (k->map.inner > 0)
        fsdp__for_ranges(k->map.outer * k->map.count, k->map.inner, gather_rows, k);
    return FSDP_OK;
}

/* ---- scatter: in the order of the index, whichever threads do it ----
 *
 * The inner dimension is cut into columns; a column of one `outer` belongs to one thread, which goes through the index
 * in order. Sums of 16 bits are made in f32, for which the column has room in the workspace. */

enum {
    WIDE = 256,       /* columns at a time of what is added in place */
    ROOM = 128 * 1024 /* f32 of a thread's workspace, unless one column needs more */
};

FSDP__INLINE int64_t columns_at_a_time(const fsdp__scatter_args *k)
{
    int64_t most = k->add && k->dtype != FSDP_F32 ? ROOM / FSDP__MAX(k->map.size, 1) : WIDE;

    return FSDP__MAX(FSDP__MIN(most, FSDP__MIN(k->map.inner, WIDE)), 1);
}

#define SCATTER(type)                                                     \
    for (int64_t i = first; i < end; i++)                                 \
    ((type *)k->y)[(o * m->size + index_at(m, o, j, i)) * m->inner + i] = \
        ((const type *)k->x)[(o * m->count + j) * m->inner + i]

static void replace(const fsdp__scatter_args *k, int64_t o, int64_t first, int64_t end)
{
    const fsdp__index_map *m = &k->map;
    size_t size = fsdp_dtype_size(k->dtype);

    for (int64_t j = 0; j < m->count; j++) {
        if (size == 4) {
            SCATTER(uint32_t);
        } else if (size == 2) {
            SCATTER(uint16_t);
        } else if (size == 8) {
            SCATTER(uint64_t);
        } else {
            SCATTER(uint8_t);
        }
    }
}

static void add_in_place(const fsdp__scatter_args *k, int64_t o, int64_t first, int64_t end)
{
    const fsdp__index_map *m = &k->map;
    float *y = (float *)k->y + o * m->size * m->inner;

    for (int64_t j = 0; j < m->count; j++) {
        const float *x = (const float *)k->x + (o * m->count + j) * m->inner;

        if (m->index_inner == 0) {
            float *row = y + index_at(m, o, j, 0) * m->inner;
#pragma omp simd
            for (int64_t i = first; i < end; i++)
                row[i] += x[i];
        } else {
            for (int64_t i = first; i < end; i++)
                y[index_at(m, o, j, i) * m->inner + i] += x[i];
        }
    }
}

/* Adds a row of x to a row of sums. */
FSDP__INLINE void add_row(fsdp_dtype dtype, const void *x, float *restrict sum, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] += fsdp__load(dtype, x, i);
}

static void add_widened(const fsdp__scatter_args *k, float *sum, int64_t o, int64_t first, int64_t end)
{
    const fsdp__index_map *m = &k->map;
    int64_t n = end - first, at = o * m->size * m->inner + first;

    for (int64_t r = 0; r < m->size; r++)
        fsdp__widen(k->dtype, fsdp__at(k->dtype, k->y, at + r * m->inner), n, sum + r * n);
    for (int64_t j = 0; j < m->count; j++) {
        const void *x = fsdp__at(k->dtype, k->x, (o * m->count + j) * m->inner + first);
        if (m->index_inner == 0) {
            FSDP__EACH_FLOAT(k->dtype, T, add_row(T, x, sum + index_at(m, o, j, 0) * n, n));
        } else {
            FSDP__EACH_FLOAT(k->dtype, T,
                             for (int64_t i = 0; i < n; i++) sum[index_at(m, o, j, first + i) * n + i] +=
                             fsdp__load(T, x, i));
        }
    }
    for (int64_t r = 0; r < m->size; r++)
        fsdp__narrow(k->dtype, sum + r * n, n, fsdp__at(k->dtype, k->y, at + r * m->inner));
}

static void clear(const fsdp__scatter_args *k, int64_t o, int64_t first, int64_t end)
{
    size_t size = fsdp_dtype_size(k->dtype);

    for (int64_t r = 0; r < k->map.size; r++)
        memset((char *)k->y + (size_t)((o * k->map.size + r) * k->map.inner + first) * size, 0,
               (size_t)(end - first) * size);
}

FSDP__KERNEL(scatter, k)
{
    int64_t wide = columns_at_a_time(k), pieces = fsdp__ceil_div(k->map.inner, wide);
    bool widens = k->add && k->dtype != FSDP_F32;
    float *room = NULL;

    if (widens && k->map.size > 0)
        FSDP__TRY_NEW(
            room = fsdp__stream_workspace(stream, (size_t)(fsdp__threads() * k->map.size * wide) * sizeof *room));
#pragma omp parallel for schedule(static) if (k->map.outer * k->map.inner * (k->map.count + k->map.size) > \
                                              FSDP__PARALLEL_MIN)
    for (int64_t p = 0; p < k->map.outer * pieces; p++) {
        int64_t o = p / pieces, first = p % pieces * wide, end = FSDP__MIN(first + wide, k->map.inner);

        if (!k->keep)
            clear(k, o, first, end);
        if (k->map.size == 0)
            continue;
        if (!k->add)
            replace(k, o, first, end);
        else if (widens)
            add_widened(k, room + fsdp__thread() * k->map.size * wide, o, first, end);
        else
            add_in_place(k, o, first, end);
    }
    return FSDP_OK;
}
