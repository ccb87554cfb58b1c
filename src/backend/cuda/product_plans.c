/* product_plans.c - a cache of calls of cublasLt, by what they are but for their pointers.
 *
 * [Note: same algorithm]
 * The algorithm is the first that cublasLt's heuristic gives, which knows the card and the call; nothing is timed, so a
 * call has the same algorithm in every run. Of the ways to share a sum among blocks only that is allowed in which a
 * second step adds the parts in order, in f32: adding in place depends on who comes first. */
#include "backend/cuda/product_plans.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/hash.h"

enum {
    MOST_PLANS = 4096, /* then all are dropped: of a run whose shapes never come again */
    WORKSPACE_BYTES = 32 << 20
};

fsdp_status fsdp__cublaslt_status(const fsdp__cublaslt *lt, cublasStatus_t answer, const char *name, const char *file,
                                  int line)
{
    if (answer == CUBLAS_STATUS_SUCCESS)
        return FSDP_OK;
    return fsdp_fail(answer == CUBLAS_STATUS_ALLOC_FAILED ? FSDP_NO_MEMORY : FSDP_UNSUPPORTED, file, line,
                     "%s failed: %s", name, lt->GetStatusString(answer));
}

static cudaDataType_t type_of(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 ? CUDA_R_32F : dtype == FSDP_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static fsdp_status set_operation(const fsdp__cublaslt *lt, cublasLtMatmulDesc_t operation,
                                 cublasLtMatmulDescAttributes_t attribute, int32_t value)
{
    return FSDP__CUBLASLT(lt, MatmulDescSetAttribute, operation, attribute, &value, sizeof value);
}

/* Sums are in f32, of f32 operands without TF32. */
static fsdp_status make_operation(fsdp__product_plan *plan, const fsdp__cublaslt *lt)
{
    const fsdp__product_call *call = &plan->call;
    static const int32_t epilogues[] = {[FSDP__SUMS_OF_NONE] = CUBLASLT_EPILOGUE_BIAS,
                                        [FSDP__SUMS_OF_FIRST] = CUBLASLT_EPILOGUE_BGRADA,
                                        [FSDP__SUMS_OF_SECOND] = CUBLASLT_EPILOGUE_BGRADB};
    const void *like = (const void *)(uintptr_t)call->bias_alignment; /* the heuristic looks at its alignment only */

    FSDP_TRY(FSDP__CUBLASLT(lt, MatmulDescCreate, &plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    FSDP_TRY(set_operation(lt, plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                           call->first.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    FSDP_TRY(set_operation(lt, plan->operation, CUBLASLT_MATMUL_DESC_TRANSB,
                           call->second.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (call->bias_alignment == 0)
        return FSDP_OK;
    FSDP_TRY(set_operation(lt, plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[call->sums]));
    return FSDP__CUBLASLT(lt, MatmulDescSetAttribute, plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &like,
                          sizeof like);
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

static fsdp_status set_preference(const fsdp__product_call *call, const fsdp__cublaslt *lt,
                                  cublasLtMatmulPreference_t preference)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } words[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)call->first.alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)call->second.alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)call->out.alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)call->out.alignment},
    };
    const uint64_t most = WORKSPACE_BYTES;

    for (size_t i = 0; i < FSDP__COUNT_OF(words); i++)
        FSDP_TRY(FSDP__CUBLASLT(lt, MatmulPreferenceSetAttribute, preference, words[i].attribute, &words[i].value,
                                sizeof words[i].value));
    return FSDP__CUBLASLT(lt, MatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                          sizeof most);
}

/* [Note: same algorithm] */
static fsdp_status choose(fsdp__product_plan *plan, const fsdp__cublaslt *lt, cublasLtHandle_t handle)
{
    cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_NOT_SUPPORTED};
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t answer;
    fsdp_status status;
    int count = 0;

    FSDP_TRY(FSDP__CUBLASLT(lt, MatmulPreferenceCreate, &preference));
    FSDP_TRY_GOTO(status, set_preference(&plan->call, lt, preference), out);
    answer = lt->MatmulAlgoGetHeuristic(handle, plan->operation, plan->first, plan->second, plan->out, plan->out,
                                        preference, 1, &result, &count);
    if (answer != CUBLAS_STATUS_NOT_SUPPORTED && answer != CUBLAS_STATUS_INVALID_VALUE) /* it has none */
        FSDP_TRY_GOTO(status, fsdp__cublaslt_status(lt, answer, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__),
                      out);
    plan->taken = answer == CUBLAS_STATUS_SUCCESS && count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    plan->algorithm = result.algo;
    plan->workspace_bytes = result.workspaceSize;
out:
    (void)lt->MatmulPreferenceDestroy(preference);
    return status;
}

static void free_plan(fsdp__product_plan *plan, const fsdp__cublaslt *lt)
{
    if (plan->operation)
        (void)lt->MatmulDescDestroy(plan->operation);
    if (plan->first)
        (void)lt->MatrixLayoutDestroy(plan->first);
    if (plan->second)
        (void)lt->MatrixLayoutDestroy(plan->second);
    if (plan->out)
        (void)lt->MatrixLayoutDestroy(plan->out);
    fsdp__free(plan);
}

static fsdp_status make_plan(const fsdp__cublaslt *lt, cublasLtHandle_t handle, const fsdp__product_call *call,
                             fsdp__product_plan **out)
{
    fsdp__product_plan *plan = fsdp__calloc(1, sizeof *plan);
    fsdp_status status;

    *out = NULL;
    if (!plan)
        return FSDP_NO_MEMORY;
    plan->call = *call;
    FSDP_TRY_GOTO(status, make_operation(plan, lt), out);
    FSDP_TRY_GOTO(status, make_layout(lt, &call->first, call->batch, &plan->first), out);
    FSDP_TRY_GOTO(status, make_layout(lt, &call->second, call->batch, &plan->second), out);
    FSDP_TRY_GOTO(status, make_layout(lt, &call->out, call->batch, &plan->out), out);
    FSDP_TRY_GOTO(status, choose(plan, lt, handle), out);
    *out = plan;
    return FSDP_OK;
out:
    free_plan(plan, lt);
    return status;
}

void fsdp__product_plans_drop(fsdp__product_plans *plans, const fsdp__cublaslt *lt)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(plans->lists); i++)
        while (plans->lists[i]) {
            fsdp__product_plan *plan = plans->lists[i];

            plans->lists[i] = plan->next;
            free_plan(plan, lt);
        }
    plans->count = 0;
}

fsdp_status fsdp__product_plan_of(fsdp__product_plans *plans, const fsdp__cublaslt *lt, cublasLtHandle_t handle,
                                  const fsdp__product_call *call, fsdp__product_plan **out)
{
    uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, call, sizeof *call);
    fsdp__product_plan **list = &plans->lists[hash % FSDP__COUNT_OF(plans->lists)];

    for (*out = *list; *out; *out = (*out)->next)
        if (memcmp(&(*out)->call, call, sizeof *call) == 0)
            return FSDP_OK;
    if (plans->count == MOST_PLANS)
        fsdp__product_plans_drop(plans, lt);
    FSDP_TRY(make_plan(lt, handle, call, out));
    (*out)->next = *list;
    *list = *out;
    plans->count++;
    return FSDP_OK;
}
