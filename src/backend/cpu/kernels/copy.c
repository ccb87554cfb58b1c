/* copy.c - copies of any strides between any dtypes, and of many contiguous tensors at once. */
#include "backend/cpu/kernels/dtype.h"
#include "backend/cpu/kernels/spans.h"

#define MAX_DIMS 6

/* ---- one row ---- */

FSDP__INLINE bool is_float(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16;
}

FSDP__INLINE int64_t element_size(fsdp_dtype dtype)
{
    switch (dtype) {
    case FSDP_I64:
        return 8;
    case FSDP_F32:
    case FSDP_I32:
        return 4;
    case FSDP_BF16:
    case FSDP_F16:
        return 2;
    default:
        return 1;
    }
}

/* A number that holds every dtype exactly; strided and mixed rows go through it element by element. */
typedef struct number {
    double real;
    int64_t integer; /* if `exact` */
    bool exact;
} number;

static number get(fsdp_dtype dtype, const void *p, int64_t i)
{
    switch (dtype) {
    case FSDP_I32:
        return (number){.integer = ((const int32_t *)p)[i], .exact = true};
    case FSDP_I64:
        return (number){.integer = ((const int64_t *)p)[i], .exact = true};
    case FSDP_U8:
        return (number){.integer = ((const uint8_t *)p)[i], .exact = true};
    case FSDP_BOOL:
        return (number){.integer = ((const uint8_t *)p)[i] != 0, .exact = true};
    default:
        return (number){.real = fsdp__load(dtype, p, i)};
    }
}

static void put(fsdp_dtype dtype, void *p, int64_t i, number x)
{
    int64_t integer = x.integer;

    if (dtype == FSDP_BOOL) {
        ((uint8_t *)p)[i] = x.exact ? x.integer != 0 : x.real != 0.0;
        return;
    }
    if (is_float(dtype)) {
        fsdp__store(dtype, p, i, x.exact ? (float)x.integer : (float)x.real);
        return;
    }
    if (!x.exact) /* truncate; what no integer can hold becomes the smallest */
        integer = x.real >= -0x1p63 && x.real < 0x1p63 ? (int64_t)x.real : INT64_MIN;
    if (dtype == FSDP_I64)
        ((int64_t *)p)[i] = integer;
    else if (dtype == FSDP_I32)
        ((int32_t *)p)[i] = (int32_t)integer;
    else
        ((uint8_t *)p)[i] = (uint8_t)integer;
}

FSDP__INLINE void convert(fsdp_dtype from, fsdp_dtype to, const void *src, void *dst, int64_t n, bool accumulate)
{
    if (accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(to, dst, i, fsdp__load(to, dst, i) + fsdp__load(from, src, i));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(to, dst, i, fsdp__load(from, src, i));
    }
}

static void convert_floats(fsdp_dtype from, fsdp_dtype to, const void *src, void *dst, int64_t n, bool accumulate)
{
    FSDP__EACH_FLOAT(from, S, FSDP__EACH_FLOAT(to, D, convert(S, D, src, dst, n, accumulate)));
}

/* Moves n elements of `size` bytes. */
static void move_strided(int64_t size, const void *src, int64_t src_stride, void *dst, int64_t dst_stride, int64_t n)
{
#define MOVE(type)                  \
    for (int64_t i = 0; i < n; i++) \
    ((type *)dst)[i * dst_stride] = ((const type *)src)[i * src_stride]
    if (size == 4)
        MOVE(uint32_t);
    else if (size == 2)
        MOVE(uint16_t);
    else if (size == 8)
        MOVE(uint64_t);
    else
        MOVE(uint8_t);
#undef MOVE
}

typedef struct row {
    fsdp_dtype src_dtype, dst_dtype;
    int64_t n, src_stride, dst_stride;
    bool accumulate;
} row;

static void copy_row(const row *r, const void *src, void *dst)
{
    bool same = r->src_dtype == r->dst_dtype && !r->accumulate, packed = r->src_stride == 1 && r->dst_stride == 1;
    int64_t size = element_size(r->src_dtype);

    if (same && packed) {
        memcpy(dst, src, (size_t)(r->n * size));
    } else if (same) {
        move_strided(size, src, r->src_stride, dst, r->dst_stride, r->n);
    } else if (packed && is_float(r->src_dtype) && is_float(r->dst_dtype)) {
        convert_floats(r->src_dtype, r->dst_dtype, src, dst, r->n, r->accumulate);
    } else {
        for (int64_t i = 0; i < r->n; i++) {
            number x = get(r->src_dtype, src, i * r->src_stride);
            if (r->accumulate)
                x = (number){.real = x.real + (x.exact ? (double)x.integer : 0.0) +
                                     fsdp__load(r->dst_dtype, dst, i * r->dst_stride)};
            put(r->dst_dtype, dst, i * r->dst_stride, x);
        }
    }
}

/* ---- any number of dimensions ---- */

typedef struct view {
    int ndim;
    int64_t shape[MAX_DIMS], src[MAX_DIMS], dst[MAX_DIMS];
    const char *from;
    char *to;
    int64_t src_size, dst_size;
    row row;        /* the innermost dimension */
    int transposed; /* the dimension in which the source is contiguous, if rows are not; else -1 */
} view;

static void swap_dims(view *v, int a, int b)
{
    int64_t shape = v->shape[a], src = v->src[a], dst = v->dst[a];

    v->shape[a] = v->shape[b], v->src[a] = v->src[b], v->dst[a] = v->dst[b];
    v->shape[b] = shape, v->src[b] = src, v->dst[b] = dst;
}

/* Drops dimensions of size 1, orders the others by the destination's strides, and joins those that continue each
 * other. */
