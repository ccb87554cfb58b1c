/* formulas.cuh - the functions that kernels of the CPU compute too (device/formulas.h), with CUDA's exponentials. */
#ifndef BACKEND_CUDA_FORMULAS_CUH
#define BACKEND_CUDA_FORMULAS_CUH

#include "backend/cuda/kernels/kernel.cuh"

#define FSDP__FORMULA DEVICE
#define fsdp__expf expf
#define fsdp__logf logf
#define fsdp__log1pf log1pf
#define fsdp__tanhf tanhf
#define fsdp__erff erff
#define fsdp__float_bits float_bits
#define fsdp__bits_float bits_float
#include "device/formulas.h"

#endif
