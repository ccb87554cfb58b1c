/* shard.h - the inside of the sharding engine.
 *
 * [Note: four objects]
 *   param    one parameter: the local rows that the outside sees (`sharded`), and the whole one that the forward and
 *            backward use (`unsharded`), which has bytes only while its group is unsharded       param.c
 *   group    the unit of communication: the params of one fully_shard call, their memory        group.c, memory.c
 *   state    a fully_shard call as hooks on its module(s): what happens when                    state.c
 *   tree     what the states below one root share: order, stream, the running iteration        tree.c
 *
 * [Note: three layouts of a group]
 *   IN_PLACE  one region holds the whole parameters, one after the other; each rank's shard is its rows of it. On one
 *             machine the region is common memory of all ranks, so a gather is a barrier and moves nothing. Also the
 *             layout of a world of one.
 *   CAST      the shards are private; the whole parameters, in another dtype, lie in common memory. A gather casts
 *             each rank's own rows, once for all.
 *   COPY      the shards are private; each gather allocates the whole parameters and copies.
 * The ledger counts the same bytes in all three: those of the algorithm. What peers hold too is counted as shared.
 *
 * [Note: whose turn it is]
 * In the first two layouts peers read memory that this rank writes: its shard (the optimizer) or its rows of the whole
 * parameters (the next cast). It may write once a collective that began after the peers' last read has been complete
 * here. Collectives of a process group are counted as they are issued (`lane`), equal on all ranks, and a group
 * remembers the count at its last use; when none came since, a barrier is made. */
#ifndef SHARD_SHARD_H
#define SHARD_SHARD_H

#include "autograd/autograd.h"
#include "device/device.h"
#include "fsdp/shard.h"
#include "nn/module.h"

typedef struct fsdp__shard_group fsdp__shard_group;
typedef struct fsdp__shard_state fsdp__shard_state;
typedef struct fsdp__shard_tree fsdp__shard_tree;

/* The collectives issued on one process group by this engine. */
typedef struct fsdp__lane {
    struct fsdp__lane *next;
    fsdp_group *comm;
    int64_t issued;
} fsdp__lane;

/* A field of a module that names a parameter. */
typedef struct fsdp__shard_slot {
    fsdp_module *module;
    fsdp_tensor **field;
} fsdp__shard_slot;

typedef struct fsdp__shard_param {
    fsdp_tensor *sharded;   /* the tensor the model was built with, now this rank's rows */
    fsdp_tensor *unsharded; /* a leaf of the whole shape; made with the group's memory */
    fsdp__shard_slot *slots;
    int64_t slot_count, slot_capacity;
    int64_t rows, row_numel; /* of the whole parameter: its first dimension and the rest */
    int64_t chunk_rows;      /* ceil(rows / ranks) */
    int64_t first_row, my_rows;
    size_t shard_offset;      /* bytes, in the group's shards (CAST, COPY) */
    size_t whole_offset;      /* bytes, in the group's whole parameters */
    fsdp_tensor *accumulated; /* gradient kept in the reduce dtype between backwards without reduction, or NULL */
} fsdp__shard_param;

typedef enum fsdp__layout {
    FSDP__LAYOUT_NONE,
    FSDP__LAYOUT_IN_PLACE,
    FSDP__LAYOUT_CAST,
    FSDP__LAYOUT_COPY
} fsdp__layout;

typedef struct fsdp__region fsdp__region; /* counted memory of the device or of a process group: memory.c */

struct fsdp__shard_group {
    fsdp_mesh *mesh;
    fsdp_group *comm;
    fsdp__lane *lane;
    int ranks, rank;
    fsdp__shard_param *params;
    int64_t param_count, param_capacity;
    fsdp_device *device;                              /* NULL while the parameters are on the meta device */
    fsdp_dtype orig_dtype, param_dtype, reduce_dtype; /* reduce NONE: as computed */
    bool share;                                       /* may use memory that ranks share */

    fsdp__layout layout;
    fsdp__region *shards;            /* CAST, COPY: this rank's shards. NULL IN_PLACE */
    fsdp__region *whole;             /* IN_PLACE, CAST: always there. COPY: while gathered */
    size_t shard_bytes, whole_bytes; /* what the ledger counts */

