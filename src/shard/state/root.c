/* root.c - the states below one outermost module: their order and their iteration. */
#include "shard/state/root.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "shard/group/default_groups.h"
#include "shard/reduce/low_gradients.h"
#include "shard/state/trained_parameters.h"

/* ---- life cycle ---- */

fsdp_status fsdp__root_create(fsdp_context *context, fsdp__module_state *state)
{
    FSDP__FREED fsdp__root *root = fsdp__calloc(1, sizeof *root);

    FSDP__TRY_NEW(root);
    FSDP__TRY_NEW(root->comm = fsdp__calloc(1, sizeof *root->comm));
    root->refs = 1;
    root->sharing = root;
    root->context = root->comm->context = context;
    root->state = state;
    root->last_backward = true;
    fsdp__root_join(root, state);
    fsdp__root_unref(fsdp__take(&root));
    return FSDP_OK;
}

fsdp__root *fsdp__root_ref(fsdp__root *root)
{
    root->refs++;
    return root;
}

static void free_comm(fsdp__comm_context *comm)
{
    fsdp__comm_context_close(comm);
    fsdp__free(comm);
}

/* Leaves the communication context to the other roots; what is in flight there may belong to this root. */
static void leave_comm(fsdp__root *root)
{
    fsdp__root *before = root;

    while (before->sharing != root)
        before = before->sharing;
    if (before == root) {
        free_comm(root->comm);
        return;
    }
    (void)fsdp__comm_context_finish_reduction(root->comm);
    before->sharing = root->sharing;
    fsdp__root_choose_max_inputs(before);
}

void fsdp__root_share_comm(fsdp__root *root, fsdp__root *other)
{
    fsdp__comm_context *given_up = other->comm;
    fsdp__root *next = other->sharing;

    if (root->comm == given_up)
        return;
    for (fsdp__root *r = next;; r = r->sharing) {
        r->comm = root->comm;
        if (r->state)
            r->state->comm = root->comm;
        if (r == other)
            break;
    }
    free_comm(given_up);
    other->sharing = root->sharing; /* makes one ring of two */
    root->sharing = next;
    fsdp__root_choose_max_inputs(root);
}

void fsdp__root_unref(fsdp__root *root)
{
    if (!root || --root->refs > 0)
        return;
    fsdp__unsubscribe(root->subscriber);
    leave_comm(root);
    fsdp__free(root->states);
    fsdp__root_forget_exits(root);
    FSDP__FREE_ALL(root->exits, root->order, root->first_uses);
    fsdp__forward_order_release(&root->forward_order);
    fsdp__free(root);
}

void fsdp__root_join(fsdp__root *root, fsdp__module_state *state)
{
    fsdp__root *left = state->root;

    state->root = fsdp__root_ref(root);
    state->comm = root->comm;
    /* Memory that groups have now is counted where they will give it back, except that of the outermost state. */
    for (int64_t i = 0; i < state->group_count; i++) {
        fsdp__param_group *group = state->groups[i];
        bool out = group->residence.kind == FSDP__RESIDENCE_COPY && group->residence.unsharded;

        group->of_root = state == root->state;
        root->comm->spares.out += out && !group->of_root;
    }
    fsdp__root_unref(left);
}

int64_t fsdp__root_find(const fsdp__root *root, const fsdp__module_state *state)
{
    for (int64_t i = 0; i < root->state_count; i++)
        if (root->states[i] == state)
            return i;
    return -1;
}

static void leave(fsdp__root *root, fsdp__module_state *state)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < root->state_count; i++)
        if (root->states[i] != state)
            root->states[kept++] = root->states[i];
    root->state_count = kept;
    fsdp__root_forget_order(root);
    for (int64_t i = 0; i < root->first_use_count; i++)
        if (root->first_uses[i] == state)
            root->first_uses[i] = NULL;
    fsdp__forward_order_forget(&root->forward_order, state);
    if (root->forward_root == state)
        root->forward_root = NULL;
    if (root->state == state)
        root->state = NULL;
}

fsdp__module_state *fsdp__module_state_ref(fsdp__module_state *state)
{
    state->refs++;
    return state;
}

