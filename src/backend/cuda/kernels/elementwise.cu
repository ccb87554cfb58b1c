/* elementwise.cu - fill, scale, and functions of one number with their derivatives. */
#include "backend/cuda/kernels/formulas.cuh"
#include "backend/cuda/kernels/pack.cuh"

/* ---- fill ---- */

template <class T>
static __global__ void fill_elements(T *p, T value, int64_t numel, bool aligned)
{
    const int n = ACCESS / (int)sizeof(T);
    pack<T, n> all;

    UNROLL
    for (int e = 0; e < n; e++)
        all.at[e] = value;
    EACH_ITEM (item, (numel + n - 1) / n)
        put<n>(p, item * n, numel, aligned && (item + 1) * n <= numel, all);
}

template <class T>
static fsdp_status fill_with(fsdp_stream *stream, const fsdp__fill_args *k, T value)
{
    unsigned char bytes[sizeof(T)];
    bool even = true;

    memcpy(bytes, &value, sizeof value);
    for (size_t i = 1; i < sizeof value; i++)
        even = even && bytes[i] == bytes[0];
    if (even)
        return fsdp__cuda_set_bytes(stream, k->dst, bytes[0], (size_t)k->numel * sizeof value);
    return launch(stream, "fill", fill_elements<T>, blocks_for(k->numel, BLOCK * ACCESS / (int64_t)sizeof value), BLOCK,
                  0, (T *)k->dst, value, k->numel, is_aligned(k->dst, 0));
}

ENTRY(fill, k)
{
    if (k->numel == 0)
        return FSDP_OK;
    switch (k->dtype) {
    case FSDP_F32:
        return fill_with(stream, k, fsdp__float_bits((float)k->value));
    case FSDP_BF16:
        return fill_with(stream, k, from_float<bf16>((float)k->value).bits);
    case FSDP_F16:
        return fill_with(stream, k, from_float<f16>((float)k->value).bits);
    case FSDP_I32:
        return fill_with(stream, k, (int32_t)k->value);
    case FSDP_I64:
        return fill_with(stream, k, (int64_t)k->value);
    case FSDP_U8:
        return fill_with(stream, k, (uint8_t)(int64_t)k->value);
    default:
        return fill_with(stream, k, (uint8_t)(k->value != 0.0));
    }
}

/* ---- scale ---- */

template <bool ADDS>
struct scaled {
    const float *scalar;
    float alpha;

    DEVICE void operator()(const float *in, float *out) const
    {
        float factor = scalar ? alpha * *scalar : alpha;

        out[0] = ADDS ? factor * in[0] + in[1] : factor * in[0];
    }
};

template <class T>
static fsdp_status scale(fsdp_stream *stream, const fsdp__scale_args *k)
{
    if (k->accumulate)
        return launch_rows<T>(stream, "scale", rows_args<2, 1>{{k->x, k->y}, {k->y}, {}, {}, 1, k->numel},
                              scaled<true>{k->scalar, k->alpha});
    return launch_rows<T>(stream, "scale", rows_args<1, 1>{{k->x}, {k->y}, {}, {}, 1, k->numel},
                          scaled<false>{k->scalar, k->alpha});
}

FLOAT_ENTRY(scale, scale)

/* ---- functions of one number ---- */

/* Holds a number of 16 bits as the upper half of a float, a NaN with all its bits. */
struct upper_half {
    uint16_t bits;
};

HOST_DEVICE float to_float(upper_half x)
{
    return fsdp__bits_float((uint32_t)x.bits << 16);
}

template <>
HOST_DEVICE upper_half from_float<upper_half>(float x)
{
    upper_half y = {(uint16_t)(fsdp__float_bits(x) >> 16)};

    return y;
}

template <fsdp__unary_op OP>
struct unary_value {
    float low, high;

    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = fsdp__unary_value(OP, in[0], low, high);
    }
};

/* in: y or x (see fsdp__unary_op), dy. */
template <fsdp__unary_op OP>
struct unary_gradient {
    float low, high;

    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = fsdp__unary_gradient(OP, in[0], in[1], low, high);
    }
};

template <class T>
static fsdp_status unary_forward(fsdp_stream *stream, const fsdp__unary_forward_args *k)
{
    rows_args<1, 1> rows = {{k->x}, {k->y}, {}, {}, 1, k->numel};

    if (k->op == FSDP__ABS && sizeof(T) == sizeof(upper_half))
        return launch_rows<upper_half>(stream, "unary_forward", rows, unary_value<FSDP__ABS>{});
#define FORWARD(op) \
    case op:        \
        return launch_rows<T>(stream, "unary_forward", rows, unary_value<op>{k->low, k->high});
    switch (k->op) {
        FSDP__EACH_UNARY(FORWARD)
    }
#undef FORWARD
    return FSDP_OK;
}

FLOAT_ENTRY(unary_forward, unary_forward)

template <class T>
static fsdp_status unary_backward(fsdp_stream *stream, const fsdp__unary_backward_args *k)
{
    rows_args<2, 1> rows = {{k->saved, k->dy}, {k->dx}, {}, {}, 1, k->numel};

#define BACKWARD(op) \
    case op:         \
        return launch_rows<T>(stream, "unary_backward", rows, unary_gradient<op>{k->low, k->high});
    switch (k->op) {
        FSDP__EACH_UNARY(BACKWARD)
    }
#undef BACKWARD
    return FSDP_OK;
}

FLOAT_ENTRY(unary_backward, unary_backward)
