/* attention.c - softmax(scale Q K^T [causal]) V in tiles, from three tensors or from one that holds them side by
 * side. */
#include "ops/op.h"

#include <math.h>

/* Holds strides of a (B,T,H,D) view whose D is contiguous. */
typedef struct heads {
    int64_t batch, time, head;
} heads;

typedef struct attention_state {
    fsdp__attention_forward_args args; /* sizes and strides; pointers are set at each use */
} attention_state;

static heads strides_of(const fsdp_tensor *t)
{
    return (heads){t->strides[0], t->strides[1], t->strides[2]};
}

static heads contiguous_heads(int64_t time, int64_t count, int64_t dim)
{
    return (heads){time * count * dim, count * dim, dim};
}

static void set_strides(fsdp__attention_forward_args *args, heads q, heads k, heads v)
{
    heads out = contiguous_heads(args->q_time, args->heads, args->head_dim);

    args->q_batch = q.batch, args->q_stride_time = q.time, args->q_head = q.head;
    args->k_batch = k.batch, args->k_stride_time = k.time, args->k_head = k.head;
    args->v_batch = v.batch, args->v_stride_time = v.time, args->v_head = v.head;
    args->out_batch = out.batch, args->out_stride_time = out.time, args->out_head = out.head;
}

/* Sets what narrows the view of causal queries. `*positions` becomes theirs, in contiguous memory, or NULL. */
static fsdp_status set_view(const char *op, fsdp__attention_forward_args *args, const fsdp_attention_options *options,
                            fsdp_tensor **positions)
{
    if (options->window < 0 || !(options->softcap >= 0 && isfinite(options->softcap)))
        return FSDP_FAIL(FSDP_INVALID, "%s: window %lld and softcap %g must not be negative", op,
                         (long long)options->window, (double)options->softcap);
    if (!args->causal && (options->window > 0 || options->positions))
        return FSDP_FAIL(FSDP_INVALID, "%s: a window or positions need causal attention: set causal", op);
    args->window = options->window;
    args->softcap = options->softcap;
    if (!options->positions)
        return FSDP_OK;
    if (args->kv_time != args->q_time)
        return FSDP_FAIL(FSDP_INVALID, "%s: positions with %lld queries and %lld keys: expected as many", op,
                         (long long)args->q_time, (long long)args->kv_time);
    return fsdp__op_check_positions(op, options->positions, args->batch, args->q_time, positions, &args->pairs);
}

/* The positions are those of `like`'s device; `*positions` is NULL where there are none. */
static bool set_options(const char *op, const fsdp_tensor *like, fsdp__attention_forward_args *args,
                        const fsdp_attention_options *options, fsdp_tensor **positions)
{
    fsdp_tensor *both[] = {(fsdp_tensor *)(uintptr_t)like, options ? options->positions : NULL};

    *positions = NULL;
    args->causal = options && options->causal;
    args->scale = options && options->scale != 0 ? options->scale : 1.0f / sqrtf((float)args->head_dim);
    if (!fsdp__op_inputs(op, both, 2) || (options && set_view(op, args, options, positions) != FSDP_OK))
        return false;
    args->positions = *positions ? fsdp_tensor_data(*positions) : NULL;
    if (args->causal && args->kv_time < args->q_time) {
        FSDP_FAIL(FSDP_INVALID, "%s: causal with %lld queries and only %lld keys: the first queries would see nothing",
                  op, (long long)args->q_time, (long long)args->kv_time);
        return false;
    }
    return true;
}

/* Makes lse, (B,H,T) f32, for when a backward will need it. */
static bool make_lse(const fsdp__attention_forward_args *args, const fsdp_tensor *like, fsdp_tensor **lse)
{
    const int64_t shape[] = {args->batch, args->heads, args->q_time};

    *lse = fsdp_empty(like->storage->device, FSDP_F32, 3, shape);
    return *lse;
}

/* Runs attention on q, k and v, whose pointers are set. `out` is NULL if it could not be made. */
static fsdp_status attend(fsdp__attention_forward_args *args, const fsdp_tensor *out, const fsdp_tensor *lse)
{
    FSDP__TRY_MADE(out);
    args->out = fsdp_tensor_data(out);
    args->lse = lse ? fsdp_tensor_data(lse) : NULL;
    return fsdp_tensor_numel(out) > 0 ? fsdp__launch_attention_forward(fsdp__op_stream(out), args) : FSDP_OK;
}

/* ---- three tensors ---- */

