#include "ops/gradient.h"

#include "autograd/node.h"
#include "autograd/tools.h"

enum {
    MOST_INPUTS = 8,
    MOST_SAVED = 64
};

static int make_inputs(const int64_t *shapes, fsdp_tensor *inputs[MOST_INPUTS])
{
    int count = 0;

    for (; shapes[0] >= 0; shapes += shapes[0] + 1, count++)
        inputs[count] = make_leaf(device, (uint64_t)count + 1, (int)shapes[0], shapes + 1);
    return count;
}

/* ---- what is written between the forward and the backward ---- */

/* What the graph below `node` has saved. */
static int collect(const fsdp__node *node, fsdp_tensor **saved, int count)
{
    for (int i = 0; i < node->saved_count; i++)
        if (node->saved[i]) {
            CHECK(count < MOST_SAVED);
            saved[count++] = node->saved[i];
        }
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i].node)
            count = collect(node->inputs[i].node, saved, count);
    return count;
}

/* All gradients, one after the other. free() it. */
static float *read_gradients(tensors inputs, int count, size_t *bytes)
{
    float *all = NULL;

    *bytes = 0;
    for (int i = 0; i < count; i++) {
        fsdp_tensor *grad = fsdp_tensor_grad(inputs[i]);
        size_t more = grad ? (size_t)fsdp_tensor_numel(grad) * sizeof *all : 0;

        if (!grad)
            continue;
        all = realloc(all, *bytes + more + 1);
        CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, (char *)all + *bytes));
        *bytes += more;
    }
    return all;
}

/* Runs forward and backward, and writes in between: to the `target`-th of inputs, output and what was saved; -1: to
 * none. Returns the gradients, or NULL where the backward has refused; `*more`: whether there are so many. */
static float *run_written(fsdp_gradcheck_function function, const int64_t *shapes, int target, size_t *bytes,
                          bool *more)
{
    fsdp_tensor *all[MOST_INPUTS + 1 + MOST_SAVED], *y, *seed;
    float *gradients = NULL;
    int count, total;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(context));
    count = make_inputs(shapes, all);
    y = all[count] = CHECK_PTR(function(NULL, all, count));
    total = collect(fsdp__grad_state_get(y)->producer, all, count + 1);
    seed = make_random(device, 99, fsdp_tensor_ndim(y), fsdp_tensor_shape(y));
    *more = target < total;
    /* What repeats its elements cannot be written to. */
    if (*more && (target < 0 || fsdp_tensor_fill_(all[target], 1.0) == FSDP_OK)) {
        status = fsdp_backward_from(&y, &seed, 1, false);
        CHECK(status == FSDP_OK || strstr(fsdp_last_error(), "was written to after the forward"));
        CHECK(status != FSDP_OK || target <= count); /* what was saved is needed */
        if (status == FSDP_OK)
            gradients = read_gradients(all, count, bytes);
    }
    fsdp_scope_end(context, NULL);
    return gradients;
}

/* A write is an error of the backward, or changes no gradient. */
static void check_writes(fsdp_gradcheck_function function, const int64_t *shapes)
{
    size_t bytes, expected_bytes;
    bool more;
    float *expected = run_written(function, shapes, -1, &expected_bytes, &more);

    for (int target = 0; more; target++) {
        float *gradients = run_written(function, shapes, target, &bytes, &more);

        if (gradients)
            CHECK(bytes == expected_bytes && memcmp(gradients, expected, bytes) == 0);
        free(gradients);
    }
    free(expected);
}

void check_gradient(fsdp_gradcheck_function function, const int64_t *shapes)
{
    fsdp_tensor *inputs[MOST_INPUTS];
    int count = make_inputs(shapes, inputs);

    CHECK_OK(fsdp_gradcheck(function, NULL, inputs, count, 4e-3, 2e-3, 1e-2));
    check_writes(function, shapes);
}