fsdp_status fsdp__module_state_accompany(fsdp__module_state *companion, fsdp__module_state *host)
{
    for (int64_t i = 0; i < host->companion_count; i++)
        if (host->companions[i] == companion)
            return FSDP_OK;
    FSDP_TRY(fsdp__grow(&host->companions, host->companion_count, &host->companion_capacity, sizeof *host->companions));
    FSDP_TRY(fsdp__grow(&companion->hosts, companion->host_count, &companion->host_capacity, sizeof *companion->hosts));
    host->companions[host->companion_count++] = fsdp__module_state_ref(companion);
    companion->hosts[companion->host_count++] = host;
    return FSDP_OK;
}

static void forget_host(fsdp__module_state *companion, const fsdp__module_state *host)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < companion->host_count; i++)
        if (companion->hosts[i] != host)
            companion->hosts[kept++] = companion->hosts[i];
    companion->host_count = kept;
    if (companion->parent == host)
        companion->parent = NULL;
    for (int64_t i = 0; i < companion->group_count; i++)
        for (int64_t p = 0; p < companion->groups[i]->param_count; p++)
            fsdp__param_forget_user(&companion->groups[i]->params[p], host);
}

void fsdp__module_state_unref(fsdp__module_state *state)
{
    fsdp__root *root;

    if (!state || --state->refs > 0)
        return;
    while (state->companion_count > 0) {
        fsdp__module_state *companion = state->companions[--state->companion_count];

        forget_host(companion, state);
        fsdp__module_state_unref(companion);
    }
    root = state->root;
    if (root)
        leave(root, state);
    fsdp__trained_unref(state->trained);
    fsdp__module_state_free(state); /* its groups give memory back to the root */
    fsdp__root_unref(root);
}

fsdp__group_walk fsdp__group_walk_of(fsdp__root *root)
{
    if (root->state_count > 0)
        return (fsdp__group_walk){.states = root->states, .state_count = root->state_count};
    return (fsdp__group_walk){.states = &root->state, .state_count = root->state ? 1 : 0};
}

fsdp__param_group *fsdp__next_group(fsdp__group_walk *w)
{
    while (w->state < w->state_count && w->group == w->states[w->state]->group_count) {
        w->state++;
        w->group = 0;
    }
    return w->state < w->state_count ? w->states[w->state]->groups[w->group++] : NULL;
}

/* ---- order ---- */

fsdp_status fsdp__root_record_order(fsdp__root *root, fsdp__module_state *state)
{
    FSDP_TRY(fsdp__grow(&root->order, root->order_count, &root->order_capacity, sizeof *root->order));
    FSDP_TRY(fsdp__grow(&state->order_marks, state->order_count, &state->order_capacity, sizeof *state->order_marks));
    state->order_marks[state->order_count++] = root->order_count;
    root->order[root->order_count++] = state;
    return FSDP_OK;
}

void fsdp__root_previous(fsdp__root *root, fsdp__module_state *state, fsdp__module_state *previous[2])
{
    int64_t mark;

    previous[0] = previous[1] = NULL;
    if (state->order_count == 0)
        return;
    mark = state->order_marks[--state->order_count]; /* a module that ran twice is gone back through twice */
    for (int i = 0; i < 2; i++)
        if (mark - 1 - i >= 0 && mark - 1 - i < root->order_count)
            previous[i] = root->order[mark - 1 - i];
}

void fsdp__root_forget_order(fsdp__root *root)
{
    root->order_count = 0;
    for (int64_t i = 0; i < root->state_count; i++)
        root->states[i]->order_count = 0;
}

fsdp_status fsdp__root_next(fsdp__root *root, fsdp__module_state *state, fsdp__module_state **out)
{
    int64_t i = 0;

    *out = NULL;
    while (i < root->first_use_count && root->first_uses[i] != state)
        i++;
    if (i < root->first_use_count) {
        *out = i + 1 < root->first_use_count ? root->first_uses[i + 1] : NULL;
        if (*out && (*out)->used_in == root->iteration) /* `state` is used again, and what came next will not follow */
            *out = NULL;
        return FSDP_OK;
    }
    if (state->parent || root->first_uses_known)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&root->first_uses, root->first_use_count, &root->first_use_capacity, sizeof *root->first_uses));
    root->first_uses[root->first_use_count++] = state;
    return FSDP_OK;
}

