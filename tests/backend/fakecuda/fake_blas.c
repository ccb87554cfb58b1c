/* fake_blas.c - cublasLt, as far as the plug-in calls it: libcublasLt.so.13 beside the tests. This file has its
 * objects, and says which products there are.
 *
 * A product is plain loops, on a stream of the runtime (fake_blas_run.c). What the real library refuses, or must not be
 * asked for, is refused: leading dimensions that are too small, sizes and types that do not fit, pointers that are less
 * aligned than the heuristic was told, a workspace that is missing, an algorithm of another product, sums in an order
 * that depends on time. The workspace is overwritten. A product has two or three algorithms, which compute the same. */
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake_blas.h"

static const numbers all_numbers[] = {
    {.id = 61, .tile = 20, .stages = 11, .split_k = 1},
    {.id = 61, .tile = 24, .stages = 11, .split_k = 1, .swizzle = 1, .cluster = 3},
    {.id = 67,
     .tile = 513,
     .stages = 36,
     .split_k = 2,
     .reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
     .custom = 5,
     .inner = 2},
};

_Static_assert(sizeof(product) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");
_Static_assert(sizeof(matrix) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
_Static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "fits");

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

size_t cublasLtGetVersion(void)
{
    return 130999; /* none of the real library */
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
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&p->aux, sizeof p->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&p->aux_ld, sizeof p->aux_ld, value, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
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

static bool fits(const matrix *m)
{
    return m->ld >= (int64_t)m->rows && m->batch >= 1;
}

cublasStatus_t fake_blas_call(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
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
        (has_vector(&made) && bias_type != made.d.type) || (sums(&made) && made.d.batch > 1) ||
        (has_gelu(&made) && (made.d.batch > 1 || made.d.type != made.a.type)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_aux(&made) && (made.product.aux_ld % 8 != 0 || made.product.aux_ld < (int64_t)made.m || !made.product.aux))
        return CUBLAS_STATUS_INVALID_VALUE;
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
                              (uint64_t)c->d.batch,
                              (uint64_t)c->product.aux_ld};
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

/* Returns how many algorithms there are for a call: a short sum is not shared. */
static int count_of(const call *c)
{
    return c->k > 64 ? 3 : 2;
}

static uint32_t workspace_of(const call *c, int i)
{
    return c->k <= 64 || i == 1 ? 0 : 4096u << i;
}

static void set_result(cublasLtMatmulHeuristicResult_t *out, const algorithm *a)
{
    *out = (cublasLtMatmulHeuristicResult_t){.workspaceSize = a->workspace_bytes, .state = CUBLAS_STATUS_SUCCESS};
    memcpy(&out->algo, a, sizeof *a);
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
    status = fake_blas_call(desc, a, b, c, d, &made);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < 4; i++) {
        if (p->alignment[i] < 4)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        chosen.alignment[i] = (uint16_t)p->alignment[i];
    }
    chosen.bias_alignment = (uint16_t)alignment_of(made.product.bias);
    chosen.aux_alignment = (uint16_t)alignment_of(made.product.aux);
    chosen.call = number_of(&made);
    for (int i = 0; i < count_of(&made) && *count < asked; i++) {
        chosen.numbers = all_numbers[i];
        chosen.workspace_bytes = workspace_of(&made, i);
        if (chosen.workspace_bytes <= p->workspace_bytes)
            set_result(&results[(*count)++], &chosen);
    }
    return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- algorithms of numbers ---- */

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
                                      cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int id,
                                      cublasLtMatmulAlgo_t *out)
{
    algorithm made = {.numbers.id = id};

    BLAS_BEGIN(cublasLtMatmulAlgoInit);
    if (!handle || compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F || a != b || c != d)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (id != 61 && id != 67)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    memcpy(out, &made, sizeof made);
    return CUBLAS_STATUS_SUCCESS;
}

/* Returns the place of a number of an algorithm, or NULL. */
static void *number_at(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attribute, size_t *bytes)
{
    numbers *n = &((algorithm *)(uintptr_t)algo)->numbers;
    void *const places[] = {&n->id,     &n->tile,   &n->split_k, &n->reduction, &n->swizzle,
                            &n->custom, &n->stages, &n->inner,   &n->cluster};

    *bytes = attribute >= CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ? sizeof n->inner : sizeof n->id;
    return (size_t)attribute < sizeof places / sizeof *places ? places[attribute] : NULL;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    size_t has;
    void *place = number_at(algo, attribute, &has);

    BLAS_BEGIN(cublasLtMatmulAlgoConfigSetAttribute);
    return place && attribute != CUBLASLT_ALGO_CONFIG_ID ? set(place, has, value, bytes) : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written)
{
    size_t has;
    const void *place = number_at(algo, attribute, &has);

    BLAS_BEGIN(cublasLtMatmulAlgoConfigGetAttribute);
    if (!place || bytes < has)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, place, has);
    *written = has;
    return CUBLAS_STATUS_SUCCESS;
}

bool fake_blas_settle(const call *c, const cublasLtMatmulAlgo_t *algo, algorithm *out)
{
    memcpy(out, algo, sizeof *out);
    if (out->call != 0)
        return out->call == number_of(c);
    for (int i = 0; i < count_of(c); i++)
        if (memcmp(&out->numbers, &all_numbers[i], sizeof out->numbers) == 0) {
            out->workspace_bytes = workspace_of(c, i);
            for (int of = 0; of < 4; of++)
                out->alignment[of] = 16;
            out->bias_alignment = out->aux_alignment = 16;
            return true;
        }
    return false;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    algorithm found;
    cublasStatus_t status;
    call made;

    BLAS_BEGIN(cublasLtMatmulAlgoCheck);
    status = handle ? fake_blas_call(desc, a, b, c, d, &made) : CUBLAS_STATUS_INVALID_VALUE;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!fake_blas_settle(&made, algo, &found))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    set_result(result, &found);
    return CUBLAS_STATUS_SUCCESS;
}
