/* swish.h - an operation as a user writes one, with the public headers alone: x sigmoid(slope x), fused, by kernels on
 * pointers. */
#pragma once

#include "fsdp/ops.h"

/* x (...,C), slope (C), of one floating dtype  ->  (...,C) */
fsdp_tensor *swish(fsdp_tensor *x, fsdp_tensor *slope);
/* How often the forward's kernel has run, on any thread. */
int swish_runs(void);
