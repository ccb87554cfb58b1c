/* attention_fast.c - attention: by own kernels (kernels/attention_*.cu), or by cuDNN where the device was told so.
 *
 * cuDNN's plans are compiled when a call is new, which takes it about half a second; they are kept. A call that
 * continues what is in a cache of keys has another length each time, so own kernels compute it, whatever was asked. */
#include <pthread.h>
#include <string.h>

#include "backend/cuda/attention_graph.h"
#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/compiler.h"

enum {
    MOST_PLANS = 128, /* then all are dropped: of a run whose shapes never come again */
    ALIGNMENT = 256   /* of each piece of scratch */
};

/* The score of a pair that does not meet. Each query meets itself at least, and beside that e^this is 0; -inf could
 * give NaN in tiles that a query does not see at all. */
#define HIDDEN (-1e30f)

typedef struct plan {
    fsdp__attention_call call;
    fsdp__cudnn_graph graph;
    struct plan *next;
} plan;

/* Holds what a device keeps for cuDNN (fsdp__cuda_state). */
typedef struct fsdp__cuda_attentions {
    pthread_mutex_t mutex; /* of all below */
    fsdp__cudnn cudnn;
    void *handle;
    plan *plans; /* the last one used is the first */
    int count;
} attentions;

fsdp_status fsdp__cuda_own_attention_forward(fsdp_stream *stream, const void *args);  /* kernels/ */
fsdp_status fsdp__cuda_own_attention_backward(fsdp_stream *stream, const void *args); /* kernels/ */
fsdp_status fsdp__cuda_set_bytes(fsdp_stream *stream, void *device, int byte, size_t bytes);
fsdp_status fsdp__cuda_attention_forward(fsdp_stream *stream, const void *args);
fsdp_status fsdp__cuda_attention_backward(fsdp_stream *stream, const void *args);

/* ---- life ---- */

static void free_plan(plan *p)
{
    fsdp__cudnn_graph_clear(&p->graph);
    fsdp__free(p);
}

static void drop_plans(attentions *a)
{
    while (a->plans) {
        plan *first = a->plans;

        a->plans = first->next;
        free_plan(first);
    }
    a->count = 0;
}

void fsdp__cuda_attention_close(fsdp_device *device)
{
    attentions *a = fsdp__cuda_state_of(device)->attentions;

    if (!a)
        return;
    (void)fsdp__cuda_use(device);
    drop_plans(a);
    if (a->handle)
        (void)a->cudnn.Destroy(a->handle);
    (void)pthread_mutex_destroy(&a->mutex);
    fsdp__free(a);
    fsdp__cuda_state_of(device)->attentions = NULL;
}

fsdp_status fsdp__cuda_attention_open(fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    attentions *a;
    fsdp_status status;

    if (state->attentions)
        return FSDP_OK;
    a = fsdp__calloc(1, sizeof *a);
    if (!a)
        return FSDP_NO_MEMORY;
    (void)pthread_mutex_init(&a->mutex, NULL);
    state->attentions = a;
    status = fsdp__cuda_use(device);
    if (status == FSDP_OK)
        status = fsdp__cudnn_open(&a->cudnn);
    if (status == FSDP_OK)
        status = FSDP__CUDNN_CALL(&a->cudnn, Create, &a->handle);
    if (status != FSDP_OK)
        fsdp__cuda_attention_close(device);
    return status;
}

/* ---- plans ---- */

static fsdp_status make_plan(attentions *a, const fsdp__attention_call *call, plan **out)
{
    const fsdp__cudnn_target target = {.handle = a->handle};
    fsdp_status status;
    plan *p;

    *out = NULL;
    p = fsdp__calloc(1, sizeof *p);
    if (!p)
        return FSDP_NO_MEMORY;
    p->call = *call;
    p->graph.cudnn = &a->cudnn;
    fsdp__attention_graph(call, &p->graph);
    status = p->graph.status;
    if (status == FSDP_OK)
        status = fsdp__cudnn_make_plan(&p->graph, &target, call->repeatable);
    if (status == FSDP_OK)
        *out = p;
    else
        free_plan(p);
    return status;
}

/* Returns the plan of a call, made now if it is a new one. */
static fsdp_status plan_of(attentions *a, const fsdp__attention_call *call, plan **out)
{
    for (plan **at = &a->plans; (*out = *at); at = &(*at)->next)
        if (memcmp(&(*out)->call, call, sizeof *call) == 0) {
            *at = (*out)->next;
            (*out)->next = a->plans;
            a->plans = *out;
            return FSDP_OK;
        }
    if (a->count == MOST_PLANS)
        drop_plans(a);
    FSDP_TRY(make_plan(a, call, out));
    (*out)->next = a->plans;
    a->plans = *out;
    a->count++;
    return FSDP_OK;
}

/* ---- a call ---- */

/* Holds what a plan is run with. */
typedef struct binding {
    int64_t ids[FSDP__ATTENTION_IDS];
    void *pointers[FSDP__ATTENTION_IDS];
    int count;
    float scale, one, hidden, window;
} binding;

static void bind(binding *b, int64_t id, const void *pointer)
{
    b->ids[b->count] = id;
    b->pointers[b->count++] = (void *)(uintptr_t)pointer;
}

