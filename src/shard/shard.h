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
 * [Note: readers and writers]
 * In the first two layouts peers read memory that this rank writes: its shard (optimizer, initialize, load), or its
 * rows of the whole parameters (the next cast). Readers only say when they begin and end (fsdp__group_begin_read): a
 * group reads from its gather, or from the next use of what was kept whole, to the end of that use. To wait is the
 * writer's business, in one place: fsdp__state_begin_write, which every write to a shard goes through (the guard of the
 * shards' storages calls it), and the gather of a CAST group. A write also makes everything stale that was derived from
 * the shard: the group is resharded, in every layout alike, and its next use gathers again.
 *
 * [Note: what fields name]
 * Outside a forward or backward the fields of modules name the shards, also where the engine keeps a group whole
 * (`kept`) for the next use. From fsdp_module_unshard to the reshard (`explicit`) they name the whole parameters.
 *
 * [Note: kept whole]
 * Whether a group is still whole from an earlier use must be one decision of all ranks, but any rank may have written
 * its rows since, or resharded by hand. So a forward of the outermost module, and an unshard by the caller, begin with
 * one small exchange about the groups that were whole (`kept`, `explicit`, or gathered ahead): has anybody given it up?
 * Then all do, and gather again. Between a forward and its backward nobody asks: there all ranks must write, or none.
 */
#ifndef SHARD_SHARD_H
#define SHARD_SHARD_H

#include "autograd/autograd.h"
#include "device/device.h"
#include "fsdp/shard.h"
#include "nn/module.h"

typedef struct fsdp__shard_group fsdp__shard_group;
typedef struct fsdp__shard_state fsdp__shard_state;
typedef struct fsdp__shard_tree fsdp__shard_tree;

/* A field of a module that names a parameter. */
typedef struct fsdp__shard_slot {
    fsdp_module *module;
    fsdp_tensor **field;
} fsdp__shard_slot;

/* Memory for whole gradients is made for a group at once: as they are computed, and as they are kept in the reduce
 * dtype between backwards without reduction. */
typedef enum fsdp__gradient_room {
    FSDP__ROOM_COMPUTED,
    FSDP__ROOM_KEPT,
    FSDP__ROOMS
} fsdp__gradient_room;

typedef struct fsdp__shard_param {
    fsdp__shard_group *group;
    fsdp_tensor *sharded;   /* the tensor the model was built with, now this rank's rows */
    fsdp_tensor *unsharded; /* a leaf of the whole shape; made with the group's memory */
    char *name;             /* dotted, from the root; NULL before lazy initialisation */
    fsdp__shard_slot *slots;
    int64_t slot_count, slot_capacity;
    int64_t rows, row_numel; /* of the whole parameter: its first dimension and the rest */
    int64_t chunk_rows;      /* ceil(rows / ranks) */
    int64_t first_row, my_rows;
    size_t shard_offset;        /* bytes, in the group's shards (CAST, COPY) */
    size_t whole_offset;        /* bytes, in the group's whole parameters */
    bool has_room[FSDP__ROOMS]; /* a place in the group's room */
    fsdp_tensor *kept;          /* gradient in the reduce dtype of backwards without reduction, or NULL */
} fsdp__shard_param;

typedef enum fsdp__layout {
    FSDP__LAYOUT_NONE,
    FSDP__LAYOUT_IN_PLACE,
    FSDP__LAYOUT_CAST,
    FSDP__LAYOUT_COPY
} fsdp__layout;

typedef struct fsdp__region fsdp__region;

struct fsdp__shard_group {
    fsdp_mesh *mesh;
    fsdp_group *comm;
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
    bool reading;     /* between begin_read and end_read of the whole parameters */
    bool explicit;    /* unsharded by the caller: see [Note: what fields name] */
    bool kept;        /* was whole after a use, as all ranks know: see [Note: kept whole] */
    bool asked;       /* in the running exchange */
    bool written;     /* the shards, by the device's stream, since a gather last waited for that */
    bool fresh_whole; /* COPY: the whole parameters' memory is new from the device */