    fsdp_shard_state state;
    fsdp_event *gathered;
    int64_t use_mark; /* lane->issued when the whole parameters were last used here; -1 when never */

    fsdp__storage *gradients;   /* of the whole parameters in the running backward; NULL when there are none */
    fsdp__storage *accumulated; /* of the params' `accumulated`; NULL when there are none */

    bool reshard_after_forward, reshard_after_backward, reduce_grads;
    float divide_factor; /* 0: the number of ranks */
};

typedef enum fsdp__training {
    FSDP__IDLE,
    FSDP__FORWARD,
    FSDP__PRE_BACKWARD,
    FSDP__POST_BACKWARD
} fsdp__training;

struct fsdp__shard_state {
    int64_t refs;          /* one per module it hooks */
    fsdp_module **modules; /* borrowed: the hooks live on them */
    int64_t module_count;
    bool *ran; /* which of the modules ran in this forward */
    int64_t ran_count;
    fsdp__shard_group group;
    fsdp_mp_policy policy;
    fsdp_reshard reshard;
    fsdp_overlap overlap;
    fsdp__training training;
    fsdp__shard_tree *tree; /* its own until lazy initialisation, then the root's */
    bool initialised;       /* lazily */
    char *name;             /* comma-joined module names from the root; NULL before */
    int64_t *order_marks;   /* where this state stands in the recorded order, oldest first */
    int64_t order_count, order_capacity;
};

/* A reduction whose input peers or the stream may still read. */
typedef struct fsdp__reduce_in_flight {
    fsdp__storage *input;
    fsdp_event *done;
} fsdp__reduce_in_flight;

struct fsdp__shard_tree {
    int64_t refs; /* one per state that points here */
    fsdp_context *context;
    fsdp__shard_state *root;    /* NULL when it has been freed */
    fsdp__shard_state **states; /* in the order of the module walk, root first; borrowed, they leave when freed */
    int64_t state_count, state_capacity;
    fsdp_stream *stream; /* gathers and reductions, in issue order; the device's own when inline */
    bool own_stream;
    fsdp_event *compute;             /* scratch: "the device's stream up to now" */
    fsdp__shard_state *forward_root; /* whose forward is running as the outermost; NULL outside */
    bool callback_queued, last_backward;
    fsdp__shard_state **order; /* states in the order their forwards ended */
    int64_t order_count, order_capacity;
    fsdp__reduce_in_flight in_flight; /* at most one */
    fsdp_shard_listener listener;
    void *listener_arg;
};

/* ---- memory.c ---- */
/* Gives the group its layout and memory on `device` and makes the whole parameters' tensors; the sharded tensors get
 * bytes (undefined, or this rank's rows of the values they had). [collective] */
fsdp_status fsdp__group_allocate(fsdp__shard_group *group, fsdp_device *device);
void fsdp__group_release(fsdp__shard_group *group);
/* COPY: bytes of the whole parameters. Counts the whole parameters as gathered, in every layout. */
fsdp_status fsdp__group_whole_begin(fsdp__shard_group *group);
void fsdp__group_whole_end(fsdp__shard_group *group);
/* A storage for all gradients of the group in `dtype`, whole; peers can read it where the group shares memory. */
fsdp_status fsdp__group_gradient_storage(fsdp__shard_group *group, fsdp_dtype dtype, fsdp__storage **out);
/* The parameter's part of it. */
fsdp_status fsdp__group_gradient_view(const fsdp__shard_group *group, const fsdp__shard_param *param,
                                      fsdp__storage *storage, fsdp_dtype dtype, fsdp_tensor **out);

/* ---- param.c ---- */
/* Turns the model's tensor into its distributed self: shape and distribution of this rank's rows, still without the
 * group's memory. */
