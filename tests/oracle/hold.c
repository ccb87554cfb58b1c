/* hold.c - every kernel, every dtype. */
#include "oracle/hold.h"

#include "backend/cpu/kernels_table.h"
#include "oracle/cases.h"

#define ORACLE_CASE(NAME, name, class) [FSDP__KERNEL_##NAME] = name##_case,
static void (*const makers[FSDP__KERNELS])(test_case *) = {FSDP__KERNEL_MAP(ORACLE_CASE)};
#undef ORACLE_CASE

void oracle_hold_kernel(fsdp_stream *stream, const oracle_table *tables, int count, int rounds, fsdp__kernel kernel)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

    for (int round = 0; round < rounds; round++)
        for (size_t t = 0; t < FSDP__COUNT_OF(types); t++) {
            test_case c = {.stream = stream,
                           .tables = tables,
                           .table_count = count,
                           .key = fsdp__rng_key((uint64_t)round, fsdp__kernel_infos[kernel].name) + t,
                           .dtype = types[t],
                           .kernel = kernel};
            makers[kernel](&c);
        }
}

void oracle_hold(fsdp_stream *stream, const oracle_table *tables, int count, int rounds)
{
    for (fsdp__kernel kernel = 0; kernel < FSDP__KERNELS; kernel++)
        oracle_hold_kernel(stream, tables, count, rounds, kernel);
}

const oracle_table *oracle_bits(fsdp__kernel kernel)
{
    static oracle_table table = {.name = "cpu", .most_threads = 1};

    table.kernels = fsdp__cpu_isa_kernels(FSDP__CPU_BASE);
    switch (kernel) {
    case FSDP__KERNEL_COPY:
    case FSDP__KERNEL_FILL:
    case FSDP__KERNEL_WHERE:
    case FSDP__KERNEL_DROPOUT:
    case FSDP__KERNEL_CAST_SPANS:
    case FSDP__KERNEL_SPLIT_SPANS:
    case FSDP__KERNEL_REDUCE_RANKS:
    case FSDP__KERNEL_AMAX:
    case FSDP__KERNEL_QUANTIZE:
    case FSDP__KERNEL_DEQUANTIZE:
    case FSDP__KERNEL_POOL_BACKWARD:
        return &table;
    case FSDP__KERNEL_ADAM:
    case FSDP__KERNEL_SGD:
#if defined(__x86_64__) && !defined(__FMA__)
        return &table;
#else
        return NULL; /* the CPU joins products with the sums that they go into */
#endif
    default:
        return NULL;
    }
}
