/* zero.c - ZeRO's stages: decides what is sharded while a step of several microbatches runs. */
#include "shard/doors/zero.h"

#include "shard/state/methods.h"

fsdp_status fsdp__zero_check(const fsdp_shard_options *options)
{
    int stage = options->zero_stage, k = options->reshard_after_forward_ranks;
    bool never = k ? k == 1 : options->reshard_after_forward == FSDP_RESHARD_NEVER;
    bool always = k ? k > 1 : options->reshard_after_forward == FSDP_RESHARD_ALWAYS;

    if (options->reshard_after_forward < FSDP_RESHARD_AUTO || options->reshard_after_forward > FSDP_RESHARD_NEVER)
        return FSDP_FAIL(FSDP_INVALID, "reshard_after_forward %d: expected FSDP_RESHARD_AUTO, ALWAYS or NEVER",
                         (int)options->reshard_after_forward);
    if (stage < 0 || stage > 3)
        return FSDP_FAIL(FSDP_INVALID, "zero_stage %d: expected 1, 2 or 3, or 0 for none", stage);
    if (stage > 0 && stage < 3 && always)
        return FSDP_FAIL(FSDP_INVALID,
                         "zero_stage %d keeps parameters whole from the forward to the backward, and %s gives them up: "
                         "leave it out, or set zero_stage to 3",
                         stage, k ? "reshard_after_forward_ranks" : "reshard_after_forward");
    if (stage == 3 && never)
        return FSDP_FAIL(FSDP_INVALID,
                         "zero_stage 3 shards parameters between forward and backward, and %s keeps them whole: leave "
                         "it out, or set zero_stage to 2",
                         k ? "reshard_after_forward_ranks" : "reshard_after_forward");
    return FSDP_OK;
}

void fsdp__zero_set(fsdp__module_state *state, int stage)
{
    state->zero_stage = stage;
    if (stage == 1 || stage == 2) {
        state->reshard = FSDP_RESHARD_NEVER;
        state->reshard_after_forward = false;
    }
}

static fsdp_status begin_microbatch(void *last, fsdp__module_state *state)
{
    if (state->zero_stage == 0 || state->zero_stage == 3)
        return FSDP_OK;
    if (state->zero_stage == 1)
        state->reduce_grads = state->reduction.all_reduce = *(const bool *)last;
    state->reshard_after_backward = *(const bool *)last;
    return FSDP_OK;
}

fsdp_status fsdp_module_set_is_last_microbatch(fsdp_module *module, bool last)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    fsdp__root_set_last_backward(state->root, last);
    return fsdp__each_state(module, true, begin_microbatch, &last);
}
