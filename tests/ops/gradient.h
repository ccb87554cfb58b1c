/* ops/gradient.h - cases that hold the gradients of an expression to difference quotients, and to what they are when
 * something is written to between forward and backward: the same, or an error. */
#pragma once

#include "fsdp/autograd.h"
#include "support/scope.h"

typedef fsdp_tensor *const *tensors;

/* Of leaves of the given shapes: ndim first, -1 ends. */
void check_gradient(fsdp_gradcheck_function function, const int64_t *shapes);

/* The case name_has_the_right_gradient, of an expression of in[0], in[1], ... with these shapes. */
#define GRADIENT(name, expression, ...)                                \
    static fsdp_tensor *name##_of(void *arg, tensors in, int count)    \
    {                                                                  \
        (void)arg, (void)count;                                        \
        return (expression);                                           \
    }                                                                  \
    SCOPE_TEST(name##_has_the_right_gradient)                          \
    {                                                                  \
        check_gradient(name##_of, (const int64_t[]){__VA_ARGS__, -1}); \
    }
