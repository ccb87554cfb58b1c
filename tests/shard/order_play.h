/* shard/order_play.h - who carries out calls: one rank of sharded models, or plain models that stand for all ranks.
 * What is seen goes to logs, one a rank, which are compared afterwards. */
#ifndef TESTS_SHARD_ORDER_PLAY_H
#define TESTS_SHARD_ORDER_PLAY_H

#include "fsdp/optim.h"
#include "fsdp/state.h"
#include "shard/log.h"
#include "shard/order_program.h"

/* ---- the player ---- */

typedef struct order_model {
    const order_plan *plan;
    fsdp_module *module;
    fsdp_parameters parameters; /* the shards, taken before anything else */
    fsdp_optimizer *optimizer;
    fsdp_tensor *losses[ORDER_SLOTS][ORDER_MAX_WORLD];
    fsdp_state_dict *state; /* saved, with its values */
    float *saved[ORDER_MAX_PARAMS];
    /* of a plain model */
    fsdp_tensor *unreduced[ORDER_MAX_WORLD][ORDER_MAX_PARAMS];
    float *partial[ORDER_MAX_WORLD][ORDER_MAX_PARAMS]; /* by replica */
    float divide[ORDER_MAX_GROUPS];
} order_model;

typedef struct order_run order_run; /* order_build.h */

typedef struct order_player {
    const order_program *program;
    const order_run *run;
    fsdp_context *context;
    fsdp_mesh *mesh; /* of two dimensions; or NULL */
    bool plain;
    int first_rank, ranks; /* that this player stands for */
    order_model models[ORDER_MODELS];
    run_log *logs; /* of the ranks from 0 */
    int at;        /* index of the running call */
} order_player;

typedef void (*order_run_call)(order_player *player, const order_call *call);

order_model *model_of(order_player *player, const order_call *call);
fsdp_module *module_at(const order_model *m, int target);
order_block *block_at(const order_model *m, int block);
const char *param_name(const order_model *m, int param);
/* The tensor the model was built with. */
fsdp_tensor *shard_at(const order_model *m, int param);
/* This rank's part of its gradient, wherever it lies; NULL: there is none. The caller owns it. */
fsdp_tensor *gradient_at(const order_model *m, int param);
int replicas_of(const order_player *player);
bool is_whole(const order_call *call, int param);

/* ---- logging ---- */

void log_value(order_player *player, int rank, int model, const char *what, int param, double value);
/* The same value on every rank. */
void log_all(order_player *player, int model, const char *what, int param, double value);
float *read_values(const fsdp_tensor *tensor);
/* All elements, the same on every rank. */
void log_whole(order_player *player, int model, const char *what, int param, const fsdp_tensor *tensor);
/* Where element i of a box lies in the whole tensor. */
int64_t element_of(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size, int64_t i);
/* Each rank's rows; of a flat unit all elements, since where they are cut follows from the others of it. */
void log_rows(order_player *player, int model, const char *what, int param, const fsdp_tensor *tensor);
/* Everything that can be seen of a model without communication, but for that. */
void order_observe(order_player *player, int model, const order_call *call);

#endif
