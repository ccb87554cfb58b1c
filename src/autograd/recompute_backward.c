/* recompute_backward.c - runs a recomputed function again, in the backward: [Note: recomputation] in
 * recompute_forward.c. */
#include "autograd/recompute.h"

#include "base/alloc.h"

static fsdp__recomputation *recomputed_in(const fsdp_context *context)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);

    return autograd && autograd->recomputing ? autograd->recomputation : NULL;
}

bool fsdp_recomputing(const fsdp_context *context)
{
    return recomputed_in(context) != NULL;
}

bool fsdp__in_recomputation(const fsdp_context *context)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);

    return autograd && autograd->recomputation;
}

bool fsdp__is_recomputing(const fsdp_context *context)
{
    return fsdp__in_recomputation(context) && fsdp__autograd_get(context)->recomputing;
}

static bool done(const fsdp__recomputation *c)
{
    return c->at > c->last;
}

bool fsdp__recomputation_done(const fsdp_context *context)
{
    const fsdp__recomputation *c = recomputed_in(context);

    return c && done(c);
}

static fsdp_status fail_other_way(const fsdp__recomputation *c, const char *now)
{
    bool more = c->at < c->entry_count;

    return FSDP_FAIL(FSDP_STATE,
                     "the second run of a recomputed function did something else: operation %lld is %s and was %s",
                     (long long)c->at, now, more ? c->entries[c->at].op->name : "none");
}

bool fsdp__recall(const fsdp__op *op, fsdp_tensor *const *inputs, int input_count, fsdp_tensor **outputs,
                  int output_count)
{
    const fsdp__recomputation *c = NULL;
    const fsdp__recomputation_entry *e;

    for (int i = 0; i < input_count && !c; i++)
        c = inputs[i] ? recomputed_in(fsdp__tensor_context(inputs[i])) : NULL;
    if (!c || c->at >= c->entry_count || !fsdp__will_record(inputs, input_count))
        return false;
    e = &c->entries[c->at];
    if (e->op != op || (!e->kept && (c->at != c->last || e->own)))
        return false;
    if (e->kept && fsdp__recomputation_kept_version(e) != e->kept_version)
        return false; /* the function writes to what was kept, and would do so again */
    for (int i = 0; i < output_count; i++) {
        outputs[i] = NULL;
        if (e->kept && fsdp__tensor_alias(e->kept[i], &outputs[i]) == FSDP_OK)
            outputs[i] = fsdp__scope_adopt(outputs[i]);
    }
    return true;
}

static fsdp_status fail_written(const fsdp__recomputation *c)
{
    return FSDP_FAIL(
        FSDP_STATE,
        "operation %lld of a recomputed function (%s), or one before it, reads a tensor that was written to between "
        "the forward and its backward, which computes from it again: run the backward before the write, "
        "or give the function a copy",
        (long long)c->at, c->entries[c->at].op->name);
}

static fsdp_status refill(const fsdp__recomputation *c, const fsdp__recomputation_entry *e, fsdp_tensor *const *saved)
{
    fsdp__node *node = e->node;

    if (!fsdp__recomputation_gave_up(c, node))
        return FSDP_OK;
    for (int i = 0; i < node->saved_count; i++) {
        fsdp_tensor *before = node->saved[i], *alias = NULL;

        if (!before || before->storage != c->nothing)
            continue;
        if (!saved[i] || !fsdp__shape_equal(before, saved[i]) || before->dtype != saved[i]->dtype)
            return fail_other_way(c, "one with other tensors");
        if (!fsdp__origin_is_known(saved[i]) && fsdp__node_check_version(node, i, saved[i]) != FSDP_OK)
            return fsdp_fail_prefix(FSDP_STATE, "%s", node->op->name);
        if (fsdp__origin_of(&saved[i], 1) != node->marks[i].origin)
            return fail_written(c);
        FSDP_TRY(fsdp__tensor_alias(saved[i], &alias));
        node->saved[i] = alias;
        node->marks[i].version = alias->storage->version;
        fsdp_tensor_unref(before);
    }
    return FSDP_OK;
}

fsdp_status fsdp__recomputation_refill(fsdp__recomputation *c, const fsdp__traits *traits, const fsdp__op *op,
                                       fsdp_tensor *const *inputs, int input_count, fsdp_tensor *const *outputs,
                                       int output_count, fsdp_tensor *const *saved, int saved_count)
{
    const fsdp__recomputation_entry *e;
    fsdp__grad_state *state;

    if (!done(c) && fsdp__recomputation_has_entry(traits, saved_count)) {
        if (c->at == c->entry_count || c->entries[c->at].op != op)
            return fail_other_way(c, op->name);
        e = &c->entries[c->at];
        FSDP_TRY(refill(c, e, saved));
        /* nobody needs what a freed or finished node read */
        if (e->node && !e->node->released && fsdp__origin_of(inputs, input_count) != e->read)
            return fail_written(c);
        c->at++;
    }
    if (done(c))
        return FSDP_FAIL(FSDP_STATE, "the backward has what it needs");
    for (int i = 0; i < output_count; i++) {
        if (!outputs[i])
            return fsdp_last_status() != FSDP_OK ? fsdp_last_status() : FSDP_NO_MEMORY;
        FSDP_TRY(fsdp__grad_state_make(outputs[i], &state));
        state->requires_grad = state->recomputed = true;
    }
    return FSDP_OK;
}

