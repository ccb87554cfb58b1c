/* kernel_visits.h - what the functions of kernel_buffers.c are made of, and those that lie in files of their own. */
#pragma once

#include "device/kernel_buffers.h"

/* Holds the visiting function. Each kernel's function puts its answers into the arguments. */
typedef struct visitor {
    fsdp__buffer_visit visit;
    void *arg;
} visitor;

static inline void *visit(const visitor *v, const char *name, const void *pointer, size_t bytes, fsdp__access access)
{
    const fsdp__buffer buffer = {name, pointer, bytes, access};

    return pointer && bytes > 0 ? v->visit(v->arg, &buffer) : (void *)(uintptr_t)pointer;
}

#define READS(field, bytes) a->field = visit(v, #field, a->field, (bytes), FSDP__READS)
#define WRITES(field, bytes) a->field = visit(v, #field, a->field, (bytes), FSDP__WRITES)
#define CHANGES(field, bytes) a->field = visit(v, #field, a->field, (bytes), FSDP__READS_AND_WRITES)
/* Visits a field that is added to (`adds`) or replaced. */
#define ADDS(field, bytes, adds) \
    a->field = visit(v, #field, a->field, (bytes), (adds) ? FSDP__READS_AND_WRITES : FSDP__WRITES)

static inline size_t elements(fsdp_dtype dtype, int64_t numel)
{
    return numel > 0 ? (size_t)numel * fsdp_dtype_size(dtype) : 0;
}

/* ---- kernel_buffers_optim.c ---- */

void fsdp__visit_power_sum(fsdp__power_sum_args *a, const visitor *v);
void fsdp__visit_judge_step(fsdp__judge_step_args *a, const visitor *v);
void fsdp__visit_adam(fsdp__adam_args *a, const visitor *v);
void fsdp__visit_sgd(fsdp__sgd_args *a, const visitor *v);
void fsdp__visit_lion(fsdp__lion_args *a, const visitor *v);
void fsdp__visit_byte_adam(fsdp__byte_adam_args *a, const visitor *v);
void fsdp__visit_lerp_spans(fsdp__lerp_spans_args *a, const visitor *v);
