/* kernels_table.c - one kernel table for every processor: each entry finds the best set and jumps. */
#include "backend/cpu/kernels_table.h"

extern const fsdp__kernel_function fsdp__cpu_kernels_base[FSDP__KERNELS];
#ifdef FSDP__CPU_HAS_V3
extern const fsdp__kernel_function fsdp__cpu_kernels_v3[FSDP__KERNELS];
#endif
#ifdef FSDP__CPU_HAS_V4
extern const fsdp__kernel_function fsdp__cpu_kernels_v4[FSDP__KERNELS];
#endif

fsdp__cpu_isa fsdp__cpu_best_isa(void)
{
#ifdef FSDP__CPU_HAS_V4
    if (fsdp__cpu_isa_kernels(FSDP__CPU_V4) != NULL)
        return FSDP__CPU_V4;
#endif
#ifdef FSDP__CPU_HAS_V3
    if (fsdp__cpu_isa_kernels(FSDP__CPU_V3) != NULL)
        return FSDP__CPU_V3;
#endif
    return FSDP__CPU_BASE;
}

const char *fsdp__cpu_isa_name(fsdp__cpu_isa isa)
{
    static const char *const names[FSDP__CPU_ISAS] = {"base", "v3", "v4"};

    return names[isa];
}

#if defined(FSDP__CPU_HAS_V3) || defined(FSDP__CPU_HAS_V4)
static bool has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#endif

#ifdef FSDP__CPU_HAS_V4
static bool has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

const fsdp__kernel_function *fsdp__cpu_isa_kernels(fsdp__cpu_isa isa)
{
#ifdef FSDP__CPU_HAS_V4
    if (isa == FSDP__CPU_V4)
        return has_v4() ? fsdp__cpu_kernels_v4 : NULL;
#endif
#ifdef FSDP__CPU_HAS_V3
    if (isa == FSDP__CPU_V3)
        return has_v3() ? fsdp__cpu_kernels_v3 : NULL;
#endif
    return isa == FSDP__CPU_BASE ? fsdp__cpu_kernels_base : NULL;
}

#define BEST(NAME, name, class)                                                                \
    static fsdp_status best_##name(fsdp_stream *stream, const void *args)                      \
    {                                                                                          \
        return fsdp__cpu_isa_kernels(fsdp__cpu_best_isa())[FSDP__KERNEL_##NAME](stream, args); \
    }
FSDP__KERNEL_MAP(BEST)
#undef BEST

#define ENTRY(NAME, name, class) [FSDP__KERNEL_##NAME] = best_##name,
const fsdp__kernel_function fsdp__cpu_kernels[FSDP__KERNELS] = {FSDP__KERNEL_MAP(ENTRY)};
