/* ring_attention.c - attention of sequences that are cut over ranks.
 *
 * [Note: attention over ranks]
 * The ranks take turns. In a rank's turn the keys and values of its two chunks go to all other ranks, and each of these
 * computes the attention of its own queries to the keys that they see. Chunks are dealt so that every rank has as much
 * to do in each turn. In the turn of an earlier rank the queries of both chunks see the keys of its first chunk; in the
 * turn of a later rank the queries of the second chunk see the keys of both its chunks. ring_visits.h says which keys
 * and values are on their way meanwhile, and how many a rank holds.
 *
 * Each rank begins with its own keys, while the keys of the first other rank are sent. The attention to the keys of
 * each later turn (`part`, in f32) is merged with the result so far:
 *
 *     out += w (part - out)     lse = log(e^lse + e^lse_part)     w = e^(lse_part - lse), for the new lse
 *
 * The backward has the lse of all keys, so what it computes of one rank's keys is simply added. After a rank's turn all
 * ranks add up the gradients of its keys and values, each rank a part of them. At the end every rank sends the parts
 * that it has added up to the ranks whose keys and values they belong to.
 *
 * With a window, or with documents, each chunk of queries meets each chunk of keys by itself, at its distance. */
#include "fsdp/parallel.h"

#include <math.h>

#include "device/kernels.h"
#include "ops/broadcast.h"
#include "parallel/chunks.h"
#include "parallel/plan.h"
#include "parallel/ring_visits.h"
#include "parallel/wire.h"

typedef struct state {
    fsdp__visitors visitors;           /* first: they begin with a route */
    fsdp__attention_forward_args args; /* sizes of one chunk, strides of q, and what is seen; no pointers */
    bool documents;
} state;

enum {
    TENSORS = 6, /* q, k, v, out, lse, positions */
    MEETINGS = 4 /* in one turn, at most */
};

/* Chunks of queries that meet chunks of keys: `queries` of this rank's two from number q on, and so with keys. */
typedef struct meeting {
    int64_t q, queries, k, keys;
    int64_t lead; /* as in the kernel's arguments */
    bool causal;
    bool first; /* these queries have met none before */
    bool again; /* these keys have been met in this turn already */
} meeting;

/* The keys and values (B,T,G,D) of the rank whose turn it is. */
typedef struct visit {
    int64_t of;
    fsdp_tensor *kv[2];
} visit;

/* ---- who meets whom ---- */

static bool is_narrow(const state *s)
{
    return s->args.window > 0 || s->documents;
}

/* Returns whether some query sees some key in a chunk that lies `chunks` before its own. */
static bool is_seen(const state *s, int64_t chunks)
{
    return chunks >= 0 && (chunks == 0 || s->args.window == 0 || (chunks - 1) * s->args.q_time + 1 < s->args.window);
}

/* Lists meetings of single chunks. Queries meet their own chunk first, in which each sees a key. */
static int single_meetings(const state *s, int64_t of, meeting *list)
{
    int count = 0;

    for (int64_t q = 0; q < 2; q++)
        for (int64_t k = 1; k >= 0; k--) {
            int64_t chunks = fsdp__chunk_number(s->visitors.ranks, s->visitors.rank, q) -
                             fsdp__chunk_number(s->visitors.ranks, of, k);
            meeting m = {q, 1, k, 1, chunks * s->args.q_time, .causal = true, .first = chunks == 0};

            for (int i = 0; i < count; i++)
                m.again = m.again || list[i].k == k;
            if (is_seen(s, chunks))
                list[count++] = m;
        }
    return count;
}

static int meetings_with(const state *s, int64_t of, meeting *list)
{
    bool own = of == s->visitors.rank;

    if (!s->args.causal ||
        (own && (!is_narrow(s) || s->visitors.rank == s->visitors.ranks - 1))) /* the last rank's chunks adjoin */
        *list = (meeting){0, 2, 0, 2, .causal = s->args.causal, .first = own};
    else if (is_narrow(s))
        return single_meetings(s, of, list);
    else if (of < s->visitors.rank)
        *list = (meeting){.q = 0, .queries = 2, .k = 0, .keys = 1};
    else
        *list = (meeting){.q = 1, .queries = 1, .k = 0, .keys = 2};
    return 1;
}

/* ---- the arguments of a call ---- */

