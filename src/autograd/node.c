/* node.c - records operations, and frees what was recorded. */
#include "autograd/checkpoint.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/hash.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>

/* ---- recording ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
}

/* Allocates a node and its arrays as one piece of memory. */
static fsdp__node *node_alloc(int input_count, int output_count, int saved_count, size_t state_bytes)
{
    size_t inputs_at = aligned(sizeof(fsdp__node));
    size_t outputs_at = inputs_at + aligned((size_t)input_count * sizeof(fsdp__edge));
    size_t grads_at = outputs_at + aligned((size_t)output_count * sizeof(fsdp__output));
    size_t saved_at = grads_at + aligned((size_t)output_count * sizeof(fsdp_tensor *));
    size_t marks_at = saved_at + aligned((size_t)saved_count * sizeof(fsdp_tensor *));
    size_t state_at = marks_at + aligned((size_t)saved_count * sizeof(fsdp__mark));
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
    node->marks = (fsdp__mark *)(void *)(memory + marks_at);
    node->state = memory + state_at;
    return node;
}

static void connect(fsdp__edge *edge, fsdp_tensor *input)
{
    fsdp__grad_state *state = fsdp__grad_state_get(input);

    edge->device = input->storage->device;
    edge->dtype = input->dtype;
    edge->ndim = input->ndim;
    memcpy(edge->shape, input->shape, sizeof edge->shape);
    if (!state || !state->requires_grad)
        return;
    if (state->producer) {
        edge->node = fsdp__node_ref(state->producer);
        edge->output = state->output;
    } else {
        edge->leaf = fsdp_tensor_ref(input);
    }
}

/* Returns the index of `saved` among `tensors`, or of the first that has the same bytes; -1 if there is none. */
static int place_of(const fsdp_tensor *saved, fsdp_tensor *const *tensors, int count)
{
    int place = -1;

    for (int i = count - 1; i >= 0; i--)
        if (tensors[i] && tensors[i]->storage == saved->storage && (place < 0 || tensors[place] != saved))
            place = i;
    return place;
}

static fsdp_status save(fsdp__node *node, int i, const fsdp_tensor *saved, fsdp_tensor *const *inputs,
                        fsdp_tensor *const *outputs)
{
    node->marks[i] = (fsdp__mark){.version = saved->storage->version,
                                  .origin = fsdp__origin_of((fsdp_tensor *[]){(fsdp_tensor *)(uintptr_t)saved}, 1),
                                  .input = place_of(saved, inputs, node->input_count),
                                  .output = place_of(saved, outputs, node->output_count)};
    return fsdp__tensor_alias(saved, &node->saved[i]);
}

bool fsdp__will_record(fsdp_tensor *const *inputs, int input_count)
{
    for (int i = 0; i < input_count; i++)
        if (inputs[i] && fsdp_tensor_requires_grad(inputs[i]))
            return fsdp_grad_enabled(fsdp__tensor_context(inputs[i]));
    return false;
}

uint64_t fsdp__recorded(const fsdp_context *context)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);

    return autograd ? autograd->sequence : 0;
}

bool fsdp__recorded_since(const fsdp_tensor *tensor, uint64_t recorded)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(tensor);

    return state && state->producer && state->producer->sequence > recorded;
}

/* Returns the context of inputs, at least one of which is not NULL. */
static fsdp_context *context_of(fsdp_tensor *const *inputs)
{
    while (!*inputs)
        inputs++;
    return fsdp__tensor_context(*inputs);
}

/* Passes origins on: [Note: origins] in tensor/tensor.h. Saved tensors may have been read beside the inputs; if a
 * result was kept, not all of them are there again. */
static void pass_origin(const fsdp__traits *traits, fsdp_tensor *const *inputs, int input_count,
                        fsdp_tensor *const *outputs, int output_count, fsdp_tensor *const *saved, int saved_count)
{
    uint64_t from;

    if (output_count == 0 || !outputs[0] || !fsdp__origin_runs(outputs[0]->storage))
        return;
    from = fsdp__mix(FSDP__HASH_OF_NOTHING, fsdp__origin_of(inputs, input_count));
    from = fsdp__mix(from, fsdp__origin_of(saved, traits->dear ? 0 : saved_count)); /* often the same as the inputs */
    for (int i = 0; i < output_count; i++)
        if (outputs[i] && place_of(outputs[i], inputs, input_count) < 0) /* a view has the origin of its input */
            fsdp__origin_made(outputs[i], from);
}

fsdp_status fsdp__record(const fsdp__op *op, fsdp_tensor *const *inputs, int input_count, fsdp_tensor *const *outputs,
                         int output_count, fsdp_tensor *const *saved, int saved_count, const void *state,
                         size_t state_bytes)
{
    static const fsdp__traits none = {0};

    return fsdp__record_with(&none, op, inputs, input_count, outputs, output_count, saved, saved_count, state,
                             state_bytes);
}

