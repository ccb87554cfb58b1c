/* products.c - the matrix product: by cublasLt where it has an algorithm, otherwise by the own kernel
 * (kernels/matmul.cu). */
#include <pthread.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/product_algorithms.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/hash.h"

/* ---- plans: calls of cublasLt that are made ready once ----
 *
 * They are cached by all of their arguments except pointers.
 *
 * [Note: same algorithm]
 * The algorithm is the table's (product_rows.h), or the first that cublasLt's heuristic gives, which knows the card and
 * the call. Nothing is timed, so a call has the same algorithm in every run. */

typedef struct product_plan {
    fsdp__product_call call;
    bool taken;                       /* cublasLt has an algorithm for the call */
    bool told;                        /* that it has none, or that it refuses the table's */
    const fsdp__product_row *refused; /* the table's, in whose place the heuristic's was taken; NULL: none */
    fsdp__product_descriptors descriptors;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    struct product_plan *next; /* for the cache */
} product_plan;

/* Holds the plans of a device. Zeros are an empty cache. */
typedef struct product_plans {
    const fsdp__product_row *rows; /* the table of algorithms; NULL: none */
    const char *card;              /* the device's */
    product_plan *lists[256];
    int count;
} product_plans;

enum {
    MOST_PLANS = 4096 /* then all are dropped: of a run whose shapes never come again */
};

/* Chooses the algorithm, as the note above says. */
static fsdp_status choose(product_plans *plans, product_plan *plan, const fsdp__cublaslt *lt)
{
    const fsdp__product_row *row =
        plans->rows ? fsdp__product_row_find(plans->rows, plans->card, lt->version, &plan->call) : NULL;
    cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_NOT_SUPPORTED};
    int count = 1;

    if (row && row->algorithm.id == FSDP__PRODUCT_APART)
        return FSDP_OK; /* plan->taken is false */
    if (row && !fsdp__product_algorithm_make(lt, &plan->call, &plan->descriptors, &row->algorithm, &result)) {
        plan->refused = row;
        row = NULL;
    }
    if (!row)
        FSDP_TRY(fsdp__product_heuristic(lt, &plan->call, &plan->descriptors, 0, 1, &result, &count));
    plan->taken = row || (count > 0 && result.state == CUBLAS_STATUS_SUCCESS);
    plan->algorithm = result.algo;
    plan->workspace_bytes = result.workspaceSize;
    return FSDP_OK;
}

static void free_plan(product_plan *plan, const fsdp__cublaslt *lt)
{
    fsdp__product_descriptors_release(lt, &plan->descriptors);
    fsdp__free(plan);
}

static fsdp_status make_plan(product_plans *plans, const fsdp__cublaslt *lt, const fsdp__product_call *call,
                             product_plan **out)
{
    product_plan *plan = fsdp__calloc(1, sizeof *plan);
    fsdp_status status;

    *out = NULL;
    if (!plan)
        return FSDP_NO_MEMORY;
    plan->call = *call;
    status = fsdp__product_describe(lt, call, &plan->descriptors);
    if (status == FSDP_OK)
        status = choose(plans, plan, lt);
    if (status == FSDP_OK)
        *out = plan;
    else
        free_plan(plan, lt);
    return status;
}

static void drop_plans(product_plans *plans, const fsdp__cublaslt *lt)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(plans->lists); i++)
        while (plans->lists[i]) {
            product_plan *plan = plans->lists[i];

            plans->lists[i] = plan->next;
            free_plan(plan, lt);
        }
    plans->count = 0;
}

/* Returns the plan of a call, made now if it is a new one; valid until the next call. [one thread at a time] */
static fsdp_status plan_of(product_plans *plans, const fsdp__cublaslt *lt, const fsdp__product_call *call,
                           product_plan **out)
{
    uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, call, sizeof *call);
    product_plan **list = &plans->lists[hash % FSDP__COUNT_OF(plans->lists)];

    for (*out = *list; *out; *out = (*out)->next)
        if (memcmp(&(*out)->call, call, sizeof *call) == 0)
            return FSDP_OK;
    if (plans->count == MOST_PLANS)
        drop_plans(plans, lt);
    FSDP_TRY(make_plan(plans, lt, call, out));
    (*out)->next = *list;
    *list = *out;
    plans->count++;
    return FSDP_OK;
}

