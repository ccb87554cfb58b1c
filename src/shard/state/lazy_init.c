/* lazy_init.c - names, checks, and one root for all states. */
#include "shard/state/lazy_init.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "shard/group/compare_ranks.h"
#include "shard/reduce/owner.h"

typedef struct collection {
    fsdp__root *root;
    fsdp__module_state *outermost;
    char **names; /* of root->states, while these are collected */
    int64_t name_capacity;
    bool spread; /* some state has become conditional through the one above */
} collection;

/* Names the parameters that were registered first in `module`, anew if a try that failed has named them from another
 * outermost module. */
static fsdp_status name_parameters(fsdp_module *module, const char *name)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        fsdp__param *p = *slot->slot ? fsdp__param_of(*slot->slot) : NULL;

        if (p && p->field_count > 0 && p->fields[0].field == slot->slot)
            FSDP_TRY(fsdp__param_set_name(p, name, slot->name));
    }
    return FSDP_OK;
}

static fsdp_status collect_state(void *arg, fsdp_module *module, const char *name)
{
    collection *c = arg;
    fsdp__module_state *state = fsdp__module_state_of(module);
    fsdp__root *root = c->root;
    int64_t i;

    FSDP_TRY(name_parameters(module, name));
    if (!state)
        return FSDP_OK;
    i = fsdp__root_find(root, state);
    if (i >= 0) { /* another module of the same group: "norm, output" */
        char *joined = fsdp__sprintf("%s, %s", c->names[i], name);

        FSDP__TRY_NEW(joined);
        fsdp__free(c->names[i]);
        c->names[i] = joined;
        return FSDP_OK;
    }
    if (state != c->outermost && state->initialised)
        return FSDP_FAIL(FSDP_STATE,
                         "'%s' has already run, by itself or inside another outermost module: run the first forward "
                         "through the outermost sharded module, and share no sharded module between two of them",
                         name);
    i = root->state_count;
    FSDP_TRY(fsdp__grow(&root->states, i, &root->state_capacity, sizeof *root->states));
    FSDP_TRY(fsdp__grow(&c->names, i, &c->name_capacity, sizeof *c->names));
    FSDP__TRY_NEW(c->names[i] = fsdp__strdup(name));
    root->states[root->state_count++] = state;
    return FSDP_OK;
}

/* ---- conditional states ---- */

/* Visits a pair of a state and the next one below it. */
typedef fsdp_status (*pair_visitor)(collection *c, fsdp__module_state *above, fsdp__module_state *below);

static fsdp_status visit_below(collection *c, fsdp__module_state *above, const fsdp_module *module, pair_visitor visit)
{
    for (int64_t i = 0; i < module->parts->child_count; i++) {
        const fsdp_module *child = module->parts->children[i].module;
        fsdp__module_state *below = fsdp__module_state_of(child);

        if (!below)
            FSDP_TRY(visit_below(c, above, child, visit));
        else if (below != above)
            FSDP_TRY(visit(c, above, below));
    }
    return FSDP_OK;
}

static fsdp_status visit_pairs(collection *c, pair_visitor visit)
{
    for (int64_t i = 0; i < c->root->state_count; i++) {
        fsdp__module_state *state = c->root->states[i];

        for (int64_t m = 0; m < state->module_count; m++)
            if (state->modules[m])
                FSDP_TRY(visit_below(c, state, state->modules[m], visit));
    }
    return FSDP_OK;
}

/* Makes a state below a conditional one conditional, too: a rank that passes by the upper one does not come to it. */
static fsdp_status inherit_condition(collection *c, fsdp__module_state *above, fsdp__module_state *below)
{
    if (!below->conditional && above->conditional && above != c->outermost)
        below->conditional = c->spread = true;
    return FSDP_OK;
}

static const char *name_of(const collection *c, const fsdp__module_state *state)
{
    const char *name = c->names[fsdp__root_find(c->root, state)];

    return *name ? name : "the root";
}

