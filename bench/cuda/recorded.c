/* recorded.c - the products of a model's step, from a step that is not computed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/probe.h"
#include "cuda/products.h"
#include "device/kernels.h"
#include "fsdp/comm.h"
#include "train/run.h"

typedef struct recorder {
    step_products *products;
    int model;
    fsdp_status status;
} recorder;

double flops_of(const fsdp__product_call *call)
{
    int64_t k = call->first.transposed ? call->first.rows : call->first.cols;

    return 2.0 * (double)call->out.rows * (double)call->out.cols * (double)k * call->batch;
}

static fsdp_status find(recorder *r, const fsdp__product_call *call, step_product **out)
{
    step_products *p = r->products;
    step_product *at = p->list;

    while (at < p->list + p->count && (at->model != r->model || memcmp(&at->call, call, sizeof *call) != 0))
        at++;
    if (at == p->list + p->count) {
        FSDP_TRY(fsdp__grow(&p->list, p->count, &p->capacity, sizeof *p->list));
        at = &p->list[p->count++];
        *at = (step_product){.call = *call, .model = r->model};
    }
    *out = at;
    return FSDP_OK;
}

/* Notes a product. One that takes GELU along has one beside it that does not, which a step has 0 times: what GELU costs
 * there shows whether it is worth it. */
static fsdp_status note(recorder *r, const fsdp__matmul_args *args)
{
    fsdp__matmul_args plain = *args;
    fsdp__product_call call;
    step_product *at;

    if (!fsdp__product_call_of(args, &call))
        return FSDP_OK; /* our own kernel's */
    FSDP_TRY(find(r, &call, &at));
    at->times++;
    at->added += args->accumulate;
    if (!args->gelu)
        return FSDP_OK;
    plain.gelu = FSDP__PRODUCT_PLAIN;
    plain.before = NULL;
    return fsdp__product_call_of(&plain, &call) ? find(r, &call, &at) : FSDP_OK;
}

static fsdp_status hear(void *arg, fsdp__probe_event *e)
{
    recorder *r = arg;

    if (e->kind == FSDP__KERNEL_MATMUL && r->status == FSDP_OK)
        r->status = note(r, e->object);
    return FSDP_OK;
}

static fsdp_status set_model(fsdp_train_config *config, const char *model)
{
    char name[64], batch[24], length[24];
    const char *const settings[][2] = {{"model.preset", name},
                                       {"training.local_batch_size", batch},
                                       {"training.seq_len", length},
                                       {"model.max_seq_len", length},
                                       {"model.tie_word_embeddings", "false"},
                                       {"training.mixed_precision_param", "bfloat16"},
                                       {"training.device", "cuda"}};

    if (sscanf(model, "%63[^:]:%23[0-9]x%23[0-9]", name, batch, length) != 3)
        return FSDP_FAIL(FSDP_INVALID, "'%s' is no model with a batch: expected one as llama-1b:8x2048", model);
    for (size_t i = 0; i < FSDP__COUNT_OF(settings); i++)
        FSDP_TRY(fsdp_train_config_set(config, settings[i][0], settings[i][1]));
    return FSDP_OK;
}

/* Takes steps until they are alike, and records the next one. */
static fsdp_status run_steps(recorder *r, fsdp_context *context, fsdp_train_config *config)
{
    fsdp_train_run *run = NULL;
    fsdp__subscriber *subscriber;
    fsdp_status status;

    FSDP_TRY(fsdp__train_run_create_dry(context, config, NULL, &run));
    FSDP_TRY_GOTO(status, fsdp_train_step(run, NULL), out);
    FSDP_TRY_GOTO(status, fsdp_train_step(run, NULL), out);
    subscriber = fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED), hear, r);
    status = subscriber ? fsdp_train_step(run, NULL) : FSDP_NO_MEMORY;
    fsdp__unsubscribe(subscriber);
out:
    fsdp_train_run_free(run);
    return status == FSDP_OK ? r->status : status;
}

static int by_flops(const void *a, const void *b)
{
    const step_product *x = a, *y = b;
    double left = flops_of(&x->call) * (double)(x->times + 1), right = flops_of(&y->call) * (double)(y->times + 1);

    if (x->model != y->model)
        return x->model < y->model ? -1 : 1;
    return (left < right) - (left > right);
}

void record_products(step_products *products, const char *model, int number)
{
    recorder r = {.products = products, .model = number};
    fsdp_train_config *config = NULL;
    fsdp_context *context = NULL;
    fsdp_status status = fsdp_train_config_create(&config);

    if (status == FSDP_OK)
        status = set_model(config, model);
    if (status == FSDP_OK)
        status = fsdp_context_create_fake(0, 1, &context);
    if (status == FSDP_OK)
        status = run_steps(&r, context, config);
    if (status != FSDP_OK)
        fail(model);
    fsdp_context_free(context);
    fsdp_train_config_free(config);
    qsort(products->list, (size_t)products->count, sizeof *products->list, by_flops);
}