static void simplify(const fsdp__copy_args *k, view *v)
{
    int n = 0;

    for (int d = 0; d < k->ndim; d++) {
        if (k->shape[d] == 1)
            continue;
        v->shape[n] = k->shape[d];
        v->src[n] = k->src_strides[d];
        v->dst[n++] = k->dst_strides[d];
    }
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && v->dst[j - 1] < v->dst[j]; j--)
            swap_dims(v, j - 1, j);
    v->ndim = 0;
    for (int i = 0; i < n; i++) {
        int last = v->ndim - 1;
        if (last >= 0 && v->dst[last] == v->shape[i] * v->dst[i] && v->src[last] == v->shape[i] * v->src[i]) {
            v->shape[last] *= v->shape[i];
            v->src[last] = v->src[i];
            v->dst[last] = v->dst[i];
        } else {
            v->shape[v->ndim] = v->shape[i];
            v->src[v->ndim] = v->src[i];
            v->dst[v->ndim++] = v->dst[i];
        }
    }
    if (v->ndim == 0) {
        v->shape[0] = v->src[0] = v->dst[0] = 1;
        v->ndim = 1;
    }
}

/* Copies rows [begin, end) of the outer dimensions, counted in order. */
static void copy_rows(const void *args, int64_t begin, int64_t end)
{
    const view *v = args;

    for (int64_t r = begin; r < end; r++) {
        int64_t rest = r, src = 0, dst = 0;
        for (int d = v->ndim - 2; d >= 0; d--) {
            int64_t i = rest % v->shape[d];
            rest /= v->shape[d];
            src += i * v->src[d];
            dst += i * v->dst[d];
        }
        copy_row(&v->row, v->from + src * v->src_size, v->to + dst * v->dst_size);
    }
}

/* Copies a piece of one long row. */
static void copy_piece(const void *args, int64_t begin, int64_t end)
{
    const view *v = args;
    row piece = v->row;

    piece.n = end - begin;
    copy_row(&piece, v->from + begin * piece.src_stride * v->src_size, v->to + begin * piece.dst_stride * v->dst_size);
}

#define TILE 32

/* Copies bands of TILE indices of the transposed dimension: reads run along it, writes along the rows, within the
 * cache. */
static void copy_bands(const void *args, int64_t begin, int64_t end)
{
    const view *v = args;
    int t = v->transposed, inner = v->ndim - 1;
    int64_t bands = fsdp__ceil_div(v->shape[t], TILE), n = v->shape[inner];

    for (int64_t b = begin; b < end; b++) {
        int64_t first = b % bands * TILE, last = FSDP__MIN(first + TILE, v->shape[t]), rest = b / bands;
        int64_t src = 0, dst = 0;
        for (int d = inner - 1; d >= 0; d--) {
            if (d == t)
                continue;
            src += rest % v->shape[d] * v->src[d];
            dst += rest % v->shape[d] * v->dst[d];
            rest /= v->shape[d];
        }
        for (int64_t at = 0; at < n; at += TILE) {
            int64_t width = FSDP__MIN(n - at, TILE);
            for (int64_t i = first; i < last; i++)
                move_strided(v->src_size, v->from + (src + i + at * v->src[inner]) * v->src_size, v->src[inner],
                             v->to + (dst + i * v->dst[t] + at) * v->dst_size, 1, width);
        }
    }
}

FSDP__KERNEL(copy, k)
{
    int64_t numel = 1, inner;
    view v = {.from = k->src,
              .to = k->dst,
              .src_size = element_size(k->src_dtype),
              .dst_size = element_size(k->dst_dtype),
              .transposed = -1};

    for (int d = 0; d < k->ndim; d++)
        numel *= k->shape[d];
    if (numel == 0)
        return FSDP_OK;
    if (k->src == k->dst && k->src_dtype == k->dst_dtype && !k->accumulate)
        return FSDP_OK; /* it is in place */
    simplify(k, &v);
    inner = v.ndim - 1;
    v.row = (row){.src_dtype = k->src_dtype,
                  .dst_dtype = k->dst_dtype,
                  .n = v.shape[inner],
                  .src_stride = v.src[inner],
                  .dst_stride = v.dst[inner],
                  .accumulate = k->accumulate};
    if (k->src_dtype == k->dst_dtype && !k->accumulate && v.dst[inner] == 1 && v.src[inner] != 1)
        for (int d = 0; d < inner; d++)
            if (v.src[d] == 1)
                v.transposed = d;
    if (v.ndim == 1)
        fsdp__for_ranges(v.row.n, 1, copy_piece, &v);
    else if (v.transposed >= 0)
        fsdp__for_ranges(numel / v.row.n / v.shape[v.transposed] * fsdp__ceil_div(v.shape[v.transposed], TILE),
                         v.row.n * TILE, copy_bands, &v);
    else
        fsdp__for_ranges(numel / v.row.n, v.row.n, copy_rows, &v);
    return FSDP_OK;
}

/* ---- many contiguous pieces ---- */

FSDP__SPAN_NUMEL(span_numel, fsdp__cast_spans_args, a->spans[span].numel)

static void span_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const fsdp__cast_spans_args *k = args;
    row r = {.src_dtype = k->src_dtype, .dst_dtype = k->dst_dtype, .n = end - begin, .src_stride = 1, .dst_stride = 1};

    copy_row(&r, (const char *)k->spans[span].src + begin * element_size(k->src_dtype),
             (char *)k->spans[span].dst + begin * element_size(k->dst_dtype));
}

FSDP__KERNEL(cast_spans, k)
{
    fsdp__for_spans(k->count, span_numel, span_piece, k);
    return FSDP_OK;
}
