/* tree.c - what the sharded modules below one root share. */
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "shard/shard.h"

/* ---- per context: the default mesh and the lanes ---- */

typedef struct shard_context {
    fsdp_mesh *mesh;
    fsdp__lane *lanes;
} shard_context;

static void shard_context_free(void *state)
{
    shard_context *sc = state;

    while (sc->lanes) {
        fsdp__lane *next = sc->lanes->next;

        fsdp__free(sc->lanes);
        sc->lanes = next;
    }
    fsdp_mesh_unref(sc->mesh);
    fsdp__free(sc);
}

static shard_context *shard_context_of(fsdp_context *context)
{
    shard_context *sc = fsdp__context_get(context, FSDP__SLOT_SHARD);

    if (sc)
        return sc;
    sc = fsdp__calloc(1, sizeof *sc);
    if (sc)
        fsdp__context_attach(context, FSDP__SLOT_SHARD, sc, shard_context_free);
    return sc;
}

fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out)
{
    shard_context *sc = shard_context_of(context);
    int64_t world = fsdp_context_world_size(context);

    if (!sc)
        return FSDP_NO_MEMORY;
    if (!sc->mesh)
        FSDP_TRY(fsdp_mesh_create(context, 1, &world, NULL, &sc->mesh));
    *out = sc->mesh;
    return FSDP_OK;
}

fsdp_status fsdp__lane_of(fsdp_group *comm, fsdp__lane **out)
{
    shard_context *sc = shard_context_of(fsdp_group_context(comm));
    fsdp__lane *lane;

    if (!sc)
        return FSDP_NO_MEMORY;
    for (lane = sc->lanes; lane && lane->comm != comm;)
        lane = lane->next;
    if (!lane) {
        lane = fsdp__calloc(1, sizeof *lane);
        if (!lane)
            return FSDP_NO_MEMORY;
        *lane = (fsdp__lane){.next = sc->lanes, .comm = comm};
        sc->lanes = lane;
    }
    *out = lane;
    return FSDP_OK;
}

/* ---- life cycle ---- */

fsdp_status fsdp__tree_create(fsdp_context *context, fsdp__shard_state *root, fsdp__shard_tree **out)
{
    fsdp__shard_tree *tree = fsdp__calloc(1, sizeof *tree);

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
    fsdp__storage_unref(tree->in_flight.input);
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
    if (overlap == FSDP_OVERLAP_WORKER && !tree->own_stream) {
        FSDP_TRY(fsdp_stream_create(device, FSDP_STREAM_WORKER, &tree->stream));
        tree->own_stream = true;
    } else if (!tree->stream) {
        tree->stream = fsdp_device_stream(device);
    }
    return FSDP_OK;
}

/* ---- lazy initialisation ---- */

typedef struct collection {
    fsdp__shard_tree *tree;
    fsdp__shard_state *root;
    char **names; /* of tree->states, while they are collected */
    int64_t name_capacity;
} collection;

static fsdp_status collect_state(void *arg, fsdp_module *module, const char *name)
{
    collection *c = arg;
    fsdp__shard_state *state = fsdp__state_of(module);
    fsdp__shard_tree *tree = c->tree;
    int64_t i = 0;

    if (!state)
        return FSDP_OK;
    while (i < tree->state_count && tree->states[i] != state)
        i++;
    if (i < tree->state_count) { /* a further module of one group: "norm, output" */
        char *joined = fsdp__sprintf("%s, %s", c->names[i], name);

        if (!joined)
            return FSDP_NO_MEMORY;
        fsdp__free(c->names[i]);
        c->names[i] = joined;
        return FSDP_OK;
    }
    if (state != c->root && state->initialised)
        return FSDP_FAIL(FSDP_STATE,
                         "'%s' has already run as the root of its own forward: run the first forward "
                         "through the outermost sharded module",
                         name);
    if (fsdp__grow(&tree->states, i, &tree->state_capacity, sizeof(fsdp__shard_state *)) ||
        fsdp__grow(&c->names, i, &c->name_capacity, sizeof(char *)))
        return FSDP_NO_MEMORY;
    c->names[i] = fsdp__strdup(name);
    if (!c->names[i])
        return FSDP_NO_MEMORY;
    tree->states[tree->state_count++] = state;
    return FSDP_OK;
}

