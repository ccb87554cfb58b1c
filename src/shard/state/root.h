/* root.h - what the states below one outermost module share: their order, the running iteration, and one communication
 * context (FSDP2's FSDPStateContext). */
#pragma once

#include "autograd/autograd.h"
#include "shard/state/forward_order.h"
#include "shard/state/module_state.h"

typedef struct fsdp__root {
    int64_t refs; /* one per state that points here */
    fsdp_context *context;
    fsdp__module_state *state; /* the outermost state; NULL once it has been freed */
    /* In the order of the module walk, the outermost first. Borrowed: states leave the list when they are freed. */
    fsdp__module_state **states;
    int64_t state_count, state_capacity;
    fsdp__comm_context *comm;
    struct fsdp__root *sharing;   /* next root with the same communication context, in a ring; itself if alone */
    fsdp_shard_listener listener; /* of a caller, who hears by `subscriber`; NULL: none */
    void *listener_arg;
    fsdp__subscriber *subscriber;
    bool agreed;                      /* all ranks have begun a first forward, without an error on any */
    fsdp__module_state *forward_root; /* the state whose forward is running as the outermost; NULL outside */
    uint64_t iteration;               /* number of forwards of an outermost module so far */
    bool in_backward;                 /* a backward is running; it holds the root and its states */
    uint64_t counted;                 /* the backward that states count their uses in */
    bool last_backward;
    int64_t last_backward_set; /* number of the setting, among the roots of the context */
    uint64_t left;             /* fsdp__recorded when the last forward of a state ended */
    fsdp__node **exits;        /* producers of the outputs of sharded modules, in the running forward */
    int64_t exit_count, exit_capacity;
    fsdp__module_state **order; /* states in the order in which their forwards ended */
    int64_t order_count, order_capacity;
    fsdp__module_state **first_uses; /* states in the order of their first forwards; NULL: freed */
    int64_t first_use_count, first_use_capacity;
    bool first_uses_known; /* a backward has ended: no more are added */
    /* A forward of the outermost module gathers what comes next, in its recorded order; the second: if that is not
     * resharded after its forward. */
    bool gathers_ahead, gathers_kept_ahead;
    fsdp__forward_order forward_order;
} fsdp__root;

/* Creates a root of `state` alone, which joins it. */
fsdp_status fsdp__root_create(fsdp_context *context, fsdp__module_state *state);
fsdp__root *fsdp__root_ref(fsdp__root *root);
void fsdp__root_unref(fsdp__root *root);
/* Makes `other`, and all roots that share with it, give up their communication context for that of `root`. Nothing may
 * be in flight in the one they give up. */
void fsdp__root_share_comm(fsdp__root *root, fsdp__root *other);
/* Makes `state` leave its root and join `root`. */
void fsdp__root_join(fsdp__root *root, fsdp__module_state *state);

/* Adds up what GPUs know of the time of gathers, of all roots with the same communication context. [blocks] */
fsdp_status fsdp__root_add_up_gathers(fsdp__root *root);

/* Holds the state of a walk over all groups below a root. Before lazy initialisation these are the groups of the
 * outermost state. */
typedef struct fsdp__group_walk {
    fsdp__module_state *const *states;
    int64_t state_count, state, group;
} fsdp__group_walk;
fsdp__group_walk fsdp__group_walk_of(fsdp__root *root);
fsdp__param_group *fsdp__next_group(fsdp__group_walk *walk); /* NULL behind the last */

/* Returns the index of `state` in root->states; -1 if it is not there. */
int64_t fsdp__root_find(const fsdp__root *root, const fsdp__module_state *state);

/* Take and drop a reference to a state. The last one frees the state with its groups, and removes it from its root's
 * lists. */
fsdp__module_state *fsdp__module_state_ref(fsdp__module_state *state);
void fsdp__module_state_unref(fsdp__module_state *state);

/* Makes `companion` a companion of `host` from now on: [Note: companions] in module_state.h. */
fsdp_status fsdp__module_state_accompany(fsdp__module_state *companion, fsdp__module_state *host);

/* ---- order ---- */

/* Records that a forward of `state` has ended. */
fsdp_status fsdp__root_record_order(fsdp__root *root, fsdp__module_state *state);
/* Gives the two states whose forwards ended before the latest forward of `state` that the backward has not come
 * through; the later one first, NULL if there is none. That forward then counts as come through. */
void fsdp__root_previous(fsdp__root *root, fsdp__module_state *state, fsdp__module_state *previous[2]);
void fsdp__root_forget_order(fsdp__root *root);
/* Gives the state whose first use came next after that of `state`, among the states that ask; NULL if there is none
 * yet, or if this forward has used it already. Records `state` if it is new and the order is not known yet. */
fsdp_status fsdp__root_next(fsdp__root *root, fsdp__module_state *state, fsdp__module_state **out);

/* ---- the way back ----
 *
 * [Note: the way back]
 * A backward comes back through every sharded module that the forward went through, whether its output was used or not:
 * another rank may have used it, and the backward of a module is collective. So the backward walks all outputs, from
 * the outermost one on, at their places in the order. */

/* Records `outputs` of a forward below the outermost one that ends. */
fsdp_status fsdp__root_add_exits(fsdp__root *root, fsdp_tensor *const *outputs, int count);
/* Ends the outermost forward: makes each of `outputs` lead back to all recorded ones. */
fsdp_status fsdp__root_anchor(fsdp__root *root, fsdp_tensor **outputs, int count);
void fsdp__root_forget_exits(fsdp__root *root);

/* ---- iteration ---- */

/* Sets how many reductions may be in flight: the most that any state with this communication context asks for. */
void fsdp__root_choose_max_inputs(fsdp__root *root);
void fsdp__root_set_last_backward(fsdp__root *root, bool last);
/* Lands all reductions, and converts gradients to the dtype they rest in. */
fsdp_status fsdp__root_finish_reductions(fsdp__root *root);
/* Resets everything: all groups sharded, nothing in flight, no gradient of the running iteration. */
fsdp_status fsdp__root_reset(fsdp__root *root);