fsdp_status fsdp__record_with(const fsdp__traits *traits, const fsdp__op *op, fsdp_tensor *const *inputs,
                              int input_count, fsdp_tensor *const *outputs, int output_count, fsdp_tensor *const *saved,
                              int saved_count, const void *state, size_t state_bytes)
{
    fsdp_status status = FSDP_OK;
    fsdp__autograd *autograd;
    fsdp__node *node;

    pass_origin(traits, inputs, input_count, outputs, output_count, saved, saved_count);
    if (!fsdp__will_record(inputs, input_count))
        return FSDP_OK;
    autograd = fsdp__autograd_make(context_of(inputs));
    if (autograd && autograd->recomputing) {
        FSDP_TRY(fsdp__checkpoint_refill(autograd->checkpoint, traits, op, inputs, input_count, outputs, output_count,
                                         saved, saved_count));
        if (op->free_state)
            op->free_state((void *)(uintptr_t)state);
        return FSDP_OK;
    }
    node = autograd ? node_alloc(input_count, output_count, saved_count, state_bytes) : NULL;
    if (!node)
        return FSDP_NO_MEMORY;
    node->op = op;
    node->traits = traits;
    node->context = fsdp__tensor_context(outputs[0]);
    for (int i = 0; i < input_count; i++)
        if (inputs[i])
            connect(&node->inputs[i], inputs[i]);
    for (int i = 0; i < saved_count; i++)
        if (saved[i])
            FSDP_TRY_GOTO(status, save(node, i, saved[i], inputs, outputs), out);
    for (int i = 0; i < output_count; i++)
        FSDP_TRY_GOTO(status, fsdp__grad_state_make(outputs[i], &node->outputs[i].state), out);
    if (autograd->checkpoint)
        FSDP_TRY_GOTO(status, fsdp__checkpoint_note(autograd->checkpoint, node, inputs, outputs), out);

    /* Nothing below can fail. */
    if (state_bytes > 0)
        memcpy(node->state, state, state_bytes);
    /* Not earlier: the state of an operation that was not recorded stays the caller's. */
    node->state_owned = true;
    node->sequence = ++autograd->sequence;
    for (int i = 0; i < output_count; i++) {
        fsdp__grad_state *made = node->outputs[i].state;

        made->requires_grad = true;
        made->producer = fsdp__node_ref(node);
        made->output = i;
    }
out:
    fsdp__node_unref(node);
    return status;
}

/* ---- freeing ---- */

fsdp__node *fsdp__node_ref(fsdp__node *node)
{
    node->refs++;
    return node;
}

void fsdp__node_set_aside(fsdp__node *node, int first, fsdp__node *const *nodes, int count)
{
    for (int i = 0; i < count; i++)
        node->inputs[first + i].node = fsdp__node_ref(nodes[i]);
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
    for (int i = 0; i < node->saved_count; i++) {
        fsdp_tensor_unref(node->saved[i]);
        node->saved[i] = NULL;
    }
    if (node->state_owned && node->op->free_state)
        node->op->free_state(node->state);
    fsdp__checkpoint_forget(node);
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
    const fsdp__mark *mark = &node->marks[i];
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

    if (now->storage->renewed || before == after)
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

/* Makes *out = a + b, a fresh tensor. */
static fsdp_status sum_of(const fsdp_tensor *a, const fsdp_tensor *b, fsdp_tensor **out)
{
    fsdp_device *device = a->storage->device;
    fsdp_tensor *sum = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp_tensor_create(device, a->dtype, a->ndim, a->shape, FSDP_MEMORY_ACTIVATION, &sum));
    if (fsdp_tensor_is_contiguous(a) && fsdp_tensor_is_contiguous(b)) {
        const fsdp__binary_args args = {.a = fsdp_tensor_data(a),
                                        .b = fsdp_tensor_data(b),
                                        .y = fsdp_tensor_data(sum),
                                        .ndim = 1,
                                        .shape = {fsdp_tensor_numel(a)},
                                        .a_strides = {1},
                                        .b_strides = {1},
                                        .op = FSDP__ADD,
                                        .dtype = a->dtype};
        FSDP_TRY_GOTO(status, fsdp__launch_binary(fsdp_device_stream(device), &args), fail);
    } else {
        FSDP_TRY_GOTO(status, fsdp__tensor_copy(sum, a, false), fail);
        FSDP_TRY_GOTO(status, fsdp__tensor_copy(sum, b, true), fail);
    }
    *out = sum;
    return FSDP_OK;
fail:
    fsdp_tensor_unref(sum);
    return status;
}

fsdp_status fsdp__node_add_grad(fsdp__node *node, int output, fsdp_tensor *grad)
{
    fsdp_tensor **have = &node->grads[output];
    fsdp_tensor *sum = NULL;

    if (!*have) {
        *have = fsdp_tensor_ref(grad);
        return FSDP_OK;
    }
    if (*have != grad && fsdp__grad_exclusive(*have)) /* see [Note: exclusive gradients] */
        return fsdp__tensor_copy(*have, grad, true);
    FSDP_TRY(sum_of(*have, grad, &sum));
    fsdp_tensor_unref(*have);
    *have = sum;
    return FSDP_OK;
}

fsdp_status fsdp__node_give(fsdp__node *node, int input, fsdp_tensor *grad)
{
    fsdp__edge *edge = &node->inputs[input];
    char want[FSDP__SHAPE_TEXT], have[FSDP__SHAPE_TEXT];

    if (!edge->node && !edge->leaf)
        return FSDP_OK;
    if (!grad) /* an operation in the backward has failed and said why */
        return fsdp_last_status() != FSDP_OK ? fsdp_last_status() : FSDP_FAIL(FSDP_INVALID, "no gradient was given");
    if (grad->dtype != edge->dtype || grad->ndim != edge->ndim ||
        memcmp(grad->shape, edge->shape, (size_t)edge->ndim * sizeof *edge->shape) != 0)
        return FSDP_FAIL(FSDP_INVALID, "a %s gradient %s does not fit input %d, which is %s %s",
                         fsdp_dtype_name(grad->dtype), fsdp__shape_text(grad->ndim, grad->shape, have), input,
                         fsdp_dtype_name(edge->dtype), fsdp__shape_text(edge->ndim, edge->shape, want));
    if (edge->node)
        return fsdp__node_add_grad(edge->node, edge->output, grad);
    if (edge->given)
        return FSDP_FAIL(FSDP_STATE, "the gradient of input %d was given twice", input);
    edge->given = fsdp_tensor_ref(grad); /* whether it can be adopted shows once the node has dropped it */
    return FSDP_OK;
}
