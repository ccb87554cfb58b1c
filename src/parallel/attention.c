/* attention.c - attention of sequences that are cut over ranks.
 *
 * [Note: attention over ranks]
 * Keys and values of a piece of the heads are gathered from all ranks, queries of this rank's two chunks meet those
 * that they see, and the next piece follows: with as many pieces as ranks, a rank holds no more keys and values of
 * others than it has of its own. All keys of a query are there at once, so nothing must be merged, and windows and soft
 * caps are as ever. The backward gathers each piece again, and sends the gradients of its keys and values back, added
 * up. On the wire both ways send what a ring would.
 *
 * A gathered piece is (time, 2, B, heads, D), keys and values side by side: ranks' parts are then runs of it. */
#include "fsdp/parallel.h"

#include <math.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/kernels.h"
#include "ops/op.h"
#include "parallel/wire.h"

typedef struct state {
    fsdp__attention_forward_args args; /* sizes of one chunk's call, and strides of q and out; no pointers */
    fsdp_process_group *group;
    int64_t ranks, rank;
} state;

/* Some of the heads of keys and values. */
typedef struct piece {
    int64_t first, count;   /* heads of keys */
    fsdp_tensor *keys;      /* gathered, in the order of the sequence */
    fsdp_tensor *gradients; /* of the same, in a backward */
} piece;

static int64_t piece_count(const state *s)
{
    return s->ranks < s->args.kv_heads ? s->ranks : s->args.kv_heads;
}

static piece piece_of(const state *s, int64_t i)
{
    int64_t count = piece_count(s), first = i * s->args.kv_heads / count;

    return (piece){.first = first, .count = (i + 1) * s->args.kv_heads / count - first};
}

/* Reorders a tensor (time, ...) of all chunks, from ranks' parts to the sequence or back. */
static fsdp_tensor *reorder(const state *s, fsdp_tensor *x, bool to_sequence)
{
    int64_t chunks = 2 * s->ranks, chunk = s->args.q_time;
    FSDP__FREED fsdp_tensor **parts = NULL;

    if (!x || s->ranks == 1)
        return x;
    parts = fsdp__malloc((size_t)chunks * sizeof *parts);
    if (!parts) {
        (void)fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot order chunks of a sequence");
        return NULL;
    }
    for (int64_t i = 0; i < chunks; i++) {
        int64_t in_ranks = i < s->ranks ? 2 * i : 2 * (chunks - 1 - i) + 1;
        int64_t in_sequence = i % 2 == 0 ? i / 2 : chunks - 1 - i / 2;

        parts[i] = fsdp_slice(x, 0, (to_sequence ? in_ranks : in_sequence) * chunk, chunk);
    }
    return fsdp_concat(parts, (int)chunks, 0);
}

/* Returns heads of k or v (B,T,G,D) as (T,1,B,heads,D). */
static fsdp_tensor *side(const piece *p, fsdp_tensor *x)
{
    fsdp_tensor *part = fsdp_permute(fsdp_slice(x, 2, p->first, p->count), 4, (const int[]){1, 0, 2, 3});

    return fsdp_unsqueeze(part, 1);
}

static bool gather_piece(const state *s, piece *p, fsdp_tensor *k, fsdp_tensor *v)
{
    fsdp_tensor *own = fsdp_concat((fsdp_tensor *[]){side(p, k), side(p, v)}, 2, 1);

    p->keys = own ? fsdp__wire_all_gather(own, 0, own->shape[0] * s->ranks, s->group) : NULL;
    p->keys = fsdp__op_contiguous(reorder(s, p->keys, true));
    return p->keys;
}

static void *at(const fsdp_tensor *tensor, int64_t element)
{
    char *data = fsdp_tensor_data(tensor);

    return data ? data + (size_t)element * fsdp_dtype_size(tensor->dtype) : NULL;
}