/* ---- products ---- */

enum {
    WORKSPACE_ALIGNMENT = 256 /* that cublasLt asks for */
};

/* Holds what a device keeps for its products (fsdp__cuda_state). */
typedef struct products {
    fsdp_device *device;
    pthread_mutex_t mutex; /* of all below: descriptors are set while products are issued */
    fsdp__cublaslt lt;     /* opened for the first product */
    bool told;             /* that it refuses a row of the table */
    product_plans plans;
} products;

/* These are in kernels/matmul.cu */
fsdp_status fsdp__cuda_own_matmul(fsdp_stream *stream, const void *args);
fsdp_status fsdp__cuda_operand_sums(fsdp_stream *stream, const void *args);
fsdp_status fsdp__cuda_product_gelu(fsdp_stream *stream, const void *args);
fsdp_status fsdp__cuda_matmul(fsdp_stream *stream, const void *args);

static void free_products(void *state)
{
    products *p = state;

    if (p->lt.handle) {
        (void)fsdp__cuda_use(p->device);
        drop_plans(&p->plans, &p->lt);
        fsdp__cublaslt_close(&p->lt);
    }
    (void)pthread_mutex_destroy(&p->mutex);
    fsdp__free(p);
}

static fsdp_status products_of(fsdp_device *device, products **out)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);

    (void)pthread_mutex_lock(&state->mutex);
    *out = state->products;
    if (!*out && (*out = fsdp__calloc(1, sizeof **out))) {
        (*out)->device = device;
        (void)pthread_mutex_init(&(*out)->mutex, NULL);
        state->products = *out;
        state->products_free = free_products;
    }
    (void)pthread_mutex_unlock(&state->mutex);
    return *out ? FSDP_OK : FSDP_NO_MEMORY;
}

/* Opens cublasLt, and says so if the table of algorithms has rows for the card, but not with this version. */
static fsdp_status open_products(products *p)
{
    const char *card = fsdp__cuda_state_of(p->device)->model;
    const fsdp__product_row *other;

    FSDP_TRY(fsdp__cublaslt_open(&p->lt));
    p->plans.rows = fsdp__product_rows;
    p->plans.card = card;
    if (fsdp__product_rows_count(p->plans.rows, card, p->lt.version, &other) == 0 && other)
        fsdp_log(p->device->context, FSDP_LOG_INFO,
                 "cuBLAS %lld chooses the algorithms of products by itself: those that were measured on the %s are for "
                 "its version %lld",
                 (long long)p->lt.version, card, (long long)other->version);
    return FSDP_OK;
}

/* Issues a planned product. */
static fsdp_status issue(products *p, fsdp_stream *stream, const product_plan *plan, const fsdp__matmul_args *k)
{
    const fsdp__cublaslt *lt = &p->lt;
    const fsdp__product_descriptors *d = &plan->descriptors;
    const void *bias = k->bias ? k->bias : k->sums;
    float alpha = k->alpha, beta = k->accumulate ? 1.0f : 0.0f;
    char *workspace = NULL;

    if (plan->workspace_bytes > 0) {
        workspace = fsdp__stream_workspace(stream, plan->workspace_bytes + WORKSPACE_ALIGNMENT);
        if (!workspace)
            return fsdp_last_status();
        workspace += -(uintptr_t)workspace % WORKSPACE_ALIGNMENT;
    }
    if (bias)
        FSDP_TRY(FSDP__CUBLASLT(lt, MatmulDescSetAttribute, d->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                sizeof bias));
    if (k->before)
        FSDP_TRY(FSDP__CUBLASLT(lt, MatmulDescSetAttribute, d->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                &k->before, sizeof k->before));
    FSDP_TRY(FSDP__CUBLASLT(lt, Matmul, lt->handle, d->operation, &alpha, k->b, d->first, k->a, d->second, &beta, k->c,
                            d->out, k->c, d->out, &plan->algorithm, workspace, plan->workspace_bytes,
                            fsdp__cuda_native(stream)));
    fsdp__cuda_count_issued(stream->device);
    return FSDP_OK;
}

