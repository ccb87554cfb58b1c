/* table.c - the kernels of one instruction set. */
#include "backend/cpu/kernels/kernel.h"

extern const fsdp__kernel_function KERNEL(kernels)[FSDP__KERNELS];

#define ENTRY(NAME, name, class) [FSDP__KERNEL_##NAME] = KERNEL(name),
const fsdp__kernel_function KERNEL(kernels)[FSDP__KERNELS] = {FSDP__KERNEL_MAP(ENTRY)};
