/* state.h - one call of a front door, as the engine sees it: its modules and its groups of parameters (FSDP2's
 * FSDPState), and what is done to all of the groups together. When it is done is hooks.c's business.
 *
 * [Note: companions]
 * A parameter may be tied across calls, or its module shared. The first call has it; states of later calls whose
 * modules use it too have the first call's state as a companion: its groups are gathered with theirs, and resharded
 * when none of them is in use. Its gradients are reduced when the backward ends, which is after the last use in any
 * order of uses.
 *
 * A conditional state is the companion of the next one above it, its parent, and is reduced with it: what is collective
 * happens where all ranks come, and to enter its modules is each rank's own business. */
#ifndef SHARD_STATE_H
#define SHARD_STATE_H

#include "fsdp/fsdp1.h"
#include "shard/reduce.h"

typedef enum fsdp__training {
    FSDP__IDLE,
    FSDP__FORWARD,
    FSDP__PRE_BACKWARD,
    FSDP__POST_BACKWARD
} fsdp__training;

/* States that are gathered ahead: see prefetch.h. */
typedef struct fsdp__prefetch_list {
    struct fsdp__module_state **states; /* held */
    int count;
} fsdp__prefetch_list;

/* What FSDP1 (fsdp1.c) does otherwise. All zero: the state is not its. */
typedef struct fsdp__fsdp1 {
    bool on;                                    /* in a backward, unsharded until the last of several uses */
    bool use_orig_params, no_limit_all_gathers; /* below one root all the same */
    fsdp_sharding_strategy strategy;
    fsdp_backward_prefetch backward_prefetch;
    bool forward_prefetch;             /* in the order of first uses */
    bool keeps_unsynced;               /* no reshard after a backward that does not reduce */
    bool casts_root_inputs;            /* where the state is the outermost, in spite of policy.keep_forward_inputs */
    bool by_mesh;                      /* wrapped with a mesh */
    fsdp_state_dict_config state_dict; /* that is taken where nothing else is said */
    bool full_precision; /* computes in the dtype of its shards, and gives back that of its first input: */
    fsdp_dtype came_in;
} fsdp__fsdp1;

typedef struct fsdp__module_state {
    int64_t refs;          /* one per module it hooks, one per place in a graph that will call it */
    fsdp_module **modules; /* borrowed: the hooks live on them. NULL where one is gone */
    int64_t module_count;
    bool *ran; /* which of the modules ran in this forward */
    int64_t ran_count;
    int64_t depth; /* calls of its modules that are running, one inside the other */

    /* Unsharded together with this one, which holds them; and those that hold this one: [Note: companions]. */
    struct fsdp__module_state **companions, **hosts;
    int64_t companion_count, companion_capacity, host_count, host_capacity;
    bool replicated;                   /* through fsdp_replicate */
    bool tied;                         /* modules of other states use its parameters */
    bool conditional;                  /* a rank may enter it or not */
    struct fsdp__module_state *parent; /* of a conditional state, its host above it; NULL: it is the outermost */

    fsdp__param_group **groups; /* none when the modules have no parameters left */
    int64_t group_count, group_capacity;
    fsdp_mp_policy policy;
    fsdp_offload_policy offload;
    fsdp_reshard reshard;
    fsdp_overlap overlap;
    bool reshard_after_forward, reshard_after_backward, reduce_grads, unshard_in_backward;
    bool keeps_unsharded; /* after forwards, whatever the first says */
    int max_inputs;       /* reductions in flight that this state asks for; 0: the default, one */
    int zero_stage;       /* 0: none */
    int slice_ranks;      /* reshard after the forward keeps 1/slice_ranks; 0: nothing */
    fsdp__prefetch_list forward_prefetch, backward_prefetch;
    fsdp__reduce_settings reduction; /* of those that reduce_grads lets happen */
    int no_sync;                     /* so many of FSDP1's no_sync, in which none does */
    fsdp__fsdp1 fsdp1;

    fsdp__training training;
    uint64_t entered;              /* fsdp__recorded when a module of it was entered last */
    uint64_t used_in;              /* root->iteration of its last forward */
    int64_t to_come;               /* of the running backward: how often it will leave the modules yet */
    struct fsdp__trained *trained; /* of the last forward: trained.h; NULL: none was recorded */
    bool leaving;                  /* its forward ends: it uses nothing any more */
    struct fsdp__root *root;       /* its own until lazy initialisation, then the outermost state's */
    fsdp__comm_context *comm;      /* the root's */
    bool initialised;              /* lazily */
    char *name;                    /* comma-joined module names from the root; NULL before */
    int64_t *order_marks;          /* where this state stands in the root's order, oldest first */
    int64_t order_count, order_capacity;
    const struct fsdp__listener *listener; /* the root's */
} fsdp__module_state;

