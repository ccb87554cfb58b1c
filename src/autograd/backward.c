/* backward.c - the walk of a backward.
 *
 * First every node that the roots reach is counted: how many consumers will give to it. Then nodes run, the newest
 * first, each once all its consumers have run. So additions happen in one order, that of the program backwards. What a
 * node saved is dropped as soon as it has run. Nothing recurses: graphs are as deep as programs are long. */
#include <string.h>

#include "autograd/recompute.h"
#include "base/alloc.h"
#include "base/context.h"
#include "base/status.h"

/* ---- the heap of ready nodes: newest on top ---- */

static void heap_push(fsdp__run *run, fsdp__node *node)
{
    int64_t at = run->heap_count++;

    while (at > 0 && run->heap[(at - 1) / 2]->sequence < node->sequence) {
        run->heap[at] = run->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    run->heap[at] = node;
    node->queued = true;
}

static fsdp__node *heap_pop(fsdp__run *run)
{
    fsdp__node *top = run->heap[0];
    fsdp__node *last = run->heap[--run->heap_count];
    int64_t at = 0;

    for (int64_t child = 1; child < run->heap_count; child = 2 * at + 1) {
        if (child + 1 < run->heap_count && run->heap[child + 1]->sequence > run->heap[child]->sequence)
            child++;
        if (run->heap[child]->sequence < last->sequence)
            break;
        run->heap[at] = run->heap[child];
        at = child;
    }
    run->heap[at] = last;
    return top;
}

/* ---- before the walk: which nodes are reached, and how often ---- */

/* Adds a node to the run. With `aside`, nodes that cannot be walked are left out. */
static fsdp_status reach(fsdp__run *run, fsdp__node *node, bool aside)
{
    if (node->run == run || (aside && (node->run || node->released)))
        return FSDP_OK;
    if (node->run)
        return FSDP_FAIL(FSDP_STATE, "a backward inside a backward reached %s, which the outer one is walking",
                         node->op->name);
    if (node->released)
        return FSDP_FAIL(
            FSDP_STATE, "backward through %s a second time: its saved tensors are gone (keep the graph the first time)",
            node->op->name);
    FSDP_TRY(fsdp__grow(&run->nodes, run->node_count, &run->node_capacity, sizeof *run->nodes));
    run->nodes[run->node_count++] = fsdp__node_ref(node);
    node->run = run;
    node->aside = aside;
    node->dependencies = 0;
    node->queued = false;
    fsdp__node_count_leaves(node);
    if (node->traits->reached)
        node->traits->reached(node);
    return FSDP_OK;
}

static fsdp_status reach_inputs(fsdp__run *run, fsdp__node *node, int from, int to, bool aside)
{
    for (int i = from; i < to; i++) {
        fsdp__node *producer = node->inputs[i].node;

        if (!producer)
            continue;
        FSDP_TRY(reach(run, producer, aside));
        /* Once for each edge, since each is counted off: a node may take the same tensor twice. */
        producer->dependencies += producer->run == run;
    }
    return FSDP_OK;
}

static int gradient_inputs(const fsdp__node *node)
{
    return node->traits->aside ? node->traits->aside : node->input_count;
}

static fsdp_status explore(fsdp__run *run, fsdp_tensor *const *roots, int count)
{
    int64_t used;

    for (int i = 0; i < count; i++) {
        fsdp__node *producer = fsdp__grad_state_get(roots[i])->producer;

        if (producer)
            FSDP_TRY(reach(run, producer, false));
    }
    for (int64_t i = 0; i < run->node_count; i++) /* grows while it is walked */
        FSDP_TRY(reach_inputs(run, run->nodes[i], 0, gradient_inputs(run->nodes[i]), false));
    used = run->node_count;
    for (int64_t i = 0; i < run->node_count; i++) /* used nodes came first, so that none counts as unused */
        FSDP_TRY(reach_inputs(run, run->nodes[i], i < used ? gradient_inputs(run->nodes[i]) : 0,
                              run->nodes[i]->input_count, true));
    run->heap = fsdp__malloc((size_t)run->node_count * sizeof *run->heap);
    return run->heap ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- the roots ---- */

static fsdp_status check_root(const fsdp_tensor *root, const fsdp_tensor *gradient)
{
    if (!root)
        return FSDP_FAIL(FSDP_INVALID, "backward: a root is missing");
    if (!fsdp_tensor_requires_grad(root))
        return FSDP_FAIL(FSDP_INVALID, "backward: the root %s does not require a gradient", FSDP__SHAPE_OF(root));
    if (!gradient && fsdp_tensor_numel(root) != 1)
        return FSDP_FAIL(FSDP_INVALID, "backward: the root %s has more than one element: give its gradient",
                         FSDP__SHAPE_OF(root));
    if (gradient && root->storage->device != gradient->storage->device)
        return FSDP_FAIL(FSDP_INVALID, "backward: a gradient on %s does not fit the root, which is on %s%s",
                         fsdp_device_name(gradient->storage->device), fsdp_device_name(root->storage->device),
                         fsdp__device_elsewhere(root->storage->device, gradient->storage->device));
    if (gradient && (!fsdp__shape_equal(root, gradient) || root->dtype != gradient->dtype))
        return FSDP_FAIL(FSDP_INVALID, "backward: a %s gradient %s does not fit the root, which is %s %s",
                         fsdp_dtype_name(gradient->dtype), FSDP__SHAPE_OF(gradient), fsdp_dtype_name(root->dtype),
                         FSDP__SHAPE_OF(root));
    return FSDP_OK;
}

/* Makes the gradient of a root without one: all ones. The caller owns `*out`. */
static fsdp_status make_one(const fsdp_tensor *root, fsdp_tensor **out)
{
    fsdp__grad_state *state;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *one = NULL;

    FSDP_TRY(
        fsdp_tensor_create(root->storage->device, root->dtype, root->ndim, root->shape, FSDP_MEMORY_ACTIVATION, &one));
    FSDP_TRY(fsdp_tensor_fill_(one, 1.0));
    FSDP_TRY(fsdp__grad_state_make(one, &state));
    state->is_one = true;
    *out = fsdp__take(&one);
    return FSDP_OK;
}

static fsdp_status seed_root(fsdp__run *run, fsdp_tensor *root, fsdp_tensor *gradient)
{
    fsdp__grad_state *state = fsdp__grad_state_get(root);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *grad = fsdp_tensor_ref(gradient);
    fsdp__node *producer = state->producer;

    if (!grad)
        FSDP_TRY(make_one(root, &grad));
    FSDP_TRY(producer ? fsdp__node_add_grad(producer, state->output, grad) : fsdp__leaf_accumulate(root, grad));
    /* A root that another root reaches waits for its consumers. A node with two roots is queued once. */
    if (producer && producer->dependencies == 0 && !producer->queued)
        heap_push(run, producer);
    return FSDP_OK;
}

/* ---- one node ---- */

/* Runs the hooks of the node's outputs. All consumers have given by now, so hooks see the sum. */
static fsdp_status run_hooks(fsdp__node *node)
{
    for (int i = 0; i < node->output_count; i++) {
        fsdp__output *output = &node->outputs[i];
        fsdp_tensor *grad = node->grads[i];

        if (!output->hooks)
            continue;
        if (!grad) {
            FSDP_TRY(fsdp__hooks_pass(output->hooks, output->state ? output->state->tensor : NULL));
            continue;
        }
        FSDP_TRY(fsdp__hooks_run(output->hooks, output->state ? output->state->tensor : NULL, &grad));
        fsdp_tensor_ref(grad);
        fsdp_tensor_unref(node->grads[i]);
        node->grads[i] = grad;
    }
    return FSDP_OK;
}

/* Checks that saved tensors can be used: the engine that drops the bytes of a parameter must have brought them back,
 * and nobody may have written others; with `renewed` nobody may have written what the engine brings, either. */
static fsdp_status check_saved(const fsdp__node *node, bool renewed)
{
    for (int i = 0; i < node->saved_count; i++) {
        const fsdp_tensor *saved = node->saved[i];

        if (!saved)
            continue;
        if (renewed || !saved->storage->renewed_by || saved->storage->strict)
            FSDP_TRY(fsdp__node_check_version(node, i, saved));
        if (!saved->storage->data && saved->storage->bytes > 0)
            return FSDP_FAIL(
                FSDP_STATE,
                "saved tensor %d %s of %s has no bytes: they were dropped and not restored (a parameter of "
                "a sharded module that does not unshard in its backward?)",
                i, FSDP__SHAPE_OF(saved), node->op->name);
    }
    return FSDP_OK;
}

static void drop_remade(fsdp__node *node)
{
    for (int i = 0; i < node->saved_count; i++)
        if (node->marks[i].remade)
            fsdp_tensor_unref(fsdp__take(&node->saved[i]));
}

/* Other weights would make another result. */
static fsdp_status check_maker(const fsdp__node *maker, int input)
{
    fsdp_status status = check_saved(maker, true);

    return status == FSDP_OK ? status
                             : fsdp_fail_prefix(status, "%s, which makes input %d again", maker->op->name, input);
}

/* A tensor is made again for nodes that run before the node which made it. So that node still has what it saved, unless
 * that must be made again, too. */
fsdp_status fsdp__node_remake(fsdp__node *node)
{
    fsdp_status status = FSDP_OK;

    for (int i = 0; i < node->saved_count && status == FSDP_OK; i++) {
        fsdp__saved_mark *mark = &node->marks[i];
        fsdp__node *maker = mark->remade ? node->inputs[mark->input].node : NULL;

        if (!maker)
            continue;
        if (maker->released)
            return FSDP_FAIL(FSDP_STATE, "%s, which makes input %d again, has run in another backward: keep the graph",
                             maker->op->name, mark->input);
        FSDP_TRY_GOTO(status, fsdp__node_remake(maker), made);
        FSDP_TRY_GOTO(status, check_maker(maker, mark->input), made);
        FSDP_TRY_GOTO(status, maker->traits->remake(maker, &node->saved[i]), made);
        mark->version = node->saved[i]->storage->version;
    made:
        drop_remade(maker);
    }
    return status;
}

/* A parameter may have been cut in place since the forward; the gradient here would be that of the whole parameter. */
static fsdp_status check_leaves(const fsdp__node *node)
{
    for (int i = 0; i < node->input_count; i++) {
        const fsdp__edge *edge = &node->inputs[i];
        const fsdp_tensor *leaf = edge->leaf;

        if (leaf && memcmp(leaf->shape, edge->shape, (size_t)edge->ndim * sizeof *edge->shape) != 0)
            return FSDP_FAIL(FSDP_STATE,
                             "input %d was %s in the forward and is %s now: it was cut in between, and the backward "
                             "must come before that",
                             i, FSDP__SHAPE_OF(edge), FSDP__SHAPE_OF(leaf));
    }
    return FSDP_OK;
}

static fsdp_status undo(fsdp__node *node)
{
    fsdp__taker before = fsdp__context_taker(node->context);
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(node->context));
    fsdp__context_set_taker(node->context, (fsdp__taker){node->owner, node->op->name, true});
    /* First, since a hook may bring the bytes of saved tensors back. */
    FSDP_TRY_GOTO(status, run_hooks(node), out);
    FSDP_TRY_GOTO(status, fsdp__recomputation_restore(node), out);
    if (!node->traits->remakes_late)
        FSDP_TRY_GOTO(status, fsdp__node_remake(node), out);
    FSDP_TRY_GOTO(status, check_saved(node, false), out);
    FSDP_TRY_GOTO(status, check_leaves(node), out);
    for (int i = 0; i < node->input_count; i++)
        node->inputs[i].answered = false;
    FSDP_TRY_GOTO(status, node->op->backward(node, node->grads), out);
    FSDP_TRY_GOTO(status, fsdp__node_commit_targets(node), out);
out:
    drop_remade(node);
    fsdp_scope_end(node->context, NULL);
    fsdp__context_set_taker(node->context, before);
    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "backward of %s", node->op->name);
}

