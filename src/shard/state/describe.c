/* describe.c - describes states in words. */
#include "shard/state/describe.h"

#include <stdio.h>

fsdp_front_door fsdp__door_of(const fsdp__module_state *state)
{
    if (state->fsdp1.on)
        return FSDP_DOOR_FSDP1;
    return state->group_count > 0 && state->groups[0]->buckets ? FSDP_DOOR_REPLICATE : FSDP_DOOR_FULLY_SHARD;
}

const char *fsdp__door_call(const fsdp__module_state *state)
{
    static const char *const calls[] = {[FSDP_DOOR_FULLY_SHARD] = "fully_shard",
                                        [FSDP_DOOR_FSDP1] = "fsdp_fsdp1_wrap",
                                        [FSDP_DOOR_REPLICATE] = "fsdp_replicate"};

    return calls[fsdp__door_of(state)];
}

const char *fsdp__fsdp1_strategy_name(fsdp_sharding_strategy strategy)
{
    static const char *const names[] = {
        [FSDP_FULL_SHARD] = "FULL_SHARD",
        [FSDP_SHARD_GRAD_OP] = "SHARD_GRAD_OP",
        [FSDP_NO_SHARD] = "NO_SHARD",
        [FSDP_HYBRID_SHARD] = "HYBRID_SHARD",
        [FSDP_HYBRID_SHARD_ZERO2] = "_HYBRID_SHARD_ZERO2",
    };

    return names[strategy];
}

static void door_text(const fsdp__module_state *state, char *text, size_t bytes)
{
    switch (fsdp__door_of(state)) {
    case FSDP_DOOR_FSDP1:
        snprintf(text, bytes, "FSDP1 %s", fsdp__fsdp1_strategy_name(state->fsdp1.strategy));
        return;
    case FSDP_DOOR_REPLICATE:
        snprintf(text, bytes, "replicate");
        return;
    default:
        snprintf(text, bytes, "fully_shard");
    }
}

/* "over 2 ranks", "whole on 2 ranks", "3 replicas, over 2 ranks each" */
static void ranks_text(const fsdp__param_group *group, char *text, size_t bytes)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;

    if (mesh->replicas == 1)
        snprintf(text, bytes, "over %d rank%s", mesh->ranks, mesh->ranks == 1 ? "" : "s");
    else if (mesh->ranks == 1)
        snprintf(text, bytes, "whole on %d ranks", mesh->replicas);
    else
        snprintf(text, bytes, "%d replicas, over %d ranks each", mesh->replicas, mesh->ranks);
}

void fsdp__describe_state(void *arg, char *text, size_t bytes)
{
    const fsdp__module_state *state = arg;
    int64_t parameters = 0, numel = 0;
    char door[40], ranks[80];

    door_text(state, door, sizeof door);
    for (int64_t g = 0; g < state->group_count; g++) {
        parameters += state->groups[g]->param_count;
        for (int64_t i = 0; i < state->groups[g]->param_count; i++)
            numel += fsdp__param_numel(&state->groups[g]->params[i]);
    }
    if (parameters == 0) {
        snprintf(text, bytes, "%s: no parameters", door);
        return;
    }
    ranks_text(state->groups[0], ranks, sizeof ranks);
    snprintf(text, bytes, "%s: %lld parameter%s, %lld element%s, %s%s%s", door, (long long)parameters,
             parameters == 1 ? "" : "s", (long long)numel, numel == 1 ? "" : "s", ranks,
             state->group_count > 1 ? ", and others" : "", state->conditional ? ", conditional" : "");
}
