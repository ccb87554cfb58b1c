/* tape.c - records operations on the tape. */
#include "autograd/recompute.h"
#include "base/alloc.h"
#include "base/context.h"
#include "base/hash.h"

#include <string.h>

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

/* Returns whether the tensors that `maker` has saved have bytes whenever those in `saved` have. */
static bool is_there_with(const fsdp__node *maker, fsdp_tensor *const *saved, int saved_count)
{
    for (int i = 0; i < maker->saved_count; i++) {
        const void *by = maker->saved[i] ? maker->saved[i]->storage->renewed_by : NULL;
        bool found = !by;

        for (int k = 0; k < saved_count && !found; k++)
            found = saved[k] && saved[k]->storage->renewed_by == by;
        if (!found)
            return false;
    }
    return true;
}

/* Returns whether saved[i], which is input `place` of the node, need not be kept: the node that made it can make it
 * again, as it is now. */
static bool is_remade(const fsdp__node *node, int place, int i, fsdp_tensor *const *inputs, fsdp_tensor *const *saved)
{
    const fsdp__edge *edge = place < 0 ? NULL : &node->inputs[place];

    return edge && inputs[place] == saved[i] && edge->node && edge->output == 0 && edge->node->traits->remake &&
           !edge->node->recomputation && !fsdp__in_recomputation(node->context) && saved[i]->storage->version == 0 &&
           fsdp__device_makes_again(saved[i]->storage->device) && is_there_with(edge->node, saved, node->saved_count);
}

static fsdp_status save(fsdp__node *node, int i, fsdp_tensor *const *inputs, fsdp_tensor *const *outputs,
                        fsdp_tensor *const *all_saved)
{
    const fsdp_tensor *saved = all_saved[i];

    node->marks[i] =
        (fsdp__saved_mark){.version = saved->storage->version,
                           .origin = fsdp__origin_of((fsdp_tensor *[]){(fsdp_tensor *)(uintptr_t)saved}, 1),
                           .input = place_of(saved, inputs, node->input_count),
                           .output = place_of(saved, outputs, node->output_count)};
    node->marks[i].remade = is_remade(node, node->marks[i].input, i, inputs, all_saved);
    if (node->marks[i].remade)
        return FSDP_OK;
    return fsdp__tensor_alias(saved, &node->saved[i]);
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

/* ---- what a tensor was made by ---- */

typedef struct search {
    bool (*is)(const void *arg, const fsdp__op *op, const void *state);
    const void *arg;
    int left; /* nodes to look at: sums of sums of the same may be many */
} search;

static bool found_at(search *s, const fsdp__node *node)
{
    bool passes_on;

    if (!node || node->released || --s->left < 0)
        return false;
    if (s->is(s->arg, node->op, node->state))
        return true;
    passes_on = node->op->backward == fsdp__node_pass_on || node->traits->sums;
    for (int i = 0; passes_on && i < node->input_count; i++)
        if (found_at(s, node->inputs[i].node))
            return true;
    return false;
}

bool fsdp__is_sum_with(const fsdp_tensor *tensor, bool (*is)(const void *arg, const fsdp__op *op, const void *state),
                       const void *arg)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(tensor);

    return state && found_at(&(search){is, arg, 64}, state->producer);
}

/* ---- recording ---- */

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
    fsdp__autograd *autograd;
    FSDP__SCOPED(fsdp__node_unref_at) fsdp__node *node = NULL;

    pass_origin(traits, inputs, input_count, outputs, output_count, saved, saved_count);
    if (!fsdp__will_record(inputs, input_count))
        return FSDP_OK;
    autograd = fsdp__autograd_make(context_of(inputs));
    if (autograd && autograd->recomputing) {
        FSDP_TRY(fsdp__recomputation_refill(autograd->recomputation, traits, op, inputs, input_count, outputs,
                                            output_count, saved, saved_count));
        if (op->free_state)
            op->free_state((void *)(uintptr_t)state);
        return FSDP_OK;
    }
    FSDP__TRY_NEW(node = autograd ? fsdp__node_create(input_count, output_count, saved_count, state_bytes) : NULL);
    node->op = op;
    node->traits = traits;
    node->context = fsdp__tensor_context(outputs[0]);
    node->owner = fsdp__context_taker(node->context).owner;
    for (int i = 0; i < input_count; i++)
        if (inputs[i])
            connect(&node->inputs[i], inputs[i]);
    for (int i = 0; i < saved_count; i++)
        if (saved[i])
            FSDP_TRY(save(node, i, inputs, outputs, saved));
    for (int i = 0; i < output_count; i++)
        FSDP_TRY(fsdp__grad_state_make(outputs[i], &node->outputs[i].state));
    if (autograd->recomputation)
        FSDP_TRY(fsdp__recomputation_note(autograd->recomputation, node, inputs, outputs));

    /* Nothing below can fail. */
    if (state_bytes > 0)
        memcpy(node->state, state, state_bytes);
    /* Set it no earlier: the state of an operation that was not recorded stays the caller's. */
    node->state_owned = true;
    node->sequence = ++autograd->sequence;
    for (int i = 0; i < output_count; i++) {
        fsdp__grad_state *made = node->outputs[i].state;

        made->requires_grad = true;
        made->producer = fsdp__node_ref(node);
        made->output = i;
    }
    return FSDP_OK;
}
