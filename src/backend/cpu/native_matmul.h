/* native_matmul.h - products of bf16 matrices on cores that multiply bf16 themselves.
 *
 * A core with AMX multiplies tiles of bf16 at eight times the rate of f32, with f32 sums. On such a core a product of
 * two bf16 matrices goes to oneDNN as it is, and nothing is widened. */
#pragma once

#include "device/kernels.h"

/* Returns whether the cores have AMX for bf16 and the system lets programs use it. */
bool fsdp__has_native_bf16(void);
/* Computes the product, all dtypes f32 or bf16, with f32 sums rounded once. `*done` stays false, and nothing happens,
 * if oneDNN has no code for it: batches, a factor, strides that overlap, dtypes that the cores do not have. */
fsdp_status fsdp__native_matmul(const fsdp__matmul_args *k, bool *done);
