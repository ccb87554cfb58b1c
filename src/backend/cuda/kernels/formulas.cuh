/* formulas.cuh - the functions that kernels of the CPU compute too (device/formulas.h), with CUDA's exponentials; and
 * for activations of 16 bits with shorter ones, in `rough`: 2^x and 1/x are an instruction each. Their error is 2^-20
 * of the result where |x| is below 8, and a rounding to 16 bits is at least 2^-12; a divisor of 2^126 or more gives 0.
 */
#pragma once

#include "backend/cuda/kernels/intrinsics.cuh"

#define FSDP__FORMULA DEVICE
#define fsdp__expf expf
#define fsdp__logf logf
#define fsdp__log1pf log1pf
#define fsdp__tanhf tanhf
#define fsdp__erff erff
#define fsdp__dividef(a, b) ((a) / (b))
#include "device/formulas.h"

#undef fsdp__expf
#undef fsdp__dividef
#define fsdp__expf(x) exp2_fast((x)*1.44269504f)
#define fsdp__dividef(a, b) ((a)*reciprocal_fast(b))
namespace rough
{
#include "device/activations.h"
}
#undef fsdp__expf
#undef fsdp__dividef

/* Calls a function of activations.h for a result that is rounded to T. */
#define FORMULA(T, function, ...) (sizeof(T) == 2 ? rough::function(__VA_ARGS__) : function(__VA_ARGS__))
