/* optim/trainee.h - a model and its optimizer on the dry device that stands for a GPU, which reserves what a GPU would,
 * and computes nothing. */
#pragma once

#include "fsdp/nn.h"
#include "fsdp/optim.h"
#include "support/test.h"

enum {
    TRAINEE_BATCH = 3001, /* odd on purpose */
    TRAINEE_WIDTH = 515,
    TRAINEE_LAYERS = 5,
    TRAINEE_SLACK = 8 << 20 /* two segments end in less than 2 MiB each behind what is needed */
};

typedef struct trainee {
    fsdp_device *device;
    fsdp_module *model;
    fsdp_optimizer *adamw;
    int64_t width;
} trainee;

trainee trainee_create(fsdp_device *device, int64_t width);
void trainee_release(trainee *t);
/* Makes one in a context of its own; and frees both. */
trainee trainee_set_up(void);
void trainee_tear_down(trainee *t);
/* Takes a step, as the examples do: what it has made goes with its scope, after the gradients. */
void trainee_step(const trainee *t);
fsdp_memory_stats trainee_memory(const fsdp_device *device);
/* Returns whether more is reserved than the largest step so far needed, and a share of that. */
bool trainee_is_far(const fsdp_device *device, double share);
