/* attention_graph.c - writes attention down as a graph of cuDNN's operations.
 *
 * [Note: the graph of attention]
 * cuDNN has kernels for graphs of a certain form, in which operations follow each other as below: the mask is made of
 * indices of rows (queries) and columns (keys) that are compared, and the softmax of a maximum, a sum and a quotient.
 * What lies between is in no memory. Transposed operands (k and v) are views by their strides.
 *
 * The gradient of q is a sum over tiles of keys, which blocks of threads add to memory as they come (DQ_SUM): its last
 * bits differ from run to run. Without that tensor cuDNN stores the gradients of all scores and multiplies them with
 * the keys in a kernel of its own, which takes 2 bytes for each pair of query and key: this is how NVIDIA's front end
 * asks for deterministic attention. Engines' numerical notes, which are asked as well, do not tell the two apart
 * (9.19).
 */
#include "backend/cuda/attention_graph.h"

#include <string.h>

#define N(name) FSDP__CUDNN_##name

enum {
    ROWS = 2, /* dimensions of scores */
    COLUMNS = 3
};

/* ---- the call ---- */

static fsdp__attention_layout layout(int64_t batch, int64_t head, int64_t time)
{
    return (fsdp__attention_layout){batch, head, time};
}

static bool in_pieces(fsdp__attention_layout l, const void *data)
{
    return (l.batch | l.head | l.time) % FSDP__FAST_HEAD_MULTIPLE == 0 && (uintptr_t)data % 16 == 0;
}

static const char *why_not(const fsdp__attention_forward_args *a)
{
    if (a->dtype != FSDP_BF16 && a->dtype != FSDP_F16)
        return "elements of 32 bits (it takes bfloat16 and float16)";
    if (a->softcap > 0)
        return "capped scores (attention_softcap)";
    if (a->head_dim > FSDP__FAST_HEAD_DIM || a->head_dim % FSDP__FAST_HEAD_MULTIPLE != 0)
        return "heads that are wider than 128 or no multiple of 8";
    return NULL;
}

static void set_backward(const fsdp__attention_backward_args *b, bool repeatable, fsdp__attention_call *call)
{
    call->backward = true;
    call->repeatable = repeatable;
    call->dq = call->q, call->dk = call->k, call->dv = call->v;
    if (b->dq_batch == 0)
        return;
    call->dq = layout(b->dq_batch, b->dq_head, b->dq_stride_time);
    call->dk = layout(b->dk_batch, b->dk_head, b->dk_stride_time);
    call->dv = layout(b->dv_batch, b->dv_head, b->dv_stride_time);
}

static bool all_in_pieces(const fsdp__attention_call *call, const fsdp__attention_forward_args *a,
                          const fsdp__attention_backward_args *b)
{
    bool forward = in_pieces(call->q, a->q) && in_pieces(call->k, a->k) && in_pieces(call->v, a->v) &&
                   in_pieces(call->out, a->out);

    return forward && (!b || (in_pieces(call->out, b->dout) && in_pieces(call->dq, b->dq) &&
                              in_pieces(call->dk, b->dk) && in_pieces(call->dv, b->dv)));
}

const char *fsdp__attention_call_of(const fsdp__attention_forward_args *args,
                                    const fsdp__attention_backward_args *backward, bool repeatable,
                                    fsdp__attention_call *call)
{
    const char *why = why_not(args);

    if (why)
        return why;
    memset(call, 0, sizeof *call);
    call->batch = args->batch, call->heads = args->heads, call->kv_heads = args->kv_heads;
    call->time = args->q_time, call->head_dim = args->head_dim;
    call->window = args->window < args->q_time ? args->window : 0; /* a wider one hides nothing */
    call->dtype = args->dtype == FSDP_BF16 ? N(DATA_BFLOAT16) : N(DATA_HALF);
    call->causal = args->causal;
    call->documents = args->positions != NULL;
    call->q = layout(args->q_batch, args->q_head, args->q_stride_time);
    call->k = layout(args->k_batch, args->k_head, args->k_stride_time);
    call->v = layout(args->v_batch, args->v_head, args->v_stride_time);
    call->out = layout(args->out_batch, args->out_head, args->out_stride_time);
    call->stats = !backward && args->lse;
    if (backward)
        set_backward(backward, repeatable, call);
    return all_in_pieces(call, args, backward) ? NULL : "rows that do not begin at multiples of 16 bytes";
}

/* ---- tensors ---- */

#define IN(...) ((fsdp__cudnn_operands){__VA_ARGS__})

typedef struct builder {
    fsdp__cudnn_graph *graph;
    const fsdp__attention_call *call;
} builder;