static fsdp_status attention_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const attention_state *state = fsdp__node_state(node);
    fsdp_tensor *q = fsdp__node_saved(node, 0), *k = fsdp__node_saved(node, 1), *v = fsdp__node_saved(node, 2);
    fsdp_tensor *out = fsdp__node_saved(node, 3), *lse = fsdp__node_saved(node, 4);
    fsdp_tensor *positions = fsdp__node_saved(node, 5);
    fsdp_tensor *dout = fsdp__op_contiguous(grads[0]); /* (B,T,H,D) */
    fsdp_tensor *dq = fsdp__op_gradient(node, 0, q), *dk = fsdp__op_gradient(node, 1, k);
    fsdp_tensor *dv = fsdp__op_gradient(node, 2, v);
    fsdp__attention_backward_args args = {.forward = state->args};

    FSDP__TRY_MADE(dout && dq && dk && dv);
    args.forward.q = fsdp_tensor_data(q);
    args.forward.k = fsdp_tensor_data(k);
    args.forward.v = fsdp_tensor_data(v);
    args.forward.out = fsdp_tensor_data(out);
    args.forward.lse = fsdp_tensor_data(lse);
    args.forward.positions = positions ? fsdp_tensor_data(positions) : NULL;
    args.dout = fsdp_tensor_data(dout);
    args.dq = fsdp_tensor_data(dq);
    args.dk = fsdp_tensor_data(dk);
    args.dv = fsdp_tensor_data(dv);
    args.dq_batch = dq->strides[0], args.dq_stride_time = dq->strides[1], args.dq_head = dq->strides[2];
    args.dk_batch = dk->strides[0], args.dk_stride_time = dk->strides[1], args.dk_head = dk->strides[2];
    args.dv_batch = dv->strides[0], args.dv_stride_time = dv->strides[1], args.dv_head = dv->strides[2];
    FSDP_TRY(fsdp__launch_attention_backward(fsdp__op_stream(q), &args));
    FSDP_TRY(fsdp__node_give(node, 0, dq));
    FSDP_TRY(fsdp__node_give(node, 1, dk));
    return fsdp__node_give(node, 2, dv);
}

static const fsdp__op attention_op = {.name = "attention", .backward = attention_backward};
static const fsdp__traits traits = {.dear = FSDP__DEAR_ATTENTION};

static bool fits(const fsdp_tensor *q, const fsdp_tensor *k)
{
    return q->ndim == 4 && k->ndim == 4 && q->shape[0] == k->shape[0] && q->shape[3] == k->shape[3] &&
           k->shape[2] > 0 && q->shape[2] % k->shape[2] == 0;
}

/* Returns the tensor itself if its last dimension is contiguous, else a contiguous copy. */
static fsdp_tensor *readable(fsdp_tensor *t)
{
    return t->strides[3] == 1 || t->shape[3] == 1 ? t : fsdp__op_contiguous(t);
}

fsdp_tensor *fsdp_attention(fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v, const fsdp_attention_options *options)
{
    fsdp_tensor *inputs[] = {q, k, v}, *saved[6], *out, *lse = NULL;
    attention_state state = {{0}};
    fsdp__attention_forward_args *args = &state.args;

    if (!q || !k || !v || !fsdp__op_inputs("attention", inputs, 3) || !fsdp__op_same_dtype("attention", inputs, 3))
        return NULL;
    if (!fits(q, k))
        return fsdp__op_misfit("attention", "query", q, "key", k);
    if (!fsdp__shape_equal(k, v))
        return fsdp__op_misfit("attention", "key", k, "value", v);
    args->batch = q->shape[0], args->q_time = q->shape[1], args->kv_time = k->shape[1];
    args->heads = q->shape[2], args->kv_heads = k->shape[2], args->head_dim = q->shape[3];
    args->dtype = q->dtype;
    if (!set_options("attention", q, args, options, &saved[5]))
        return NULL;
    saved[0] = readable(q), saved[1] = readable(k), saved[2] = readable(v);
    if (!saved[0] || !saved[1] || !saved[2])
        return NULL;
    set_strides(args, strides_of(saved[0]), strides_of(saved[1]), strides_of(saved[2]));
    args->q = fsdp_tensor_data(saved[0]);
    args->k = fsdp_tensor_data(saved[1]);
    args->v = fsdp_tensor_data(saved[2]);
    if (!fsdp__recall(&attention_op, inputs, 3, &out, 1)) {
        out = fsdp__empty_like(q, q->dtype); /* (B,T,H,D) */
        if ((fsdp__will_record(inputs, 3) && !make_lse(args, q, &lse)) || attend(args, out, lse) != FSDP_OK)
            return NULL;
    }
    saved[3] = out, saved[4] = lse;
    if (fsdp__record_with(&traits, &attention_op, inputs, 3, &out, 1, saved, 6, &state, sizeof state) != FSDP_OK)
        return NULL;
    return out;
}

/* ---- one tensor ---- */

