/* shard/order_program.h - what a sequence is made of: the models, how they are sharded, and the calls.
 *
 * Sets of parameters and of groups are bit masks. Parameters are numbered as fsdp_module_parameters lists them, groups
 * from the root's own, 0. */
#ifndef TESTS_SHARD_ORDER_PROGRAM_H
#define TESTS_SHARD_ORDER_PROGRAM_H

#include "shard/order_net.h"
#include "support/dice.h"

enum {
    ORDER_MODELS = 2,
    ORDER_SLOTS = 3, /* losses that may be alive at a time */
    ORDER_MAX_WORLD = 6,
    ORDER_MAX_BLOCKS = 3,
    ORDER_MAX_GROUPS = ORDER_MAX_BLOCKS + 2,
    ORDER_MAX_TARGETS = ORDER_MAX_BLOCKS + 4,
    ORDER_MAX_PARAMS = 4 * ORDER_MAX_BLOCKS + 6,
    ORDER_MAX_CALLS = 80,
};

/* ---- a model and its groups ---- */

typedef enum order_grouping {
    ORDER_GROUP_BLOCKS,      /* each block, and the rest */
    ORDER_GROUP_ROOT,        /* one group */
    ORDER_GROUP_PAIR_BLOCKS, /* blocks 0 and 1 are one group */
    ORDER_GROUP_PAIR_ENDS,   /* norm and head are one group; not with a fused head, which does not run its module */
    ORDER_GROUPINGS
} order_grouping;

/* A module that calls are made on. */
typedef struct order_target {
    char name[16];      /* from the root, "" for the root */
    uint32_t params;    /* of the subtree */
    int group;          /* that it was given to fully_shard with; -1: it was not */
    uint32_t groups_in; /* groups of the sharded modules of the subtree */
} order_target;

typedef struct order_plan {
    int blocks;
    order_form form;
    order_grouping grouping;
    uint32_t checkpoints; /* blocks whose forward is one; of these no parameter changes while a loss waits */
    bool flat;            /* FSDP1's units */
    bool as_one;          /* without original parameters: gradients are those of one parameter a unit */
    bool whole;           /* of which every rank has all */
    bool real;            /* built with values on the CPU instead of on the meta device */
    fsdp_reshard reshard[ORDER_MAX_GROUPS];
    int slice_ranks[ORDER_MAX_GROUPS]; /* reshard_after_forward_ranks */
    bool staged;                       /* "the last backward" says which microbatch comes */
    int zero_stage[ORDER_MAX_GROUPS];  /* then */
    int param_count, group_count, target_count;
    uint32_t all_params, all_groups;
    uint32_t forward_params; /* what the root's forward uses */
    uint32_t group_params[ORDER_MAX_GROUPS];
    order_target targets[ORDER_MAX_TARGETS]; /* root, blocks, input, norm, head */
} order_plan;

/* Everything that follows from blocks, form and grouping. */
void order_plan_finish(order_plan *plan);
/* The parameters of a set of groups. */
uint32_t order_params_of(const order_plan *plan, uint32_t groups);
/* The groups that any of the parameters is in. */
uint32_t order_groups_of(const order_plan *plan, uint32_t params);
/* The parameters of a block and of all that runs before it. */
uint32_t order_params_up_to(int block);

/* ---- calls ---- */

