/* What is a macro or a compound literal in the public headers, used from C++. tools/check_headers.sh compiles it. */
#include "fsdp/fsdp.h"

struct pair {
    fsdp_module base;
    fsdp_module *up, *down;
};

static fsdp_tensor *pair_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    pair *p = reinterpret_cast<pair *>(self);
    fsdp_tensor *x = fsdp_call(p->up, inputs[0]);

    return count > 1 ? fsdp_call(p->down, x, inputs[1]) : fsdp_call(p->down, x, x, nullptr);
}

static fsdp_status make_tensor(fsdp_device *device, int64_t rows, fsdp_tensor **out)
{
    fsdp_tensor *zeros = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2, 3));
    size_t columns = 5;
    fsdp_status status = FSDP_OK;

    if (!zeros)
        return FSDP_FAIL(FSDP_INVALID, "no %d zeros", 6);
    FSDP_TRY(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(rows), FSDP_MEMORY_ACTIVATION, out));
    FSDP_TRY_GOTO(status, fsdp_tensor_copy_(*out, fsdp_empty(device, FSDP_BF16, FSDP_SHAPE(rows * 2, columns, 7u))),
                  out);
out:
    FSDP_KEEP_FIRST(status, fsdp_tensor_fill_(*out, 1));
    return status;
}

fsdp_module *make_pair(fsdp_context *context, fsdp_tensor *weight);

fsdp_module *make_pair(fsdp_context *context, fsdp_tensor *weight)
{
    static const fsdp_module_type type = {"Pair", pair_forward, nullptr, nullptr, false, nullptr, nullptr};
    fsdp_tensor *x = fsdp_linear(weight, weight, FSDP_NO_BIAS);
    pair *p = nullptr;

    if (fsdp_module_create(context, &type, sizeof *p, &p) != FSDP_OK ||
        make_tensor(fsdp_cpu(context), 3, &x) != FSDP_OK)
        return nullptr;
    return &p->base;
}