fsdp_status fsdp__recomputation_number(fsdp_context *context, uint64_t *number)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);
    fsdp__recomputation *c = autograd ? autograd->recomputation : NULL;

    if (!c)
        return FSDP_OK;
    if (autograd->recomputing) {
        if (c->number_at == c->number_count)
            return fail_other_way(c, "one more dropout");
        *number = c->numbers[c->number_at++];
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__grow(&c->numbers, c->number_count, &c->number_capacity, sizeof *c->numbers));
    c->numbers[c->number_count++] = *number;
    return FSDP_OK;
}

/* Notes a copy of the tensor. Called in the scope of the run. */
static fsdp_status note_value(fsdp__recomputation *c, const fsdp_tensor *tensor)
{
    fsdp_tensor *copy = fsdp__empty_like(tensor, tensor->dtype);

    if (!copy || fsdp__grow(&c->values, c->value_count, &c->value_capacity, sizeof *c->values) != 0)
        return FSDP_NO_MEMORY;
    FSDP_TRY(fsdp__tensor_copy(copy, tensor, false));
    FSDP_TRY(fsdp__tensor_alias(copy, &c->values[c->value_count]));
    c->value_count++;
    return FSDP_OK;
}

fsdp_status fsdp__recomputation_value(fsdp_tensor **tensor)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(fsdp__tensor_context(*tensor));
    fsdp__recomputation *c = autograd ? autograd->recomputation : NULL;
    fsdp_tensor *before;

    if (!c)
        return FSDP_OK;
    if (!autograd->recomputing)
        return note_value(c, *tensor);
    before = c->value_at < c->value_count ? c->values[c->value_at++] : NULL;
    if (!before || !fsdp__shape_equal(before, *tensor) || before->dtype != (*tensor)->dtype)
        return fail_other_way(c, "one that reads other values");
    *tensor = before;
    return FSDP_OK;
}

static fsdp_status check_inputs(const fsdp__recomputation *c)
{
    for (int i = 0; i < c->input_count; i++)
        if (c->inputs[i]->storage->version != c->versions[i])
            return FSDP_FAIL(
                FSDP_STATE,
                "input %d %s of a recomputed function was written to between its forward and its backward, which "
                "computes from it again: it needs version %llu, this is version %llu; run the backward "
                "first, or give the function a copy",
                i, FSDP__SHAPE_OF(c->inputs[i]), (unsigned long long)c->versions[i],
                (unsigned long long)c->inputs[i]->storage->version);
    return FSDP_OK;
}

/* Makes new inputs in the scope, apart from those of the first run, since no gradient is to go anywhere. */
static fsdp_status make_inputs(const fsdp__recomputation *c, fsdp_tensor **inputs)
{
    for (int i = 0; i < c->input_count; i++) {
        fsdp__grad_state *state;

        FSDP_TRY(fsdp__tensor_alias(c->inputs[i], &inputs[i]));
        FSDP__TRY_NEW(inputs[i] = fsdp__scope_adopt(inputs[i]));
        if (!c->wanted[i])
            continue;
        FSDP_TRY(fsdp__grad_state_make(inputs[i], &state));
        state->requires_grad = state->recomputed = true;
    }
    return FSDP_OK;
}

/* Runs the function again. `outputs` is room for what it returns, which nobody reads. */
static fsdp_status run_again(fsdp__recomputation *c, fsdp_tensor **inputs, fsdp_tensor **outputs)
{
    fsdp_status status;

    FSDP_TRY(make_inputs(c, inputs));
    fsdp_clear_error();
    status = fsdp__recomputation_call(c, inputs, c->input_count, outputs);
    if (!done(c))
        return status != FSDP_OK ? status : fail_other_way(c, "none");
    fsdp_clear_error(); /* the last operation ended it by failing */
    return FSDP_OK;
}

static fsdp_status recompute(fsdp__recomputation *c, fsdp__autograd *autograd)
{
    const fsdp__autograd before = *autograd;
    FSDP__FREED fsdp_tensor **inputs = NULL;
    fsdp__origins *origins;
    uint64_t run_before;
    fsdp_status status;

    FSDP_TRY(check_inputs(c));
    FSDP__TRY_NEW(origins = fsdp__origins_make(c->context));
    FSDP__TRY_NEW(inputs = fsdp__calloc((size_t)c->input_count + (size_t)c->output_count, sizeof(fsdp_tensor *)));
    c->at = c->number_at = c->value_at = 0;
    c->last = fsdp__recomputation_last(c);
    FSDP_TRY(fsdp_scope_begin(c->context));
    run_before = fsdp__origins_begin(origins);
    autograd->no_grad = 0;
    autograd->recomputation = c;
    autograd->recomputing = true;
    status = run_again(c, inputs, inputs + c->input_count);
    origins->run = run_before;
    autograd->no_grad = before.no_grad; /* the last operation may have left something begun */
    autograd->outside_count = before.outside_count;
    autograd->recomputation = before.recomputation;
    autograd->recomputing = before.recomputing;
    fsdp_scope_end(c->context, NULL);
    return status;
}

fsdp_status fsdp__recomputation_restore(const fsdp__node *node)
{
    fsdp__recomputation *c = node->recomputation;
    fsdp_status status;

    if (!c || c->recomputed || !fsdp__recomputation_gave_up(c, node))
        return FSDP_OK;
    c->refs++; /* the graph may be freed meanwhile */
    status = recompute(c, fsdp__autograd_get(c->context));
    if (status == FSDP_OK) {
        c->recomputed = true;
        fsdp__recomputation_settle(c);
    }
    fsdp__recomputation_unref(c);
    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "recomputing");
}
