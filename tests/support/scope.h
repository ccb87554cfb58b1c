/* support/scope.h - where tests of expressions are at home: a context, the test's device, an open scope. A case begins
 * with new ones, and ends with no byte of a tensor alive.
 *
 *     SCOPE_TEST(a_sum_is_a_number)
 *     {
 *         ... fsdp_sum(fsdp_zeros(device, ...)) ...
 *     }
 */
#pragma once

#include "support/test.h"

/* Hold the context of the running case, and its device. */
extern fsdp_context *context;
extern fsdp_device *device;

int scope_setup(void **state);
int scope_teardown(void **state);

#define SCOPE_TEST(name) TEST_WITH(name, scope_setup, scope_teardown)
