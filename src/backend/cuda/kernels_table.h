/* kernels_table.h - the kernels of a CUDA device: own ones (kernels/) and those of libraries. */
#ifndef BACKEND_CUDA_KERNELS_TABLE_H
#define BACKEND_CUDA_KERNELS_TABLE_H

#include "device/kernels.h"

extern const fsdp__kernel_function fsdp__cuda_kernels[FSDP__KERNELS];

#endif
