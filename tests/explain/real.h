/* explain/real.h - a step that is taken, to hold beside what was said of it. */
#pragma once

#include "fsdp/explain.h"
#include "support/ranks.h"

enum {
    REAL_WORLDS = 4
};

typedef struct real_result {
    const fsdp_train_config *config;
    int machines; /* 0: one, or as many as the environment says */
    bool one_level;
    fsdp_explained_step steps[REAL_WORLDS]; /* the third one of each rank */
    fsdp_shard_map maps[REAL_WORLDS];
} real_result;

/* Three steps of `fsdp train` on `world` ranks, of the machines that `out` names. */
void real_train(int world, const fsdp_train_config *config, real_result *out);
/* Three steps of a loop of one's own, on one rank of a world. */
typedef void (*real_step)(void *arg);
void real_steps(fsdp_context *context, real_step step, void *arg, real_result *out);
void real_release(real_result *result);

/* What fsdp_explain says of each rank is what was, to the byte: memory by kind, calls and bytes by kind, what
 * goes between machines, parts. */
void real_compare(int world, const fsdp_explain_model *model, const fsdp_train_config *config, const real_result *was);