/* Who sees the transitions of a root's states. */
typedef struct fsdp__listener {
    fsdp_shard_listener function;
    void *arg;
} fsdp__listener;

fsdp_status fsdp__module_state_create(fsdp_module *const *modules, int count, const fsdp_shard_options *options,
                                      fsdp__module_state **out);
/* The state alone: who holds it, and its place below a root, are root.c's. */
void fsdp__module_state_free(fsdp__module_state *state);
/* One more group; the state frees it. */
fsdp_status fsdp__module_state_add_group(fsdp__module_state *state, fsdp_mesh *mesh, bool share,
                                         fsdp__param_group **out);
/* Of its unsharded parameters: the same on all ranks of its meshes. */
size_t fsdp__module_state_unsharded_bytes(const fsdp__module_state *state);
fsdp__module_state *fsdp__module_state_of(const fsdp_module *module); /* NULL when not sharded */
extern const char fsdp__module_state_key;                             /* its address is the key of a state's hooks */
/* Gives all groups their memory: see fsdp__param_groups_allocate. [collective] */
fsdp_status fsdp__module_state_allocate(fsdp__module_state *state, fsdp_device *device);
/* The device's stream may write the shards of a group: see [Note: readers and writers] in residence.h. */
fsdp_status fsdp__module_state_begin_write(void *group, const fsdp__storage *storage);
/* Whether parameters have no bytes yet. */
bool fsdp__module_state_is_meta(const fsdp__module_state *state);
/* NULL while it has none. */
fsdp_device *fsdp__module_state_device(const fsdp__module_state *state);
/* Which of its modules have run in this forward: none. */
void fsdp__module_state_forget_ran(fsdp__module_state *state);
void fsdp__module_state_notify(const fsdp__module_state *state, fsdp_shard_event event);

/* A forward or backward of its modules runs, or of a host's. */
bool fsdp__module_state_in_use(const fsdp__module_state *state);
/* One of its parent's does: other ranks may be elsewhere, so nothing is to be collective. */
bool fsdp__module_state_is_alone(const fsdp__module_state *state);

/* ---- of the state's groups, and its companions' ---- What ends a use leaves alone who is in use. */

/* [collective] */
fsdp_status fsdp__module_state_unshard(fsdp__module_state *state);
/* Those that are to be unsharded in the backward: a conditional companion as it says itself. */
fsdp_status fsdp__module_state_unshard_in_backward(fsdp__module_state *state);
fsdp_status fsdp__module_state_wait(fsdp__module_state *state);
/* Gives up a gather that is under way and that nobody has waited for. Companions keep what they have: they have been
 * gathered with it, or before. */
void fsdp__module_state_drop_gather(fsdp__module_state *state);
/* Whether one is that the caller did not ask for. */
bool fsdp__module_state_is_ahead(const fsdp__module_state *state);
void fsdp__module_state_leave(fsdp__module_state *state);
void fsdp__module_state_reshard(fsdp__module_state *state);
/* As each is set to: all, to slices, or not at all. */
fsdp_status fsdp__module_state_reshard_after_forward(fsdp__module_state *state);
void fsdp__module_state_reshard_after_backward(fsdp__module_state *state);
/* See fsdp__param_group_give_up. */
void fsdp__module_state_give_up(fsdp__module_state *state);

/* ---- of the state's own groups ---- */

/* Gradients of this backward leave: reduced, or kept until a later one is. So do those of the conditional states that
 * it is the parent of. [collective] */
fsdp_status fsdp__module_state_reduce(fsdp__module_state *state);
/* What is left of that, whatever the settings say. [collective] */
fsdp_status fsdp__module_state_reduce_pending(fsdp__module_state *state);
/* Everything sharded, no gradient that was not reduced, idle. */
void fsdp__module_state_reset(fsdp__module_state *state);

#endif