static fsdp_status link_conditional(collection *c, fsdp__module_state *above, fsdp__module_state *below)
{
    if (!below->conditional || below->parent == above)
        return FSDP_OK;
    if (below->parent)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' is conditional and lies below two sharded modules, '%s' and '%s': it can be gathered "
                         "with one only",
                         name_of(c, below), name_of(c, below->parent), name_of(c, above));
    if (below->forward_prefetch.count > 0 || below->backward_prefetch.count > 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' is conditional and is to prefetch others, which ranks that do not enter it would not "
                         "gather: list them for '%s'",
                         name_of(c, below), name_of(c, above));
    FSDP_TRY(fsdp__module_state_accompany(below, above));
    below->parent = above;
    return FSDP_OK;
}

/* Links conditional states to their parents. A condition goes down from state to state, whatever their order is where
 * modules are shared. */
static fsdp_status link_states(collection *c)
{
    do {
        c->spread = false;
        FSDP_TRY(visit_pairs(c, inherit_condition));
    } while (c->spread);
    return visit_pairs(c, link_conditional);
}

static bool spans_machines(const fsdp__mesh_info *mesh)
{
    return fsdp__process_group_machines(mesh->shard_pg) > 1;
}

static bool has_peers(const fsdp__mesh_info *mesh)
{
    return mesh->ranks > 1 || mesh->replicas > 1;
}

/* Returns whether `test` holds for the mesh of any group. */
static bool any_mesh(const collection *c, bool (*test)(const fsdp__mesh_info *mesh))
{
    for (int64_t i = 0; i < c->root->state_count; i++)
        for (int64_t g = 0; g < c->root->states[i]->group_count; g++)
            if (test(&c->root->states[i]->groups[g]->residence.mesh))
                return true;
    return false;
}

/* Returns whether a gather or reduction is mostly waiting, which a stream of its own does while the rank computes: for
 * a network, for a GPU's links, or for copies through the host. On ranks that share a GPU a gather without a cast moves
 * nothing, and its stream only waits for the others; so a stream of its own takes no memory there, and a rank computes
 * on where it would wait for a late one. Nobody asks which GPUs the ranks have: a plan, which has none, takes the same
 * choice as a run. */
static bool is_mostly_waiting(const collection *c, fsdp_device *device)
{
    bool apart = !fsdp__stream_is_inline(fsdp_device_stream(device)) && !fsdp__device_shared_memory(device);

    return any_mesh(c, spans_machines) || any_mesh(c, fsdp__mesh_info_replicas_span_machines) ||
           (apart && any_mesh(c, has_peers));
}

static fsdp_overlap overlap_of(const collection *c, fsdp_device *device)
{
    if (c->outermost->overlap != FSDP_OVERLAP_AUTO)
        return c->outermost->overlap;
    return is_mostly_waiting(c, device) ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
}

/* Returns whether all groups lie on one mesh. Then every rank comes to the same answer, and sees the same bytes of each
 * group; with another mesh, as experts have one, other ranks may see another part. */
static bool have_one_mesh(const collection *c)
{
    const fsdp_mesh *one = NULL;

    for (int64_t i = 0; i < c->root->state_count; i++)
        for (int64_t g = 0; g < c->root->states[i]->group_count; g++) {
            const fsdp_mesh *mesh = c->root->states[i]->groups[g]->residence.mesh.mesh;

            if (one && mesh != one && !fsdp_mesh_equal(mesh, one))
                return false;
            one = mesh;
        }
    return true;
}

/* Decides whether forwards gather ahead. If the device runs in step with the host, they must do so explicitly once
 * gathers run beside the computing. If it runs behind, a forward has issued the next gather before the device has
 * computed, as with FSDP2, and the gather gets memory that an earlier unit has left. But none has left any where units
 * stay whole: new memory comes in the order of the computing, so it has to be taken before that is issued. */