/* Returns where a part begins in a row of qkv: first H heads of q, then G of k, then G of v. */
static void *part(const fsdp_tensor *qkv, int64_t first_head, int64_t head_dim)
{
    char *data = fsdp_tensor_data(qkv);

    return data ? data + (size_t)(first_head * head_dim) * fsdp_dtype_size(qkv->dtype) : NULL;
}

static fsdp_status packed_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const attention_state *state = fsdp__node_state(node);
    fsdp_tensor *qkv = fsdp__node_saved(node, 0), *out = fsdp__node_saved(node, 1), *lse = fsdp__node_saved(node, 2);
    fsdp_tensor *positions = fsdp__node_saved(node, 3);
    fsdp_tensor *dout = fsdp__op_contiguous(grads[0]);     /* (B,T,H*D) */
    fsdp_tensor *dqkv = fsdp__empty_like(qkv, qkv->dtype); /* (B,T,(H+2G)*D) */
    fsdp__attention_backward_args args = {.forward = state->args};
    int64_t h = state->args.heads, g = state->args.kv_heads, d = state->args.head_dim;

    FSDP__TRY_MADE(dout && dqkv);
    args.forward.q = part(qkv, 0, d);
    args.forward.k = part(qkv, h, d);
    args.forward.v = part(qkv, h + g, d);
    args.forward.out = fsdp_tensor_data(out);
    args.forward.lse = fsdp_tensor_data(lse);
    args.forward.positions = positions ? fsdp_tensor_data(positions) : NULL;
    args.dout = fsdp_tensor_data(dout);
    args.dq = part(dqkv, 0, d);
    args.dk = part(dqkv, h, d);
    args.dv = part(dqkv, h + g, d);
    FSDP_TRY(fsdp__launch_attention_backward(fsdp__op_stream(qkv), &args)); /* dqkv has the strides of qkv */
    return fsdp__node_give(node, 0, dqkv);
}

/* Returns the number of all heads in the input, whose last dimension they share; 0: it does not hold them. */
static int64_t packed_heads(const fsdp_tensor *qkv, int64_t head_count, int64_t kv_heads)
{
    int64_t all;

    if (qkv->ndim != 3 || head_count < 1 || head_count > INT32_MAX || kv_heads < 1 || head_count % kv_heads != 0)
        return 0;
    all = head_count + 2 * kv_heads;
    return qkv->shape[2] % all == 0 ? all : 0;
}

static const fsdp__op packed_op = {.name = "attention_packed", .backward = packed_backward};

fsdp_tensor *fsdp_attention_packed(fsdp_tensor *qkv, int64_t head_count, int64_t kv_heads,
                                   const fsdp_attention_options *options)
{
    int64_t all, shape[3];
    fsdp_tensor *saved[4], *from, *out, *lse = NULL;
    attention_state state = {{0}};
    fsdp__attention_forward_args *args = &state.args;
    heads strides;

    if (!qkv || !fsdp__op_inputs("attention_packed", &qkv, 1) || !fsdp__op_same_dtype("attention_packed", &qkv, 1))
        return NULL;
    all = packed_heads(qkv, head_count, kv_heads);
    if (all == 0) {
        FSDP_FAIL(FSDP_INVALID,
                  "attention_packed: input %s does not hold %lld query heads and 2 x %lld of key and value",
                  FSDP__SHAPE_OF(qkv), (long long)head_count, (long long)kv_heads);
        return NULL;
    }
    args->batch = qkv->shape[0], args->q_time = args->kv_time = qkv->shape[1];
    args->heads = head_count, args->kv_heads = kv_heads, args->head_dim = qkv->shape[2] / all;
    args->dtype = qkv->dtype;
    if (!set_options("attention_packed", qkv, args, options, &saved[3]))
        return NULL;
    shape[0] = qkv->shape[0], shape[1] = qkv->shape[1], shape[2] = head_count * args->head_dim;
    from = fsdp__op_contiguous(qkv);
    if (!from)
        return NULL;
    strides = contiguous_heads(args->q_time, all, args->head_dim);
    set_strides(args, strides, strides, strides);
    args->q = part(from, 0, args->head_dim);
    args->k = part(from, head_count, args->head_dim);
    args->v = part(from, head_count + kv_heads, args->head_dim);
    if (!fsdp__recall(&packed_op, &qkv, 1, &out, 1)) {
        out = fsdp_empty(qkv->storage->device, qkv->dtype, 3, shape); /* (B,T,H*D) */
        if ((fsdp__will_record(&qkv, 1) && !make_lse(args, qkv, &lse)) || attend(args, out, lse) != FSDP_OK)
            return NULL;
    }
    saved[0] = from, saved[1] = out, saved[2] = lse;
    if (fsdp__record_with(&traits, &packed_op, &qkv, 1, &out, 1, saved, 4, &state, sizeof state) != FSDP_OK)
        return NULL;
    return out;
}
