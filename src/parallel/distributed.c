/* distributed.c - distributed tensors: what they look like in messages, and how placements change with a gradient. */
#include "parallel/distributed.h"

#include "ops/op.h"

#include <stdio.h>
#include <string.h>

/* ---- for messages ---- */

static const char *const reductions[FSDP_REDUCE_OPS] = {"sum", "avg", "max", "min"};

const char *fsdp__global_text(const fsdp_tensor *tensor, char text[FSDP__GLOBAL_TEXT])
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);

    if (!d)
        (void)snprintf(text, FSDP__GLOBAL_TEXT, "a plain tensor %s", FSDP__SHAPE_OF(tensor));
    else
        (void)snprintf(text, FSDP__GLOBAL_TEXT, "a %s tensor with placements %s",
                       FSDP__SHOWN_SHAPE(d->ndim, d->global_shape),
                       FSDP__PLACEMENTS(d->placements, d->placement_count));
    return text;
}

/* ---- made ---- */

fsdp_status fsdp__make_global(fsdp_tensor *part, const fsdp_distribution *distribution)
{
    FSDP_TRY(fsdp_tensor_set_distribution(part, distribution));
    part->global = true;
    return FSDP_OK;
}

/* ---- other placements ---- */

typedef struct state {
    fsdp_distribution grad; /* what arrives is distributed like this; it has a reference to its mesh */
    fsdp_placement back[FSDP_MAX_MESH_DIMS];
} state;

/* Says how the gradient of a tensor with these placements is distributed: [Note: whose gradient] in fsdp/parallel.h. */
static void placements_of_gradient(const fsdp_placement *placements, int count, fsdp_placement *out)
{
    for (int i = 0; i < count; i++)
        out[i] = placements[i].kind == FSDP_PARTIAL ? (fsdp_placement){.kind = FSDP_REPLICATE} : placements[i];
}

static bool equal(const fsdp_placement *a, const fsdp_placement *b, int count)
{
    for (int i = 0; i < count; i++)
        if (!fsdp__placement_equal(a[i], b[i]))
            return false;
    return true;
}

static fsdp_tensor *plain_alias(const fsdp_tensor *tensor)
{
    fsdp_tensor *alias = NULL;

    return fsdp__tensor_create_view(tensor->storage, tensor->dtype, tensor->ndim, tensor->shape, tensor->strides,
                                    tensor->offset, &alias) == FSDP_OK
               ? fsdp__scope_adopt(alias)
               : NULL;
}

static fsdp_status redistribute_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);
    fsdp_tensor *grad = grads[0], *moved = NULL;

    if (equal(s->grad.placements, s->back, s->grad.placement_count))
        return fsdp__node_give(node, 0, grad);
    FSDP__TRY_MADE(grad = plain_alias(grad));
    FSDP_TRY(fsdp_tensor_set_distribution(grad, &s->grad));
    FSDP_TRY(fsdp_redistribute(grad, s->back, &moved));
    grad = plain_alias(moved);
    fsdp_tensor_unref(moved);
    return grad ? fsdp__node_give(node, 0, grad) : fsdp_last_status();
}

static void free_state(void *pointer)
{
    const state *s = pointer;

    fsdp_mesh_unref(s->grad.mesh);
}

static const fsdp__op redistribute_op = {
    .name = "redistribute", .backward = redistribute_backward, .free_state = free_state};

static fsdp_status record(fsdp_tensor *tensor, const fsdp_distribution *from, fsdp_tensor *moved,
                          const fsdp_placement *to)
{
    state s = {.grad = *from};
    fsdp_status status;

    if (!fsdp__will_record(&tensor, 1))
        return FSDP_OK;
    for (int i = 0; i < from->placement_count; i++)
        if (from->placements[i].kind == FSDP_PARTIAL && from->placements[i].op > FSDP_AVG &&
            !fsdp__placement_equal(from->placements[i], to[i]))
            return FSDP_FAIL(FSDP_UNSUPPORTED, "redistribute: Partial(%s) over mesh dimension '%s' has no gradient",
                             reductions[from->placements[i].op], from->mesh->names[i]);
    placements_of_gradient(to, from->placement_count, s.grad.placements);
    placements_of_gradient(from->placements, from->placement_count, s.back);
    s.grad.partial_gradients = 0;
    fsdp_mesh_ref(s.grad.mesh);
    status = fsdp__record(&redistribute_op, &tensor, 1, &moved, 1, NULL, 0, &s, sizeof s);
    if (status != FSDP_OK)
        fsdp_mesh_unref(s.grad.mesh);
    return status;
}

/* Checks what fsdp__op_inputs does, of a distributed tensor, too. */
static bool has_bytes(fsdp_tensor *tensor)
{
    bool global = tensor->global, fits;

    tensor->global = false;
    fits = fsdp__op_inputs(redistribute_op.name, &tensor, 1);
    tensor->global = global;
    return fits;
}

static fsdp_tensor *moved_to(fsdp_tensor *tensor, const fsdp_distribution *from, const fsdp_placement *placements)
{
    fsdp_distribution to = *from;
    fsdp_tensor *moved = NULL;

    if (!equal(from->placements, placements, from->placement_count))
        return fsdp_redistribute(tensor, placements, &moved) == FSDP_OK ? fsdp__scope_adopt(moved) : NULL;
    memcpy(to.placements, placements, (size_t)to.placement_count * sizeof *placements);
    moved = plain_alias(tensor);
    return moved && fsdp_tensor_set_distribution(moved, &to) == FSDP_OK ? moved : NULL;
}

fsdp_tensor *fsdp__redistributed(fsdp_tensor *tensor, const fsdp_placement *placements)
{
    const fsdp_distribution *from = fsdp_tensor_distribution(tensor);
    fsdp_tensor *moved;

    if (!has_bytes(tensor))
        return NULL;
    moved = moved_to(tensor, from, placements);
    return moved && record(tensor, from, moved, placements) == FSDP_OK ? moved : NULL;
}