static void choose_ahead(const collection *c, fsdp_device *device)
{
    fsdp__root *root = c->root;
    bool behind = !fsdp__stream_is_inline(fsdp_device_stream(device));
    bool may = c->outermost->overlap == FSDP_OVERLAP_AUTO && have_one_mesh(c);

    root->gathers_ahead = may && !behind && any_mesh(c, spans_machines);
    root->gathers_kept_ahead = may && behind && is_mostly_waiting(c, device);
}

/* Opens the communication context. All states below a root share one stream, so they must be on one device. */
static fsdp_status open_comm(const collection *c)
{
    fsdp_device *device = NULL;
    const char *whose = NULL;

    for (int64_t i = 0; i < c->root->state_count; i++) {
        fsdp_device *other = fsdp__module_state_device(c->root->states[i]);

        if (device && other && other != device)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "'%s' is on device '%s', '%s' on '%s': the sharded modules below one outermost module "
                             "must be on one device",
                             whose, fsdp_device_name(device), c->names[i], fsdp_device_name(other));
        if (!device && other) {
            device = other;
            whose = c->names[i];
        }
    }
    if (!device)
        return FSDP_OK;
    if (c->root->comm->stream && fsdp__stream_device(c->root->comm->stream) != device)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' is on device '%s', but shares its communication context with modules on '%s'", whose,
                         fsdp_device_name(device), fsdp_device_name(fsdp__stream_device(c->root->comm->stream)));
    choose_ahead(c, device);
    return fsdp__comm_context_open(c->root->comm, device, overlap_of(c, device));
}

/* Takes over settings that states got while they were roots of their own; the latest one holds. */
static void take_settings(fsdp__root *root, const fsdp__root *other)
{
    if (other->last_backward_set <= root->last_backward_set)
        return;
    root->last_backward = other->last_backward;
    root->last_backward_set = other->last_backward_set;
}

/* Makes the changes; nothing here fails. */
static void commit(collection *c)
{
    fsdp__root *root = c->root;

    for (int64_t i = 0; i < root->state_count; i++) {
        fsdp__module_state *state = root->states[i];

        state->name = c->names[i];
        c->names[i] = NULL;
        state->initialised = true;
        if (state->reshard == FSDP_RESHARD_AUTO)
            state->reshard_after_forward = state != c->outermost;
        if (state->root != root) {
            take_settings(root, state->root);
            fsdp__root_join(root, state);
        }
    }
    fsdp__root_choose_max_inputs(root);
}

/* Checks whether everything below can have one root. This makes nothing but names. A state that has been initialised is
 * not checked again. */
static fsdp_status check(collection *c)
{
    fsdp__module_state *outermost = c->outermost;

    if (outermost->initialised)
        return FSDP_OK;
    if (outermost->module_count != 1)
        return FSDP_FAIL(FSDP_STATE, "the outermost fully_shard call must name a single module, this one names %lld",
                         (long long)outermost->module_count);
    FSDP_TRY(fsdp__module_walk(outermost->modules[0], collect_state, c));
    return fsdp__check_tree(c->root, c->names);
}

/* Makes what the root needs. What a failure leaves behind is made again by the next try. */
static fsdp_status make(collection *c)
{
    if (c->outermost->initialised)
        return FSDP_OK;
    FSDP_TRY(link_states(c));
    FSDP_TRY(open_comm(c));
    return fsdp__root_cast_buffers(c->root);
}

/* Ends a try whose outcome is `status`. */
static void end(collection *c, fsdp_status status)
{
    if (c->outermost->initialised)
        return;
    if (status == FSDP_OK)
        commit(c);
    for (int64_t i = 0; c->names && i < c->root->state_count; i++)
        fsdp__free(c->names[i]);
    fsdp__free(c->names);
    if (status != FSDP_OK)
        c->root->state_count = 0;
}

