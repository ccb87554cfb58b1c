/* kernels_table.h - the CPU's kernels by instruction set. Programs use fsdp__cpu_kernels (device/backend.h), which
 * takes the best set the processor has; tests and benchmarks walk all of them. */
#pragma once

#include "device/backend.h"

typedef enum fsdp__cpu_isa {
    FSDP__CPU_BASE, /* what every processor of the architecture has (SSE2) */
    FSDP__CPU_V3,   /* x86-64-v3: AVX2, FMA */
    FSDP__CPU_V4,   /* x86-64-v4: AVX-512 F, BW, CD, DQ, VL */
    FSDP__CPU_ISAS
} fsdp__cpu_isa;

/* Returns the best set that this processor can run and this binary has. */
fsdp__cpu_isa fsdp__cpu_best_isa(void);
const char *fsdp__cpu_isa_name(fsdp__cpu_isa isa);
/* Returns FSDP__KERNELS functions, or NULL if this processor cannot run them or this binary lacks them. */
const fsdp__kernel_function *fsdp__cpu_isa_kernels(fsdp__cpu_isa isa);