static void *at(const fsdp_tensor *tensor, int64_t element)
{
    char *data = fsdp_tensor_data(tensor);

    return data ? data + (size_t)element * fsdp_dtype_size(tensor->dtype) : NULL;
}

/* Returns chunks of a tensor that has the rank's two in dimension `dim`. */
static fsdp_tensor *chunks_of(const state *s, fsdp_tensor *x, int dim, int64_t first, int64_t count)
{
    return fsdp_slice(x, dim, first * s->args.q_time, count * s->args.q_time);
}

/* Fills what both directions have in common. `positions` is of the queries, or NULL. */
static fsdp__attention_forward_args call_of(const state *s, const meeting *m, const visit *their, const fsdp_tensor *q,
                                            const fsdp_tensor *positions)
{
    fsdp__attention_forward_args a = s->args;
    int64_t chunk = a.q_time;

    a.q = at(q, m->q * chunk * q->strides[1]);
    a.k = at(their->kv[0], m->k * chunk * their->kv[0]->strides[1]);
    a.v = at(their->kv[1], m->k * chunk * their->kv[1]->strides[1]);
    a.k_batch = their->kv[0]->strides[0], a.k_stride_time = their->kv[0]->strides[1],
    a.k_head = their->kv[0]->strides[2];
    a.v_batch = their->kv[1]->strides[0], a.v_stride_time = their->kv[1]->strides[1],
    a.v_head = their->kv[1]->strides[2];
    a.q_time = m->queries * chunk, a.kv_time = m->keys * chunk;
    a.causal = m->causal;
    a.lead = m->lead;
    a.positions = positions ? at(positions, 0) : NULL;
    return a;
}

static void set_out(fsdp__attention_forward_args *a, const fsdp_tensor *out, int64_t first)
{
    a->out = at(out, first * out->strides[1]);
    a->out_batch = out->strides[0], a->out_stride_time = out->strides[1], a->out_head = out->strides[2];
}

/* Gives the positions of the queries in their documents, in contiguous memory; NULL if there are no documents. */
static fsdp_status positions_of(const state *s, const meeting *m, fsdp_tensor *positions, fsdp_tensor **out)
{
    *out = positions ? fsdp__op_contiguous(chunks_of(s, positions, 1, m->q, m->queries)) : NULL;
    return *out || !positions ? FSDP_OK : fsdp_last_status();
}

/* ---- forward ---- */

/* Holds what has been made of the keys that queries have met. */
typedef struct sum {
    fsdp_tensor *out; /* (B,T,H,D), f32 */
    fsdp_tensor *lse; /* (B,H,T) */
} sum;

/* Adds what was made of other keys, which is written over. */
static fsdp_status merge(const state *s, const meeting *m, const sum *all, fsdp_tensor *part, fsdp_tensor *part_lse)
{
    fsdp_tensor *out = chunks_of(s, all->out, 1, m->q, m->queries);
    fsdp_tensor *lse = chunks_of(s, all->lse, 2, m->q, m->queries), *weight, *larger, *rest;

    FSDP__TRY_MADE(out && lse);
    if (m->first) {
        FSDP_TRY(fsdp_tensor_copy_(out, part));
        return fsdp_tensor_copy_(lse, part_lse);
    }
    rest = fsdp_sub(part_lse, lse); /* -inf where all keys are hidden from a query, which has met others */
    weight = fsdp_sigmoid(rest);
    larger = fsdp_maximum(part_lse, lse);
    rest = fsdp_ln(fsdp_add_scalar(fsdp_exp(fsdp_neg(fsdp_abs(rest))), 1));
    weight = fsdp_unsqueeze(fsdp_permute(weight, 3, (const int[]){0, 2, 1}), 3);
    part = fsdp_cast(part, FSDP_F32);
    rest = fsdp_add(larger, rest);
    FSDP__TRY_MADE(part && weight && rest);
    FSDP_TRY(fsdp__binary_compute(FSDP__SUB, part, out, 0, 0, part));
    FSDP_TRY(fsdp__binary_compute(FSDP__MUL, part, weight, 0, 0, part));
    FSDP_TRY(fsdp__tensor_copy(out, part, true));
    return fsdp_tensor_copy_(lse, rest);
}

