/* global.c - finds the rules for distributed tensors, which another layer has left in the context. */
#include "ops/global.h"

#include "base/alloc.h"
#include "base/context.h"
#include "device/device.h"
#include "fsdp/ops.h"

typedef struct holder {
    fsdp__global_rules rules;
} holder;

static const fsdp__global_rules *rules_of(const fsdp_tensor *tensor)
{
    const holder *h = fsdp__context_get(fsdp_device_context(tensor->storage->device), FSDP__SLOT_GLOBAL);

    return &h->rules; /* whoever has set `global` has left them */
}

fsdp_status fsdp__set_global_rules(fsdp_context *context, const fsdp__global_rules *rules)
{
    holder *h;

    FSDP__TRY_NEW(h = fsdp__context_get_or_make(context, FSDP__SLOT_GLOBAL, sizeof *h, fsdp__free));
    h->rules = *rules;
    return FSDP_OK;
}

static const fsdp_tensor *first_global(fsdp_tensor *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (inputs[i] && inputs[i] != FSDP_NO_BIAS && inputs[i]->global)
            return inputs[i];
    return NULL;
}

bool fsdp__is_global(fsdp_tensor *const *inputs, int count)
{
    return first_global(inputs, count);
}

bool fsdp__global_begin(fsdp__global_call *call)
{
    return rules_of(first_global(call->inputs, call->count))->begin(call);
}

fsdp_tensor *fsdp__global_end_two(fsdp__global_call *call, fsdp_tensor *result, fsdp_tensor *second)
{
    fsdp_tensor *results[] = {result, second};
    int count = second ? 2 : result ? 1 : 0;

    for (int i = 0; i < call->count; i++)
        if (call->unmarked & 1u << i) {
            rules_of(call->inputs[i])->end(call, results, count);
            break;
        }
    return results[0] && (count == 0 || results[0]->global) ? results[0] : NULL;
}

fsdp_tensor *fsdp__global_end(fsdp__global_call *call, fsdp_tensor *result)
{
    return fsdp__global_end_two(call, result, NULL);
}

fsdp_tensor *fsdp__global_total(const fsdp__global_call *call, fsdp_tensor *part)
{
    return part ? rules_of(part)->total(call, part) : NULL;
}

const int64_t *fsdp__global_shape(const fsdp_tensor *tensor)
{
    return tensor->global ? rules_of(tensor)->shape(tensor) : tensor->shape;
}

void fsdp__global_refuse(const char *op, const fsdp_tensor *input)
{
    rules_of(input)->refuse(op, input);
}
