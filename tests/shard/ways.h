/* shard/ways.h - a test body in every way that the engine can run it: residence of memory, inline or on worker streams,
 * worlds of 1 to 5 ranks, one of them slow.
 *
 * A body notes what it sees. Ways of the same dtype must note the same bits. In f32 a body may also run on a plain
 * model, which must note nearly the same: then it runs once with `way` NULL, in a world of one that stands for all. */
#pragma once

#include <unistd.h>

#include "fsdp/optim.h"
#include "shard/net.h"

enum {
    WAYS_WORLDS = 5,
    WAYS_ROWS = 4, /* of one rank's batch */
    WAYS_SLOW_US = 3000
};

typedef struct way {
    const char *name;
    bool copy, bf16;
    fsdp_overlap overlap;
} way;

typedef struct notes {
    float *values;
    int64_t count;
} notes;

typedef struct way_run {
    const way *way; /* NULL: plain */
    int world;      /* that the plain model stands for, too */
    int slow;       /* rank */
    fsdp_shard_options options;
    notes notes[WAYS_WORLDS];
    int arg; /* the test's own */
} way_run;

typedef void (*way_body)(fsdp_context *context, way_run *run);

typedef enum ways_check {
    WAYS_ALONE = 0,
    WAYS_EQUAL_PLAIN = 1, /* also run plain */
    WAYS_RANKS_AGREE = 2  /* all ranks note the same */
} ways_check;

/* ---- in a body ---- */

void note(fsdp_context *context, way_run *run, const float *values, int64_t count);
/* All parameters, whole. [collective] */
void note_weights(way_run *run, fsdp_module *module);
void note_tensor(way_run *run, fsdp_tensor *tensor);
/* All gradients, whole, and which there are. [collective] */
void note_gradients(way_run *run, fsdp_module *module);
bool is_slow(fsdp_context *context, const way_run *run);
void dawdle(fsdp_context *context, const way_run *run);
/* Sharded as the way says, with the first values of seed 1. */
fsdp_module *ways_net(fsdp_context *context, const way_run *run, int blocks, fsdp_reshard reshard);
/* The loss of this rank's rows of batch `step`, or of all ranks' rows in a plain run. Belongs to the scope. */
fsdp_tensor *ways_loss(const way_run *run, fsdp_module *module, int step);
void ways_backward(const way_run *run, fsdp_module *module, int step);
/* Without gradients. */
float ways_evaluate(const way_run *run, fsdp_module *module, int step);
fsdp_optimizer *ways_optimizer(fsdp_module *module);
void ways_step(fsdp_optimizer *optimizer);
/* Notes the weights that a run ends with, and frees both; after one more step. */
void ways_end(way_run *run, fsdp_module *module, fsdp_optimizer *optimizer);
void ways_last_step(way_run *run, fsdp_module *module, fsdp_optimizer *optimizer);

/* ---- running it ---- */

/* But for `make test-long`, half of the ways in worlds of 3, fewer in worlds of 2, one in worlds of 1 and 5, and none
 * in worlds of 4; under a sanitizer and on another device fewer, in worlds of 2 and 3. */
void in_every_way_with(way_body body, int check, int arg);
void in_every_way(way_body body, int check);
/* Defines a case whose body, of `context` and `run`, is run so; or by another function, whose first parameter it is. */
#define WAYS_TEST(name, check) WAYS_TEST_BY(name, in_every_way, check)
#define WAYS_TEST_BY(name, by, ...)                                   \
    static void name##_in_a_way(fsdp_context *context, way_run *run); \
    TEST(name)                                                        \
    {                                                                 \
        by(name##_in_a_way, __VA_ARGS__);                             \
    }                                                                 \
    static void name##_in_a_way(FSDP__UNUSED fsdp_context *context, way_run *run)
