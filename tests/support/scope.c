/* support/scope.c - a context, a device and a scope for each case. */
#include "support/scope.h"

#include "fsdp/tensor.h"

fsdp_context *context;
fsdp_device *device;

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