    fsdp__region *rooms[FSDP__ROOMS]; /* weak: they live as long as a gradient in them */

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
    int64_t refs;          /* one per module it hooks, one per place in a graph that will call it */
    fsdp_module **modules; /* borrowed: the hooks live on them. NULL where one is gone */
    int64_t module_count;
    bool *ran; /* which of the modules ran in this forward */
    int64_t ran_count;
    int64_t depth; /* calls of its modules that are running, one inside the other */
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

/* A reduction that the stream may still be at: all that it reads and writes. */
typedef struct fsdp__reduce_in_flight {
    fsdp_tensor **whole;     /* the gradients that are reduced */
    fsdp_tensor **gradients; /* this rank's rows of the result */
    fsdp_tensor **arriving;  /* shards whose gradient it is, where hooks are to see it first; else NULL */
    int64_t count, capacity;
    fsdp_event *done;
} fsdp__reduce_in_flight;

enum {
    FSDP__SPARE_REGIONS = 2
};

/* Memory of a group that was resharded while the device's stream may still read it. */
typedef struct fsdp__spare_region {
    fsdp__region *region;
    fsdp_event *free; /* after the last use */
} fsdp__spare_region;

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
    bool callback_queued;            /* a backward runs; the tree and its states are held */
    bool last_backward;
    int64_t last_backward_set; /* when it was set, among the trees of the context */
    fsdp__shard_state **order; /* states in the order their forwards ended */
    int64_t order_count, order_capacity;
    fsdp__reduce_in_flight in_flight;               /* at most one */
    fsdp__spare_region spares[FSDP__SPARE_REGIONS]; /* oldest first: see fsdp__tree_take_spare */
    int spare_count, regions_out;
    fsdp_shard_listener listener;
    void *listener_arg;
};

/* ---- region.c ---- */

/* Counted memory of the device or of a process group. Lives as long as the group or a tensor on it: an optimizer may
 * outlast the model. */
struct fsdp__region {
    int64_t refs;
    void *data;
    size_t bytes, counted_bytes;
    fsdp_device *device;
    fsdp_memory_kind kind;
    fsdp_mesh *mesh; /* memory of the mesh's process group; NULL: the device's own */
    fsdp_group *comm;
    fsdp_memory_sharing sharing;
    fsdp__shard_state *state; /* weak: whose shards lie here; NULL for other memory, or when the state is gone */
    fsdp__region **weak;      /* is set to NULL when the region goes; may be NULL */
};

/* Still without bytes. */
fsdp_status fsdp__region_of_device(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, fsdp__region **out);
/* Of the group's ranks, counted here as `counted_bytes` of `kind`. */
fsdp_status fsdp__region_of_ranks(const fsdp__shard_group *group, fsdp_memory_sharing sharing, size_t bytes,
                                  fsdp_memory_kind kind, size_t counted_bytes, fsdp__region **out);
/* Takes the bytes: collective where they are common to the ranks, and then all succeed or none. */
fsdp_status fsdp__region_fill(fsdp__region *region);
void fsdp__region_unref(fsdp__region *region);
/* `storage` takes the bytes from `offset` on, and a reference. */
void fsdp__region_lend(fsdp__region *region, size_t offset, fsdp__storage *storage);

/* ---- memory.c ---- */
/* Gives the group its layout and memory on `device` and makes the whole parameters' tensors; the sharded tensors get
 * bytes (undefined, or this rank's rows of the values they had). All ranks succeed, or none and nothing has changed.
 * [collective] */
fsdp_status fsdp__state_allocate(fsdp__shard_state *state, fsdp_device *device);
void fsdp__group_release(fsdp__shard_group *group, fsdp__shard_tree *tree);
/* COPY: bytes of the whole parameters. Counts the whole parameters as gathered, in every layout. */
fsdp_status fsdp__group_whole_begin(fsdp__shard_group *group, fsdp__shard_tree *tree);
void fsdp__group_whole_end(fsdp__shard_group *group, fsdp__shard_tree *tree);
/* Memory for a whole gradient of `param`; peers can read it where the group shares memory. The caller owns `*out`. */
fsdp_status fsdp__group_whole_gradient(fsdp__shard_group *group, fsdp__shard_param *param, fsdp__gradient_room room,
                                       fsdp_tensor **out);