static int64_t chunk_number(const state *s, int64_t half)
{
    return half == 0 ? s->rank : 2 * s->ranks - 1 - s->rank;
}

/* Fills the arguments of one of this rank's two chunks, whose queries meet the keys of a piece. */
static fsdp__attention_forward_args chunk_args(const state *s, const piece *p, int64_t half, const fsdp_tensor *q,
                                               const fsdp_tensor *out, const fsdp_tensor *lse)
{
    fsdp__attention_forward_args a = s->args;
    int64_t group = a.heads / a.kv_heads, head = p->first * group, one = a.batch * p->count * a.head_dim;

    a.q = at(q, half * a.q_time * a.q_stride_time + head * a.q_head);
    a.out = at(out, half * a.q_time * a.out_stride_time + head * a.out_head);
    a.lse = lse ? at(lse, a.batch * a.q_time * (2 * head + half * p->count * group)) : NULL;
    a.k = at(p->keys, 0), a.v = at(p->keys, one);
    a.kv_time = a.q_time * (a.causal ? chunk_number(s, half) + 1 : 2 * s->ranks);
    a.heads = p->count * group, a.kv_heads = p->count;
    a.k_batch = a.v_batch = p->count * a.head_dim;
    a.k_stride_time = a.v_stride_time = 2 * one;
    a.k_head = a.v_head = a.head_dim;
    return a;
}

/* ---- backward ---- */

/* Computes the gradients of one chunk. Those of keys are written to `to`, (time, ...). */
static fsdp_status chunk_backward(const state *s, const piece *p, int64_t half, fsdp__node *node,
                                  const fsdp_tensor *dout, const fsdp_tensor *dq, const fsdp_tensor *to)
{
    fsdp__attention_backward_args b = {.forward = chunk_args(s, p, half, fsdp__node_saved(node, 0),
                                                             fsdp__node_saved(node, 3), fsdp__node_saved(node, 4))};
    const fsdp__attention_forward_args *f = &b.forward;
    int64_t head = p->first * (s->args.heads / s->args.kv_heads);

    b.dout = at(dout, half * f->q_time * f->out_stride_time + head * f->out_head);
    b.dq_batch = dq->strides[0], b.dq_stride_time = dq->strides[1], b.dq_head = dq->strides[2];
    b.dq = at(dq, half * f->q_time * b.dq_stride_time + head * b.dq_head);
    b.dk_batch = b.dv_batch = f->k_batch;
    b.dk_stride_time = b.dv_stride_time = f->k_stride_time;
    b.dk_head = b.dv_head = f->k_head;
    b.dk = at(to, 0);
    b.dv = at(to, f->batch * p->count * f->head_dim);
    return fsdp__launch_attention_backward(fsdp__op_stream(dq), &b);
}

/* Returns the gradient of the gathered keys and values: the later chunk's, to whose keys the earlier one's are added.
 */
static fsdp_tensor *gathered_gradient(const state *s, const piece *p, fsdp__node *node, const fsdp_tensor *dout,
                                      const fsdp_tensor *dq)
{
    fsdp_device *device = p->keys->storage->device;
    fsdp_tensor *both[2];

    for (int64_t half = 0; half < 2; half++) {
        both[half] = fsdp_zeros(device, p->keys->dtype, p->keys->ndim, p->keys->shape);
        if (!both[half] || chunk_backward(s, p, half, node, dout, dq, both[half]) != FSDP_OK)
            return NULL;
    }
    return fsdp_add(both[0], both[1]);
}

/* Returns the gradient of this rank's keys and values of a piece, (T,2,B,heads,D). */
static fsdp_tensor *piece_backward(const state *s, piece *p, fsdp__node *node, const fsdp_tensor *dout,
                                   const fsdp_tensor *dq)
{
    fsdp_context *context = fsdp_device_context(dq->storage->device);
    fsdp_tensor *d = NULL;

    if (fsdp_scope_begin(context) != FSDP_OK)
        return NULL;
    if (gather_piece(s, p, fsdp__node_saved(node, 1), fsdp__node_saved(node, 2))) {
        d = reorder(s, gathered_gradient(s, p, node, dout, dq), false);
        d = d ? fsdp__wire_reduce_scatter(d, 0, FSDP_SUM, s->group) : NULL;
    }
    fsdp_scope_end(context, d);
    return d;
}

