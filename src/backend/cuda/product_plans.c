/* product_plans.c - a cache of calls of cublasLt, by what they are but for their pointers.
 *
 * [Note: same algorithm]
 * The algorithm is the table's (product_rows.h), or the first that cublasLt's heuristic gives, which knows the card and
 * the call. Nothing is timed, so a call has the same algorithm in every run. */
#include "backend/cuda/product_plans.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/hash.h"

enum {
    MOST_PLANS = 4096 /* then all are dropped: of a run whose shapes never come again */
};

/* Chooses the algorithm, as the note above says. */
static fsdp_status choose(fsdp__product_plans *plans, fsdp__product_plan *plan, const fsdp__cublaslt *lt)
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

static void free_plan(fsdp__product_plan *plan, const fsdp__cublaslt *lt)
{
    fsdp__product_descriptors_release(lt, &plan->descriptors);
    fsdp__free(plan);
}

static fsdp_status make_plan(fsdp__product_plans *plans, const fsdp__cublaslt *lt, const fsdp__product_call *call,
                             fsdp__product_plan **out)
{
    fsdp__product_plan *plan = fsdp__calloc(1, sizeof *plan);
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

fsdp_status fsdp__product_plan_of(fsdp__product_plans *plans, const fsdp__cublaslt *lt, const fsdp__product_call *call,
                                  fsdp__product_plan **out)
{
    uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, call, sizeof *call);
    fsdp__product_plan **list = &plans->lists[hash % FSDP__COUNT_OF(plans->lists)];

    for (*out = *list; *out; *out = (*out)->next)
        if (memcmp(&(*out)->call, call, sizeof *call) == 0)
            return FSDP_OK;
    if (plans->count == MOST_PLANS)
        fsdp__product_plans_drop(plans, lt);
    FSDP_TRY(make_plan(plans, lt, call, out));
    (*out)->next = *list;
    *list = *out;
    plans->count++;
    return FSDP_OK;
}
