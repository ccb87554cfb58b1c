/* buffers.c - casts buffers, each once. */
#include "shard/state/lazy_init.h"

#include "base/alloc.h"
#include "nn/module.h"
#include "tensor/tensor.h"

typedef struct cast {
    const fsdp__module_state *state; /* the state at hand */
    struct cast_pair {
        fsdp_tensor *from, *to; /* references */
    } * pairs;
    int64_t count, capacity;
} cast;

static fsdp_status cast_tensor(cast *c, fsdp_tensor *from, fsdp_dtype dtype, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *to = NULL;

    for (int64_t i = 0; i < c->count; i++)
        if (c->pairs[i].from == from && c->pairs[i].to->dtype == dtype) {
            *out = c->pairs[i].to;
            return FSDP_OK;
        }
    FSDP_TRY(fsdp__grow(&c->pairs, c->count, &c->capacity, sizeof *c->pairs));
    FSDP_TRY(fsdp_tensor_create(fsdp_tensor_device(from), dtype, from->ndim, from->shape, from->storage->kind, &to));
    FSDP_TRY(fsdp__tensor_copy(to, from, false));
    c->pairs[c->count++] = (struct cast_pair){fsdp_tensor_ref(from), to};
    *out = fsdp__take(&to);
    return FSDP_OK;
}

/* Casts the buffers of a module. Tables that a layer computes for its kernels, such as rope's frequencies, are not
 * numbers of the model and stay. */
static fsdp_status cast_module(cast *c, fsdp_module *module)
{
    fsdp_dtype dtype = c->state->policy.buffer_dtype;

    for (int64_t i = 0; i < module->parts->buffer_count; i++) {
        const fsdp__buffer_slot *slot = &module->parts->buffers[i];
        fsdp_tensor *to = NULL;

        if (!*slot->slot || slot->table || !fsdp_dtype_is_floating((*slot->slot)->dtype) ||
            (*slot->slot)->dtype == dtype)
            continue;
        FSDP_TRY(cast_tensor(c, *slot->slot, dtype, &to));
        fsdp_tensor_unref(*slot->slot);
        *slot->slot = fsdp_tensor_ref(to);
    }
    for (int64_t i = 0; i < module->parts->child_count; i++)
        if (!fsdp__module_state_of(module->parts->children[i].module))
            FSDP_TRY(cast_module(c, module->parts->children[i].module));
    return FSDP_OK;
}

static fsdp_status cast_state(cast *c, const fsdp__module_state *state)
{
    c->state = state;
    for (int64_t i = 0; i < state->module_count && state->policy.buffer_dtype != FSDP_DTYPE_NONE; i++)
        if (state->modules[i])
            FSDP_TRY(cast_module(c, state->modules[i]));
    return FSDP_OK;
}

fsdp_status fsdp__root_cast_buffers(const fsdp__root *root)
{
    cast c = {0};
    fsdp_status status = FSDP_OK;

    for (int64_t i = 0; i < root->state_count && status == FSDP_OK; i++)
        status = cast_state(&c, root->states[i]);
    for (int64_t i = 0; i < c.count; i++) {
        fsdp_tensor_unref(c.pairs[i].from);
        fsdp_tensor_unref(c.pairs[i].to);
    }
    fsdp__free(c.pairs);
    return status;
}
