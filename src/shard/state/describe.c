/* describe.c - describes states in words. */
#include "shard/state/describe.h"

#include <stdio.h>

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

    snprintf(door, sizeof door, "%s%s%s", state->door->title, state->door->strategy ? " " : "",
             state->door->strategy ? state->door->strategy(state) : "");
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
