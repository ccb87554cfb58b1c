/* kernels_table.h - the kernels of a CUDA device: own ones (kernels/) and those of libraries. */
#pragma once

#include "device/kernels.h"

extern const fsdp__kernel_function fsdp__cuda_kernels[FSDP__KERNELS];