static fsdp_status meet(const state *s, const meeting *m, const visit *their, fsdp_tensor *const *x, const sum *all)
{
    fsdp_device *device = x[0]->storage->device;
    int64_t queries = m->queries * s->args.q_time;
    const int64_t shape[] = {s->args.batch, queries, s->args.heads, s->args.head_dim};
    fsdp_tensor *part = fsdp_empty(device, x[0]->dtype, 4, shape), *positions;
    fsdp_tensor *lse = fsdp_empty(device, FSDP_F32, 3, (const int64_t[]){shape[0], shape[2], shape[1]});
    fsdp__attention_forward_args a;

    FSDP__TRY_MADE(part && lse);
    FSDP_TRY(positions_of(s, m, x[5], &positions));
    a = call_of(s, m, their, x[0], positions);
    set_out(&a, part, 0);
    a.lse = fsdp_tensor_data(lse);
    FSDP_TRY(fsdp__launch_attention_forward(fsdp__op_stream(part), &a));
    return merge(s, m, all, part, lse);
}

static fsdp_status meet_all(const state *s, const visit *their, fsdp_tensor *const *x, const sum *all)
{
    fsdp_context *context = fsdp_device_context(x[0]->storage->device);
    meeting list[MEETINGS];
    int count = fsdp_tensor_numel(x[0]) > 0 ? meetings_with(s, their->of, list) : 0;

    for (int i = 0; i < count; i++) {
        fsdp_status status;

        FSDP_TRY(fsdp_scope_begin(context));
        status = meet(s, &list[i], their, x, all);
        fsdp_scope_end(context, NULL);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static fsdp_status take_turns(const state *s, fsdp_tensor *const *x, const sum *all)
{
    int64_t others = s->visitors.ranks > 1 ? s->visitors.ranks : 0;
    fsdp__visits visits;

    if (others > 0)
        FSDP_TRY(fsdp__visits_begin(&s->visitors, x[1], x[2], &visits));
    FSDP_TRY(meet_all(s, &(visit){s->visitors.rank, {x[1], x[2]}}, x, all));
    for (int64_t of = 0; of < others; of++) {
        visit their = {.of = of};

        FSDP_TRY(fsdp__visit_begin(&visits, of, their.kv));
        if (of != s->visitors.rank)
            FSDP_TRY(meet_all(s, &their, x, all));
        FSDP_TRY(fsdp__visit_end(&visits, of));
    }
    return FSDP_OK;
}

/* Computes out and lse, x[3] and x[4], in a scope of its own. */
static fsdp_status compute(const state *s, fsdp_tensor **x)
{
    fsdp_context *context = fsdp_device_context(x[0]->storage->device);
    sum all = {.lse = x[4]};
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp_scope_begin(context));
    fsdp_no_grad_begin(context);
    if (fsdp_grad_enabled(context)) /* there was no memory to note that it is off */
        status = fsdp_last_status();
    all.out = x[3]->dtype == FSDP_F32 ? x[3] : fsdp_empty(x[3]->storage->device, FSDP_F32, 4, x[3]->shape);
    if (!all.out)
        status = fsdp_last_status();
    if (status == FSDP_OK)
        status = fsdp__side_stream_settled(s->visitors.route.side, take_turns(s, x, &all));
    if (status == FSDP_OK && all.out != x[3])
        status = fsdp_tensor_copy_(x[3], all.out);
    fsdp_no_grad_end(context);
    fsdp_scope_end(context, NULL);
    return status;
}

/* ---- backward ---- */

/* Gradients, as they are made. */
typedef struct gradients {
    fsdp_tensor *dout;  /* (B,T,H,D) */
    fsdp_tensor *dq;    /* of the same shape, f32 */
    fsdp_tensor *whose; /* of the keys and values of the rank whose turn it is: (2,B,T,G,D), at the begin of `sent` */
    fsdp_tensor
        *sent[FSDP__VISITS_AHEAD]; /* as many parts as ranks, of one size; those of other turns may be on their way */
    fsdp_tensor *sums;             /* of each rank's keys and values one such part, added up */
} gradients;

/* Adds a gradient of keys or values that was made beside its place, if it was. */
static fsdp_status add_beside(const meeting *m, fsdp_tensor *place, fsdp_tensor *made)
{
    return m->again ? fsdp__tensor_copy(place, made, true) : FSDP_OK;
}

static fsdp_status meet_back(const state *s, const meeting *m, const visit *their, fsdp__node *node, const gradients *g)
{
    fsdp_tensor *q = fsdp__node_saved(node, 0), *positions, *lse, *dq, *d[2], *place[2];
    const fsdp_tensor *out = fsdp__node_saved(node, 3);
    int64_t first = m->q * s->args.q_time;
    fsdp__attention_backward_args b;

    FSDP_TRY(positions_of(s, m, fsdp__node_saved(node, 5), &positions));
    lse = fsdp__op_contiguous(chunks_of(s, fsdp__node_saved(node, 4), 2, m->q, m->queries));
    dq = fsdp__empty_like(chunks_of(s, q, 1, m->q, m->queries), q->dtype);
    for (int i = 0; i < 2; i++) {
        place[i] = chunks_of(s, fsdp__side_of(g->whose, i), 1, m->k, m->keys);
        d[i] = !place[i] ? NULL : m->again ? fsdp__empty_like(place[i], place[i]->dtype) : place[i];
    }
    FSDP__TRY_MADE(lse && dq && d[0] && d[1]);
    b = (fsdp__attention_backward_args){.forward = call_of(s, m, their, q, positions)};
    set_out(&b.forward, out, first);
    b.forward.lse = fsdp_tensor_data(lse);
    b.dout = at(g->dout, first * out->strides[1]);
    b.dq = at(dq, 0), b.dk = at(d[0], 0), b.dv = at(d[1], 0);
    b.dq_batch = dq->strides[0], b.dq_stride_time = dq->strides[1], b.dq_head = dq->strides[2];
    b.dk_batch = d[0]->strides[0], b.dk_stride_time = d[0]->strides[1], b.dk_head = d[0]->strides[2];
    b.dv_batch = d[1]->strides[0], b.dv_stride_time = d[1]->strides[1], b.dv_head = d[1]->strides[2];
    FSDP_TRY(fsdp__launch_attention_backward(fsdp__op_stream(dq), &b));
    FSDP_TRY(add_beside(m, place[0], d[0]));
    FSDP_TRY(add_beside(m, place[1], d[1]));
    return fsdp__tensor_copy(chunks_of(s, g->dq, 1, m->q, m->queries), dq, true);
}

/* Makes room for parts of gradients of one rank's keys and values. */
static fsdp_tensor *make_parts(const state *s, const fsdp_tensor *k)
{
    int64_t padded = fsdp__wire_chunk(2 * fsdp_tensor_numel(k), s->visitors.ranks) * s->visitors.ranks;

    return fsdp_empty(k->storage->device, k->dtype, 1, &padded);
}

/* Makes the begin of such parts a view (2,B,T,G,D). */
static fsdp_tensor *view_parts(fsdp_tensor *parts, const fsdp_tensor *k)
{
    return fsdp_reshape(fsdp_slice(parts, 0, 0, 2 * fsdp_tensor_numel(k)), 5,
                        (const int64_t[]){2, k->shape[0], k->shape[1], k->shape[2], k->shape[3]});
}

/* Computes the gradients of what one rank's keys and values have given. */
static fsdp_status turn_back(const state *s, const visit *their, fsdp__node *node, gradients *g)
{
    fsdp_context *context = fsdp_device_context(g->dq->storage->device);
    fsdp_tensor *sent = g->sent[fsdp__visit_place(&s->visitors, their->of)];
    meeting list[MEETINGS];
    int count = fsdp_tensor_numel(g->dq) > 0 ? meetings_with(s, their->of, list) : 0;

    FSDP__TRY_MADE(g->whose = view_parts(sent, fsdp__node_saved(node, 1)));
    FSDP_TRY(fsdp_tensor_fill_(sent, 0));
    for (int i = 0; i < count; i++) {
        fsdp_status status;

        FSDP_TRY(fsdp_scope_begin(context));
        status = meet_back(s, &list[i], their, node, g);
        fsdp_scope_end(context, NULL);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static fsdp_status take_turns_back(const state *s, fsdp__node *node, gradients *g)
{
    fsdp_tensor *k = fsdp__node_saved(node, 1), *v = fsdp__node_saved(node, 2);
    int64_t ahead = fsdp__visits_ahead(&s->visitors);
    fsdp__visits visits;

    if (s->visitors.ranks == 1)
        return turn_back(s, &(visit){0, {k, v}}, node, g);
    FSDP_TRY(fsdp__visits_begin(&s->visitors, k, v, &visits));
    for (int64_t of = 0; of < s->visitors.ranks; of++) {
        int64_t place = fsdp__visit_place(&s->visitors, of);
        visit their = {.of = of};

        FSDP_TRY(fsdp__visit_begin(&visits, of, their.kv));
        if (of >= ahead)
            FSDP_TRY(fsdp__visit_await_sums(&s->visitors, place, g->sums));
        FSDP_TRY(turn_back(s, &their, node, g));
        FSDP_TRY(fsdp__visit_add_up(&s->visitors, of, g->sent[place], g->sums));
        FSDP_TRY(fsdp__visit_end(&visits, of));
    }
    for (int64_t i = 0; i < ahead; i++)
        FSDP_TRY(fsdp__visit_await_sums(&s->visitors, i, g->sums));
    return fsdp__wire_exchange(g->sums, g->sent[0], s->visitors.route.group); /* what was sent is not needed any more */
}

static fsdp_status take_room(const state *s, const fsdp_tensor *k, gradients *g)
{
    for (int64_t i = 0; i < fsdp__visits_ahead(&s->visitors); i++) {
        FSDP__TRY_MADE(g->sent[i] = make_parts(s, k));
    }
    g->sums = s->visitors.ranks > 1 ? make_parts(s, k) : g->sent[0];
    return g->sums ? FSDP_OK : fsdp_last_status();
}

/* Computes dq, f32, and the gradients (2,B,T,G,D) of this rank's keys and values. */
static fsdp_status compute_back(const state *s, fsdp__node *node, gradients *g, fsdp_tensor **dkv)
{
    fsdp_context *context = fsdp_device_context(g->dq->storage->device);
    fsdp_tensor *k = fsdp__node_saved(node, 1), *parts;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    status = take_room(s, k, g);
    if (status == FSDP_OK)
        status = fsdp__side_stream_settled(s->visitors.route.side, take_turns_back(s, node, g));
    parts = status == FSDP_OK ? g->sent[0] : NULL;
    fsdp_scope_end(context, parts);
    *dkv = parts ? view_parts(parts, k) : NULL;
    return *dkv ? FSDP_OK : status == FSDP_OK ? fsdp_last_status() : status;
}

static fsdp_status backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);
    const fsdp_tensor *q = fsdp__node_saved(node, 0);
    gradients g = {.dout = fsdp__op_contiguous(grads[0]), .dq = fsdp_zeros(q->storage->device, FSDP_F32, 4, q->shape)};
    fsdp_tensor *dkv, *d[3];

    FSDP__TRY_MADE(g.dout && g.dq);
    FSDP_TRY(compute_back(s, node, &g, &dkv));
    d[0] = fsdp_cast(g.dq, q->dtype);
    d[1] = fsdp__side_of(dkv, 0);
    d[2] = fsdp__side_of(dkv, 1);
    for (int i = 0; i < 3; i++)
        FSDP_TRY(d[i] ? fsdp__node_give(node, i, d[i]) : fsdp_last_status());
    return FSDP_OK;
}

/* ---- the call ---- */

static const fsdp__op attention_op = {
    .name = "parallel_attention", .backward = backward, .free_state = fsdp__route_free};
static const fsdp__traits traits = {.dear = FSDP__DEAR_ATTENTION};

static bool check_options(const fsdp_tensor *q, const fsdp_attention_options *o)
{
    const char *op = attention_op.name;
    fsdp_tensor *const both[] = {(fsdp_tensor *)q, o ? o->positions : NULL};

    if (!o)
        return true;
    if (!fsdp__op_inputs(op, both, 2))
        return false;
    if (o->window < 0)
        FSDP_FAIL(FSDP_INVALID, "%s: window %lld must not be negative", op, (long long)o->window);
    else if (!(o->softcap >= 0 && isfinite(o->softcap)))
        FSDP_FAIL(FSDP_INVALID, "%s: softcap %g must be 0 or a positive number", op, (double)o->softcap);
    else if (o->window > 0 && !o->causal)
        FSDP_FAIL(FSDP_INVALID, "%s: a window is of causal attention, and this is not: set causal", op);
    else if (o->positions && !o->causal)
        FSDP_FAIL(FSDP_INVALID, "%s: positions are of causal attention, and this is not: set causal", op);
    else if (o->positions && o->positions->dtype != FSDP_I32)
        FSDP_FAIL(FSDP_INVALID, "%s: positions are %s, and must be %s", op, fsdp_dtype_name(o->positions->dtype),
                  fsdp_dtype_name(FSDP_I32));
    else if (o->positions && (o->positions->ndim != 2 || o->positions->shape[0] != q->shape[0] ||
                              o->positions->shape[1] != q->shape[1]))
        return fsdp__op_misfit(op, "query", q, "positions", o->positions);
    else
        return true;
    return false;
}

static bool check(fsdp_tensor *const *x, const fsdp_attention_options *options, fsdp_process_group *group)
{
    fsdp_tensor *q = x[0], *k = x[1], *v = x[2];
    const char *op = attention_op.name;

    if (!q || !k || !v)
        return false;
    if (!group)
        return FSDP_FAIL(FSDP_INVALID, "%s: the process group is NULL", op), false;
    if (!fsdp__op_inputs(op, x, 3) || !fsdp__check_group(op, q, group) || !fsdp__op_same_dtype(op, x, 3))
        return false;
    if (!fsdp__shape_equal(k, v))
        return fsdp__op_misfit(op, "key", k, "value", v);
    if (q->ndim != 4 || k->ndim != 4 || q->shape[0] != k->shape[0] || q->shape[1] != k->shape[1] ||
        q->shape[3] != k->shape[3] || k->shape[2] < 1 || q->shape[2] % k->shape[2] != 0)
        return fsdp__op_misfit(op, "query", q, "key", k);
    if (q->shape[1] % 2 != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s: %lld positions of a sequence are not two equal chunks: its length T must be a multiple "
                         "of %d, two chunks for each of %d ranks",
                         op, (long long)q->shape[1], 2 * fsdp_process_group_size(group),
                         fsdp_process_group_size(group)),
               false;
    return check_options(q, options);
}

static state state_of(const fsdp_tensor *q, const fsdp_tensor *k, const fsdp_attention_options *options,
                      fsdp_process_group *group, fsdp__side_stream *side)
{
    state s = {.visitors = {{group, side}, fsdp_process_group_size(group), fsdp_process_group_rank(group)}};
    fsdp__attention_forward_args *a = &s.args;

    a->batch = q->shape[0], a->q_time = q->shape[1] / 2;
    a->heads = q->shape[2], a->kv_heads = k->shape[2], a->head_dim = q->shape[3];
    a->q_batch = q->strides[0], a->q_stride_time = q->strides[1], a->q_head = q->strides[2];
    a->dtype = q->dtype;
    a->causal = options && options->causal;
    a->scale = options && options->scale != 0 ? options->scale : 1.0f / sqrtf((float)a->head_dim);
    a->softcap = options ? options->softcap : 0;
    a->window = options ? options->window : 0;
    s.documents = options && options->positions;
    return s;
}

/* Returns the tensor itself if its last dimension is contiguous, else a contiguous copy. */
static fsdp_tensor *readable(fsdp_tensor *x)
{
    return x->strides[3] == 1 || x->shape[3] == 1 ? x : fsdp__op_contiguous(x);
}

fsdp_tensor *fsdp_parallel_attention(fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                                     const fsdp_attention_options *options, fsdp_process_group *group)
{
    return fsdp__attention_over_ranks(q, k, v, options, group, NULL);
}

fsdp_tensor *fsdp__attention_over_ranks(fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                                        const fsdp_attention_options *options, fsdp_process_group *group,
                                        fsdp__side_stream *side)
{
    fsdp_tensor *inputs[] = {q, k, v}, *saved[TENSORS] = {NULL}, *out;
    state s;

    if (!check(inputs, options, group))
        return NULL;
    for (int i = 0; i < 3; i++) {
        saved[i] = readable(inputs[i]);
        if (!saved[i])
            return NULL;
    }
    s = state_of(saved[0], k, options, group, side);
    saved[5] = options ? options->positions : NULL;
    if (!fsdp__recall(&attention_op, inputs, 3, &out, 1)) {
        saved[3] = out = fsdp_empty(q->storage->device, q->dtype, 4, q->shape);
        saved[4] =
            fsdp_empty(q->storage->device, FSDP_F32, 3, (const int64_t[]){q->shape[0], q->shape[2], q->shape[1]});
        if (!out || !saved[4] || compute(&s, saved) != FSDP_OK)
            return NULL;
    }
    saved[3] = out;
    return fsdp__route_record(&traits, &attention_op, inputs, 3, &out, 1, saved, TENSORS, &s, sizeof s) == FSDP_OK
               ? out
               : NULL;
}
