/* shard/tree_plan.h - a module tree on paper: its nodes, their parameters, how they are sharded, and the calls.
 *
 * Every node takes and gives (rows, width). It applies the first half of its parameters, calls its children as its flow
 * says, and applies the other half. A node may be a child of several: edges go from lower to higher numbers. A state is
 * one call of fully_shard; state 0 is the root's. */
#pragma once

#include "fsdp/wrap.h"
#include "shard/codes.h"
#include "support/test.h"

enum {
    TREE_MAX_NODES = 14,
    TREE_MAX_CHILDREN = 4,
    TREE_MAX_OWN = 5, /* parameters of a node */
    TREE_MAX_PARAMS = 40,
    TREE_MAX_STATES = TREE_MAX_NODES + 1,
    TREE_MAX_RUNS = 24, /* of nodes in a forward */
    TREE_MAX_CALLS = 56,
    TREE_MAX_MODELS = 2,
    TREE_MAX_WORLD = 9,
    TREE_MAX_DIMS = 3,
    TREE_SLOTS = 3, /* losses that may be alive at a time */
    TREE_ROWS = 3,  /* of one rank's batch, at most */
};

/* ---- parameters ---- */

/* What a parameter does to x (rows, d). */
typedef enum tree_role {
    TREE_MATRIX,           /* (d,d)    x + gelu(linear(x)) */
    TREE_TALL,             /* (h,d)    x + linear(x) times the same: used twice */
    TREE_TABLE,            /* (h,d)    x + embedding of the batch's ids */
    TREE_SCALE,            /* (d)      rmsnorm */
    TREE_BIAS,             /* (d)      x + it */
    TREE_ELEMENT,          /* (1)      x times it */
    TREE_CUBE,             /* (a,b,d)  x times its sum over a and b */
    TREE_GATED,            /* (d,d)    x + linear(swiglu(x, x / 2)) */
    TREE_UNUSED,           /* (h)      nothing */
    TREE_ROLES,            /* those of any tree; orders also have: */
    TREE_HEAD = TREE_ROLES /* (d,d)   x + the loss of the batch's ids, whose gradients the forward makes */
} tree_role;

/* What a team has of a parameter; 1 + d: it is cut in dimension d. */
enum {
    TREE_ALIKE = 0,    /* each rank has it, and does the same with it */
    TREE_OWN_ROWS = -1 /* each rank has it, and uses it with its own rows of the batch */
};

typedef struct tree_param {
    tree_role role;
    int node;
    int ndim;
    int64_t shape[TREE_MAX_DIMS];
    fsdp_dtype dtype;
    bool frozen; /* from the start */
    bool ignored;
    bool fickle; /* used on some ranks, in some batches */
    int dim;     /* that is sharded */
    int way;     /* over a team */
    bool gone;   /* the node has it no longer: the plan was reduced */
    int tied;    /* another name of this parameter; -1: its own */
    int owner;   /* state; -1: ignored; follows from the plan */
} tree_param;

/* ---- nodes ---- */

typedef enum tree_flow {
    TREE_SEQUENCE, /* one child after the other */
    TREE_RESIDUAL, /* the mean of x and the sequence */
    TREE_SUM,      /* the mean of x and all children of x */
    TREE_TWICE,    /* the sequence, and again */
    TREE_BRANCH,   /* one child, or none, as the batch's number says */
    TREE_CHOICE,   /* the same, as the rank says, too */
    TREE_FLOWS
} tree_flow;

/* What a node hands on beside y, as a second output. */
typedef enum tree_second {
    TREE_NONE,
    TREE_HALF,  /* x after the first half of its parameters */
    TREE_GIVEN, /* x */
    TREE_SCALAR /* the mean of x's squares: an auxiliary loss */
} tree_second;

/* What is made of the two. */
typedef enum tree_take {
    TREE_FIRST,
    TREE_BOTH,
    TREE_SECOND,
    TREE_BY_RANK, /* one of these, as the rank and the batch's number say */
    TREE_TAKES
} tree_take;

typedef struct tree_node {
    tree_flow flow;
    tree_second second;
    tree_take take;
    int params[TREE_MAX_OWN], param_count;
    int children[TREE_MAX_CHILDREN], child_count;
    int parent;                    /* the first */
    fsdp_recompute_mode recompute; /* of its forward, in a sharded tree */
    int state;                     /* that it was given to fully_shard with; -1: it was not */
    bool reached;                  /* from the root; follows from the plan */
    int runs;                      /* in a forward of the root, at most; follows from the plan */
} tree_node;

