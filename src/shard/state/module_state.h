/* module_state.h - one call of a front door, as the engine sees it: its modules and its groups of parameters (FSDP2's
 * FSDPState), and what is done to all of the groups together. forward.c and backward.c decide when it is done.
 *
 * [Note: companions]
 * A parameter may be tied across calls, or its module shared. The first call owns it. The states of later calls whose
 * modules use it too have the first call's state as a companion: its groups are gathered with theirs, and resharded
 * when none of them is in use. Its gradients are reduced when the backward ends, which is after the last use in any
 * order of uses.
 *
 * A conditional state is the companion of the next state above it, its parent, and is reduced with it: what is
 * collective happens where all ranks come, and each rank is free to enter its modules or not. */
#pragma once

#include "fsdp/fsdp1.h"
#include "fsdp/shard_map.h"
#include "shard/reduce/reduce.h"

typedef enum fsdp__training {
    FSDP__IDLE,
    FSDP__FORWARD,
    FSDP__PRE_BACKWARD,
    FSDP__POST_BACKWARD
} fsdp__training;

/* States that are gathered ahead: see prefetch.h. */
typedef struct fsdp__prefetch_list {
    struct fsdp__module_state **states; /* references */
    int count;
} fsdp__prefetch_list;

struct fsdp__module_state;
struct fsdp__root;

/* Holds what differs by front door beside settings of the states: one table for each, in shard/doors. Any function may
 * be NULL: there is nothing to do. */
typedef struct fsdp__door {
    fsdp_front_door kind;
    const char *call;                                                /* the call that makes states, for messages */
    const char *title;                                               /* in descriptions of modules */
    const char *(*strategy)(const struct fsdp__module_state *state); /* added to the title */
    /* Checks at the first forward that the state goes together with the others below the root. `name` is its name. */
    fsdp_status (*check_tree)(const struct fsdp__root *root, const struct fsdp__module_state *state, const char *name);
    /* Called before a forward of the outermost module uses the parameters, and after each forward. */
    fsdp_status (*begin_forward)(struct fsdp__module_state *state, bool recording);
    void (*end_forward)(struct fsdp__module_state *state, bool recording);
    /* Called on all ranks if the first forward cannot begin on one. */
    void (*not_begun)(struct fsdp__module_state *state);
} fsdp__door;

/* Holds what the door of FSDP1 keeps in its states. Only shard/doors/fsdp1*.c look at it. */
typedef struct fsdp__fsdp1 {
    bool use_orig_params, no_limit_all_gathers; /* the same for all units below one root */
    fsdp_sharding_strategy strategy;
    bool by_mesh;                      /* wrapped with a mesh */
    fsdp_state_dict_config state_dict; /* used if a call gives no other */
} fsdp__fsdp1;

typedef struct fsdp__module_state {
    int64_t refs;          /* one per module it hooks, one per place in a graph that will call it */
    fsdp_module **modules; /* borrowed: the hooks live on them; NULL where one is gone */
    int64_t module_count;
    bool *ran; /* which of the modules ran in this forward */
    int64_t ran_count;
    int64_t depth; /* running calls of its modules, one inside the other */

    /* The states that are unsharded together with this one, which holds references to them; and the states that hold
     * this one: [Note: companions]. */
    struct fsdp__module_state **companions, **hosts;
    int64_t companion_count, companion_capacity, host_count, host_capacity;
    bool tied;                         /* modules of other states use its parameters */
    bool conditional;                  /* each rank may enter it or not */
    struct fsdp__module_state *parent; /* a conditional state's host above it; NULL: it is the outermost */

    const fsdp__door *door;
    fsdp__param_group **groups; /* none if the modules have no parameters left */
    int64_t group_count, group_capacity;
    fsdp_mp_policy policy;
    fsdp_offload_policy offload;
    fsdp_reshard reshard;
    fsdp_overlap overlap;
    bool reshard_after_forward, reshard_after_backward, reduce_grads, unshard_in_backward;
    bool reshards_at_last_use; /* of several uses in a backward, and not at each */
    bool keeps_unsynced;       /* does not reshard after a backward that does not reduce */
    bool casts_root_inputs;    /* when outermost, in spite of policy.keep_forward_inputs */
    bool full_precision;       /* computes in the dtype of its shards, and returns the dtype of its first input: */
    fsdp_dtype came_in;
    bool keeps_unsharded; /* after forwards, whatever reshard_after_forward says */
    int max_inputs;       /* reductions in flight that this state asks for; 0: the default, one */
    int zero_stage;       /* 0: none */
    int slice_ranks;      /* reshard after forward keeps 1/slice_ranks; 0: no slices */
    fsdp__prefetch_list forward_prefetch, backward_prefetch;
    bool prefetches_first_uses;      /* without a list a forward gathers ahead in the order of first uses */
    fsdp_backward_prefetch prefetch; /* when a backward gathers ahead, without a list */
    fsdp__reduce_settings reduction; /* settings of the reductions that reduce_grads allows */
    int no_sync;                     /* depth of FSDP1's no_sync, in which nothing is reduced */
    fsdp__fsdp1 fsdp1;

    fsdp__training training;
    uint64_t entered;              /* fsdp__recorded when one of its modules was entered last */
    uint64_t used_in;              /* root->iteration of its last forward */
    int64_t to_come;               /* times that the running backward has yet to leave the modules */
    struct fsdp__trained *trained; /* of the last recorded forward: trained_parameters.h; NULL: none */
    bool leaving;                  /* its forward is ending: it uses nothing any more */
    struct fsdp__root *root;       /* its own until lazy initialisation, then the outermost state's */
    fsdp__comm_context *comm;      /* the root's */
    bool initialised;              /* lazily */
    char *name;                    /* comma-joined module names from the root; NULL before */
    int64_t *order_marks;          /* positions of this state in the root's order, oldest first */
    int64_t order_count, order_capacity;
} fsdp__module_state;

