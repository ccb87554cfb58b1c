/* activation.cu - y = f(x + bias), and the gated pair of Llama's feed-forward, silu(gate) * up. */
#include "backend/cuda/kernels/formulas.cuh"
#include "backend/cuda/kernels/pack.cuh"

/* in: x [, bias]. */
template <class T, fsdp__activation KIND, bool BIASED>
struct activation_value {
    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = FORMULA(T, fsdp__activate, KIND, BIASED ? in[0] + in[1] : in[0]);
    }
};

/* in: dy, x [, bias]. */
template <class T, fsdp__activation KIND, bool BIASED>
struct activation_gradient {
    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = in[0] * FORMULA(T, fsdp__activation_derivative, KIND, BIASED ? in[1] + in[2] : in[1]);
    }
};

template <class T, fsdp__activation KIND>
static fsdp_status forward(fsdp_stream *stream, const fsdp__activation_forward_args *k)
{
    if (!k->bias)
        return launch_rows<T>(stream, "activation_forward",
                              rows_args<1, 1>{{k->x}, {k->y}, {}, {}, 1, k->rows * k->cols},
                              activation_value<T, KIND, false>{});
    return launch_rows<T>(stream, "activation_forward",
                          rows_args<2, 1>{{k->x, k->bias}, {k->y}, {k->cols, 0}, {k->cols}, k->rows, k->cols},
                          activation_value<T, KIND, true>{});
}

template <class T, fsdp__activation KIND>
static fsdp_status backward(fsdp_stream *stream, const fsdp__activation_backward_args *k)
{
    if (!k->bias)
        return launch_rows<T>(stream, "activation_backward",
                              rows_args<2, 1>{{k->dy, k->x}, {k->dx}, {}, {}, 1, k->rows * k->cols},
                              activation_gradient<T, KIND, false>{});
    return launch_rows<T>(
        stream, "activation_backward",
        rows_args<3, 1>{{k->dy, k->x, k->bias}, {k->dx}, {k->cols, k->cols, 0}, {k->cols}, k->rows, k->cols},
        activation_gradient<T, KIND, true>{});
}

template <class T>
static fsdp_status forward_any(fsdp_stream *stream, const fsdp__activation_forward_args *k)
{
#define FORWARD(kind) \
    case kind:        \
        return forward<T, kind>(stream, k);
    switch (k->kind) {
        FSDP__EACH_ACTIVATION(FORWARD)
    }
#undef FORWARD
    return FSDP_OK;
}

template <class T>
static fsdp_status backward_any(fsdp_stream *stream, const fsdp__activation_backward_args *k)
{
#define BACKWARD(kind) \
    case kind:         \
        return backward<T, kind>(stream, k);
    switch (k->kind) {
        FSDP__EACH_ACTIVATION(BACKWARD)
    }
#undef BACKWARD
    return FSDP_OK;
}

FLOAT_ENTRY(activation_forward, forward_any)
FLOAT_ENTRY(activation_backward, backward_any)

/* ---- swiglu ---- */

/* in: gate, up. */
template <class T>
struct swiglu_value {
    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = in[0] * FORMULA(T, fsdp__sigmoidf, in[0]) * in[1];
    }
};

/* in: gate, up, dy; out: dgate, dup [, y]. */
template <class T, bool AGAIN>
struct swiglu_gradient {
    DEVICE void operator()(const float *in, float *out) const
    {
        float gate = in[0], up = in[1], dy = in[2], s = FORMULA(T, fsdp__sigmoidf, gate);

        out[0] = dy * up * s * (1.0f + gate * (1.0f - s));
        out[1] = dy * gate * s;
        if (AGAIN)
            swiglu_value<T>{}(in, out + 2);
    }
};

/* Do the same as the two above, with gelu for silu. */
template <class T>
struct geglu_value {
    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = FORMULA(T, fsdp__activate, FSDP__GELU_TANH, in[0]) * in[1];
    }
};

template <class T, bool AGAIN>
struct geglu_gradient {
    DEVICE void operator()(const float *in, float *out) const
    {
        out[0] = in[2] * in[1] * FORMULA(T, fsdp__activation_derivative, FSDP__GELU_TANH, in[0]);
        out[1] = in[2] * FORMULA(T, fsdp__activate, FSDP__GELU_TANH, in[0]);
        if (AGAIN)
            geglu_value<T>{}(in, out + 2);
    }
};

ENTRY(swiglu_forward, k)
{
    rows_args<2, 1> rows = {{k->gate, k->up}, {k->y}, {k->gate_row, k->up_row}, {k->y_row}, k->rows, k->cols};

    if (k->gelu)
        EACH_FLOAT(k->dtype, T, return launch_rows<T>(stream, "swiglu_forward", rows, geglu_value<T>{}));
    EACH_FLOAT(k->dtype, T, return launch_rows<T>(stream, "swiglu_forward", rows, swiglu_value<T>{}));
    return FSDP_OK;
}

template <class T, int OUTPUTS>
static fsdp_status gated_backward(fsdp_stream *stream, const fsdp__swiglu_backward_args *k)
{
    const bool AGAIN = OUTPUTS == 3;
    rows_args<3, OUTPUTS> rows = {{k->gate, k->up, k->dy},
                                  {k->dgate, k->dup},
                                  {k->gate_row, k->up_row, k->dy_row},
                                  {k->dgate_row, k->dup_row},
                                  k->rows,
                                  k->cols};

    if (AGAIN) {
        rows.out[OUTPUTS - 1] = k->y;
        rows.out_row[OUTPUTS - 1] = k->y_row;
    }
    return k->gelu ? launch_rows<T>(stream, "swiglu_backward", rows, geglu_gradient<T, AGAIN>{})
                   : launch_rows<T>(stream, "swiglu_backward", rows, swiglu_gradient<T, AGAIN>{});
}

template <class T>
static fsdp_status swiglu_gradients(fsdp_stream *stream, const fsdp__swiglu_backward_args *k)
{
    return k->y ? gated_backward<T, 3>(stream, k) : gated_backward<T, 2>(stream, k);
}

FLOAT_ENTRY(swiglu_backward, swiglu_gradients)