/* Later gradients get memory of their own: what is in the rooms now belongs to those who hold it. */
void fsdp__group_leave_rooms(fsdp__shard_group *group);

/* ---- param.c ---- */
/* Turns the model's tensor into its distributed self: shape and distribution of this rank's rows, still without the
 * group's memory. */
fsdp_status fsdp__param_init(fsdp__shard_param *param, fsdp_tensor *tensor, fsdp_mesh *mesh);
/* Back to the plain whole tensor; while the group has no memory only. */
void fsdp__param_undo(fsdp__shard_param *param);
void fsdp__param_release(fsdp__shard_param *param);
fsdp_status fsdp__param_add_slot(fsdp__shard_param *param, fsdp_module *module, fsdp_tensor **field);
/* Puts the whole parameter, or the shard, into every field that names it. */
void fsdp__param_publish(fsdp__shard_param *param, bool unsharded);
/* The param whose shard, or whole tensor, this is; NULL when no group took it. */
fsdp__shard_param *fsdp__param_of(const fsdp_tensor *tensor);
/* Tells the param of what callers do to `leaf`, one of its two tensors. */
fsdp_status fsdp__param_own(fsdp__shard_param *param, fsdp_tensor *leaf);
/* "'name'" when it is known, else its place in the group's modules; for messages. */
const char *fsdp__param_text(const fsdp__shard_param *param, char *text, size_t bytes);
int64_t fsdp__param_numel(const fsdp__shard_param *param);
int64_t fsdp__param_chunk_numel(const fsdp__shard_param *param); /* padded rows of one rank */
int64_t fsdp__param_shard_numel(const fsdp__shard_param *param);

/* ---- group.c ---- All are idempotent. */
fsdp_status fsdp__group_unshard(fsdp__shard_group *group, fsdp__shard_tree *tree);
/* A use begins: whole parameters in place, fields name them. */
fsdp_status fsdp__group_wait(fsdp__shard_group *group, fsdp__shard_tree *tree);
/* A use ends that keeps the group whole. */
void fsdp__group_leave(fsdp__shard_group *group);
void fsdp__group_reshard(fsdp__shard_group *group, fsdp__shard_tree *tree);
/* Work of `stream` may write the group's common memory: no peer reads it. */
fsdp_status fsdp__group_await_peers(fsdp__shard_group *group, fsdp_stream *stream);
/* This rank does not look at the whole parameters for a while, and again. */
void fsdp__group_stop_reading(fsdp__shard_group *group);
void fsdp__group_resume_reading(fsdp__shard_group *group);

/* ---- reduce.c ---- */
/* Gradients of this backward stay whole on this rank until a later one is reduced. */
fsdp_status fsdp__group_keep_gradients(fsdp__shard_group *group);
/* Sums the whole gradients over the ranks into the shards' gradients. */
fsdp_status fsdp__group_reduce(fsdp__shard_group *group, fsdp__shard_tree *tree, bool *reduced);
/* Forgets whole gradients that were not reduced. */
void fsdp__param_drop_whole_gradient(fsdp__shard_param *param);
void fsdp__group_drop_whole_gradients(fsdp__shard_group *group);
/* The device's stream waits for the reduction in flight; what it held is let go, what hooks wait for arrives. */
fsdp_status fsdp__tree_finish_reduction(fsdp__shard_tree *tree);
/* The same when its result is not wanted. */
void fsdp__tree_drop_reduction(fsdp__shard_tree *tree);

/* ---- spares.c ---- */
/* Memory for a group's whole parameters (COPY) that was in use until its event, which the tree's stream waits for; NULL
 * when there is room for more: the root and two other groups. */
