/* fake_blas_run.c - the products of the fake cublasLt. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake_blas.h"
#include "oracle/oracle.h"

/* A call with what it is of, as the stream finds it. */
typedef struct task {
    call call;
    float alpha, beta;
    const unsigned char *a, *b;
    unsigned char *bias, *aux;
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

/* Takes a result through GELU in its tanh form, or multiplies it by the derivative. */
static float with_gelu(const task *t, float sum, int64_t at)
{
    const call *c = &t->call;
    bool gradient = c->product.epilogue == CUBLASLT_EPILOGUE_DGELU;
    double x = (double)(gradient ? get(t->aux, c->d.type, at) : sum), slope = sqrt(2.0 / M_PI);
    double y = tanh(slope * (x + 0.044715 * x * x * x));

    if (gradient)
        return (float)((double)sum *
                       (0.5 * (1.0 + y) + 0.5 * x * (1.0 - y * y) * slope * (1.0 + 3.0 * 0.044715 * x * x)));
    if (has_aux(c))
        put(t->aux, c->d.type, at, sum);
    return (float)(0.5 * x * (1.0 + y));
}

/* Adds up the products of two lines that unpack() has written. This takes longest of all here, in memory that is not
 * the caller's: no sanitizer watches it. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static float dot(const float *a, const float *b,
                                                                                uint64_t k)
{
    float sum = 0;

    for (uint64_t l = 0; l < k; l++)
        sum += a[l] * b[l];
    return sum;
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
            float sum = t->alpha * dot(a + i * c->k, b + j * c->k, c->k);

            sum += t->beta != 0 ? t->beta * get(d_at, c->d.type, at) : 0;
            sum += t->bias && !sums(c) ? get(t->bias, c->d.type, (int64_t)i) : 0;
            if (has_gelu(c))
                sum = with_gelu(t, sum, (int64_t)i + (int64_t)j * c->product.aux_ld);
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
    algorithm chosen;
    bool has_bias;
    cublasStatus_t status;
    task t;

    BLAS_BEGIN(cublasLtMatmul);
    if (!handle || !fake_is_stream(stream) || c != d)
        return CUBLAS_STATUS_INVALID_VALUE;
    status = fake_blas_call(desc, a_desc, b_desc, c_desc, d_desc, &t.call);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    has_bias = has_vector(&t.call);
    if (!fake_blas_settle(&t.call, algo, &chosen) || !is_aligned(a, chosen.alignment[0]) ||
        !is_aligned(b, chosen.alignment[1]) || !is_aligned(d, chosen.alignment[3]) ||
        (has_bias && !is_aligned(t.call.product.bias, chosen.bias_alignment)) ||
        (has_aux(&t.call) && !is_aligned(t.call.product.aux, chosen.aux_alignment)) ||
        workspace_bytes < chosen.workspace_bytes || (chosen.workspace_bytes && !is_aligned(workspace, 256)))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&t.alpha, alpha, sizeof t.alpha);
    memcpy(&t.beta, beta, sizeof t.beta);
    t.a = reach(stream, a);
    t.b = reach(stream, b);
    t.d = reach(stream, d);
    t.bias = has_bias ? reach(stream, t.call.product.bias) : NULL;
    t.aux = has_aux(&t.call) ? reach(stream, t.call.product.aux) : NULL;
    t.workspace = chosen.workspace_bytes ? reach(stream, workspace) : NULL;
    t.workspace_bytes = chosen.workspace_bytes;
    if (!t.a || !t.b || !t.d || (has_bias && !t.bias) || (has_aux(&t.call) && !t.aux) ||
        (chosen.workspace_bytes && !t.workspace))
        return CUBLAS_STATUS_INVALID_VALUE;
    return fake_enqueue_recorded(stream, FAKE_RUNS_KERNEL, 0, run, &t, sizeof t) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_ALLOC_FAILED;
}
