/* matmul.c - a b, batched over equal leading dimensions or with one b for all. */
#include "ops/op.h"

#include <string.h>

/* a (...,M,K), b (...,K,N) or (K,N): one product over all rows of a when b is shared. */
static fsdp_status matrices(fsdp_tensor *tensor, bool shared, fsdp__matrix *out)
{
    return shared ? fsdp__matrix_of(tensor, out) : fsdp__matrix_batch_of(tensor, out);
}

static fsdp_status matmul_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    bool shared = *(const bool *)fsdp__node_state(node), accumulate;
    fsdp_tensor *out;
    fsdp__matrix dy, other;

    FSDP_TRY(matrices(grads[0], shared, &dy));
    if (fsdp__node_needs(node, 0)) { /* da (...,M,K) = dy b^T */
        FSDP_TRY(matrices(fsdp__node_saved(node, 1), shared, &other));
        FSDP_TRY(fsdp__node_target(node, 0, &out, &accumulate));
        FSDP_TRY(fsdp__gemm(dy, fsdp__matrix_transposed(other), NULL, out, accumulate));
    }
    if (fsdp__node_needs(node, 1)) { /* db (...,K,N) = a^T dy */
        FSDP_TRY(matrices(fsdp__node_saved(node, 0), shared, &other));
        FSDP_TRY(fsdp__node_target(node, 1, &out, &accumulate));
        FSDP_TRY(fsdp__gemm(fsdp__matrix_transposed(other), dy, NULL, out, accumulate));
    }
    return FSDP_OK;
}

static const fsdp__op matmul_op = {.name = "matmul", .backward = matmul_backward, .dear = FSDP__DEAR_PRODUCT};

static bool fits(const fsdp_tensor *a, const fsdp_tensor *b)
{
    if (a->ndim < 2 || b->ndim < 2 || a->shape[a->ndim - 1] != b->shape[b->ndim - 2])
        return false;
    if (b->ndim == 2)
        return true;
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)(a->ndim - 2) * sizeof *a->shape) == 0;
}

/* y (...,M,N) */
static fsdp_tensor *product(fsdp_tensor *a, fsdp_tensor *b, const int64_t *shape, bool shared)
{
    fsdp_tensor *y = fsdp_empty(a->storage->device, a->dtype, a->ndim, shape);
    fsdp__matrix left, right;

    if (!y || matrices(a, shared, &left) != FSDP_OK || matrices(b, shared, &right) != FSDP_OK ||
        fsdp__gemm(left, right, NULL, y, false) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_matmul(fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *inputs[] = {a, b}, *saved[2], *y;
    int64_t shape[FSDP_MAX_DIMS];
    bool shared;

    if (!a || !b || !fsdp__op_inputs("matmul", inputs, 2) || !fsdp__op_same_dtype("matmul", inputs, 2))
        return NULL;
    if (!fits(a, b))
        return fsdp__op_misfit("matmul", "left", a, "right", b);
    shared = b->ndim == 2;
    memcpy(shape, a->shape, sizeof shape);
    shape[a->ndim - 1] = b->shape[b->ndim - 1];
    if (!fsdp__recall(&matmul_op, inputs, 2, &y, 1)) {
        y = product(a, b, shape, shared);
        if (!y)
            return NULL;
    }
    saved[0] = fsdp_tensor_requires_grad(b) ? a : NULL;
    saved[1] = fsdp_tensor_requires_grad(a) ? b : NULL;
    if (fsdp__record(&matmul_op, inputs, 2, &y, 1, saved, 2, &shared, sizeof shared) != FSDP_OK)
        return NULL;
    return y;
}