fsdp_status fsdp__param_init(fsdp__shard_param *param, fsdp_tensor *tensor, fsdp_mesh *mesh);
/* Back to the plain whole tensor; before fsdp__group_allocate only. */
void fsdp__param_undo(fsdp__shard_param *param);
void fsdp__param_release(fsdp__shard_param *param);
fsdp_status fsdp__param_add_slot(fsdp__shard_param *param, fsdp_module *module, fsdp_tensor **field);
/* Puts the whole parameter, or the shard, into every field that names it. */
void fsdp__param_publish(fsdp__shard_param *param, bool unsharded);
int64_t fsdp__param_numel(const fsdp__shard_param *param);
int64_t fsdp__param_chunk_numel(const fsdp__shard_param *param); /* padded rows of one rank */
int64_t fsdp__param_shard_numel(const fsdp__shard_param *param);

/* ---- group.c ---- All are idempotent. */
fsdp_status fsdp__group_unshard(fsdp__shard_group *group, fsdp__shard_tree *tree);
fsdp_status fsdp__group_wait(fsdp__shard_group *group, fsdp__shard_tree *tree);
void fsdp__group_reshard(fsdp__shard_group *group);
/* Sums the gradients over the ranks into the shards' gradients, or keeps them whole when the group does not reduce. */
fsdp_status fsdp__group_keep_gradients(fsdp__shard_group *group);
fsdp_status fsdp__group_reduce(fsdp__shard_group *group, fsdp__shard_tree *tree, bool *reduced);
void fsdp__group_drop_gradients(fsdp__shard_group *group);
/* This rank has just used the whole parameters. */
void fsdp__group_used(fsdp__shard_group *group);
/* A barrier if peers may still read what this rank may write next: see [Note: whose turn it is]. [collective] */
fsdp_status fsdp__group_take_turn(fsdp__shard_group *group, fsdp__shard_tree *tree);

/* ---- tree.c ---- */
fsdp_status fsdp__tree_create(fsdp_context *context, fsdp__shard_state *root, fsdp__shard_tree **out);
void fsdp__tree_unref(fsdp__shard_tree *tree);
/* `state` goes: out of the tree's lists, and its reference with it. */
void fsdp__tree_leave(fsdp__shard_tree *tree, fsdp__shard_state *state);
/* Makes the stream and events, once. Gathers before the first forward run on the device's own stream. */
fsdp_status fsdp__tree_open_stream(fsdp__shard_tree *tree, fsdp_device *device, fsdp_overlap overlap);
/* Lazy initialisation, at the first forward of the outermost state. */
fsdp_status fsdp__tree_initialise(fsdp__shard_state *root);
/* Work of the tree's stream starts after everything the device's stream has been given. */
fsdp_status fsdp__tree_follow_compute(fsdp__shard_tree *tree, fsdp_device *device);
fsdp_status fsdp__tree_record_order(fsdp__shard_tree *tree, fsdp__shard_state *state);
/* The state whose forward ended before `state`'s latest one not yet gone back through; NULL when none. */
fsdp__shard_state *fsdp__tree_previous(fsdp__shard_tree *tree, fsdp__shard_state *state);
void fsdp__tree_forget_order(fsdp__shard_tree *tree);
/* Waits for the reduction in flight and lets its input go. */
fsdp_status fsdp__tree_finish_reduction(fsdp__shard_tree *tree, fsdp_device *device);
void fsdp__tree_notify(fsdp__shard_tree *tree, fsdp__shard_state *state, fsdp_shard_event event);
/* Everything sharded, nothing in flight, no gradient of the running iteration. */
fsdp_status fsdp__tree_reset(fsdp__shard_tree *tree);
/* The context's lane of a process group. */
fsdp_status fsdp__lane_of(fsdp_group *comm, fsdp__lane **out);
/* One mesh over all ranks, shared by every fully_shard call that names none. Borrowed. */
fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out);

/* ---- state.c ---- */
/* Hooks the state's modules; undone by fsdp__state_detach, or by freeing the modules. */
fsdp_status fsdp__state_attach(fsdp__shard_state *state);
void fsdp__state_detach(fsdp__shard_state *state);
void fsdp__state_unref(fsdp__shard_state *state);
fsdp__shard_state *fsdp__state_of(const fsdp_module *module); /* NULL when not sharded */
fsdp_status fsdp__state_unshard(fsdp__shard_state *state);
void fsdp__state_reshard(fsdp__shard_state *state);

#endif