/* Calls `what` in a scope of its own, since hooks make tensors. */
static fsdp_status in_scope(fsdp__node *node, fsdp_status (*what)(fsdp__node *node))
{
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(node->context));
    status = what(node);
    fsdp_scope_end(node->context, NULL);
    return status;
}

static void drop_grads(fsdp__node *node)
{
    for (int i = 0; i < node->output_count; i++)
        fsdp_tensor_unref(fsdp__take(&node->grads[i]));
}

static bool has_grads(const fsdp__node *node)
{
    for (int i = 0; i < node->output_count; i++)
        if (node->grads[i])
            return true;
    return false;
}

static fsdp_status run_node(fsdp__run *run, fsdp__node *node)
{
    fsdp_status status = FSDP_OK;

    if (has_grads(node) || node->traits->always) {
        FSDP_TRY_GOTO(status, undo(node), fail);
        /* The node drops everything first: its leaf then adopts a gradient that nobody else holds, without a copy. */
        drop_grads(node);
        if (!run->keep_graph && !node->aside)
            fsdp__node_forget(node);
        FSDP_TRY_GOTO(status, in_scope(node, fsdp__node_commit_leaves), fail);
    } else {
        FSDP_TRY(in_scope(node, run_hooks)); /* no gradient has come */
    }
    /* Do so even if no gradient came to the node: its producers wait for all their consumers. */
    for (int i = 0; i < node->input_count; i++) {
        fsdp__node *producer = node->inputs[i].node;

        if (producer && producer->run == run && --producer->dependencies == 0)
            heap_push(run, producer);
    }
    FSDP_TRY(fsdp__node_complete_leaves(node));
    if (!run->keep_graph && !node->aside)
        fsdp__node_release(node);
    return FSDP_OK;
fail:
    fsdp__node_rollback(node);
    return status;
}

