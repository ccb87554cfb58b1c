/* kernels_table.c - the table of the device's kernels. */
#include "backend/cuda/kernels_table.h"

#define DECLARE(NAME, name, class) extern fsdp_status fsdp__cuda_##name(fsdp_stream *stream, const void *args);
FSDP__KERNEL_MAP(DECLARE)
#undef DECLARE

#define ENTRY(NAME, name, class) [FSDP__KERNEL_##NAME] = fsdp__cuda_##name,
const fsdp__kernel_function fsdp__cuda_kernels[FSDP__KERNELS] = {FSDP__KERNEL_MAP(ENTRY)};