/* Writes a piece's gradient where that of all heads is. */
static fsdp_status put_piece(const piece *p, fsdp_tensor *d, int64_t which, fsdp_tensor *to)
{
    fsdp_tensor *from = fsdp_permute(fsdp_squeeze(fsdp_slice(d, 1, which, 1), 1), 4, (const int[]){1, 0, 2, 3});
    fsdp_tensor *place = fsdp_slice(to, 2, p->first, p->count);

    return from && place ? fsdp_tensor_copy_(place, from) : fsdp_last_status();
}

static fsdp_status backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);
    fsdp_tensor *dout = fsdp__op_contiguous(grads[0]); /* (B,T,H,D) */
    fsdp_tensor *d[3];

    for (int i = 0; i < 3; i++) {
        fsdp_tensor *saved = fsdp__node_saved(node, i);

        d[i] = fsdp__empty_like(saved, saved->dtype);
        if (!d[i])
            return fsdp_last_status();
    }
    if (!dout)
        return fsdp_last_status();
    for (int64_t i = 0; i < piece_count(s); i++) {
        piece p = piece_of(s, i);
        fsdp_tensor *dkv = piece_backward(s, &p, node, dout, d[0]);

        if (!dkv)
            return fsdp_last_status();
        FSDP_TRY(put_piece(&p, dkv, 0, d[1]));
        FSDP_TRY(put_piece(&p, dkv, 1, d[2]));
    }
    for (int i = 0; i < 3; i++)
        FSDP_TRY(fsdp__node_give(node, i, d[i]));
    return FSDP_OK;
}

/* ---- forward ---- */

static const fsdp__op attention_op = {.name = "parallel_attention", .backward = backward};
static const fsdp__traits traits = {.dear = FSDP__DEAR_ATTENTION};

static bool check(fsdp_tensor *const *x, const fsdp_attention_options *options, fsdp_process_group *group)
{
    fsdp_tensor *q = x[0], *k = x[1], *v = x[2];
    const char *op = attention_op.name;

    if (!q || !k || !v)
        return false;
    if (!group)
        return FSDP_FAIL(FSDP_INVALID, "%s: the process group is NULL", op), false;
    if (!fsdp__op_inputs(op, x, 3) || !fsdp__op_same_dtype(op, x, 3))
        return false;
    if (!fsdp__shape_equal(k, v))
        return fsdp__op_misfit(op, "key", k, "value", v);
    if (q->ndim != 4 || k->ndim != 4 || q->shape[0] != k->shape[0] || q->shape[1] != k->shape[1] ||
        q->shape[3] != k->shape[3] || k->shape[2] < 1 || q->shape[2] % k->shape[2] != 0)
        return fsdp__op_misfit(op, "query", q, "key", k);
    if (q->shape[1] % 2 != 0)
        return FSDP_FAIL(FSDP_INVALID, "%s: %lld positions of a sequence are not two equal chunks", op,
                         (long long)q->shape[1]),
               false;
    if (options && options->positions)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s: rows of several documents (positions) cannot be cut over ranks", op),
               false;
    if (options && (options->window < 0 || !(options->softcap >= 0 && isfinite(options->softcap)) ||
                    (options->window > 0 && !options->causal)))
        return FSDP_FAIL(FSDP_INVALID, "%s: window %lld (of causal attention) and softcap %g must not be negative", op,
                         (long long)options->window, (double)options->softcap),
               false;
    return true;
}