/* ---- the whole backward ---- */

static fsdp_status walk(fsdp__run *run, fsdp_tensor *const *roots, fsdp_tensor *const *gradients, int count)
{
    FSDP_TRY(explore(run, roots, count));
    for (int i = 0; i < count; i++)
        FSDP_TRY(seed_root(run, roots[i], gradients ? gradients[i] : NULL));
    while (run->heap_count > 0)
        FSDP_TRY(run_node(run, heap_pop(run)));
    return FSDP_OK;
}

/* Frees the graph and forgets the walk, wherever it ended. */
static void finish(fsdp__run *run)
{
    for (int64_t i = 0; i < run->node_count; i++) {
        drop_grads(run->nodes[i]);
        run->nodes[i]->run = NULL;
        run->nodes[i]->dependencies = 0;
        run->nodes[i]->queued = false;
        fsdp__node_uncount_leaves(run->nodes[i]); /* those it did not come through */
    }
    for (int64_t i = 0; i < run->node_count; i++) {
        if (!run->keep_graph && !run->nodes[i]->aside)
            fsdp__node_release(run->nodes[i]);
        fsdp__node_unref(run->nodes[i]);
    }
    FSDP__FREE_ALL(run->nodes, run->heap);
    run->nodes = run->heap = NULL;
    run->node_count = run->heap_count = 0;
}

