#include "ops/gradient.h"

#include "autograd/tools.h"

void check_gradient(fsdp_gradcheck_function function, const int64_t *shapes)
{
    fsdp_tensor *inputs[8];
    int count = 0;

    for (; shapes[0] >= 0; shapes += shapes[0] + 1, count++)
        inputs[count] = make_leaf(device, (uint64_t)count + 1, (int)shapes[0], shapes + 1);
    CHECK_OK(fsdp_gradcheck(function, NULL, inputs, count, 4e-3, 2e-3, 1e-2));
}
