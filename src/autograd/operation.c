/* operation.c - recording for users: checks what the library's own operations do right. */
#include "autograd/node.h"
#include "base/status.h"

static fsdp_status check_output(const char *name, fsdp_tensor *const *inputs, int input_count,
                                fsdp_tensor *const *outputs, int index)
{
    const fsdp_tensor *output = outputs[index];
    bool known = false;
    char text[FSDP__SHAPE_TEXT];

    if (!output) /* the call that should have made it has failed and said why */
        return fsdp_last_status() != FSDP_OK
                   ? fsdp_last_status()
                   : FSDP_FAIL(FSDP_INVALID, "cannot record '%s': output %d is NULL", name, index);
    fsdp__shape_text(output->ndim, output->shape, text);
    if (!fsdp_dtype_is_floating(output->dtype))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot record '%s': output %d %s is %s, which can have no gradient: leave it out", name,
                         index, text, fsdp_dtype_name(output->dtype));
    for (int i = 0; i < input_count; i++)
        known = known || inputs[i] == output;
    for (int i = 0; i < index; i++)
        known = known || outputs[i] == output;
    if (known || fsdp_tensor_requires_grad(output))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot record '%s': output %d %s is not a fresh tensor, but an input, another output or what "
                         "another operation has recorded (make outputs between fsdp_no_grad_begin and _end)",
                         name, index, text);
    return FSDP_OK;
}

fsdp_status fsdp_record(const fsdp_operation *operation, fsdp_tensor *const *inputs, int input_count,
                        fsdp_tensor *const *outputs, int output_count, fsdp_tensor *const *saved, int saved_count,
                        const void *state, size_t state_bytes)
{
    if (!operation || !operation->name || !operation->backward)
        return FSDP_FAIL(FSDP_INVALID, "an operation needs a name and a backward, and may have free_state");
    if (input_count < 1 || !inputs || output_count < 1 || !outputs || saved_count < 0 || (saved_count > 0 && !saved) ||
        (state_bytes > 0 && !state))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot record '%s': %d inputs, %d outputs, %d saved tensors, %zu bytes of state: it needs an "
                         "input and an output, and arrays of what it counts",
                         operation->name, input_count, output_count, saved_count, state_bytes);
    if (!fsdp__will_record(inputs, input_count))
        return FSDP_OK;
    for (int i = 0; i < output_count; i++)
        FSDP_TRY(check_output(operation->name, inputs, input_count, outputs, i));
    return fsdp__record(operation, inputs, input_count, outputs, output_count, saved, saved_count, state, state_bytes);
}

bool fsdp_will_record(fsdp_tensor *const *inputs, int input_count)
{
    return inputs && fsdp__will_record(inputs, input_count);
}

/* ---- inside the backward ---- */

static fsdp_status check_running(const fsdp_node *node, const char *what)
{
    if (!node)
        return FSDP_FAIL(FSDP_INVALID, "%s was asked for, but the node is NULL", what);
    if (!node->run || node->released)
        return FSDP_FAIL(FSDP_STATE, "%s of '%s' was asked for outside its backward", what, node->op->name);
    return FSDP_OK;
}

fsdp_tensor *fsdp_node_saved(fsdp_node *node, int index)
{
    if (check_running(node, "a saved tensor") != FSDP_OK)
        return NULL;
    if (index < 0 || index >= node->saved_count) {
        FSDP_FAIL(FSDP_INVALID, "'%s' has saved %d tensors: there is none with index %d", node->op->name,
                  node->saved_count, index);
        return NULL;
    }
    return fsdp__node_saved(node, index);
}

void *fsdp_node_state(fsdp_node *node)
{
    return check_running(node, "the state") == FSDP_OK ? fsdp__node_state(node) : NULL;
}

bool fsdp_node_needs(const fsdp_node *node, int input)
{
    return node && input >= 0 && input < node->input_count && fsdp__node_needs(node, input);
}

static fsdp_status check_input(const fsdp_node *node, int input)
{
    FSDP_TRY(check_running(node, "a place for a gradient"));
    if (input < 0 || input >= node->input_count)
        return FSDP_FAIL(FSDP_INVALID, "'%s' has %d inputs: there is none with index %d", node->op->name,
                         node->input_count, input);
    if (node->inputs[input].answered)
        return FSDP_FAIL(FSDP_STATE, "the gradient of input %d was given twice", input);
    return FSDP_OK;
}

fsdp_status fsdp_node_give(fsdp_node *node, int input, fsdp_tensor *grad)
{
    FSDP_TRY(check_input(node, input));
    if (!grad)
        return FSDP__FAIL_NULL("no gradient was given for input %d", input);
    if (!fsdp__node_needs(node, input))
        return FSDP_OK;
    FSDP_TRY(fsdp__node_give(node, input, grad));
    node->inputs[input].answered = true;
    return FSDP_OK;
}

fsdp_status fsdp_node_target(fsdp_node *node, int input, fsdp_tensor **out, bool *accumulate)
{
    if (!out || !accumulate)
        return FSDP_FAIL(FSDP_INVALID, "a target needs places for itself and for whether to add");
    FSDP_TRY(check_input(node, input));
    FSDP_TRY(fsdp__node_target(node, input, out, accumulate));
    node->inputs[input].answered = true;
    return FSDP_OK;
}