/* Runs the callbacks. Each learns how the walk went, and may queue more. The first failure counts. */
static fsdp_status run_callbacks(fsdp__run *run, fsdp_status walked)
{
    fsdp_status status = walked;

    for (int64_t i = 0; i < run->callback_count; i++) {
        /* A copy, since the list may move when the callback queues another. */
        fsdp__callback callback = run->callbacks[i];

        FSDP_KEEP_FIRST(status, callback.call(callback.arg, walked));
    }
    fsdp__free(run->callbacks);
    return status;
}

fsdp_status fsdp_backward_from(fsdp_tensor *const *roots, fsdp_tensor *const *gradients, int count, bool keep_graph)
{
    fsdp__run run = {.keep_graph = keep_graph};
    fsdp__autograd *autograd;
    fsdp_context *context;
    fsdp_status status;
    int64_t no_grad, outside_count;

    if (count < 1 || !roots)
        return FSDP_FAIL(FSDP_INVALID, "backward: no roots");
    for (int i = 0; i < count; i++)
        FSDP_TRY(check_root(roots[i], gradients ? gradients[i] : NULL));
    context = fsdp__tensor_context(roots[0]);
    FSDP__TRY_NEW(autograd = fsdp__autograd_make(context));
    if (autograd->recomputation)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "backward: it was called inside a recomputed function, which would run it twice");
    FSDP_TRY(fsdp_scope_begin(context));
    run.outer = autograd->running;
    autograd->running = &run;
    autograd->backwards++;
    outside_count = autograd->outside_count;
    no_grad = autograd->no_grad++;

    status = walk(&run, roots, gradients, count);
    finish(&run);
    status = run_callbacks(&run, status);

    /* It is restored, not counted down by one: a hook that failed may not have undone its own. */
    autograd->no_grad = no_grad;
    autograd->outside_count = outside_count;
    autograd->running = run.outer;
    fsdp__recomputations_free(run.dead);
    fsdp_scope_end(context, NULL);
    return status;
}

fsdp_status fsdp_backward(fsdp_tensor *loss)
{
    if (!loss) /* the forward has failed and said why */
        return FSDP__FAIL_NULL("backward: no loss");
    return fsdp_backward_from(&loss, NULL, 1, false);
}
