/* binary.cu - functions of two numbers, their derivatives, and the choice between two, with broadcasting.
 *
 * Operands whose rows are contiguous go through map_rows, which is fast: sums, products and the like of whole tensors,
 * or of a tensor and a row. All else is made element by element (places.cuh), the function chosen at run time. */
#include "backend/cuda/kernels/formulas.cuh"
#include "backend/cuda/kernels/places.cuh"

/* Holds the strides of an operand that is one number. */
static const int64_t nowhere[6] = {};

/* ---- one element ---- */

DEVICE float value(fsdp__binary_op op, float a, float b, float beta)
{
    return op == FSDP__POW ? powf(a, b) : fsdp__binary_value(op, a, b, beta);
}

DEVICE float left(fsdp__binary_op op, float a, float b, float dy, float beta)
{
    return fsdp__left_gradient(op, a, b, op == FSDP__POW ? powf(a, b - 1.0f) : 0.0f, dy, beta);
}

DEVICE float right(fsdp__binary_op op, float a, float b, float dy, float beta)
{
    return fsdp__right_gradient(op, a, b, op == FSDP__POW ? powf(a, b) : 0.0f, dy, beta);
}

template <class T>
DEVICE bool compare(fsdp__binary_op op, T a, T b)
{
    switch (op) {
    case FSDP__EQ:
        return a == b;
    case FSDP__NE:
        return a != b;
    case FSDP__LT:
        return a < b;
    case FSDP__LE:
        return a <= b;
    case FSDP__GT:
        return a > b;
    case FSDP__GE:
        return a >= b;
    case FSDP__AND:
        return a != T(0) && b != T(0);
    default:
        return a != T(0) || b != T(0);
    }
}

/* ---- rows ---- */

/* Sets k's rows and columns and the rows' strides to those of `p`, and returns true, if the elements of every row of
 * every operand lie together. */
template <int COUNT, int INPUTS, int OUTPUTS>
static bool has_rows(const places<COUNT> &p, rows_args<INPUTS, OUTPUTS> *k)
{
    int inner = p.ndim - 1;

    if (p.ndim > 2)
        return false;
    for (int s = 0; s < INPUTS; s++) {
        if (p.strides[s][inner] != 1)
            return false;
        k->in_row[s] = inner > 0 ? p.strides[s][0] : 0;
    }
    for (int s = 0; s < OUTPUTS; s++)
        k->out_row[s] = p.shape[inner];
    k->rows = inner > 0 ? p.shape[0] : 1;
    k->cols = p.shape[inner];
    return true;
}

/* in: a, b. */
template <fsdp__binary_op OP>
struct binary_value {
    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = value(OP, in[0], in[1], 0.0f);
    }
};

/* in: a. */
template <fsdp__binary_op OP>
struct value_with_number {
    float number;

    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = value(OP, in[0], number, 0.0f);
    }
};

/* in: a, b, dy; out: da, db. */
template <fsdp__binary_op OP>
struct binary_gradient {
    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = left(OP, in[0], in[1], in[2], 0.0f);
        out[1] = right(OP, in[0], in[1], in[2], 0.0f);
    }
};

/* Launches a function of contiguous rows, and says so, if it is one of those with a loop of their own. */
template <class T, fsdp__binary_op OP>
static bool launch_binary_rows(fsdp_stream *stream, const fsdp__binary_args *k, const places<2> &p, fsdp_status *status)
{
    rows_args<2, 1> two = {{k->a, k->b}, {k->y}, {}, {}, 0, 0};
    rows_args<1, 1> one = {{k->a}, {k->y}, {}, {}, 0, 0};

    if (k->b ? !has_rows(p, &two) : !has_rows(p, &one))
        return false;
    *status = k->b ? launch_rows<T>(stream, "binary", two, binary_value<OP>{})
                   : launch_rows<T>(stream, "binary", one, value_with_number<OP>{k->scalar});
    return true;
}

template <class T>
static bool binary_rows(fsdp_stream *stream, const fsdp__binary_args *k, const places<2> &p, fsdp_status *status)
{
    switch (k->op) {
    case FSDP__ADD:
        return launch_binary_rows<T, FSDP__ADD>(stream, k, p, status);
    case FSDP__MUL:
        return launch_binary_rows<T, FSDP__MUL>(stream, k, p, status);
    case FSDP__SUB:
        return launch_binary_rows<T, FSDP__SUB>(stream, k, p, status);
    case FSDP__DIV:
        return launch_binary_rows<T, FSDP__DIV>(stream, k, p, status);
    default:
        return false;
    }
}

/* ---- any strides ---- */

/* The operands' elements are T; so are those of y, or bytes. */
struct binary_place_args {
    const void *a, *b; /* b NULL: the number */
    void *y;
    places<2> at;
    float scalar, beta;
    fsdp__binary_op op;
};

template <class T>
static __global__ void binary_places(GRID_CONSTANT(binary_place_args) k)
{
    EACH_ITEM (i, k.at.numel) {
        int64_t at[2];
        float a, b;

        find_places(k.at, i, at);
        a = load((const T *)k.a, at[0]);
        b = k.b ? load((const T *)k.b, at[1]) : k.scalar;
        if (k.op >= FSDP__EQ)
            ((uint8_t *)k.y)[i] = compare(k.op, a, b);
        else
            store((T *)k.y, i, value(k.op, a, b, k.beta));
    }
}

template <class T>
static __global__ void compare_places(GRID_CONSTANT(binary_place_args) k)
{
    EACH_ITEM (i, k.at.numel) {
        int64_t at[2];

        find_places(k.at, i, at);
        ((uint8_t *)k.y)[i] = compare(k.op, ((const T *)k.a)[at[0]], ((const T *)k.b)[at[1]]);
    }
}