/* Says what was not to be expected of a new plan: a kernel of our own, or, once, that the table's row is refused. */
static void tell(products *p, const product_plan *plan, const fsdp__matmul_args *k)
{
    static const char *const names[] = {[FSDP_F32] = "float32", [FSDP_BF16] = "bfloat16", [FSDP_F16] = "float16"};

    if (!plan->taken && !k->sums && !k->gelu)
        fsdp_log(p->device->context, FSDP_LOG_INFO,
                 "cuBLAS has no algorithm for a product of %lld x %lld x %lld (%s to %s): a kernel of our own computes "
                 "it, which takes longer",
                 (long long)k->m, (long long)k->n, (long long)k->k, names[k->a_dtype], names[k->c_dtype]);
    if (plan->refused && !p->told) {
        fsdp_log(p->device->context, FSDP_LOG_INFO,
                 "cuBLAS refuses the algorithm that was measured for a product of %lld x %lld x %lld (%s to %s), and "
                 "chooses another one",
                 (long long)k->m, (long long)k->n, (long long)k->k, names[k->a_dtype], names[k->c_dtype]);
        p->told = true;
    }
}

/* Issues the product if cublasLt has an algorithm for it. */
static fsdp_status try_call(products *p, fsdp_stream *stream, const fsdp__product_call *call,
                            const fsdp__matmul_args *k, bool *done)
{
    product_plan *plan;

    if (!p->lt.handle)
        FSDP_TRY(open_products(p));
    FSDP_TRY(plan_of(&p->plans, &p->lt, call, &plan));
    *done = plan->taken;
    if (!plan->told)
        tell(p, plan, k);
    plan->told = true;
    return plan->taken ? issue(p, stream, plan, k) : FSDP_OK;
}

/* Says why a product was not issued. It may be the first to hear that the device has failed, and CUDA knows of what. */
static fsdp_status why(fsdp_stream *stream, fsdp_status status)
{
    cudaError_t error = cudaStreamQuery(fsdp__cuda_native(stream));

    if (error != cudaErrorNotReady)
        FSDP_TRY(fsdp__cuda_check(stream->device, error, "cublasLt", __FILE__, __LINE__));
    (void)cudaGetLastError();
    return status;
}

/* Computes the product alone, and what was to come along by a pass of its own. */
static fsdp_status apart(fsdp_stream *stream, const fsdp__matmul_args *k)
{
    fsdp__matmul_args plain = *k;

    plain.sums = plain.before = NULL;
    plain.gelu = FSDP__PRODUCT_PLAIN;
    if (k->gelu == FSDP__PRODUCT_GELU && k->before)
        plain.c = k->before;
    if (k->sums)
        FSDP_TRY(fsdp__cuda_operand_sums(stream, k));
    FSDP_TRY(fsdp__cuda_matmul(stream, &plain));
    return k->gelu ? fsdp__cuda_product_gelu(stream, k) : FSDP_OK;
}

static fsdp_status otherwise(fsdp_stream *stream, const fsdp__matmul_args *k)
{
    return k->sums || k->gelu ? apart(stream, k) : fsdp__cuda_own_matmul(stream, k);
}

fsdp_status fsdp__cuda_matmul(fsdp_stream *stream, const void *args)
{
    const fsdp__matmul_args *k = args;
    fsdp_status status;
    fsdp__product_call call;
    bool done = false;
    products *p;

    if (k->m == 0 || k->n == 0)
        return FSDP_OK;
    if (k->k == 0 || !fsdp__product_call_of(k, &call))
        return otherwise(stream, k);
    FSDP_TRY(fsdp__cuda_alive(stream->device));
    FSDP_TRY(fsdp__cuda_use(stream->device));
    FSDP_TRY(products_of(stream->device, &p));
    (void)pthread_mutex_lock(&p->mutex);
    status = try_call(p, stream, &call, k, &done);
    (void)pthread_mutex_unlock(&p->mutex);
    if (status != FSDP_OK)
        return why(stream, status);
    return done ? FSDP_OK : otherwise(stream, k);
}
