/* node.c - the life of a recorded operation. */
#include "autograd/recompute.h"
#include "base/alloc.h"

#include <stdalign.h>
#include <stdio.h>

static size_t aligned(size_t bytes)
{
    return (bytes + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
}

/* Allocates a node and its arrays as one piece of memory. */
fsdp__node *fsdp__node_create(int input_count, int output_count, int saved_count, size_t state_bytes)
{
    size_t inputs_at = aligned(sizeof(fsdp__node));
    size_t outputs_at = inputs_at + aligned((size_t)input_count * sizeof(fsdp__edge));
    size_t grads_at = outputs_at + aligned((size_t)output_count * sizeof(fsdp__output));
    size_t saved_at = grads_at + aligned((size_t)output_count * sizeof(fsdp_tensor *));
    size_t marks_at = saved_at + aligned((size_t)saved_count * sizeof(fsdp_tensor *));
    size_t state_at = marks_at + aligned((size_t)saved_count * sizeof(fsdp__saved_mark));
    char *memory = fsdp__calloc(1, state_at + aligned(state_bytes));
    fsdp__node *node = (fsdp__node *)(void *)memory;

    if (!memory)
        return NULL;
    node->refs = 1;
    node->input_count = input_count;
    node->output_count = output_count;
    node->saved_count = saved_count;
    node->inputs = (fsdp__edge *)(void *)(memory + inputs_at);
    node->outputs = (fsdp__output *)(void *)(memory + outputs_at);
    node->grads = (fsdp_tensor **)(void *)(memory + grads_at);
    node->saved = (fsdp_tensor **)(void *)(memory + saved_at);
    node->marks = (fsdp__saved_mark *)(void *)(memory + marks_at);
    node->state = memory + state_at;
    return node;
}

/* ---- freeing ---- */

fsdp__node *fsdp__node_ref(fsdp__node *node)
{
    node->refs++;
    return node;
}

void fsdp__node_set_aside(fsdp__node *node, fsdp__node *const *nodes, int count)
{
    for (int i = 0; i < count; i++)
        node->inputs[1 + i].node = fsdp__node_ref(nodes[i]);
}

/* Drops a reference. A node without references is put on `*dead` instead of being freed here. */
static void drop(fsdp__node *node, fsdp__node **dead)
{
    if (--node->refs > 0)
        return;
    node->next_dead = *dead;
    *dead = node;
}

void fsdp__node_forget(fsdp__node *node)
{
    for (int i = 0; i < node->saved_count; i++)
        fsdp_tensor_unref(fsdp__take(&node->saved[i]));
    if (node->state_owned && node->op->free_state)
        node->op->free_state(node->state);
    fsdp__recomputation_forget(node);
    node->state_owned = false;
    node->released = true;
}

static void release(fsdp__node *node, fsdp__node **dead)
{
    fsdp__node_forget(node);
    for (int i = 0; i < node->input_count; i++) {
        fsdp__edge *edge = &node->inputs[i];

        if (edge->node)
            drop(edge->node, dead);
        fsdp_tensor_unref(edge->leaf);
        edge->node = NULL;
        edge->leaf = NULL;
    }
}

static void free_dead(fsdp__node *dead)
{
    while (dead) {
        fsdp__node *node = dead;

        dead = node->next_dead;
        /* Its producers may lose their last reference here: they join the list, however deep the graph is. */
        release(node, &dead);
        for (int i = 0; i < node->output_count; i++) {
            fsdp_tensor_unref(node->grads[i]);
            fsdp__hooks_free(node->outputs[i].hooks);
        }
        fsdp__free(node);
    }
}

void fsdp__node_unref(fsdp__node *node)
{
    fsdp__node *dead = NULL;

    if (!node)
        return;
    drop(node, &dead);
    free_dead(dead);
}

void fsdp__node_release(fsdp__node *node)
{
    fsdp__node *dead = NULL;

    release(node, &dead);
    free_dead(dead);
}

/* ---- checks of saved tensors ---- */

/* Returns the number of an input among those that the caller gave: an operation has places for more. */
static int number_of(const fsdp__node *node, int input)
{
    int number = 0;

    for (int i = 0; i < input; i++)
        number += node->inputs[i].device != NULL;
    return number;
}

/* Describes a saved tensor: "input 1 (2, 3), parameter 'head.weight',". */
static void describe(const fsdp__node *node, int i, const fsdp_tensor *now, char *text, size_t bytes)
{
    const fsdp__saved_mark *mark = &node->marks[i];
    const fsdp__autograd *autograd = fsdp__autograd_get(node->context);
    char shape[FSDP__SHAPE_TEXT], name[256];
    bool named = autograd->namer && autograd->namer(node->context, now->storage, name, sizeof name);

    fsdp__shape_text(now->ndim, now->shape, shape);
    if (mark->input >= 0)
        i = number_of(node, mark->input);
    else if (mark->output >= 0)
        i = mark->output;
    snprintf(text, bytes, "%s %d %s%s%s%s",
             mark->input >= 0    ? "input"
             : mark->output >= 0 ? "output"
                                 : "saved tensor",
             i, shape, named ? ", " : "", named ? name : "", named ? "," : "");
}

fsdp_status fsdp__node_check_version(const fsdp__node *node, int i, const fsdp_tensor *now)
{
    unsigned long long before = node->marks[i].version, after = now->storage->version;
    char what[FSDP__SHAPE_TEXT + 300];

    if (before == after)
        return FSDP_OK;
    describe(node, i, now, what, sizeof what);
    return FSDP_FAIL(FSDP_STATE,
                     "%s was written to after the forward: the backward needs version %llu of it, this is version "
                     "%llu; run the backward before the write, or give the operation a copy",
                     what, before, after);
}

/* ---- inside an op's backward ---- */

fsdp_tensor *fsdp__node_saved(fsdp__node *node, int index)
{
    return node->saved[index];
}

void *fsdp__node_state(fsdp__node *node)
{
    return node->state;
}

bool fsdp__node_needs(const fsdp__node *node, int input)
{
    return node->inputs[input].node || node->inputs[input].leaf;
}

bool fsdp__node_keeps(const fsdp__node *node)
{
    return node->run && node->run->keep_graph;
}

void fsdp__node_drop_saved(fsdp__node *node, int index)
{
    if (fsdp__node_keeps(node))
        return;
    fsdp_tensor_unref(fsdp__take(&node->saved[index]));
}
