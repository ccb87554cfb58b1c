/* kernel_buffers_optim.c - what memory the kernels of optimizers read and write. */
#include "device/kernel_visits.h"

void fsdp__visit_power_sum(fsdp__power_sum_args *a, const visitor *v)
{
    fsdp__span *spans = (fsdp__span *)(uintptr_t)a->spans;

    for (int64_t i = 0; i < a->count; i++)
        spans[i].src = visit(v, "src", spans[i].src, elements(a->dtype, spans[i].numel), FSDP__READS);
    ADDS(sum, sizeof *a->sum, a->accumulate);
    WRITES(largest, sizeof *a->largest);
}

void fsdp__visit_judge_step(fsdp__judge_step_args *a, const visitor *v)
{
    READS(sum, sizeof *a->sum);
    READS(losses, elements(FSDP_F32, a->count));
    CHANGES(verdict, sizeof *a->verdict);
}

/* Split parameters lie in halves of 16 bits each. */
static void optimizer_spans(const fsdp__optimizer_span *table, int64_t count, fsdp_dtype param_dtype,
                            fsdp_dtype grad_dtype, fsdp_dtype copy_dtype, bool split, const visitor *v)
{
    fsdp__optimizer_span *spans = (fsdp__optimizer_span *)(uintptr_t)table;

    for (int64_t i = 0; i < count; i++) {
        fsdp__optimizer_span *a = &spans[i];

        CHANGES(param, elements(split ? FSDP_BF16 : param_dtype, a->numel));
        READS(grad, elements(grad_dtype, a->numel));
        CHANGES(moment1, elements(FSDP_F32, a->numel));
        CHANGES(moment2, elements(FSDP_F32, a->numel));
        ADDS(copy, a->copy ? elements(copy_dtype, a->numel) : 0, split);
    }
}

/* Visits the spans of optimizers that have one kind of span. */
#define STEP(name, split)                                                                            \
    void fsdp__visit_##name(fsdp__##name##_args *a, const visitor *v)                                \
    {                                                                                                \
        optimizer_spans(a->spans, a->count, a->param_dtype, a->grad_dtype, a->copy_dtype, split, v); \
        READS(verdict, sizeof *a->verdict);                                                          \
    }
STEP(adam, a->split)
STEP(sgd, false)
STEP(lion, false)

void fsdp__visit_byte_adam(fsdp__byte_adam_args *args, const visitor *v)
{
    fsdp__byte_span *spans = (fsdp__byte_span *)(uintptr_t)args->spans;

    for (int64_t i = 0; i < args->count; i++) {
        fsdp__byte_span *a = &spans[i];
        int64_t numel = a->rows * a->cols;
        int64_t scales = a->rows * ((a->cols + FSDP__BYTE_BLOCK - 1) / FSDP__BYTE_BLOCK);

        CHANGES(param, elements(args->param_dtype, numel));
        READS(grad, elements(args->grad_dtype, numel));
        CHANGES(codes1, elements(FSDP_U8, numel));
        CHANGES(codes2, elements(FSDP_U8, numel));
        CHANGES(scales1, elements(FSDP_F32, scales));
        CHANGES(scales2, elements(FSDP_F32, scales));
        WRITES(copy, a->copy ? elements(args->copy_dtype, numel) : 0);
    }
    args->verdict = visit(v, "verdict", args->verdict, sizeof *args->verdict, FSDP__READS);
}

void fsdp__visit_lerp_spans(fsdp__lerp_spans_args *args, const visitor *v)
{
    fsdp__span *spans = (fsdp__span *)(uintptr_t)args->spans;

    for (int64_t i = 0; i < args->count; i++) {
        fsdp__span *a = &spans[i];

        READS(src, elements(args->src_dtype, a->numel));
        CHANGES(dst, elements(args->dst_dtype, a->numel));
    }
    args->verdict = visit(v, "verdict", args->verdict, sizeof *args->verdict, FSDP__READS);
}
