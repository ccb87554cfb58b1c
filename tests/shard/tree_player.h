/* shard/tree_player.h - who carries out a plan: one rank of the sharded tree, or a plain tree that stands for all
 * ranks.
 *
 * The plain tree runs every rank's batch, one rank after the other. Each rank has unreduced gradients of its own, which
 * are put in place around its backward; a reduction rounds those of the ranks as the policy says, adds them in their
 * order, those of a replica first, divides, and adds to the tree's gradients. */
#pragma once

#include "fsdp/checkpoint.h"
#include "fsdp/optim.h"
#include "fsdp/state.h"
#include "shard/log.h"
#include "shard/residences.h"
#include "shard/tree_module.h"

enum {
    TREE_LAST_STEPS = 3, /* equal ones, at the end */
    TREE_OPTIMIZERS = 2
};

typedef struct tree_run {
    const tree_plan *plan;
    const residence *residence; /* NULL: plain */
    run_log logs[TREE_MAX_WORLD];
    int at[TREE_MAX_WORLD];                        /* call that each rank is in */
    int64_t live[TREE_MAX_WORLD][TREE_LAST_STEPS]; /* bytes after each of the last steps, of the last model */
    const char *directory;                         /* for checkpoints; NULL: there are none */
    bool tied[TREE_MAX_WORLD]; /* a shard was as near to two bf16, of which halves have another one than casts */
    bool rounded;              /* all values, to 16 bits: what is close may have become one such number or the next */
    int otherwise; /* plain: the call from which on sums were made in an order that the sharded tree need not keep to */
} tree_run;

/* Over which is sharded (NULL: all ranks), and that of a team (NULL: there is none). */
typedef struct tree_meshes {
    fsdp_mesh *data, *team;
} tree_meshes;

typedef struct tree_slot {
    fsdp_tensor *losses[TREE_MAX_WORLD], *inputs[TREE_MAX_WORLD];
    bool walked; /* by a backward that did not keep the graph */
    bool trains; /* something on the way requires a gradient */
} tree_slot;

typedef struct tree_checkpoint {
    int64_t step; /* 0: there is none */
    float *values[TREE_MAX_PARAMS];
} tree_checkpoint;

/* What a forward has computed with, in the place of the parameter: a leaf of its own. */
typedef struct tree_wide {
    struct tree_wide *next;
    int param;
    fsdp_tensor *leaf, *before; /* its gradient before the backward that runs */
} tree_wide;

typedef struct tree_player {
    const tree_plan *plan;
    tree_run *run;
    fsdp_context *context;
    tree_meshes meshes; /* the caller's */
    bool plain;
    int model;
    int first_rank, ranks; /* teams, or ranks without them, that this player stands for */
    int place;             /* of a sharded one: its rank among all, whose log it writes */
    int at;                /* index of the running call */
    tree_feed feed;
    fsdp_module *modules[TREE_MAX_NODES];
    fsdp_tensor *params[TREE_MAX_PARAMS]; /* shards, or whole; NULL where it is another's name. Held */
    fsdp_tensor *ignored[TREE_MAX_PARAMS];
    fsdp_parameters named;                       /* the same in their order in the tree */
    fsdp_optimizer *optimizers[TREE_OPTIMIZERS]; /* NULL: nothing to train, or not two */
    int optimized[TREE_MAX_PARAMS];              /* by which, from 1; 0: none */
    fsdp_state_dict *optimizer_state;            /* saved, whole, of `state_of`; or NULL */
    int state_of;
    fsdp_event *written; /* behind the optimizer; NULL: none yet */
    tree_slot slots[TREE_SLOTS];
    bool ran; /* the root has, so the tree is known */
    bool last, unsettled, clipped;
    uint32_t sync, all_reduce; /* states */
    int no_sync;               /* begun, and not ended */
    bool held;                 /* some reductions were switched off */
    int walks;                 /* slot of the backward that runs */
    int64_t exposed[2];        /* of gathers and reductions, at the last question */
    fsdp_state_dict *state;    /* saved, with its values; or NULL */
    float *saved[TREE_MAX_PARAMS];
    fsdp_checkpoint_saver *saver;
    tree_checkpoint checkpoints[2]; /* the last whole one, and the one under way */
    /* What is known of whole tensors, of plans of any order. The fields of a state name them from an unshard, or the
     * wait for one, to its reshard, to a forward or backward that reshards it, to a write to one of its shards, to a
     * reset; never else. */
    uint32_t windows;   /* states between the two */
    uint32_t requested; /* states that are unsharded, not waited for, and not used since for sure */
    uint32_t reshards_backward;
    fsdp_reshard reshard[TREE_MAX_STATES];
    /* of a plain tree */
    fsdp_tensor *unreduced[TREE_MAX_WORLD][TREE_MAX_PARAMS];
    float *partial[TREE_MAX_WORLD][TREE_MAX_PARAMS]; /* of a replica, reduced inside it; NULL: nothing waits */
    float divide[TREE_MAX_STATES];
    bool wide, walking; /* gradients are computed as wide as they are reduced, where those of the plan are; a backward
                         * runs */
    tree_wide *wides;   /* what has arrived of parameters with such gradients, the last first */
} tree_player;

