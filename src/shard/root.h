/* root.h - what the states below one outermost module share: their order, the running iteration, one communication
 * context (FSDP2's FSDPStateContext).
 *
 * [Note: staying unsharded]
 * Whether a group is still unsharded from an earlier use must be one decision of all ranks, but any rank may have
 * written its rows since, or resharded by hand. So a forward of the outermost module, and an unshard by the caller,
 * begin with one small exchange about the groups that were unsharded (`stays_unsharded`, `explicit`, or gathered
 * ahead): has anybody given it up? Then all do, and gather again. Between a forward and its backward nobody asks: there
 * all ranks must write, or none. */
#ifndef SHARD_ROOT_H
#define SHARD_ROOT_H

#include "autograd/autograd.h"
#include "shard/forward_order.h"
#include "shard/state.h"

typedef struct fsdp__root {
    int64_t refs; /* one per state that points here */
    fsdp_context *context;
    fsdp__module_state *state; /* the outermost; NULL when it has been freed */
    /* In the order of the module walk, the outermost first; borrowed, they leave when freed. */
    fsdp__module_state **states;
    int64_t state_count, state_capacity;
    fsdp__comm_context *comm;
    struct fsdp__root *sharing; /* the next root with the same communication context, in a ring; itself when alone */
    fsdp__listener listener;
    bool agreed;                      /* all ranks have come to a first forward, and nothing was wrong on any */
    fsdp__module_state *forward_root; /* whose forward is running as the outermost; NULL outside */
    uint64_t iteration;               /* forwards of an outermost module so far */
    bool in_backward;                 /* a backward runs; the root and its states are held */
    uint64_t counted;                 /* the backward that states count their uses in */
    bool last_backward;
    int64_t last_backward_set; /* when it was set, among the roots of the context */
    uint64_t left;             /* fsdp__recorded when a forward of a state ended last */
    fsdp__node **exits;        /* of the running forward: what made the outputs of its sharded modules */
    int64_t exit_count, exit_capacity;
    fsdp__module_state **order; /* states in the order their forwards ended */
    int64_t order_count, order_capacity;
    fsdp__module_state **first_uses; /* states in the order of their first forwards; NULL where one has been freed */
    int64_t first_use_count, first_use_capacity;
    bool first_uses_known; /* a backward has ended: none is added any more */
    bool gathers_ahead;    /* a forward of the outermost module gathers what comes next, by its order */
    fsdp__forward_order forward_order;
} fsdp__root;

/* A root of `state` alone, which it joins. */
fsdp_status fsdp__root_create(fsdp_context *context, fsdp__module_state *state);
fsdp__root *fsdp__root_ref(fsdp__root *root);
void fsdp__root_unref(fsdp__root *root);
/* `other` and all that share with it give up their communication context, in which nothing may be, for that of `root`.
 */
void fsdp__root_share_comm(fsdp__root *root, fsdp__root *other);
/* `state` leaves the root it has and joins `root`. */
void fsdp__root_join(fsdp__root *root, fsdp__module_state *state);

/* Where `state` stands in root->states; -1: nowhere. */
int64_t fsdp__root_find(const fsdp__root *root, const fsdp__module_state *state);

/* Who holds a state. The last one frees it: out of its root's lists, with its groups. */
fsdp__module_state *fsdp__module_state_ref(fsdp__module_state *state);
void fsdp__module_state_unref(fsdp__module_state *state);

/* `host` has `companion` as one from now on: [Note: companions] in state.h. */
fsdp_status fsdp__module_state_accompany(fsdp__module_state *companion, fsdp__module_state *host);

/* ---- order ---- */

fsdp_status fsdp__root_record_order(fsdp__root *root, fsdp__module_state *state);
/* The two states whose forwards ended before `state`'s latest one not yet gone back through, the later first; NULL
 * where there is none. */
void fsdp__root_previous(fsdp__root *root, fsdp__module_state *state, fsdp__module_state *previous[2]);
void fsdp__root_forget_order(fsdp__root *root);
/* The state that was used first after the first use of `state`, among those that ask; NULL: none yet, or this forward
 * has come to it already. */
fsdp_status fsdp__root_next(fsdp__root *root, fsdp__module_state *state, fsdp__module_state **out);

/* ---- the way back ----
 *
 * [Note: the way back]
 * A backward comes back through every sharded module that the forward went through, whether its output was used or not:
 * another rank may have used it, and the backward of a module is collective. So all outputs are walked from the
 * outermost one, at their places in the order. */

/* A forward below the outermost one ends with `outputs`, among others. */
fsdp_status fsdp__root_add_exits(fsdp__root *root, fsdp_tensor *const *outputs, int count);
/* The outermost forward ends: each of `outputs` leads back to all of them. */
fsdp_status fsdp__root_anchor(fsdp__root *root, fsdp_tensor **outputs, int count);
void fsdp__root_forget_exits(fsdp__root *root);

/* ---- iteration ---- */

/* How many reductions may be in flight: what most of the states that share the communication context ask for. */
void fsdp__root_choose_max_inputs(fsdp__root *root);
void fsdp__root_set_last_backward(fsdp__root *root, bool last);
/* Before a gather outside of an iteration, of groups that are gathered in other bytes: [Note: measures] in wire.h.
 * [collective] */
fsdp_status fsdp__root_encode_state(fsdp__root *root, fsdp__module_state *state);
/* Once per iteration, by the outermost module that runs: drops what is stale, and follows what was written. Does
 * nothing inside a running forward. [collective] */
fsdp_status fsdp__root_begin_iteration(fsdp__root *root, fsdp__module_state *state);
/* Reshards what stayed unsharded and has been written to on any rank: see [Note: staying unsharded]. [collective] */
fsdp_status fsdp__root_drop_stale(fsdp__root *root);
/* All that was reduced has landed, and gradients are where they rest. */
fsdp_status fsdp__root_finish_reductions(fsdp__root *root);
/* Everything sharded, nothing in flight, no gradient of the running iteration. */
fsdp_status fsdp__root_reset(fsdp__root *root);

#endif
