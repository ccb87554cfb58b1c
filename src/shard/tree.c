/* tree.c - what the sharded modules below one root share. */
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "comm/internal.h"
#include "shard/shard.h"

/* ---- per context ---- */

typedef struct shard_context {
    fsdp_mesh *mesh;
    int64_t settings; /* how often set_is_last_backward was called: later ones win when trees become one */
} shard_context;

static void shard_context_free(void *state)
{
    shard_context *sc = state;

    fsdp_mesh_unref(sc->mesh);
    fsdp__free(sc);
}

fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out)
{
    shard_context *sc = fsdp__context_get(context, FSDP__SLOT_SHARD);
    int64_t world = fsdp_context_world_size(context);

    if (!sc->mesh)
        FSDP_TRY(fsdp_mesh_create(context, 1, &world, NULL, &sc->mesh));
    *out = sc->mesh;
    return FSDP_OK;
}

/* ---- life cycle ---- */

fsdp_status fsdp__tree_create(fsdp_context *context, fsdp__shard_state *root, fsdp__shard_tree **out)
{
    fsdp__shard_tree *tree;

    if (!fsdp__context_get(context, FSDP__SLOT_SHARD)) {
        shard_context *sc = fsdp__calloc(1, sizeof *sc);

        if (!sc)
            return FSDP_NO_MEMORY;
        fsdp__context_attach(context, FSDP__SLOT_SHARD, sc, shard_context_free);
    }
    tree = fsdp__calloc(1, sizeof *tree);
    if (!tree)
        return FSDP_NO_MEMORY;
    tree->refs = 1;
    tree->context = context;
    tree->root = root;
    tree->last_backward = true;
    *out = tree;
    return FSDP_OK;
}

void fsdp__tree_unref(fsdp__shard_tree *tree)
{
    if (!tree || --tree->refs > 0)
        return;
    fsdp__tree_drop_reduction(tree);
    fsdp__free(tree->in_flight.whole);
    fsdp__tree_drop_spares(tree);
    for (int i = 0; i < FSDP__SPARE_REGIONS; i++)
        fsdp_event_free(tree->spares[i].free);
    fsdp_event_free(tree->in_flight.done);
    fsdp_event_free(tree->compute);
    if (tree->own_stream)
        fsdp_stream_free(tree->stream);
    fsdp__free(tree->states);
    fsdp__free(tree->order);
    fsdp__free(tree);
}

void fsdp__tree_leave(fsdp__shard_tree *tree, fsdp__shard_state *state)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < tree->state_count; i++)
        if (tree->states[i] != state)
            tree->states[kept++] = tree->states[i];
    tree->state_count = kept;
    fsdp__tree_forget_order(tree);
    if (tree->forward_root == state)
        tree->forward_root = NULL;
    if (tree->root == state)
        tree->root = NULL;
    fsdp__tree_unref(tree);
}

/* The stream and events are made with the first group that has a device. */
fsdp_status fsdp__tree_open_stream(fsdp__shard_tree *tree, fsdp_device *device, fsdp_overlap overlap)
{
    if (!tree->compute)
        FSDP_TRY(fsdp_event_create(device, &tree->compute));
    if (!tree->in_flight.done)
        FSDP_TRY(fsdp_event_create(device, &tree->in_flight.done));
    for (int i = 0; i < FSDP__SPARE_REGIONS; i++)
        if (!tree->spares[i].free)
            FSDP_TRY(fsdp_event_create(device, &tree->spares[i].free));
    if (overlap == FSDP_OVERLAP_WORKER && !tree->own_stream) {
        FSDP_TRY(fsdp_stream_create(device, FSDP_STREAM_WORKER, &tree->stream));
        tree->own_stream = true;
    } else if (!tree->stream) {
        tree->stream = fsdp_device_stream(device);
    }
    return FSDP_OK;
}

/* ---- stream and settings ---- */

fsdp_status fsdp__tree_follow_compute(fsdp__shard_tree *tree, fsdp_device *device)
{
    FSDP_TRY(fsdp_event_record(tree->compute, fsdp_device_stream(device)));
    return fsdp_stream_wait_event(tree->stream, tree->compute);
}