static state state_of(const fsdp_tensor *q, const fsdp_tensor *k, const fsdp_attention_options *options,
                      fsdp_process_group *group)
{
    state s = {.group = group, .ranks = fsdp_process_group_size(group), .rank = fsdp_process_group_rank(group)};
    fsdp__attention_forward_args *a = &s.args;

    a->batch = q->shape[0], a->q_time = q->shape[1] / 2;
    a->heads = q->shape[2], a->kv_heads = k->shape[2], a->head_dim = q->shape[3];
    a->q_batch = q->strides[0], a->q_stride_time = q->strides[1], a->q_head = q->strides[2];
    a->out_head = a->head_dim, a->out_stride_time = a->heads * a->head_dim;
    a->out_batch = q->shape[1] * a->out_stride_time;
    a->dtype = q->dtype;
    a->causal = options && options->causal;
    a->scale = options && options->scale != 0 ? options->scale : 1.0f / sqrtf((float)a->head_dim);
    a->softcap = options ? options->softcap : 0;
    a->window = options ? options->window : 0;
    return s;
}

static fsdp_status piece_forward(const state *s, fsdp_tensor *const *x, const fsdp_tensor *out, const fsdp_tensor *lse,
                                 piece p)
{
    fsdp_context *context = fsdp_device_context(out->storage->device);
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    status = gather_piece(s, &p, x[1], x[2]) ? FSDP_OK : fsdp_last_status();
    for (int64_t half = 0; half < 2 && status == FSDP_OK && fsdp_tensor_numel(out) > 0; half++) {
        fsdp__attention_forward_args a = chunk_args(s, &p, half, x[0], out, lse);

        status = fsdp__launch_attention_forward(fsdp__op_stream(out), &a);
    }
    fsdp_scope_end(context, NULL);
    return status;
}

/* Computes `out`, and `*lse` if a backward will need it. */
static fsdp_tensor *compute(const state *s, fsdp_tensor *const *x, bool records, fsdp_tensor **lse)
{
    fsdp_context *context = fsdp_device_context(x[0]->storage->device);
    fsdp_tensor *out = fsdp_empty(x[0]->storage->device, x[0]->dtype, 4, x[0]->shape);
    fsdp_status status = out ? FSDP_OK : fsdp_last_status();

    if (out && records) {
        *lse = fsdp_empty(x[0]->storage->device, FSDP_F32, 3,
                          (const int64_t[]){x[0]->shape[0], x[0]->shape[2], x[0]->shape[1]});
        status = *lse ? FSDP_OK : fsdp_last_status();
    }
    fsdp_no_grad_begin(context);
    for (int64_t i = 0; i < piece_count(s) && status == FSDP_OK; i++)
        status = piece_forward(s, x, out, records ? *lse : NULL, piece_of(s, i));
    fsdp_no_grad_end(context);
    return status == FSDP_OK ? out : NULL;
}

fsdp_tensor *fsdp_parallel_attention(fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                                     const fsdp_attention_options *options, fsdp_process_group *group)
{
    fsdp_tensor *inputs[] = {q, k, v}, *saved[5] = {NULL}, *out, *lse = NULL;
    state s;

    if (!check(inputs, options, group))
        return NULL;
    saved[0] = q->strides[3] == 1 || q->shape[3] == 1 ? q : fsdp__op_contiguous(q);
    saved[1] = k, saved[2] = v;
    if (!saved[0])
        return NULL;
    s = state_of(saved[0], k, options, group);
    if (!fsdp__recall(&attention_op, inputs, 3, &out, 1)) {
        out = compute(&s, saved, fsdp__will_record(inputs, 3), &lse);
        if (!out)
            return NULL;
    }
    saved[3] = out, saved[4] = lse;
    return fsdp__record_with(&traits, &attention_op, inputs, 3, &out, 1, saved, 5, &s, sizeof s) == FSDP_OK ? out
                                                                                                            : NULL;
}