/* Describes rows as (batch, heads, time, head_dim) */
static fsdp__cudnn_tensor rows(builder b, int id, int64_t heads, const fsdp__attention_layout *l)
{
    const fsdp__attention_call *c = b.call;

    return fsdp__cudnn_stored(b.graph, id, c->dtype, (int64_t[]){c->batch, heads, c->time, c->head_dim},
                              (int64_t[]){l->batch, l->head, l->time, 1});
}

/* Describes columns as (batch, heads, head_dim, time): keys or values on their side. */
static fsdp__cudnn_tensor columns(builder b, int id, const fsdp__attention_layout *l)
{
    const fsdp__attention_call *c = b.call;

    return fsdp__cudnn_stored(b.graph, id, c->dtype, (int64_t[]){c->batch, c->kv_heads, c->head_dim, c->time},
                              (int64_t[]){l->batch, l->head, 1, l->time});
}

/* A number of each query: (batch, heads, time, 1), f32. `id`: 0 if it lies in no memory. */
static fsdp__cudnn_tensor sums(builder b, int id)
{
    const fsdp__attention_call *c = b.call;
    const int64_t shape[] = {c->batch, c->heads, c->time, 1}, strides[] = {c->heads * c->time, c->time, 1, 1};

    return id ? fsdp__cudnn_stored(b.graph, id, N(DATA_FLOAT), shape, strides)
              : fsdp__cudnn_virtual(b.graph, N(DATA_FLOAT), shape, strides);
}

/* A number of each pair of query and key, f32. */
static fsdp__cudnn_tensor scores(builder b)
{
    const fsdp__attention_call *c = b.call;
    int64_t pairs = c->time * c->time;

    return fsdp__cudnn_virtual(b.graph, N(DATA_FLOAT), (int64_t[]){c->batch, c->heads, c->time, c->time},
                               (int64_t[]){c->heads * pairs, pairs, c->time, 1});
}

/* ---- parts of both graphs ---- */

static fsdp__cudnn_tensor index_of(builder b, const fsdp__cudnn_tensor *x, int64_t axis)
{
    return fsdp__cudnn_pointwise(b.graph, N(POINTWISE_GEN_INDEX), N(DATA_INT32), IN(.x = x, .axis = axis));
}

/* Returns the scores where first >= second (or >), and -inf elsewhere. */
static fsdp__cudnn_tensor keep(builder b, const fsdp__cudnn_tensor *x, int compare, const fsdp__cudnn_tensor *first,
                               const fsdp__cudnn_tensor *second, const fsdp__cudnn_tensor *hidden)
{
    fsdp__cudnn_tensor seen = fsdp__cudnn_pointwise(b.graph, compare, N(DATA_BOOLEAN), IN(.x = first, .b = second));

    return fsdp__cudnn_pointwise(b.graph, N(POINTWISE_BINARY_SELECT), N(DATA_FLOAT),
                                 IN(.x = x, .b = hidden, .choice = &seen));
}

/* A key is not after its query. */
static fsdp__cudnn_tensor keep_earlier(builder b, const fsdp__cudnn_tensor *x, const fsdp__cudnn_tensor *hidden)
{
    fsdp__cudnn_tensor row = index_of(b, x, ROWS), column = index_of(b, x, COLUMNS);

    return keep(b, x, N(POINTWISE_CMP_GE), &row, &column, hidden);
}

/* A key is one of the last `window`: column + window > row. */
static fsdp__cudnn_tensor keep_window(builder b, const fsdp__cudnn_tensor *x, const fsdp__cudnn_tensor *hidden)
{
    fsdp__cudnn_tensor window = fsdp__cudnn_number(b.graph, FSDP__ATTENTION_WINDOW, N(DATA_FLOAT));
    fsdp__cudnn_tensor row = index_of(b, x, ROWS), column = index_of(b, x, COLUMNS);
    fsdp__cudnn_tensor end =
        fsdp__cudnn_pointwise(b.graph, N(POINTWISE_ADD), N(DATA_FLOAT), IN(.x = &column, .b = &window));

    return keep(b, x, N(POINTWISE_CMP_GT), &end, &row, hidden);
}

/* A key is of its query's document: column >= row - position. */
static fsdp__cudnn_tensor keep_document(builder b, const fsdp__cudnn_tensor *x, const fsdp__cudnn_tensor *hidden)
{
    const fsdp__attention_call *c = b.call;
    fsdp__cudnn_tensor positions =
        fsdp__cudnn_stored(b.graph, FSDP__ATTENTION_POSITIONS, N(DATA_INT32), (int64_t[]){c->batch, 1, c->time, 1},
                           (int64_t[]){c->time, c->time, 1, 1});
    fsdp__cudnn_tensor row = index_of(b, x, ROWS), column = index_of(b, x, COLUMNS);
    fsdp__cudnn_tensor first =
        fsdp__cudnn_pointwise(b.graph, N(POINTWISE_SUB), N(DATA_INT32), IN(.x = &row, .b = &positions));

    return keep(b, x, N(POINTWISE_CMP_GE), &column, &first, hidden);
}