/* ---- the way back ---- */

fsdp_status fsdp__root_add_exits(fsdp__root *root, fsdp_tensor *const *outputs, int count)
{
    for (int i = 0; i < count; i++) {
        fsdp__node *node;

        if (!outputs[i])
            continue;
        FSDP_TRY(fsdp__grow(&root->exits, root->exit_count, &root->exit_capacity, sizeof *root->exits));
        node = fsdp__producer(outputs[i]);
        if (node)
            root->exits[root->exit_count++] = node;
    }
    return FSDP_OK;
}

fsdp_status fsdp__root_anchor(fsdp__root *root, fsdp_tensor **outputs, int count)
{
    fsdp_status status = FSDP_OK;

    for (int i = 0; i < count && root->exit_count > 0 && status == FSDP_OK; i++)
        if (outputs[i])
            status = fsdp__anchor(&outputs[i], root->exits, (int)root->exit_count);
    fsdp__root_forget_exits(root);
    return status;
}

void fsdp__root_forget_exits(fsdp__root *root)
{
    while (root->exit_count > 0)
        fsdp__node_unref(root->exits[--root->exit_count]);
}

/* ---- iteration ---- */

static int max_inputs(const fsdp__root *root)
{
    int most = root->state ? root->state->max_inputs : 0;

    for (int64_t i = 0; i < root->state_count; i++)
        most = FSDP__MAX(most, root->states[i]->max_inputs);
    return most;
}

void fsdp__root_choose_max_inputs(fsdp__root *root)
{
    int most = max_inputs(root);

    for (const fsdp__root *r = root->sharing; r != root; r = r->sharing) {
        int other = max_inputs(r);

        most = FSDP__MAX(most, other);
    }
    root->comm->max_inputs = most;
}

void fsdp__root_set_last_backward(fsdp__root *root, bool last)
{
    root->last_backward = last;
    root->last_backward_set = fsdp__next_setting(root->context);
}

fsdp_status fsdp__root_finish_reductions(fsdp__root *root)
{
    fsdp__param_group *group;

    FSDP_TRY(fsdp__comm_context_finish_reduction(root->comm));
    for (fsdp__group_walk w = fsdp__group_walk_of(root); (group = fsdp__next_group(&w));)
        FSDP_TRY(fsdp__param_group_lower_gradients(group));
    return FSDP_OK;
}

fsdp_status fsdp__root_add_up_gathers(fsdp__root *root)
{
    fsdp_status status = FSDP_OK;
    fsdp__param_group *group;
    fsdp__root *r = root;

    do {
        for (fsdp__group_walk w = fsdp__group_walk_of(r); (group = fsdp__next_group(&w));)
            FSDP_KEEP_FIRST(status, fsdp__param_group_add_up_gathers(group, root->comm));
        r = r->sharing;
    } while (r != root);
    return status;
}

fsdp_status fsdp__root_reset(fsdp__root *root)
{
    fsdp_status status = root->comm->stream ? fsdp_stream_synchronize(root->comm->stream) : FSDP_OK;

    /* These are reductions of earlier backwards, or of others that share the context; ranks that were absent still get
     * gradients from them. A hook that is told of them within its backward is not called any more. */
    fsdp__comm_context_forget_hooks(root->comm);
    FSDP_KEEP_FIRST(status, fsdp__root_finish_reductions(root));
    fsdp__comm_context_drop_reduction(root->comm); /* what could not be waited for, before its gradients go */
    for (int64_t i = 0; i < root->state_count; i++)
        fsdp__module_state_reset(root->states[i]);
    fsdp__comm_context_drop_memory(root->comm);
    fsdp__root_forget_order(root);
    fsdp__root_forget_exits(root);
    root->forward_root = NULL;
    return status;
}
