/* train/replay.h - a run of PyTorch's as its file in the reference tells it, and the model and optimizer that it says,
 * made by the engine's calls. */
#pragma once

#include <jansson.h>

#include "fsdp/models.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "support/program.h"

typedef struct replay {
    json_t *reference;
    const char *model;   /* in place of the file's; NULL: that */
    bool tied_apart;     /* the modules of each group in calls of their own, tied across them */
    int world, micros;   /* ranks; microbatches of a step */
    int batch, length;   /* sequences of a microbatch, tokens of one */
    uint16_t *tokens;    /* of the whole run */
    int64_t token_count; /* counted */
} replay;

/* Whether the run's file is in tests/reference, or where FSDP_REFERENCE says. */
bool replay_is_there(const char *name);
void replay_open(replay *r, const char *name);
void replay_close(replay *r);

double replay_number(const json_t *object, const char *key, double otherwise);
double replay_at(const json_t *list, int64_t i);
bool replay_is_set(const replay *r, const char *key);
/* Of FSDP1. */
bool replay_is_fsdp1(const replay *r);
/* Whether a fragment of the list `key` is in the name. */
bool replay_lists(const replay *r, const char *key, const char *name);

/* A run of DistributedDataParallel: its model is replicated. */
bool replay_is_ddp(const replay *r);
/* Sharded as the file says, with the weights of its model. */
fsdp_module *replay_model(const replay *r, fsdp_context *context);
/* The parameter that the file calls so: it counts the layers as they run, ours have the names of the weights' files. */
fsdp_tensor *replay_parameter(const replay *r, fsdp_module *model, const char *name);
/* Computes a loss and its gradients from this rank's windows, which are one after the other, as tests/reference tells.
 */
double replay_backward(const replay *r, fsdp_module *model, int step, int micro);
/* The parameters after the last step, by their sums of absolute values. [collective] */
void replay_check_weights(const replay *r, fsdp_module *model);
/* Of all parameters that are sharded. */
fsdp_optimizer *replay_optimizer(const replay *r, fsdp_module *model);