static fsdp__cudnn_tensor hide(builder b, fsdp__cudnn_tensor x)
{
    fsdp__cudnn_tensor hidden;

    if (!b.call->causal)
        return x;
    hidden = fsdp__cudnn_number(b.graph, FSDP__ATTENTION_HIDDEN, N(DATA_FLOAT));
    x = keep_earlier(b, &x, &hidden);
    if (b.call->window > 0)
        x = keep_window(b, &x, &hidden);
    return b.call->documents ? keep_document(b, &x, &hidden) : x;
}

/* Returns scale * Q K^T. */
static fsdp__cudnn_tensor scaled_scores(builder b, const fsdp__cudnn_tensor *q, const fsdp__cudnn_tensor *k,
                                        const fsdp__cudnn_tensor *scale)
{
    fsdp__cudnn_tensor x = scores(b);

    fsdp__cudnn_matmul(b.graph, q, k, &x);
    return fsdp__cudnn_pointwise(b.graph, N(POINTWISE_MUL), N(DATA_FLOAT), IN(.x = &x, .b = scale));
}

/* ---- forward ---- */

static void forward(builder b)
{
    const fsdp__attention_call *c = b.call;
    fsdp__cudnn_graph *g = b.graph;
    fsdp__cudnn_tensor q = rows(b, FSDP__ATTENTION_Q, c->heads, &c->q), k = columns(b, FSDP__ATTENTION_K, &c->k);
    fsdp__cudnn_tensor v = rows(b, FSDP__ATTENTION_V, c->kv_heads, &c->v);
    fsdp__cudnn_tensor out = rows(b, FSDP__ATTENTION_OUT, c->heads, &c->out);
    fsdp__cudnn_tensor scale = fsdp__cudnn_number(g, FSDP__ATTENTION_SCALE, N(DATA_FLOAT));
    fsdp__cudnn_tensor x = hide(b, scaled_scores(b, &q, &k, &scale)), top = sums(b, 0), sum = sums(b, 0), lse, p;

    fsdp__cudnn_reduce(g, N(REDUCE_TENSOR_MAX), &x, &top);
    x = fsdp__cudnn_pointwise(g, N(POINTWISE_SUB), N(DATA_FLOAT), IN(.x = &x, .b = &top));
    x = fsdp__cudnn_pointwise(g, N(POINTWISE_EXP), N(DATA_FLOAT), IN(.x = &x));
    fsdp__cudnn_reduce(g, N(REDUCE_TENSOR_ADD), &x, &sum);
    if (c->stats) {
        fsdp__cudnn_tensor log = fsdp__cudnn_pointwise(g, N(POINTWISE_LOG), N(DATA_FLOAT), IN(.x = &sum));

        lse = sums(b, FSDP__ATTENTION_LSE);
        fsdp__cudnn_pointwise_to(g, N(POINTWISE_ADD), IN(.x = &top, .b = &log), &lse);
    }
    p = fsdp__cudnn_pointwise(g, N(POINTWISE_DIV), c->dtype, IN(.x = &x, .b = &sum));
    fsdp__cudnn_matmul(g, &p, &v, &out);
}

/* ---- backward ---- */

/* Sums dout * out over each row. */
static fsdp__cudnn_tensor delta_of(builder b, const fsdp__cudnn_tensor *dout)
{
    fsdp__cudnn_graph *g = b.graph;
    fsdp__cudnn_tensor out = rows(b, FSDP__ATTENTION_OUT, b.call->heads, &b.call->out);
    fsdp__cudnn_tensor one = fsdp__cudnn_number(g, FSDP__ATTENTION_ONE, N(DATA_FLOAT));
    fsdp__cudnn_tensor x = fsdp__cudnn_pointwise(g, N(POINTWISE_MUL), N(DATA_FLOAT), IN(.x = dout, .b = &out));
    fsdp__cudnn_tensor sum = sums(b, 0), delta = sums(b, FSDP__ATTENTION_DELTA);

    fsdp__cudnn_reduce(g, N(REDUCE_TENSOR_ADD), &x, &sum);
    fsdp__cudnn_pointwise_to(g, N(POINTWISE_MUL), IN(.x = &sum, .b = &one), &delta);
    return delta;
}

/* Multiplies the transpose of what all pairs have with rows of queries: the gradient of keys or values. Where query
 * heads share one of these, their sums are added up. */
