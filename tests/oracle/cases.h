/* cases.h - for every kernel a function that draws one call (shapes, strides, flags, dtypes) and checks it. */
#pragma once

#include "oracle/trial.h"

#define SEGMENTS 5 /* of the calls over spans, at most */

/* matmul_case, copy_case, ... A kernel without one does not link. */
#define ORACLE_CASE(NAME, name, class) void name##_case(test_case *c);
FSDP__KERNEL_MAP(ORACLE_CASE)
#undef ORACLE_CASE

/* An uneven size: mostly small, sometimes past a vector, a panel or a thread's share; 0 now and then. */
int64_t a_size(test_case *c, int64_t largest);

/* Attention and its gradients whose sizes, strides and inputs (q, k, v) are set. */
void attention_forward_of(test_case *c, fsdp__attention_forward_args a);
void attention_backward_of(test_case *c, fsdp__attention_forward_args forward);

/* Layouts, strides and memory of a product whose sides, batch and dtypes are set; a bias now and then. With `sums` it
 * adds an operand up; then there must be something to add, and batch is 1. */
void draw_product(test_case *c, fsdp__matmul_args *a, bool sums);
#define PRODUCT_TEXT "m %ld n %ld k %ld batch %ld a_row %ld b_row %ld bias %d alpha %g accumulate %d sums %d gelu %d"
#define PRODUCT_VALUES(a)                                                                                       \
    (long)(a).m, (long)(a).n, (long)(a).k, (long)(a).batch, (long)(a).a_row, (long)(a).b_row, (a).bias != NULL, \
        (double)(a).alpha, (a).accumulate, (a).sums != NULL, (a).gelu
