/* oracle.h - every kernel of device/kernels.h as plainly as possible: one loop nest over doubles each, values fetched
 * and rounded one at a time. They are a table of kernels like a backend's, which backends are held to (oracle/hold.h).
 */
#pragma once

#include "device/kernels.h"

extern const fsdp__kernel_function oracle_kernels[FSDP__KERNELS];

/* The kernels themselves: oracle_matmul(const fsdp__matmul_args *k), ... */
#define ORACLE_KERNEL(NAME, name, class) void oracle_##name(const fsdp__##name##_args *k);
FSDP__KERNEL_MAP(ORACLE_KERNEL)
#undef ORACLE_KERNEL

/* What attention sums up, by size: out, or dq, dk and dv, point to f32 that become the sums of |p v|, |p dout|, |ds q|,
 * |ds k|. */
void oracle_attention_forward_terms(const fsdp__attention_forward_args *k);
void oracle_attention_backward_terms(const fsdp__attention_backward_args *a);

/* An activation, and its derivative. */
double oracle_activate(fsdp__activation kind, double x);
double oracle_derivative(fsdp__activation kind, double x);
/* Element i of memory of a dtype. */
double oracle_get(fsdp_dtype dtype, const void *p, int64_t i);
void oracle_put(fsdp_dtype dtype, void *p, int64_t i, double x);
/* What memory of this dtype makes of x. */
double oracle_round(fsdp_dtype dtype, double x);
/* e4m3: the value of a code, and the code of the value nearest to x. */
double oracle_float8_value(uint8_t code);
uint8_t oracle_float8_code(double x);
