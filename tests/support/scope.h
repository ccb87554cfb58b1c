/* support/scope.h - where tests of expressions are at home: a context, the test's device, an open scope. A case begins
 * with new ones, and ends with no byte of a tensor alive.
 *
 *     static void a_sum_is_a_number(void **state) { ... fsdp_sum(fsdp_zeros(device, ...)) ... }
 *     TEST_MAIN(IN_SCOPE(a_sum_is_a_number))
 */
#ifndef TESTS_SUPPORT_SCOPE_H
#define TESTS_SUPPORT_SCOPE_H

#include "support/test.h"

/* Those of the case that runs. */
extern fsdp_context *context;
extern fsdp_device *device;

int scope_setup(void **state);
int scope_teardown(void **state);

#define IN_SCOPE(name) cmocka_unit_test_setup_teardown(name, scope_setup, scope_teardown)

#endif