typedef struct tree_state {
    fsdp_reshard reshard;
    int slice;      /* ranks of an integer reshard; 0: none */
    int stage;      /* of ZeRO; 0: none */
    bool backwards; /* its modules are given from the last to the first */
    fsdp_mp_policy policy;
    coded code;                                   /* of what is gathered of its parameters of several dimensions */
    bool marked;                                  /* as conditional: so are those next below a choice */
    uint32_t above;                               /* states next above; follows from the plan */
    bool conditional;                             /* or below such a one; follows from the plan */
    int members[TREE_MAX_CHILDREN], member_count; /* nodes, reached ones; follows from the plan */
} tree_state;

/* ---- calls ---- */

typedef enum tree_kind {
    TREE_FORWARD,
    TREE_FORWARD_PART,
    TREE_EVALUATE,
    TREE_BACKWARD,
    TREE_BACKWARD_KEEP,
    TREE_DROP,
    TREE_UNSHARD,
    TREE_UNSHARD_ASYNC,
    TREE_WAIT_UNSHARD,
    TREE_RESHARD,
    TREE_RESHARD_ALL,
    TREE_ZERO_GRAD,
    TREE_STEP,
    TREE_CLIP,
    TREE_FREEZE,
    TREE_SYNC_OFF,
    TREE_SYNC_ON,
    TREE_ALL_REDUCE_OFF,
    TREE_ALL_REDUCE_ON,
    TREE_FORCE_SUM,
    TREE_LAST_OFF,
    TREE_LAST_ON,
    TREE_MICROBATCH,
    TREE_LAST_MICROBATCH,
    TREE_SET_RESHARD_FORWARD,
    TREE_SET_RESHARD_BACKWARD,
    TREE_SET_UNSHARD_BACKWARD,
    TREE_SET_DIVIDE,
    TREE_PREFETCH_FORWARD,
    TREE_PREFETCH_BACKWARD,
    TREE_SET_MAX_INPUTS,
    TREE_POST_OPTIM,
    TREE_SEPARATE_CHANNEL,
    TREE_CUSTOM,
    TREE_WRITE,
    TREE_RESET,
    TREE_FAIL_FORWARD,
    TREE_FAIL_BACKWARD,
    /* those of any order */
    TREE_EVALUATE_PART,
    TREE_READ_WHOLE,
    TREE_READ_FULL,
    TREE_READ_GRADIENTS,
    TREE_SUMMON,
    TREE_ZERO_GRAD_PART,
    TREE_OPTIMIZER_ZERO_GRAD,
    TREE_NEW_OPTIMIZER,
    TREE_UNSCALE,
    TREE_FREEZE_FIELD,
    TREE_FREEZE_PART,
    TREE_UNFREEZE_PART,
    TREE_NO_SYNC_BEGIN,
    TREE_NO_SYNC_END,
    TREE_SYNCHRONIZE,
    TREE_WRITE_FIELD,
    TREE_FILL_FIELD,
    TREE_COPY_FIELD,
    TREE_INITIALIZE,
    TREE_SAVE,
    TREE_LOAD,
    TREE_LOAD_FULL,
    TREE_REBUILD,
    TREE_FAIL_SHAPE,
    TREE_REFUSE_SHARD,
    TREE_REFUSE_UNSHARD,
    TREE_REFUSE_WALKED,
    TREE_REFUSE_STATE,
    TREE_REFUSE_OPTIMIZER,
    TREE_REFUSE_WRITE,
    TREE_BACKWARD_DROP,
    TREE_SPLIT_OPTIMIZER,
    TREE_SAVE_OPTIMIZER,
    TREE_LOAD_OPTIMIZER,
    TREE_SKIP_STEP,
    TREE_CONVERT,
    TREE_EXPOSED,
    TREE_CHECKPOINT,
    TREE_CHECKPOINT_POLL,
    TREE_CHECKPOINT_WAIT,
    TREE_CHECKPOINT_LOAD,
    TREE_KINDS
} tree_kind;

/* Any numbers will do: they are taken modulo what there is to choose from, and a call that makes no sense when its turn
 * comes is passed over. So calls can be left out to find the fewest that fail. */
typedef struct tree_call {
    tree_kind kind;
    int model;  /* of the plan and its second */
    int target; /* state, node or parameter */
    int slot;   /* of a loss */
    int number; /* batch, factor, ... */
    bool on;    /* what is set, or whether it goes for the states below too */
    bool recurse;
} tree_call;

/* ---- the plan ---- */

