/* prefetch.c - gathers ahead of their use. */
#include "shard/state/prefetch.h"

#include "base/alloc.h"

/* ---- lists ---- */

static void clear(fsdp__prefetch_list *list)
{
    fsdp__prefetch_list old = *list;

    *list = (fsdp__prefetch_list){0};
    for (int i = 0; i < old.count; i++)
        fsdp__module_state_unref(old.states[i]);
    fsdp__free(old.states);
}

/* Checks a listed module. Before the first forward every state has a root of its own; check_tree.c then reports what is
 * wrong with a list. */
static fsdp_status check_module(const fsdp__module_state *whose, const fsdp_module *module, int index)
{
    const fsdp__module_state *state = module ? fsdp__module_state_of(module) : NULL;

    if (!state)
        return FSDP_FAIL(FSDP_STATE, "cannot prefetch module %d of the list, a %s: it was not given to fully_shard",
                         index, module ? module->type->name : "null pointer");
    if ((whose->initialised || state->initialised) && state->root != whose->root)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot prefetch module %d of the list, a %s: it is not below the same outermost module",
                         index, module->type->name);
    return FSDP_OK;
}

fsdp_status fsdp__prefetch_set(const fsdp__module_state *whose, fsdp__prefetch_list *list, fsdp_module *const *modules,
                               int count)
{
    fsdp__prefetch_list made = {0};

    if (count < 0 || (count > 0 && !modules))
        return FSDP_FAIL(FSDP_INVALID, "cannot prefetch a list of %d modules", count);
    for (int i = 0; i < count; i++)
        FSDP_TRY(check_module(whose, modules[i], i));
    if (count > 0)
        FSDP__TRY_NEW(made.states = fsdp__calloc((size_t)count, sizeof *made.states));
    for (; made.count < count; made.count++)
        made.states[made.count] = fsdp__module_state_ref(fsdp__module_state_of(modules[made.count]));
    clear(list);
    *list = made;
    return FSDP_OK;
}

void fsdp__prefetch_forget(fsdp__module_state *state)
{
    clear(&state->forward_prefetch);
    clear(&state->backward_prefetch);
}

static bool is_within(const fsdp__prefetch_list *list, const fsdp__root *root)
{
    bool within = true;

    for (int i = 0; i < list->count; i++)
        within = within && fsdp__root_find(root, list->states[i]) >= 0;
    return within;
}

bool fsdp__prefetch_is_within(const fsdp__module_state *state, const fsdp__root *root)
{
    return is_within(&state->forward_prefetch, root) && is_within(&state->backward_prefetch, root);
}

/* ---- gathers ---- */

/* Returns whether a backward that uses the state's parameters is running, and was told not to gather them
 * (unshard_in_backward). */
static bool is_in_use_unasked(const fsdp__module_state *state)
{
    for (int64_t i = 0; i < state->host_count; i++)
        if (state->hosts[i]->training == FSDP__PRE_BACKWARD && !state->hosts[i]->unshard_in_backward)
            return true;
    return false;
}

/* Unshards `state` ahead of its use in the pass that `training` says. */
static fsdp_status gather_ahead(fsdp__module_state *state, fsdp__training training)
{
    fsdp__training before = state->training;
    fsdp_status status;

    if (training == FSDP__PRE_BACKWARD && !state->unshard_in_backward)
        return FSDP_OK;
    state->training = training;
    status = fsdp__module_state_unshard(state);
    state->training = before;
    FSDP_TRY(status);
    /* That backward can read their bytes from now on, even before they have come, so wait for them. */
    return is_in_use_unasked(state) ? fsdp__module_state_wait(state) : FSDP_OK;
}

static fsdp_status gather_list(const fsdp__prefetch_list *list, fsdp__training training)
{
    for (int i = 0; i < list->count; i++)
        FSDP_TRY(gather_ahead(list->states[i], training));
    return FSDP_OK;
}

/* Decides whether next[1] is gathered, too. Over a network, where gathering takes about as long as computing, both in
 * proportion to bytes, a next[0] smaller than `state` is there long before `state` has computed, and the network would
 * be idle. So next[1] is gathered as well, unless it is larger than `state`: whole parameters cost memory. */
static void choose(const fsdp__module_state *state, fsdp__module_state *next[2])
{
    size_t bytes = fsdp__module_state_unsharded_bytes(state);

    if (!state->root->gathers_ahead || !next[0] || !next[1] || fsdp__module_state_unsharded_bytes(next[0]) >= bytes ||
        fsdp__module_state_unsharded_bytes(next[1]) > bytes)
        next[1] = NULL;
}

/* Finds what a forward of the outermost module gathers ahead, if it does that. The order must be the same on all ranks,
 * so states that only some ranks enter are not in it. */
static fsdp_status find_next(fsdp__module_state *state, fsdp__module_state *next[2])
{
    fsdp__root *root = state->root;

    if (!(root->gathers_ahead || root->gathers_kept_ahead) || root->forward_root != root->state || state->parent)
        return FSDP_OK;
    FSDP_TRY(fsdp__forward_order_enter(&root->forward_order, state, &next[0]));
    if (!root->gathers_ahead && next[0] && next[0]->reshard_after_forward && !next[0]->keeps_unsharded)
        next[0] = NULL;
    if (next[0])
        next[1] = fsdp__forward_order_after(&root->forward_order, next[0]);
    choose(state, next);
    for (int i = 0; i < 2; i++)
        if (next[i] && next[i]->parent)
            next[i] = NULL;
    return FSDP_OK;
}

static fsdp_status gather_both(fsdp__module_state *const states[2], fsdp__training training)
{
    for (int i = 0; i < 2; i++)
        if (states[i])
            FSDP_TRY(gather_ahead(states[i], training));
    return FSDP_OK;
}

fsdp_status fsdp__prefetch_forward(fsdp__module_state *state)
{
    fsdp__module_state *next[2] = {NULL};

    FSDP_TRY(find_next(state, next));
    if (state->forward_prefetch.count > 0)
        return gather_list(&state->forward_prefetch, FSDP__FORWARD);
    if (!next[0] && state->prefetches_first_uses)
        FSDP_TRY(fsdp__root_next(state->root, state, &next[0]));
    return gather_both(next, FSDP__FORWARD);
}

/* Gathers the previous state, unless the backward has left it already. (The outermost module is left last, but its
 * forward ended last, too.) */
static fsdp_status gather_previous(fsdp__module_state *state)
{
    fsdp__module_state *previous[2];

    fsdp__root_previous(state->root, state, previous);
    return previous[0] && previous[0]->training == FSDP__IDLE ? gather_ahead(previous[0], FSDP__PRE_BACKWARD) : FSDP_OK;
}

fsdp_status fsdp__prefetch_post_backward(fsdp__module_state *state)
{
    bool gathers = state->prefetch == FSDP_BACKWARD_POST && state->backward_prefetch.count == 0;

    return gathers ? gather_previous(state) : FSDP_OK;
}

fsdp_status fsdp__prefetch_backward(fsdp__module_state *state)
{
    fsdp__module_state *previous[2];

    if (state->backward_prefetch.count == 0 && state->prefetch != FSDP_BACKWARD_PRE)
        return FSDP_OK;
    fsdp__root_previous(state->root, state, previous);
    if (state->backward_prefetch.count > 0)
        return gather_list(&state->backward_prefetch, FSDP__PRE_BACKWARD);
    if (previous[1] && previous[1]->training != FSDP__IDLE) /* of an earlier forward: it was left already */
        previous[1] = NULL;
    choose(state, previous);
    return gather_both(previous, FSDP__PRE_BACKWARD);
}