fsdp_status fsdp__module_state_create(const fsdp__door *door, fsdp_module *const *modules, int count,
                                      const fsdp_shard_options *options, fsdp__module_state **out);
/* Frees the state alone. References to it and its place below a root are root.c's business. */
void fsdp__module_state_free(fsdp__module_state *state);
/* Adds a group, which the state frees. */
fsdp_status fsdp__module_state_add_group(fsdp__module_state *state, fsdp_mesh *mesh, bool share,
                                         fsdp__param_group **out);
/* Returns the parameter whose shard is, or will be, this tensor; NULL: the state has none. */
fsdp__param *fsdp__module_state_find(const fsdp__module_state *state, const fsdp_tensor *tensor);
/* Returns the bytes of its unsharded parameters: the same on all ranks of its meshes. */
size_t fsdp__module_state_unsharded_bytes(const fsdp__module_state *state);
fsdp__module_state *fsdp__module_state_of(const fsdp_module *module); /* NULL if the module is not sharded */
extern const char fsdp__module_state_key;                             /* its address is the key of a state's hooks */
/* Returns whether its parameters have no bytes yet. */
bool fsdp__module_state_is_meta(const fsdp__module_state *state);
/* Returns the device of its parameters; NULL while they have none. */
fsdp_device *fsdp__module_state_device(const fsdp__module_state *state);
/* Forgets which of its modules have run in this forward. */
void fsdp__module_state_forget_ran(fsdp__module_state *state);
void fsdp__module_state_notify(const fsdp__module_state *state, fsdp_shard_event event);

/* Returns what is running of its modules, or of a host's: "forward", "backward", or NULL. */
const char *fsdp__module_state_use(const fsdp__module_state *state);
bool fsdp__module_state_in_use(const fsdp__module_state *state);
/* Returns whether one of its parent's is running. Then other ranks may be elsewhere, so nothing may be collective. */
bool fsdp__module_state_is_alone(const fsdp__module_state *state);

/* Calls `visit` for the state and then for its companions, theirs included, until one call fails. */
fsdp_status fsdp__module_state_each(fsdp__module_state *state,
                                    fsdp_status (*visit)(void *arg, fsdp__module_state *state), void *arg);
/* Returns the next conditional state whose parent this is, from `*at` (first 0) on; NULL behind the last. */
fsdp__module_state *fsdp__module_state_next_child(const fsdp__module_state *state, int64_t *at);

/* ---- calls for the state's groups and its companions' ---- Those that end a use leave groups in use alone. */

/* Starts the gathers. [collective] */
fsdp_status fsdp__module_state_unshard(fsdp__module_state *state);
/* Unshards the groups that are to be unsharded in the backward; each conditional companion decides for itself. */
fsdp_status fsdp__module_state_unshard_in_backward(fsdp__module_state *state);
/* Begins a use: waits for the gathers, and makes fields name the unsharded parameters. */
fsdp_status fsdp__module_state_wait(fsdp__module_state *state);
/* Gives up a gather that is under way and that nobody has waited for. Companions keep what they have: they were
 * gathered with the state, or before it. */
void fsdp__module_state_drop_gather(fsdp__module_state *state);
/* Returns whether such a gather is under way that the caller did not ask for. */
bool fsdp__module_state_is_ahead(const fsdp__module_state *state);
/* Ends a use, and leaves the groups unsharded, or reshards them. */
void fsdp__module_state_leave(fsdp__module_state *state);
void fsdp__module_state_reshard(fsdp__module_state *state);
/* Reshards each group as its state is set to: wholly, to a slice, or not at all. */
fsdp_status fsdp__module_state_reshard_after_forward(fsdp__module_state *state);
void fsdp__module_state_reshard_after_backward(fsdp__module_state *state);
/* See fsdp__param_group_give_up. */
void fsdp__module_state_give_up(fsdp__module_state *state);

/* ---- calls for the state's own groups ---- */

/* Gives up the state's own groups, even if a host uses them. */
void fsdp__module_state_give_up_own(fsdp__module_state *state);
/* Ends a backward for the gradients: they are reduced, or kept until a later backward reduces them. Does the same for
 * the conditional states whose parent it is. [collective] */
fsdp_status fsdp__module_state_reduce(fsdp__module_state *state);
/* Reduces the gradients that are left, whatever the settings say. [collective] */
fsdp_status fsdp__module_state_reduce_pending(fsdp__module_state *state);
/* Resets the state: everything sharded, no unreduced gradients, idle. */
void fsdp__module_state_reset(fsdp__module_state *state);
