/* matmul.c - a b, batched over leading dimensions, which are repeated as in PyTorch, or with one b for all. */
#include "base/compiler.h"
#include "ops/broadcast.h"

#include <string.h>

/* Views a (...,M,K) and b (...,K,N) or (K,N) as matrices: if b is shared, it is one product over all rows of a. */
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

static const fsdp__op matmul_op = {.name = "matmul", .backward = matmul_backward};
static const fsdp__traits traits = {.dear = FSDP__DEAR_PRODUCT};

/* Broadcasts the leading dimensions of both; a vector has none. Returns false if they do not fit. */
static bool leading(const fsdp_tensor *a, const fsdp_tensor *b, fsdp__shape *shape)
{
    *shape = fsdp__shape_of(a);
    shape->ndim = FSDP__MAX(a->ndim - 2, 0);
    return fsdp__broadcast(FSDP__MAX(b->ndim - 2, 0), b->shape, shape);
}

static bool fits(const fsdp_tensor *a, const fsdp_tensor *b, fsdp__shape *shape)
{
    if (a->ndim < 1 || b->ndim < 1 || a->shape[a->ndim - 1] != b->shape[b->ndim > 1 ? b->ndim - 2 : 0])
        return false;
    return leading(a, b, shape);
}

/* Computes y (...,M,N). */
static fsdp_tensor *product(fsdp_tensor *a, fsdp_tensor *b, const int64_t *shape, bool shared)
{
    fsdp_tensor *y = fsdp_empty(a->storage->device, a->dtype, a->ndim, shape);
    fsdp__matrix left, right;

    if (!y || matrices(a, shared, &left) != FSDP_OK || matrices(b, shared, &right) != FSDP_OK ||
        fsdp__gemm(left, right, NULL, y, false) != FSDP_OK)
        return NULL;
    return y;
}

/* Multiplies tensors that fit: b is (K,N), or both have the same leading dimensions. */
static fsdp_tensor *matmul(fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *inputs[] = {a, b}, *saved[2], *y;
    int64_t shape[FSDP_MAX_DIMS];
    bool shared = b->ndim == 2;

    memcpy(shape, a->shape, sizeof shape);
    shape[a->ndim - 1] = b->shape[b->ndim - 1];
    if (!fsdp__recall(&matmul_op, inputs, 2, &y, 1)) {
        y = product(a, b, shape, shared);
        if (!y)
            return NULL;
    }
    saved[0] = fsdp_tensor_requires_grad(b) ? a : NULL;
    saved[1] = fsdp_tensor_requires_grad(a) ? b : NULL;
    if (fsdp__record_with(&traits, &matmul_op, inputs, 2, &y, 1, saved, 2, &shared, sizeof shared) != FSDP_OK)
        return NULL;
    return y;
}

/* Repeats x so that it has the leading dimensions `shape` in front of its matrices. */
static fsdp_tensor *repeated(fsdp_tensor *x, fsdp__shape shape)
{
    if (x->ndim == shape.ndim + 2 && memcmp(x->shape, shape.sizes, (size_t)shape.ndim * sizeof *shape.sizes) == 0)
        return x;
    memcpy(shape.sizes + shape.ndim, x->shape + (x->ndim - 2), 2 * sizeof *shape.sizes);
    return fsdp_expand(x, shape.ndim + 2, shape.sizes);
}

fsdp_tensor *fsdp_matmul(fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *inputs[] = {a, b}, *y;
    fsdp__shape shape;
    bool row, column;

    if (a && b && fsdp__is_global(inputs, 2)) {
        fsdp__global_call call = {.name = "matmul", .rule = FSDP__RULE_MATMUL, .inputs = inputs, .count = 2};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, fsdp_matmul(call.parts[0], call.parts[1])) : NULL;
    }
    if (!a || !b || !fsdp__op_inputs("matmul", inputs, 2) || !fsdp__op_same_dtype("matmul", inputs, 2))
        return NULL;
    if (!fits(a, b, &shape))
        return fsdp__op_misfit("matmul", "left", a, "right", b);
    row = a->ndim == 1;
    column = b->ndim == 1;
    a = row ? fsdp_unsqueeze(a, 0) : a;
    b = column ? fsdp_unsqueeze(b, 1) : b;
    if (!a || !b)
        return NULL;
    if (b->ndim > 2) {
        a = repeated(a, shape);
        b = repeated(b, shape);
        if (!a || !b)
            return NULL;
    }
    y = matmul(a, b);
    y = column ? fsdp_squeeze(y, -1) : y;
    return row ? fsdp_squeeze(y, column ? -1 : -2) : y;
}
