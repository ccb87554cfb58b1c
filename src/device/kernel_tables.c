/* kernel_tables.c - what is known of each kernel without its device: its name and its arguments, and where they point
 * to a table. */
#include "device/kernels.h"

const fsdp__kernel_info fsdp__kernel_infos[FSDP__KERNELS] = {
#define KERNEL_INFO(NAME, name, class) {#name, sizeof(fsdp__##name##_args), FSDP__KERNEL_CLASS_##class},
    FSDP__KERNEL_MAP(KERNEL_INFO)
#undef KERNEL_INFO
};

/* Lists the kernels that have a table, and the field that points to it. */
#define TABLES(X)                       \
    X(CAST_SPANS, cast_spans, spans)    \
    X(SPLIT_SPANS, split_spans, spans)  \
    X(REDUCE_RANKS, reduce_ranks, srcs) \
    X(AMAX, amax, spans)                \
    X(QUANTIZE, quantize, spans)        \
    X(DEQUANTIZE, dequantize, spans)    \
    X(POWER_SUM, power_sum, spans)      \
    X(ADAM, adam, spans)                \
    X(SGD, sgd, spans)                  \
    X(LION, lion, spans)                \
    X(BYTE_ADAM, byte_adam, spans)      \
    X(LERP_SPANS, lerp_spans, spans)

size_t fsdp__kernel_table(fsdp__kernel kernel, const void *args, const void **out)
{
    const fsdp__kernel_args *a = args;

    switch (kernel) {
#define CASE(NAME, name, field) \
    case FSDP__KERNEL_##NAME:   \
        *out = a->name.field;   \
        return (size_t)a->name.count * sizeof *a->name.field;
        TABLES(CASE)
#undef CASE
    default:
        *out = NULL;
        return 0;
    }
}

void fsdp__kernel_set_table(fsdp__kernel kernel, void *args, const void *table)
{
    fsdp__kernel_args *a = args;

    switch (kernel) {
#define CASE(NAME, name, field) \
    case FSDP__KERNEL_##NAME:   \
        a->name.field = table;  \
        break;
        TABLES(CASE)
#undef CASE
    default:
        break;
    }
}