static void bind_forward(binding *b, const fsdp__attention_call *call, const fsdp__attention_forward_args *k)
{
    b->scale = k->scale, b->one = 1.0f, b->hidden = HIDDEN, b->window = (float)call->window;
    bind(b, FSDP__ATTENTION_Q, k->q);
    bind(b, FSDP__ATTENTION_K, k->k);
    bind(b, FSDP__ATTENTION_V, k->v);
    bind(b, FSDP__ATTENTION_OUT, k->out);
    bind(b, FSDP__ATTENTION_SCALE, &b->scale);
    if (call->stats || call->backward)
        bind(b, FSDP__ATTENTION_LSE, k->lse);
    if (call->causal)
        bind(b, FSDP__ATTENTION_HIDDEN, &b->hidden);
    if (call->window > 0)
        bind(b, FSDP__ATTENTION_WINDOW, &b->window);
    if (call->documents)
        bind(b, FSDP__ATTENTION_POSITIONS, k->positions);
}

static size_t padded(size_t bytes)
{
    return FSDP__ROUND_UP(bytes, ALIGNMENT);
}

/* Takes scratch: cuDNN's own, and for a backward the sums of rows and the gradients of queries in f32, as zeros. */
static fsdp_status take_scratch(fsdp_stream *stream, const plan *p, binding *b, void **own)
{
    const fsdp__attention_call *c = &p->call;
    size_t rows = (size_t)(c->batch * c->heads * c->time), workspace = padded((size_t)p->graph.workspace_bytes);
    size_t sums = c->backward ? padded(rows * sizeof(float)) : 0;
    size_t queries = c->backward && !c->repeatable ? rows * (size_t)c->head_dim * sizeof(float) : 0;
    char *scratch;

    *own = NULL;
    if (workspace + sums + queries == 0)
        return FSDP_OK;
    scratch = fsdp__stream_workspace(stream, workspace + sums + queries + ALIGNMENT);
    if (!scratch)
        return fsdp_last_status();
    scratch += -(uintptr_t)scratch % ALIGNMENT;
    *own = scratch;
    if (sums > 0)
        bind(b, FSDP__ATTENTION_DELTA, scratch + workspace);
    if (queries == 0)
        return FSDP_OK;
    bind(b, FSDP__ATTENTION_DQ_SUM, scratch + workspace + sums);
    return fsdp__cuda_set_bytes(stream, scratch + workspace + sums, 0, queries);
}

/* Says for which call cuDNN has no plan. */
static fsdp_status fail_call(fsdp_stream *stream, const fsdp__attention_call *c, fsdp_status status)
{
    return fsdp_fail_prefix(
        status,
        "fast attention on %s, %s of batch %lld, %lld heads (%lld of keys) of %lld, %lld tokens%s%s: "
        "set kernels.attention=exact if cuDNN does not take it",
        stream->device->name, c->backward ? "backward" : "forward", (long long)c->batch, (long long)c->heads,
        (long long)c->kv_heads, (long long)c->head_dim, (long long)c->time, c->window > 0 ? ", a window" : "",
        c->documents ? ", documents" : "");
}

static fsdp_status issue(attentions *a, fsdp_stream *stream, const fsdp__attention_call *call,
                         const fsdp__attention_forward_args *k, const fsdp__attention_backward_args *backward)
{
    binding b = {.count = 0};
    void *workspace;
    plan *p;

    FSDP_TRY(plan_of(a, call, &p));
    bind_forward(&b, call, k);
    if (backward) {
        bind(&b, FSDP__ATTENTION_DOUT, backward->dout);
        bind(&b, FSDP__ATTENTION_ONE, &b.one);
        bind(&b, FSDP__ATTENTION_DQ, backward->dq);
        bind(&b, FSDP__ATTENTION_DK, backward->dk);
        bind(&b, FSDP__ATTENTION_DV, backward->dv);
    }
    FSDP_TRY(take_scratch(stream, p, &b, &workspace));
    FSDP_TRY(FSDP__CUDNN_CALL(&a->cudnn, SetStream, a->handle, fsdp__cuda_native(stream)));
    FSDP_TRY(fsdp__cudnn_run_plan(&p->graph, a->handle, b.count, b.ids, b.pointers, workspace));
    fsdp__cuda_count_issued(stream->device);
    return FSDP_OK;
}

static fsdp_status run(fsdp_stream *stream, const fsdp__attention_forward_args *k,
                       const fsdp__attention_backward_args *backward)
{
    attentions *a = fsdp__cuda_state_of(stream->device)->attentions;
    bool repeatable = backward && stream->device->attention == FSDP_ATTENTION_FAST_REPEATABLE;
    fsdp__attention_call call;
    fsdp_status status;
    const char *why = fsdp__attention_call_of(k, backward, repeatable, &call);

    if (why)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "fast attention on %s takes no %s: set kernels.attention=exact",
                         stream->device->name, why);
    FSDP_TRY(fsdp__cuda_alive(stream->device));
    FSDP_TRY(fsdp__cuda_use(stream->device));
    (void)pthread_mutex_lock(&a->mutex);
    status = issue(a, stream, &call, k, backward);
    (void)pthread_mutex_unlock(&a->mutex);
    return status == FSDP_OK ? FSDP_OK : fail_call(stream, &call, status);
}

/* Returns whether cuDNN is asked: not for what continues a cache of keys or has only some, and not where there is
 * nothing to do. */
static bool is_fast(const fsdp_stream *stream, const fsdp__attention_forward_args *k)
{
    return stream->device->attention != FSDP_ATTENTION_EXACT && k->q_time == k->kv_time && k->lead == 0 &&
           k->batch > 0 && k->q_time > 0;
}

fsdp_status fsdp__cuda_attention_forward(fsdp_stream *stream, const void *args)
{
    return is_fast(stream, args) ? run(stream, args, NULL) : fsdp__cuda_own_attention_forward(stream, args);
}

fsdp_status fsdp__cuda_attention_backward(fsdp_stream *stream, const void *args)
{
    const fsdp__attention_backward_args *k = args;

    return is_fast(stream, &k->forward) ? run(stream, &k->forward, k) : fsdp__cuda_own_attention_backward(stream, args);
}