typedef enum order_kind {
    ORDER_FORWARD,
    ORDER_FORWARD_PART,
    ORDER_EVALUATE,
    ORDER_BACKWARD,
    ORDER_BACKWARD_KEEP,
    ORDER_DROP,
    ORDER_UNSHARD,
    ORDER_UNSHARD_ASYNC,
    ORDER_WAIT_UNSHARD,
    ORDER_RESHARD,
    ORDER_RESHARD_ALL,
    ORDER_READ_WHOLE,
    ORDER_READ_FULL,
    ORDER_READ_GRADIENTS,
    ORDER_SUMMON,
    ORDER_ZERO_GRAD,
    ORDER_OPTIMIZER_ZERO_GRAD,
    ORDER_STEP,
    ORDER_CLIP,
    ORDER_UNSCALE,
    ORDER_FREEZE,
    ORDER_UNFREEZE,
    ORDER_FREEZE_ONE,
    ORDER_SYNC_OFF,
    ORDER_SYNC_ON,
    ORDER_ALL_REDUCE_OFF,
    ORDER_ALL_REDUCE_ON,
    ORDER_NO_SYNC_BEGIN,
    ORDER_NO_SYNC_END,
    ORDER_SYNCHRONIZE,
    ORDER_LAST_OFF,
    ORDER_LAST_ON,
    ORDER_SET_RESHARD_FORWARD,
    ORDER_SET_RESHARD_BACKWARD,
    ORDER_SET_FORWARD_PREFETCH,
    ORDER_SET_BACKWARD_PREFETCH,
    ORDER_SET_IN_FLIGHT,
    ORDER_SET_CHANNEL,
    ORDER_SET_DIVIDE,
    ORDER_WRITE,
    ORDER_FILL,
    ORDER_COPY,
    ORDER_INITIALIZE,
    ORDER_SAVE,
    ORDER_LOAD,
    ORDER_LOAD_FULL,
    ORDER_NEW_OPTIMIZER,
    ORDER_RESET,
    ORDER_REBUILD,
    ORDER_FAIL_FORWARD,
    ORDER_FAIL_SHAPE,
    ORDER_FAIL_BACKWARD,
    ORDER_REFUSE_SHARD,
    ORDER_REFUSE_UNSHARD,
    ORDER_REFUSE_WALKED,
    ORDER_REFUSE_STATE,
    ORDER_REFUSE_OPTIMIZER,
    ORDER_REFUSE_WRITE,
    ORDER_KINDS
} order_kind;

/* What is -1 was not drawn. */
typedef struct order_call {
    order_kind kind;
    int model;
    int target; /* of the plan */
    int param;
    int slot;    /* of a loss */
    int number;  /* batch, seed, block, ... or a bool */
    int recurse; /* a bool */
    float value;
    bool windowed; /* the parameter's field names a whole tensor when the call begins */
    /* Whose groups reduce, in a backward or synchronisation; that an optimizer has; that are summoned. */
    uint32_t params;
    uint32_t completes;           /* of those, or of what is partial: that get their gradient */
    uint32_t whole[ORDER_MODELS]; /* parameters whose fields name whole tensors after the call */
} order_call;

typedef struct order_program {
    uint64_t seed;
    int world, models;
    int replicas;          /* 0: a mesh of one dimension */
    bool bf16, reduce_f32; /* the mixed precision policy */
    bool exact;            /* a plain model can give the same bits */
    order_plan plans[ORDER_MODELS];
    order_call calls[ORDER_MAX_CALLS];
    int count;
} order_program;

/* Whether the rank passes by the layers of a block in a batch: with every fourth seed one rank does, a different one
 * for each block and batch. */
bool order_skips(const order_program *p, int block, int number, int rank);
bool order_skips_any(const order_program *p);
/* Parameters are sharded in their last dimension: where the library's own front door shards them, every other time. */
bool order_shards_last(const order_program *p);
/* FSDP1 wraps the models. */
bool order_is_flat(const order_program *p);
/* Models are not sharded but replicated: where all ranks hold all of them, two times of three. */
bool order_replicates(const order_program *p);
/* Blocks have nothing between their layers, whose weights have no elements then: every 11th seed. */
int order_ffn(const order_program *p);
/* Of a rank's batch: with every seventh seed now and then none. */
int order_rows(const order_program *p, int number, int rank);
/* Whether some rank's forward leaves out parameters. */
bool order_leaves_out(const order_program *p, const order_plan *plan);
void order_print_call(FILE *stream, const order_program *p, int index, const char *name);
void order_print_program(FILE *stream, const order_program *p);

#endif
