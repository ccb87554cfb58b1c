/* product_algorithms.c - a call as cublasLt's descriptors, and the algorithms that the library has for it. */
#include "backend/cuda/product_algorithms.h"

#include "base/compiler.h"

static cudaDataType_t type_of(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 ? CUDA_R_32F : dtype == FSDP_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static fsdp_status set_operation(const fsdp__cublaslt *lt, cublasLtMatmulDesc_t operation,
                                 cublasLtMatmulDescAttributes_t attribute, int32_t value)
{
    return FSDP__CUBLASLT(lt, MatmulDescSetAttribute, operation, attribute, &value, sizeof value);
}

/* Says how something is aligned: the heuristic looks at nothing else of its address. 0: there is nothing. */
static fsdp_status set_place(const fsdp__cublaslt *lt, cublasLtMatmulDesc_t operation,
                             cublasLtMatmulDescAttributes_t attribute, int32_t alignment)
{
    const void *like = (const void *)(uintptr_t)alignment;

    return alignment == 0 ? FSDP_OK
                          : FSDP__CUBLASLT(lt, MatmulDescSetAttribute, operation, attribute, &like, sizeof like);
}

/* Sums are in f32, of f32 operands without TF32. */
static fsdp_status make_operation(const fsdp__cublaslt *lt, const fsdp__product_call *call, cublasLtMatmulDesc_t *out)
{
    static const int32_t epilogues[] = {[FSDP__EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
                                        [FSDP__EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
                                        [FSDP__EPILOGUE_SUMS_OF_FIRST] = CUBLASLT_EPILOGUE_BGRADA,
                                        [FSDP__EPILOGUE_SUMS_OF_SECOND] = CUBLASLT_EPILOGUE_BGRADB,
                                        [FSDP__EPILOGUE_GELU] = CUBLASLT_EPILOGUE_GELU,
                                        [FSDP__EPILOGUE_GELU_BIAS] = CUBLASLT_EPILOGUE_GELU_BIAS,
                                        [FSDP__EPILOGUE_GELU_AUX] = CUBLASLT_EPILOGUE_GELU_AUX,
                                        [FSDP__EPILOGUE_GELU_AUX_BIAS] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                        [FSDP__EPILOGUE_DGELU] = CUBLASLT_EPILOGUE_DGELU};

    FSDP_TRY(FSDP__CUBLASLT(lt, MatmulDescCreate, out, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    FSDP_TRY(set_operation(lt, *out, CUBLASLT_MATMUL_DESC_TRANSA, call->first.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    FSDP_TRY(set_operation(lt, *out, CUBLASLT_MATMUL_DESC_TRANSB, call->second.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (call->epilogue == FSDP__EPILOGUE_NONE)
        return FSDP_OK;
    FSDP_TRY(set_operation(lt, *out, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[call->epilogue]));
    FSDP_TRY(set_place(lt, *out, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->bias_alignment));
    if (call->aux_alignment == 0)
        return FSDP_OK;
    FSDP_TRY(FSDP__CUBLASLT(lt, MatmulDescSetAttribute, *out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &call->out.ld,
                            sizeof call->out.ld));
    return set_place(lt, *out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call->aux_alignment);
}

static fsdp_status make_layout(const fsdp__cublaslt *lt, const fsdp__product_matrix *matrix, int32_t batch,
                               cublasLtMatrixLayout_t *out)
{
    FSDP_TRY(FSDP__CUBLASLT(lt, MatrixLayoutCreate, out, type_of(matrix->dtype), (uint64_t)matrix->rows,
                            (uint64_t)matrix->cols, matrix->ld));
    if (batch == 1)
        return FSDP_OK;
    FSDP_TRY(
        FSDP__CUBLASLT(lt, MatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    return FSDP__CUBLASLT(lt, MatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                          &matrix->batch, sizeof matrix->batch);
}

static fsdp_status set_preference(const fsdp__cublaslt *lt, const fsdp__product_call *call, int alignment,
                                  cublasLtMatmulPreference_t preference)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } words[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)(alignment ? alignment : call->first.alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)(alignment ? alignment : call->second.alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)(alignment ? alignment : call->out.alignment)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)(alignment ? alignment : call->out.alignment)},
    };
    const uint64_t most = FSDP__PRODUCT_WORKSPACE;

    for (size_t i = 0; i < FSDP__COUNT_OF(words); i++)
        FSDP_TRY(FSDP__CUBLASLT(lt, MatmulPreferenceSetAttribute, preference, words[i].attribute, &words[i].value,
                                sizeof words[i].value));
    return FSDP__CUBLASLT(lt, MatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                          sizeof most);
}

fsdp_status fsdp__product_describe(const fsdp__cublaslt *lt, const fsdp__product_call *call,
                                   fsdp__product_descriptors *out)
{
    *out = (fsdp__product_descriptors){.operation = NULL};
    FSDP_TRY(make_operation(lt, call, &out->operation));
    FSDP_TRY(make_layout(lt, &call->first, call->batch, &out->first));
    FSDP_TRY(make_layout(lt, &call->second, call->batch, &out->second));
    return make_layout(lt, &call->out, call->batch, &out->out);
}

void fsdp__product_descriptors_release(const fsdp__cublaslt *lt, fsdp__product_descriptors *d)
{
    const cublasLtMatrixLayout_t layouts[] = {d->first, d->second, d->out};

    if (d->operation)
        (void)lt->MatmulDescDestroy(d->operation);
    for (size_t i = 0; i < FSDP__COUNT_OF(layouts); i++)
        if (layouts[i])
            (void)lt->MatrixLayoutDestroy(layouts[i]);
    *d = (fsdp__product_descriptors){.operation = NULL};
}

/* ---- algorithms ---- */

fsdp_status fsdp__product_heuristic(const fsdp__cublaslt *lt, const fsdp__product_call *call,
                                    const fsdp__product_descriptors *d, int alignment, int most,
                                    cublasLtMatmulHeuristicResult_t *results, int *count)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t answer;
    fsdp_status status;

    *count = 0;
    FSDP_TRY(FSDP__CUBLASLT(lt, MatmulPreferenceCreate, &preference));
    FSDP_TRY_GOTO(status, set_preference(lt, call, alignment, preference), out);
    answer = lt->MatmulAlgoGetHeuristic(lt->handle, d->operation, d->first, d->second, d->out, d->out, preference, most,
                                        results, count);
    if (answer != CUBLAS_STATUS_SUCCESS)
        *count = 0;
    if (answer != CUBLAS_STATUS_NOT_SUPPORTED && answer != CUBLAS_STATUS_INVALID_VALUE) /* it has none */
        FSDP_TRY_GOTO(status, fsdp__cublaslt_status(lt, answer, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__),
                      out);
out:
    (void)lt->MatmulPreferenceDestroy(preference);
    return status;
}

/* Lists where the numbers of an algorithm are, except its id. */
#define NUMBERS(a)                                                                          \
    {                                                                                       \
        {CUBLASLT_ALGO_CONFIG_TILE_ID, &(a)->tile, sizeof(a)->tile},                        \
            {CUBLASLT_ALGO_CONFIG_STAGES_ID, &(a)->stages, sizeof(a)->stages},              \
            {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &(a)->split_k, sizeof(a)->split_k},           \
            {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &(a)->reduction, sizeof(a)->reduction}, \
            {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &(a)->swizzle, sizeof(a)->swizzle},        \
            {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &(a)->custom, sizeof(a)->custom},          \
            {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &(a)->inner, sizeof(a)->inner},           \
            {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &(a)->cluster, sizeof(a)->cluster},     \
    }

bool fsdp__product_algorithm_make(const fsdp__cublaslt *lt, const fsdp__product_call *call,
                                  const fsdp__product_descriptors *d, const fsdp__product_algorithm *numbers,
                                  cublasLtMatmulHeuristicResult_t *out)
{
    const struct {
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        const void *value;
        size_t bytes;
    } all[] = NUMBERS(numbers);
    cudaDataType_t in = type_of(call->first.dtype), to = type_of(call->out.dtype);
    cublasLtMatmulAlgo_t made;

    if ((numbers->reduction & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 ||
        lt->MatmulAlgoInit(lt->handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, to, to, numbers->id, &made) !=
            CUBLAS_STATUS_SUCCESS)
        return false;
    for (size_t i = 0; i < FSDP__COUNT_OF(all); i++)
        if (lt->MatmulAlgoConfigSetAttribute(&made, all[i].attribute, all[i].value, all[i].bytes) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    *out = (cublasLtMatmulHeuristicResult_t){.algo = made};
    if (lt->MatmulAlgoCheck(lt->handle, d->operation, d->first, d->second, d->out, d->out, &made, out) !=
        CUBLAS_STATUS_SUCCESS)
        return false;
    out->algo = made; /* the check leaves it as it was */
    return out->workspaceSize <= FSDP__PRODUCT_WORKSPACE;
}

bool fsdp__product_algorithm_read(const fsdp__cublaslt *lt, const cublasLtMatmulAlgo_t *algorithm,
                                  fsdp__product_algorithm *out)
{
    const struct {
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        void *value;
        size_t bytes;
    } all[] = NUMBERS(out);
    size_t written;

    *out = (fsdp__product_algorithm){.id = 0};
    if (lt->MatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_ID, &out->id, sizeof out->id, &written) !=
        CUBLAS_STATUS_SUCCESS)
        return false;
    for (size_t i = 0; i < FSDP__COUNT_OF(all); i++)
        if (lt->MatmulAlgoConfigGetAttribute(algorithm, all[i].attribute, all[i].value, all[i].bytes, &written) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    return true;
}
