/* inputs.c - casts and moves tensors. */
#include "shard/state/inputs.h"

#include "autograd/autograd.h"

static fsdp_status cast_floating(fsdp_tensor **tensor, fsdp_dtype dtype)
{
    if (dtype == FSDP_DTYPE_NONE || !fsdp_dtype_is_floating((*tensor)->dtype))
        return FSDP_OK;
    *tensor = fsdp_cast(*tensor, dtype);
    return *tensor ? FSDP_OK : fsdp_last_status();
}

/* Returns the dtype of its shards, for a state that computes in full precision. */
static fsdp_dtype own_dtype(const fsdp__module_state *state)
{
    return state->group_count > 0 ? state->groups[0]->params[0].orig_dtype : FSDP_F32;
}

fsdp_status fsdp__inputs_cast(fsdp__module_state *state, fsdp_tensor **inputs, int count)
{
    fsdp_dtype dtype = state->full_precision ? own_dtype(state) : state->policy.param_dtype;
    bool casts = !state->policy.keep_forward_inputs || (state->casts_root_inputs && state->root->state == state);

    if (state->full_precision && count > 0)
        state->came_in = fsdp_dtype_is_floating(inputs[0]->dtype) ? inputs[0]->dtype : FSDP_DTYPE_NONE;
    for (int i = 0; i < count && (casts || state->full_precision); i++)
        FSDP_TRY(cast_floating(&inputs[i], dtype));
    return FSDP_OK;
}

fsdp_status fsdp__outputs_cast(const fsdp__module_state *state, fsdp_tensor **outputs, int count)
{
    fsdp_dtype dtype = state->full_precision ? state->came_in : state->policy.output_dtype;

    for (int i = 0; i < count; i++)
        if (outputs[i])
            FSDP_TRY(cast_floating(&outputs[i], dtype));
    return FSDP_OK;
}

fsdp_status fsdp__inputs_move(const fsdp__root *root, fsdp_tensor **inputs, int count)
{
    fsdp_device *device = root->comm->stream ? fsdp__stream_device(root->comm->stream) : NULL;

    for (int i = 0; i < count && device; i++) {
        fsdp_device *from = inputs[i]->storage->device;

        if (from == device || fsdp_device_is_meta(from))
            continue;
        inputs[i] = fsdp_to_device(inputs[i], device);
        if (!inputs[i])
            return fsdp_last_status();
    }
    return FSDP_OK;
}