static fsdp_status check_ready(const collection *c)
{
    for (int64_t i = 0; i < c->tree->state_count; i++) {
        const fsdp__shard_group *group = &c->tree->states[i]->group;

        if (group->param_count > 0 && group->layout == FSDP__LAYOUT_NONE)
            return FSDP_FAIL(FSDP_STATE,
                             "the parameters of '%s' are still on the meta device: call fsdp_module_materialize before "
                             "the first forward",
                             c->names[i]);
    }
    return FSDP_OK;
}

/* Nothing here fails. */
static void commit(collection *c)
{
    fsdp__shard_tree *tree = c->tree;

    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_state *state = tree->states[i];

        state->name = c->names[i];
        c->names[i] = NULL;
        state->initialised = true;
        if (state->reshard == FSDP_RESHARD_AUTO)
            state->group.reshard_after_forward = state != c->root;
        if (state->tree != tree) {
            fsdp__tree_unref(state->tree);
            state->tree = tree;
            tree->refs++;
        }
    }
}

fsdp_status fsdp__tree_initialise(fsdp__shard_state *root)
{
    collection c = {.tree = root->tree, .root = root};
    fsdp_device *device = NULL;
    fsdp_status st = FSDP_OK;

    if (root->initialised)
        return FSDP_OK;
    if (root->module_count != 1)
        return FSDP_FAIL(FSDP_STATE, "the outermost fully_shard call must name a single module, this one names %lld",
                         (long long)root->module_count);
    FSDP_TRY_GOTO(st, fsdp__module_walk(root->modules[0], collect_state, &c), out);
    FSDP_TRY_GOTO(st, check_ready(&c), out);
    for (int64_t i = 0; i < c.tree->state_count && !device; i++)
        device = c.tree->states[i]->group.device;
    if (device)
        FSDP_TRY_GOTO(st, fsdp__tree_open_stream(c.tree, device, root->overlap), out);
    commit(&c);
out:
    for (int64_t i = 0; c.names && i < c.tree->state_count; i++)
        fsdp__free(c.names[i]);
    fsdp__free(c.names);
    if (st != FSDP_OK)
        c.tree->state_count = 0;
    return st;
}

/* ---- stream and order ---- */

fsdp_status fsdp__tree_follow_compute(fsdp__shard_tree *tree, fsdp_device *device)
{
    FSDP_TRY(fsdp_event_record(tree->compute, fsdp_device_stream(device)));
    return fsdp_stream_wait_event(tree->stream, tree->compute);
}

fsdp_status fsdp__tree_finish_reduction(fsdp__shard_tree *tree, fsdp_device *device)
{
    if (!tree->in_flight.input)
        return FSDP_OK;
    FSDP_TRY(fsdp_stream_wait_event(fsdp_device_stream(device), tree->in_flight.done));
    fsdp__storage_unref(tree->in_flight.input);
    tree->in_flight.input = NULL;
    return fsdp__stream_check(tree->stream);
}

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
    if (tree->listener)
        tree->listener(tree->listener_arg, state->modules[0], event);
}

fsdp_status fsdp__tree_reset(fsdp__shard_tree *tree)
{
    fsdp_status st = tree->stream ? fsdp_stream_synchronize(tree->stream) : FSDP_OK;

    fsdp__storage_unref(tree->in_flight.input);
    tree->in_flight.input = NULL;
    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_state *state = tree->states[i];

        fsdp__group_drop_gradients(&state->group);
        fsdp__group_reshard(&state->group);
        state->training = FSDP__IDLE;
        state->ran_count = 0;
        memset(state->ran, 0, (size_t)state->module_count * sizeof *state->ran);
    }
    fsdp__tree_forget_order(tree);
    tree->forward_root = NULL;
    tree->callback_queued = false;
    return st;
}