typedef struct tree_plan {
    uint64_t seed;
    int world, width;
    int team;        /* each rank is a team of so many, which cut parameters among them; 0: it is one */
    int replicas;    /* where they are several a mesh of two dimensions, of which the first has so many */
    bool grid;       /* such a mesh in any case */
    bool replicated; /* the root, in buckets; nothing is given to fully_shard */
    bool flat;       /* the parameters of each state lie in one vector: one without a gradient has zeros with others */
    bool fsdp1;      /* such a state is a unit of FSDP1's front door */
    bool real;       /* built with values, not on the meta device */
    bool inputs;     /* gradients of the batches are wanted too */
    bool adamw;      /* or SGD */
    bool recomputes; /* nodes have some: losses are dropped before what would be an error in between */
    bool late;       /* ranks are late now and then */
    bool rowless;    /* some batches of some ranks have no rows */
    /* Calls come in any order: what fields name is part of what is seen, and all states run in every forward. */
    bool orders;
    bool as_one;   /* of FSDP1 without original parameters: a unit has one gradient */
    bool low_sums; /* of FSDP1: gradients rest in another dtype (tree_rest_dtype) */
    int parts;     /* groups of a call of fully_shard; 0: as the library makes them */
    /* Another model of the same ranks and mesh, whose calls are in this plan; or NULL. */
    const struct tree_plan *second;
    /* Who chose the states, with what; NONE: nobody, they are made one by one. A policy's follow from the plan. */
    fsdp_wrap_kind wrap;
    int64_t wrap_least;
    uint32_t wrap_mask;
    tree_node nodes[TREE_MAX_NODES];
    int node_count;
    tree_param params[TREE_MAX_PARAMS];
    int param_count;
    tree_state states[TREE_MAX_STATES];
    int state_count;
    tree_call calls[TREE_MAX_CALLS];
    int call_count;
} tree_plan;

/* How many ranks there are in all. */
int tree_ranks(const tree_plan *plan);
/* Everything that follows from the rest: who owns which parameter, how often nodes run. What fully_shard would refuse
 * is changed: a parameter that two states would use in two dtypes is untied, or its node gets a state of its own; where
 * a conditional state would be below two others nothing is conditional. */
void tree_settle(tree_plan *plan);
/* The parameter whose name `param` is another one of, or itself. */
int tree_original(const tree_plan *plan, int param);
/* Whether it is there, and no other name. */
bool tree_is_original(const tree_plan *plan, int param);
/* The dtype that it is computed with. */
fsdp_dtype tree_compute_dtype(const tree_plan *plan, int param);
/* How it is sent when it is gathered. */
coded tree_code(const tree_plan *plan, int param);
/* The dtype that its gradient is reduced in. */
fsdp_dtype tree_reduce_dtype(const tree_plan *plan, int param);
/* What they rest in with `low_sums`: FSDP1 takes groups of one rank for replicas. */
fsdp_dtype tree_rest_dtype(const tree_plan *plan, int param);
/* Whether what the parameter makes of x need not be kept for a backward, on a device that makes results again. */
bool tree_is_made_again(const tree_plan *plan, int param);
/* Whether there is such a one that may be read in a backward, which then has to find the parameter as it was. */
bool tree_makes_again(const tree_plan *plan);
/* Whether no backward reads a parameter that the state owns or uses. */
bool tree_is_unread_in_backward(const tree_plan *plan, int state);
/* States of the node's subtree, as bits. */
uint32_t tree_states_below(const tree_plan *plan, int node);
/* Whether the rank uses a parameter in a batch; which child of a node it takes, or none (child_count). */
bool tree_uses(const tree_plan *plan, int param, int number, int rank);
int tree_chooses(const tree_plan *plan, int node, int number, int rank);
/* Rows of a rank's batch. */
int tree_rows(const tree_plan *plan, int number, int rank);
/* Which of a node's outputs it takes. */
tree_take tree_takes(const tree_plan *plan, int node, int number, int rank);
/* Whether ranks go different ways: what is told to fail would fail on some of them only. */
bool tree_is_uneven(const tree_plan *plan);
/* Whether anything is computed, kept or reduced in 16 bits. */
bool tree_is_low_precision(const tree_plan *plan);
/* Whether the state's shards rest in halves, where ranks share no memory; and whether those of any state do. */
bool tree_splits(const tree_plan *plan, int state);
bool tree_splits_any(const tree_plan *plan);
/* Whether anything is gathered in one byte. */
bool tree_is_coded(const tree_plan *plan);
/* Whether a backward adds up gradients in another order, or rounds them more often, than a plain model's. */
bool tree_adds_otherwise(const tree_plan *plan);
/* Whether the parameter's gradient is computed as wide as it is reduced, where the device does so. */
bool tree_is_wide(const tree_plan *plan, int param);