template <class T>
static fsdp_status binary_floats(fsdp_stream *stream, const fsdp__binary_args *k, const binary_place_args &all)
{
    fsdp_status status;

    if (binary_rows<T>(stream, k, all.at, &status))
        return status;
    return launch(stream, "binary", binary_places<T>, blocks_for(all.at.numel, BLOCK), BLOCK, 0, all);
}

ENTRY(binary, k)
{
    binary_place_args all = {
        k->a,      k->b,    k->y, places_of<2>(k->ndim, k->shape, {k->a_strides, k->b ? k->b_strides : nowhere}),
        k->scalar, k->beta, k->op};
    unsigned blocks = blocks_for(all.at.numel, BLOCK);

    EACH_FLOAT(k->dtype, T, return binary_floats<T>(stream, k, all));
    if (k->dtype == FSDP_I64)
        return launch(stream, "binary", compare_places<int64_t>, blocks, BLOCK, 0, all);
    if (k->dtype == FSDP_I32)
        return launch(stream, "binary", compare_places<int32_t>, blocks, BLOCK, 0, all);
    return launch(stream, "binary", compare_places<uint8_t>, blocks, BLOCK, 0, all);
}

/* ---- backward ---- */

struct gradient_place_args {
    const void *a, *b, *dy; /* b NULL: the number */
    void *da, *db;
    places<3> at;
    float scalar, beta;
    fsdp__binary_op op;
};

template <class T>
static __global__ void gradient_places(GRID_CONSTANT(gradient_place_args) k)
{
    EACH_ITEM (i, k.at.numel) {
        int64_t at[3];
        float a, b, dy;

        find_places(k.at, i, at);
        a = load((const T *)k.a, at[0]);
        b = k.b ? load((const T *)k.b, at[1]) : k.scalar;
        dy = load((const T *)k.dy, at[2]);
        if (k.db)
            store((T *)k.db, i, right(k.op, a, b, dy, k.beta));
        if (k.da)
            store((T *)k.da, i, left(k.op, a, b, dy, k.beta));
    }
}

template <class T>
static fsdp_status gradient_floats(fsdp_stream *stream, const gradient_place_args &all)
{
    rows_args<3, 2> rows = {{all.a, all.b, all.dy}, {all.da, all.db}, {}, {}, 0, 0};

    if (all.b && all.op == FSDP__MUL && has_rows(all.at, &rows))
        return launch_rows<T>(stream, "binary_backward", rows, binary_gradient<FSDP__MUL>{});
    if (all.b && all.op == FSDP__DIV && has_rows(all.at, &rows))
        return launch_rows<T>(stream, "binary_backward", rows, binary_gradient<FSDP__DIV>{});
    return launch(stream, "binary_backward", gradient_places<T>, blocks_for(all.at.numel, BLOCK), BLOCK, 0, all);
}

ENTRY(binary_backward, k)
{
    const fsdp__binary_args *f = &k->forward;
    gradient_place_args all = {
        f->a,      f->b,
        k->dy,     k->da,
        k->db,     places_of<3>(f->ndim, f->shape, {f->a_strides, f->b ? f->b_strides : nowhere, k->dy_strides}),
        f->scalar, f->beta,
        f->op};

    EACH_FLOAT(f->dtype, T, return gradient_floats<T>(stream, all));
    return FSDP_OK;
}

/* ---- where ---- */

/* T: an unsigned integer of the elements' size. */
template <class T>
struct where_place_args {
    const uint8_t *mask;
    const T *a, *b; /* NULL: the number */
    T *y;
    T a_number, b_number;
    places<3> at;
};

template <class T>
static __global__ void where_places(GRID_CONSTANT(where_place_args<T>) k)
{
    EACH_ITEM (i, k.at.numel) {
        int64_t at[3];

        find_places(k.at, i, at);
        if (k.mask[at[0]] != 0)
            k.y[i] = k.a ? k.a[at[1]] : k.a_number;
        else
            k.y[i] = k.b ? k.b[at[2]] : k.b_number;
    }
}

template <class T>
static fsdp_status where_bits(fsdp_stream *stream, const fsdp__where_args *k, T a_number, T b_number)
{
    where_place_args<T> all = {
        (const uint8_t *)k->mask,
        (const T *)k->a,
        (const T *)k->b,
        (T *)k->y,
        a_number,
        b_number,
        places_of<3>(k->ndim, k->shape,
                     {k->mask_strides, k->a ? k->a_strides : nowhere, k->b ? k->b_strides : nowhere})};

    return launch(stream, "where", where_places<T>, blocks_for(all.at.numel, BLOCK), BLOCK, 0, all);
}

ENTRY(where, k)
{
    double a = k->a_scalar, b = k->b_scalar;

    switch (k->dtype) {
    case FSDP_F32:
        return where_bits(stream, k, fsdp__float_bits((float)a), fsdp__float_bits((float)b));
    case FSDP_BF16:
        return where_bits(stream, k, from_float<bf16>((float)a).bits, from_float<bf16>((float)b).bits);
    case FSDP_F16:
        return where_bits(stream, k, from_float<f16>((float)a).bits, from_float<f16>((float)b).bits);
    case FSDP_I32:
        return where_bits(stream, k, (uint32_t)(int64_t)a, (uint32_t)(int64_t)b);
    case FSDP_I64:
        return where_bits(stream, k, (uint64_t)(int64_t)a, (uint64_t)(int64_t)b);
    case FSDP_U8:
        return where_bits(stream, k, (uint8_t)(int64_t)a, (uint8_t)(int64_t)b);
    default:
        return where_bits(stream, k, (uint8_t)(a != 0.0), (uint8_t)(b != 0.0));
    }
}
