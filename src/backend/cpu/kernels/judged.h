/* judged.h - what optimizers' kernels have in common: dtypes of two operands, and verdicts. */
#pragma once

#include "backend/cpu/kernels/dtype.h"
#include "backend/cpu/kernels/kernel.h"

/* Expands to a statement, the last argument, in which P and G are constants that equal the dtypes of parameter and
 * gradient. */
#define EACH_PAIR(param_dtype, grad_dtype, P, G, ...) \
    FSDP__EACH_FLOAT(param_dtype, P, FSDP__EACH_FLOAT(grad_dtype, G, __VA_ARGS__))

/* Holds what [Note: verdicts] makes of a call. */
typedef struct judged {
    bool left_out;
    float grad_scale;
    int64_t step;
} judged;

static inline judged judged_of(const fsdp__verdict *verdict, float grad_scale, int64_t step, bool behind)
{
    if (!verdict)
        return (judged){.grad_scale = grad_scale, .step = step};
    return (judged){verdict->left_out != 0, verdict->scale, step - (behind && verdict->left_out_before)};
}

/* Says what a step of Adam multiplies with, in the plan of a kernel: `k` are its arguments, `by` their verdict. */
#define ADAM_FACTORS(k, by)                                                                                  \
    .grad_scale = (by).grad_scale, .beta2 = (float)(k)->beta2, .one_minus_beta1 = (float)(1.0 - (k)->beta1), \
    .one_minus_beta2 = (float)(1.0 - (k)->beta2),                                                            \
    .step_size = (float)((k)->lr / (1.0 - pow((k)->beta1, (double)(by).step))),                              \
    .root_correction = (float)sqrt(1.0 - pow((k)->beta2, (double)(by).step)),                                \
    .decay_factor = (k)->decoupled ? (float)(1.0 - (k)->lr * (k)->weight_decay) : 1.0f