static void key_gradient(builder b, const fsdp__cudnn_tensor *pairs, const fsdp__cudnn_tensor *with, int id,
                         const fsdp__attention_layout *l)
{
    const fsdp__attention_call *c = b.call;
    int64_t square = c->time * c->time, head = c->time * c->head_dim;
    const int64_t shape[] = {c->batch, c->heads, c->time, c->time};
    fsdp__cudnn_tensor side =
        fsdp__cudnn_virtual(b.graph, c->dtype, shape, (int64_t[]){c->heads * square, square, 1, c->time});
    fsdp__cudnn_tensor out = rows(b, id, c->kv_heads, l), all;

    fsdp__cudnn_reshape(b.graph, pairs, &side);
    if (c->heads == c->kv_heads) {
        fsdp__cudnn_matmul(b.graph, &side, with, &out);
        return;
    }
    all = fsdp__cudnn_virtual(b.graph, c->dtype, (int64_t[]){c->batch, c->heads, c->time, c->head_dim},
                              (int64_t[]){c->heads * head, head, c->head_dim, 1});
    fsdp__cudnn_matmul(b.graph, &side, with, &all);
    fsdp__cudnn_reduce(b.graph, N(REDUCE_TENSOR_ADD), &all, &out);
}

/* Makes the gradient of q, in the form that the note above says. */
static void query_gradient(builder b, const fsdp__cudnn_tensor *dx, const fsdp__cudnn_tensor *k)
{
    const fsdp__attention_call *c = b.call;
    int64_t head = c->time * c->head_dim;
    fsdp__cudnn_tensor keys =
        fsdp__cudnn_virtual(b.graph, c->dtype, (int64_t[]){c->batch, c->kv_heads, c->time, c->head_dim},
                            (int64_t[]){c->k.batch, c->k.head, c->k.time, 1});
    fsdp__cudnn_tensor out = rows(b, FSDP__ATTENTION_DQ, c->heads, &c->dq), sum;

    fsdp__cudnn_reshape(b.graph, k, &keys);
    if (c->repeatable) {
        fsdp__cudnn_matmul(b.graph, dx, &keys, &out);
        return;
    }
    sum = fsdp__cudnn_stored(b.graph, FSDP__ATTENTION_DQ_SUM, N(DATA_FLOAT),
                             (int64_t[]){c->batch, c->heads, c->time, c->head_dim},
                             (int64_t[]){c->heads * head, head, c->head_dim, 1});
    fsdp__cudnn_matmul(b.graph, dx, &keys, &sum);
    fsdp__cudnn_pointwise_to(b.graph, N(POINTWISE_IDENTITY), IN(.x = &sum), &out);
}

static void backward(builder b)
{
    const fsdp__attention_call *c = b.call;
    fsdp__cudnn_graph *g = b.graph;
    fsdp__cudnn_tensor q = rows(b, FSDP__ATTENTION_Q, c->heads, &c->q), k = columns(b, FSDP__ATTENTION_K, &c->k);
    fsdp__cudnn_tensor v = columns(b, FSDP__ATTENTION_V, &c->v),
                       dout = rows(b, FSDP__ATTENTION_DOUT, c->heads, &c->out);
    fsdp__cudnn_tensor scale = fsdp__cudnn_number(g, FSDP__ATTENTION_SCALE, N(DATA_FLOAT));
    fsdp__cudnn_tensor lse = sums(b, FSDP__ATTENTION_LSE), delta = delta_of(b, &dout);
    fsdp__cudnn_tensor x = scaled_scores(b, &q, &k, &scale), p, dx;

    x = fsdp__cudnn_pointwise(g, N(POINTWISE_SUB), N(DATA_FLOAT), IN(.x = &x, .b = &lse));
    x = hide(b, x);
    p = fsdp__cudnn_pointwise(g, N(POINTWISE_EXP), N(DATA_FLOAT), IN(.x = &x));
    key_gradient(b, &p, &dout, FSDP__ATTENTION_DV, &c->dv);
    dx = scores(b);
    fsdp__cudnn_matmul(g, &dout, &v, &dx);
    dx = fsdp__cudnn_pointwise(g, N(POINTWISE_SUB), N(DATA_FLOAT), IN(.x = &dx, .b = &delta));
    dx = fsdp__cudnn_pointwise(g, N(POINTWISE_MUL), N(DATA_FLOAT), IN(.x = &dx, .b = &p));
    dx = fsdp__cudnn_pointwise(g, N(POINTWISE_MUL), c->dtype, IN(.x = &dx, .b = &scale));
    key_gradient(b, &dx, &q, FSDP__ATTENTION_DK, &c->dk);
    query_gradient(b, &dx, &k);
}

void fsdp__attention_graph(const fsdp__attention_call *call, fsdp__cudnn_graph *graph)
{
    const builder b = {.graph = graph, .call = call};

    if (call->backward)
        backward(b);
    else
        forward(b);
}