fsdp_status fsdp__tree_take_spare(fsdp__shard_tree *tree, size_t bytes, fsdp__region **out);
/* Takes the region over. */
void fsdp__tree_give_spare(fsdp__shard_tree *tree, fsdp_device *device, fsdp__region *region);
void fsdp__tree_drop_spares(fsdp__shard_tree *tree);

/* ---- tree.c ---- */
fsdp_status fsdp__tree_create(fsdp_context *context, fsdp__shard_state *root, fsdp__shard_tree **out);
void fsdp__tree_unref(fsdp__shard_tree *tree);
/* `state` goes: out of the tree's lists, and its reference with it. */
void fsdp__tree_leave(fsdp__shard_tree *tree, fsdp__shard_state *state);
/* Makes the stream and events, once. Gathers before the first forward run on the device's own stream. */
fsdp_status fsdp__tree_open_stream(fsdp__shard_tree *tree, fsdp_device *device, fsdp_overlap overlap);
/* Work of the tree's stream starts after everything the device's stream has been given. */
fsdp_status fsdp__tree_follow_compute(fsdp__shard_tree *tree, fsdp_device *device);
fsdp_status fsdp__tree_record_order(fsdp__shard_tree *tree, fsdp__shard_state *state);
/* The state whose forward ended before `state`'s latest one not yet gone back through; NULL when none. */
fsdp__shard_state *fsdp__tree_previous(fsdp__shard_tree *tree, fsdp__shard_state *state);
void fsdp__tree_forget_order(fsdp__shard_tree *tree);
void fsdp__tree_set_last_backward(fsdp__shard_tree *tree, bool last);
void fsdp__tree_notify(fsdp__shard_tree *tree, fsdp__shard_state *state, fsdp_shard_event event);
/* Reshards what was kept whole and has been written to on any rank: see [Note: kept whole]. [collective] */
fsdp_status fsdp__tree_drop_stale(fsdp__shard_tree *tree);
/* Everything sharded, nothing in flight, no gradient of the running iteration. */
fsdp_status fsdp__tree_reset(fsdp__shard_tree *tree);
/* One mesh over all ranks, shared by every fully_shard call that names none. Borrowed. */
fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out);

/* ---- initialise.c ---- */
/* At the first forward of the outermost state. */
fsdp_status fsdp__tree_initialise(fsdp__shard_state *root);

/* ---- attach.c ---- */
/* Hooks the state's modules; undone by fsdp__state_detach, or by freeing the modules. */
fsdp_status fsdp__state_attach(fsdp__shard_state *state);
void fsdp__state_detach(fsdp__shard_state *state);

/* ---- state.c ---- */
/* As hooks of a module: see nn/module.h. */
fsdp_status fsdp__state_pre_forward(void *state, fsdp_module *module, fsdp_tensor **inputs, int count);
fsdp_status fsdp__state_post_forward(void *state, fsdp_module *module, fsdp_tensor **output);
void fsdp__state_failed(void *state, fsdp_module *module);
/* Which of its modules have run in this forward: none. */
void fsdp__state_forget_ran(fsdp__shard_state *state);
fsdp__shard_state *fsdp__state_ref(fsdp__shard_state *state);
void fsdp__state_unref(fsdp__shard_state *state);
fsdp__shard_state *fsdp__state_of(const fsdp_module *module); /* NULL when not sharded */
extern const char fsdp__state_key;                            /* its address is the key of a state's hooks */
fsdp_status fsdp__state_unshard(fsdp__shard_state *state);
void fsdp__state_reshard(fsdp__shard_state *state);
/* The same on this rank alone, by a write or by the caller's will: see [Note: kept whole]. */
void fsdp__state_give_up(fsdp__shard_state *state);
/* The device's stream may write the shards: see [Note: readers and writers]. Errors name the parameter of `storage`. */
fsdp_status fsdp__state_begin_write(fsdp__shard_state *state, const fsdp__storage *storage);

#endif