/* Of the run's plan, or of its second. Built, sharded, with its optimizer. */
void tree_player_begin(tree_player *player, fsdp_context *context, tree_run *run, int model, tree_meshes meshes);
void tree_player_end(tree_player *player);
/* The same model anew. Losses may outlive the one that they came from. */
void tree_player_rebuild(tree_player *player, bool losses_last);
/* Of what can be trained in the root's fields: of `parts`, in which parameters are by their numbers, one. */
fsdp_status tree_optimizer_create(const tree_player *player, bool adamw, int part, int parts, fsdp_optimizer **out);
void tree_drop_checkpoint(tree_checkpoint *checkpoint);
/* What the parameter's field names now. */
fsdp_tensor *tree_field(const tree_player *player, int param);
/* Whether a tensor of that parameter is distributed over nothing but its team, if that has cut it. */
bool tree_is_plain(const tree_player *player, int param, const fsdp_tensor *tensor);
/* This rank's part of its gradient, wherever it lies; NULL: there is none. The caller owns it. */
fsdp_tensor *tree_gradient(const tree_player *player, int param);
bool tree_in_window(const tree_player *player, int param);
void tree_drop_slot(tree_slot *slot);
/* With those of `ignored` parameters, which the engine knows nothing of, or without. */
/* Says that a plain tree's sums are, from the running call on, made in an order of their own. */
void tree_adds_otherwise_now(const tree_player *player);
void tree_drop_unreduced(tree_player *player, bool ignored);

/* ---- logging ---- */

/* The same on every rank, of parameter `param` or -1. */
void tree_log_all(tree_player *player, const char *what, int param, double value);
void tree_log_value(tree_player *player, int rank, const char *what, double value);
/* What the rank has of a tensor that is its own. */
void tree_log_tensor(tree_player *player, int rank, const char *what, const fsdp_tensor *tensor);
/* Elements of a tensor that is the same on every rank; and of an unsharded one, of which a team's ranks have parts. */
void tree_log_full(tree_player *player, const char *what, int param, const fsdp_tensor *tensor);
void tree_log_whole(tree_player *player, const char *what, int param, const fsdp_tensor *tensor);
/* Each rank's part of a sharded one. */
void tree_log_part(tree_player *player, const char *what, int param, const fsdp_tensor *tensor);
/* All that can be seen of parameters and gradients without communication. */
void tree_observe(tree_player *player);
float *tree_read(const fsdp_tensor *tensor);
/* Moves this part of dimension `dim` of values of that shape to the front, and changes the shape to the part's. */
void tree_take_part(float *values, int ndim, int64_t *shape, int dim, int parts, int part);