fsdp_status fsdp__lazy_init(fsdp__module_state *outermost)
{
    collection c = {.root = outermost->root, .outermost = outermost};
    fsdp_status status = check(&c);

    if (status == FSDP_OK)
        status = make(&c);
    end(&c, status);
    return status;
}

/* ---- on all ranks, or on none ---- */

/* Holds what a visit of all groups is given. */
typedef struct agreement {
    fsdp_status status;
    const fsdp_module *module;   /* that the groups are below */
    const fsdp__mesh_info *mesh; /* the mesh whose ranks agreed last, or compare */
    FILE *text;                  /* what they compare; NULL: this rank has failed */
} agreement;

static void end_read(fsdp__param_group *group, agreement *a)
{
    (void)a;
    fsdp__residence_end_read(&group->residence);
}

static void begin_read(fsdp__param_group *group, agreement *a)
{
    (void)a;
    if (group->sharded_state >= FSDP_GATHERING)
        fsdp__residence_begin_read(&group->residence);
}

static void agree(fsdp__param_group *group, agreement *a)
{
    a->status = fsdp__mesh_info_agree_after(&a->mesh, &group->residence.mesh, a->status, NULL);
}

/* Visits all groups at and below the module. This needs no memory, so no rank fails. */
static void visit_groups(const fsdp_module *module, void (*visit)(fsdp__param_group *, agreement *), agreement *a)
{
    fsdp__module_state *state = fsdp__module_state_of(module);

    for (int64_t i = 0; state && i < state->group_count; i++)
        visit(state->groups[i], a);
    for (int64_t i = 0; i < module->parts->child_count; i++)
        visit_groups(module->parts->children[i].module, visit, a);
}

static void reset_asked(fsdp__param_group *group, agreement *a)
{
    (void)a;
    group->asked = false;
}

static void write_group(fsdp__param_group *group, agreement *a)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;

    if (group->asked || mesh->shard_pg != a->mesh->shard_pg || mesh->replicate_pg != a->mesh->replicate_pg)
        return;
    group->asked = true;
    if (a->text)
        fsdp__write_parameters(a->text, group);
}

/* Compares the parameters of all groups on the mesh of `group`: on another mesh, as experts have one, a rank may have
 * parameters of its own. A rank that has failed takes part, so that the others do not wait for it. */
static void compare(fsdp__param_group *group, agreement *a)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;
    agreement written = {.mesh = mesh};
    char *text = NULL;
    size_t bytes;

    if (group->asked)
        return;
    if (a->status == FSDP_OK)
        written.text = open_memstream(&text, &bytes);
    visit_groups(a->module, write_group, &written);
    if (a->status == FSDP_OK && (!written.text || fclose(written.text) != 0))
        a->status = FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for a list of the parameters");
    FSDP_KEEP_FIRST(a->status, fsdp__compare_texts(mesh, a->status == FSDP_OK ? text : NULL));
    free(text);
}

fsdp_status fsdp__begin_together(void *outermost, fsdp_module *module, fsdp_status mine)
{
    fsdp__module_state *state = outermost;
    collection c = {.root = state->root, .outermost = state};
    agreement asked = {.status = mine == FSDP_OK ? check(&c) : mine, .module = module}, made;

    visit_groups(module, end_read, &asked); /* a late writer may be waiting for that */
    visit_groups(module, agree, &asked);
    visit_groups(module, reset_asked, &asked);
    visit_groups(module, compare, &asked);
    made = (agreement){.status = asked.status == FSDP_OK ? make(&c) : asked.status};
    visit_groups(module, agree, &made);
    end(&c, made.status); /* so that no rank has begun where another has not */
    visit_groups(module, begin_read, &made);
    if (made.status != FSDP_OK && state->door->not_begun)
        state->door->not_begun(state);
    state->root->agreed = state->root->agreed || made.status == FSDP_OK;
    return made.status;
}
