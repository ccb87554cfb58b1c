/* support/scope.c - a context and a scope for each case, and a device. */
#include "support/scope.h"

#include "fsdp/tensor.h"

fsdp_context *context;
fsdp_device *device;

int test_context_setup(void **state)
{
    *state = test_context();
    CHECK_OK(fsdp_scope_begin(*state));
    return 0;
}

int test_context_teardown(void **state)
{
    fsdp_scope_end(*state, NULL);
    CHECK_EQ(test_live_bytes(*state), 0);
    test_check_races(*state);
    fsdp_context_free(*state);
    return 0;
}

int scope_setup(void **state)
{
    (void)state;
    context = test_context();
    device = test_device(context);
    CHECK_OK(fsdp_scope_begin(context));
    return 0;
}

int scope_teardown(void **state)
{
    (void)state;
    fsdp_scope_end(context, NULL);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
    return 0;
}