void fsdp__tree_set_last_backward(fsdp__shard_tree *tree, bool last)
{
    shard_context *sc = fsdp__context_get(tree->context, FSDP__SLOT_SHARD);

    tree->last_backward = last;
    tree->last_backward_set = ++sc->settings;
}

/* ---- what was kept whole ---- */

enum {
    EXCHANGED = 256 /* groups in one exchange */
};

static bool is_to_ask(const fsdp__shard_group *group)
{
    bool whole = group->kept || group->explicit || group->state == FSDP_GATHERING;

    return whole && group->ranks > 1 && !group->asked;
}

/* Asks about the first of the states and all after it that share its process group, as many as fit. */
static fsdp_status exchange_stale(fsdp__shard_state *const *states, int64_t count)
{
    fsdp_group *comm = states[0]->group.comm;
    fsdp__shard_state *asked[EXCHANGED];
    uint8_t stale[EXCHANGED];
    int64_t n = 0;

    for (int64_t i = 0; i < count && n < EXCHANGED; i++) {
        fsdp__shard_group *group = &states[i]->group;

        if (!is_to_ask(group) || group->comm != comm)
            continue;
        group->asked = true;
        stale[n] = group->state == FSDP_SHARDED;
        asked[n++] = states[i];
        fsdp__group_stop_reading(group); /* a writer who is late may be waiting for that */
    }
    FSDP_TRY(fsdp__group_any(comm, stale, n));
    for (int64_t i = 0; i < n; i++)
        if (stale[i])
            fsdp__state_reshard(asked[i]);
        else
            fsdp__group_resume_reading(&asked[i]->group);
    return FSDP_OK;
}

fsdp_status fsdp__tree_drop_stale(fsdp__shard_tree *tree)
{
    bool initialised = tree->state_count > 0;
    fsdp__shard_state *const *states = initialised ? tree->states : &tree->root;
    int64_t count = initialised ? tree->state_count : tree->root ? 1 : 0;

    for (int64_t i = 0; i < count; i++)
        states[i]->group.asked = false;
    for (int64_t i = 0; i < count; i++)
        if (is_to_ask(&states[i]->group))
            FSDP_TRY(exchange_stale(states + i, count - i));
    return FSDP_OK;
}

/* ---- order ---- */

fsdp_status fsdp__tree_record_order(fsdp__shard_tree *tree, fsdp__shard_state *state)
{
    if (fsdp__grow(&tree->order, tree->order_count, &tree->order_capacity, sizeof(fsdp__shard_state *)) ||
        fsdp__grow(&state->order_marks, state->order_count, &state->order_capacity, sizeof(int64_t)))
        return FSDP_NO_MEMORY;
    state->order_marks[state->order_count++] = tree->order_count;
    tree->order[tree->order_count++] = state;
    return FSDP_OK;
}

fsdp__shard_state *fsdp__tree_previous(fsdp__shard_tree *tree, fsdp__shard_state *state)
{
    int64_t mark;

    if (state->order_count == 0)
        return NULL;
    mark = state->order_marks[--state->order_count];
    return mark > 0 && mark <= tree->order_count ? tree->order[mark - 1] : NULL;
}

void fsdp__tree_forget_order(fsdp__shard_tree *tree)
{
    tree->order_count = 0;
    for (int64_t i = 0; i < tree->state_count; i++)
        tree->states[i]->order_count = 0;
}

void fsdp__tree_notify(fsdp__shard_tree *tree, fsdp__shard_state *state, fsdp_shard_event event)
{
    for (int64_t i = 0; tree->listener && i < state->module_count; i++)
        if (state->modules[i]) {
            tree->listener(tree->listener_arg, state->modules[i], event);
            return;
        }
}

fsdp_status fsdp__tree_reset(fsdp__shard_tree *tree)
{
    fsdp_status st = tree->stream ? fsdp_stream_synchronize(tree->stream) : FSDP_OK;

    fsdp__tree_drop_reduction(tree);
    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_state *state = tree->states[i];

        fsdp__group_drop_whole_gradients(&state->group);
        fsdp__state_reshard(state);
        state->training = FSDP__IDLE;
        fsdp__state_forget_ran(state);
    }
    fsdp__tree_drop_spares(tree);
    fsdp__tree_forget_order(tree);
    tree->forward_root = NULL;
    return st;
}
