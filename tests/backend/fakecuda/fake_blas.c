/* fake_blas.c - cublasLt, as far as the plug-in calls it: libcublasLt.so.13 beside the tests.
 *
 * A product is plain loops, on a stream of the runtime. What the real library refuses, or must not be asked for, is
 * refused: leading dimensions that are too small, sizes and types that do not fit, pointers that are less aligned than
 * the heuristic was told, a workspace that is missing, an algorithm of another product, sums in an order that depends
 * on time. The workspace is overwritten. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake.h"
#include "oracle/oracle.h"

/* What the library's opaque structs hold here. */
typedef struct product {
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t bias_type;
    bool has_bias_type;
    const void *bias;
} product;

typedef struct matrix {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld, batch_stride;
    int32_t batch;
} matrix;

typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t reductions, alignment[4]; /* of a, b, c, d */
} preference;

/* What an algorithm holds: for which call it is. */
typedef struct algorithm {
    uint64_t call, workspace_bytes;
    uint32_t alignment[4], bias_alignment;
} algorithm;

_Static_assert(sizeof(product) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");
_Static_assert(sizeof(matrix) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
_Static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "fits");

#define BLAS_BEGIN(call)                           \
    do {                                           \
        int begun = fake_use(FAKE_##call);         \
                                                   \
        if (begun)                                 \
            return (cublasStatus_t)begun;          \
        if (fake_is_lost(fake_current()))          \
            return CUBLAS_STATUS_EXECUTION_FAILED; \
    } while (0)

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

/* ---- objects ---- */

static cublasStatus_t make(void **out, size_t bytes)
{
    *out = calloc(1, bytes);
    if (!*out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    fake_count_object(1);
    return CUBLAS_STATUS_SUCCESS;
}

/* Destroys an object, whatever the call returns. */
static cublasStatus_t destroy(void *object, int error)
{
    if (!object)
        return CUBLAS_STATUS_INVALID_VALUE;
    free(object);
    fake_count_object(-1);
    return (cublasStatus_t)error;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    BLAS_BEGIN(cublasLtCreate);
    return make((void **)out, 1);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle, fake_use(FAKE_cublasLtDestroy));
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    BLAS_BEGIN(cublasLtMatmulDescCreate);
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (make((void **)out, sizeof **out) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_ALLOC_FAILED;
    ((product *)(void *)*out)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc, fake_use(FAKE_cublasLtMatmulDescDestroy));
}

/* Copies an attribute of the size that it must have. */
static cublasStatus_t set(void *field, size_t field_bytes, const void *value, size_t bytes)
{
    if (bytes != field_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    product *p = (product *)(void *)desc;

    BLAS_BEGIN(cublasLtMatmulDescSetAttribute);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&p->trans_a, sizeof p->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&p->trans_b, sizeof p->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&p->epilogue, sizeof p->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        p->has_bias_type = true;
        return set(&p->bias_type, sizeof p->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&p->bias, sizeof p->bias, value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

static size_t type_size(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    BLAS_BEGIN(cublasLtMatrixLayoutCreate);
    if (type_size(type) == 0 || rows == 0 || cols == 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (make((void **)out, sizeof **out) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *(matrix *)(void *)*out = (matrix){.type = type, .rows = rows, .cols = cols, .ld = ld, .batch = 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout, fake_use(FAKE_cublasLtMatrixLayoutDestroy));
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes)
{
    matrix *m = (matrix *)(void *)layout;

    BLAS_BEGIN(cublasLtMatrixLayoutSetAttribute);
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set(&m->batch, sizeof m->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set(&m->batch_stride, sizeof m->batch_stride, value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    preference *p;

    BLAS_BEGIN(cublasLtMatmulPreferenceCreate);
    if (make((void **)out, sizeof **out) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_ALLOC_FAILED;
    p = (preference *)(void *)*out;
    *p = (preference){.reductions = CUBLASLT_REDUCTION_SCHEME_MASK, .alignment = {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    return destroy(pref, fake_use(FAKE_cublasLtMatmulPreferenceDestroy));
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    preference *p = (preference *)(void *)pref;

    BLAS_BEGIN(cublasLtMatmulPreferenceSetAttribute);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace_bytes, sizeof p->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->reductions, sizeof p->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], sizeof p->alignment[0], value,
                   bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

/* ---- which calls there are ---- */

/* A whole call: D (m,n) = alpha op(A) (m,k) op(B) (k,n) + beta D + bias (m). */
typedef struct call {
    product product;
    matrix a, b, d;
    uint64_t m, n, k;
} call;

static bool fits(const matrix *m)
{
    return m->ld >= (int64_t)m->rows && m->batch >= 1;
}

/* Returns whether the call writes sums of an operand in the place of a bias. */
static bool sums(const call *c)
{
    return c->product.epilogue == CUBLASLT_EPILOGUE_BGRADA || c->product.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static cublasStatus_t make_call(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, call *out)
{
    call made = {.product = *(product *)(void *)desc,
                 .a = *(matrix *)(void *)a,
                 .b = *(matrix *)(void *)b,
                 .d = *(matrix *)(void *)d};
    bool ta = made.product.trans_a == CUBLAS_OP_T, tb = made.product.trans_b == CUBLAS_OP_T;
    matrix same = *(matrix *)(void *)c;
    cudaDataType_t bias_type = made.product.has_bias_type ? made.product.bias_type : made.d.type;

    made.m = ta ? made.a.cols : made.a.rows;
    made.k = ta ? made.a.rows : made.a.cols;
    made.n = tb ? made.b.rows : made.b.cols;
    if (!fits(&made.a) || !fits(&made.b) || !fits(&made.d) || memcmp(&same, &made.d, sizeof same) != 0 ||
        made.k != (tb ? made.b.cols : made.b.rows) || made.d.rows != made.m || made.d.cols != made.n ||
        made.a.batch != made.d.batch || made.b.batch != made.d.batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (made.a.type != made.b.type || (made.d.type != made.a.type && made.d.type != CUDA_R_32F) ||
        (made.product.epilogue != CUBLASLT_EPILOGUE_DEFAULT && bias_type != made.d.type) ||
        (sums(&made) && made.d.batch > 1))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = made;
    return CUBLAS_STATUS_SUCCESS;
}

/* Returns a number for all of the call but its pointers. */
static uint64_t number_of(const call *c)
{
    const uint64_t words[] = {c->product.trans_a,
                              c->product.trans_b,
                              c->product.epilogue,
                              c->a.type,
                              c->d.type,
                              c->m,
                              c->n,
                              c->k,
                              (uint64_t)c->a.ld,
                              (uint64_t)c->b.ld,
                              (uint64_t)c->d.ld,
                              (uint64_t)c->a.batch_stride,
                              (uint64_t)c->b.batch_stride,
                              (uint64_t)c->d.batch_stride,
                              (uint64_t)c->d.batch};
    uint64_t number = 1;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        number = (number ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15) + (number >> 29);
    return number;
}

/* Returns the largest power of two, up to 256, that the address is a multiple of. */
static uint32_t alignment_of(const void *pointer)
{
    uint32_t alignment = 256;

    while ((uintptr_t)pointer % alignment != 0)
        alignment /= 2;
    return alignment;
}

/* Has nothing for operands of 16 bits that are aligned to 2 bytes only; a large product takes a workspace. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    const preference *p = (const preference *)(const void *)pref;
    algorithm chosen = {0};
    cublasStatus_t status;
    call made;

    BLAS_BEGIN(cublasLtMatmulAlgoGetHeuristic);
    *count = 0;
    if (!handle || asked < 1 || p->reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE)
        return CUBLAS_STATUS_INVALID_VALUE;
    status = make_call(desc, a, b, c, d, &made);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < 4; i++)
        if (p->alignment[i] < 4)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    memcpy(chosen.alignment, p->alignment, sizeof chosen.alignment);
    chosen.bias_alignment = alignment_of(made.product.bias);
    chosen.call = number_of(&made);
    chosen.workspace_bytes = made.k > 64 && p->workspace_bytes >= 4096 ? 4096 : 0;
    memset(&results[0], 0, sizeof results[0]);
    memcpy(&results[0].algo, &chosen, sizeof chosen);
    results[0].workspaceSize = chosen.workspace_bytes;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

/* A call with what it is of, as the stream finds it. */
typedef struct task {
    call call;
    float alpha, beta;
    const unsigned char *a, *b;
    unsigned char *bias;
    unsigned char *d, *workspace;
    size_t workspace_bytes;
} task;

static fsdp_dtype dtype_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? FSDP_F32 : type == CUDA_R_16BF ? FSDP_BF16 : FSDP_F16;
}

static float get(const unsigned char *p, cudaDataType_t type, int64_t i)
{
    uint16_t bits;
    uint32_t word;
    float x;

    if (type != CUDA_R_16BF)
        return (float)oracle_get(dtype_of(type), p, i);
    memcpy(&bits, p + 2 * i, sizeof bits);
    word = (uint32_t)bits << 16;
    memcpy(&x, &word, sizeof x);
    return x;
}

static void put(unsigned char *p, cudaDataType_t type, int64_t i, float x)
{
    oracle_put(dtype_of(type), p, i, x);
}

/* Writes op(matrix) as floats, one sum's terms side by side: `lines` lines of k. */
static void unpack(float *out, const unsigned char *p, const matrix *m, bool k_is_row, uint64_t lines, uint64_t k)
{
    for (uint64_t line = 0; line < lines; line++)
        for (uint64_t l = 0; l < k; l++)
            out[line * k + l] =
                get(p, m->type, (int64_t)(k_is_row ? l + line * (uint64_t)m->ld : line + l * (uint64_t)m->ld));
}

/* Adds up each of the lines that an operand was unpacked to. */
static void add_up(const task *t, const float *lines)
{
    const call *c = &t->call;
    uint64_t count = c->product.epilogue == CUBLASLT_EPILOGUE_BGRADA ? c->m : c->n;

    for (uint64_t i = 0; i < count; i++) {
        float sum = 0;

        for (uint64_t l = 0; l < c->k; l++)
            sum += lines[i * c->k + l];
        put(t->bias, c->d.type, (int64_t)i, sum);
    }
}

static void multiply(const task *t, int32_t of_batch, float *a, float *b)
{
    const call *c = &t->call;
    const unsigned char *a_at = t->a + (size_t)(of_batch * c->a.batch_stride) * type_size(c->a.type);
    const unsigned char *b_at = t->b + (size_t)(of_batch * c->b.batch_stride) * type_size(c->b.type);
    unsigned char *d_at = t->d + (size_t)(of_batch * c->d.batch_stride) * type_size(c->d.type);

    unpack(a, a_at, &c->a, c->product.trans_a == CUBLAS_OP_T, c->m, c->k);
    unpack(b, b_at, &c->b, c->product.trans_b == CUBLAS_OP_N, c->n, c->k);
    for (uint64_t j = 0; j < c->n; j++)
        for (uint64_t i = 0; i < c->m; i++) {
            int64_t at = (int64_t)i + (int64_t)j * c->d.ld;
            float sum = 0;

            for (uint64_t l = 0; l < c->k; l++)
                sum += a[i * c->k + l] * b[j * c->k + l];
            sum *= t->alpha;
            sum += t->beta != 0 ? t->beta * get(d_at, c->d.type, at) : 0;
            sum += t->bias && !sums(c) ? get(t->bias, c->d.type, (int64_t)i) : 0;
            put(d_at, c->d.type, at, sum);
        }
    if (sums(c))
        add_up(t, c->product.epilogue == CUBLASLT_EPILOGUE_BGRADA ? a : b);
}

static void run(const void *argument)
{
    const task *t = argument;
    const call *c = &t->call;
    /* Sums must not depend on where these lie. */
    float *a = aligned_alloc(64, (size_t)(c->m * c->k + 16) / 16 * 64);
    float *b = aligned_alloc(64, (size_t)(c->n * c->k + 16) / 16 * 64);

    if (!a || !b)
        abort();
    if (t->workspace)
        memset(t->workspace, 0xff, t->workspace_bytes);
    for (int32_t i = 0; i < c->d.batch; i++)
        multiply(t, i, a, b);
    free(a);
    free(b);
}

static bool is_aligned(const void *pointer, uint32_t alignment)
{
    return (uintptr_t)pointer % alignment == 0;
}

/* Moves a pointer to where the stream finds it; NULL: it is no memory of the stream's device. */
static void *reach(cudaStream_t stream, const void *pointer)
{
    fake_place place = fake_find(pointer, 1);

    return place.found && place.kind <= FAKE_DEVICE_MEMORY_OF_STREAM && place.device == fake_stream_device(stream)
               ? place.mapped
               : NULL;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_desc, const void *b, cublasLtMatrixLayout_t b_desc,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_desc, void *d,
                              cublasLtMatrixLayout_t d_desc, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const algorithm *chosen = (const algorithm *)(const void *)algo;
    bool has_bias;
    cublasStatus_t status;
    task t;

    BLAS_BEGIN(cublasLtMatmul);
    if (!handle || !fake_is_stream(stream) || c != d)
        return CUBLAS_STATUS_INVALID_VALUE;
    status = make_call(desc, a_desc, b_desc, c_desc, d_desc, &t.call);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    has_bias = t.call.product.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    if (chosen->call != number_of(&t.call) || !is_aligned(a, chosen->alignment[0]) ||
        !is_aligned(b, chosen->alignment[1]) || !is_aligned(d, chosen->alignment[3]) ||
        (has_bias && !is_aligned(t.call.product.bias, chosen->bias_alignment)) ||
        workspace_bytes < chosen->workspace_bytes || (chosen->workspace_bytes && !is_aligned(workspace, 256)))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&t.alpha, alpha, sizeof t.alpha);
    memcpy(&t.beta, beta, sizeof t.beta);
    t.a = reach(stream, a);
    t.b = reach(stream, b);
    t.d = reach(stream, d);
    t.bias = has_bias ? reach(stream, t.call.product.bias) : NULL;
    t.workspace = chosen->workspace_bytes ? reach(stream, workspace) : NULL;
    t.workspace_bytes = chosen->workspace_bytes;
    if (!t.a || !t.b || !t.d || (has_bias && !t.bias) || (chosen->workspace_bytes && !t.workspace))
        return CUBLAS_STATUS_INVALID_VALUE;
    return fake_enqueue_recorded(stream, FAKE_RUNS_KERNEL, 0, run, &t, sizeof t) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_ALLOC_FAILED;
}
