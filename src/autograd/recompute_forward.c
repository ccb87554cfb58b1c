/* recompute_forward.c - values that a backward needs are not kept from the forward, but computed once more.
 *
 * [Note: recomputation]
 * A recomputed function runs once and records its nodes as always, so the graph, its hooks and the order of all
 * additions are those of a plain call. Only what the nodes save is given up at once. The recomputation keeps its
 * inputs, and a selective or cheap one also the results of operations that are expensive (`dear`). When the backward
 * first comes to a node that has given something up, the function runs again. Nothing is recorded then: the n-th
 * operation fills the n-th node, and no backward runs inside this backward. The recomputation ends, as if an operation
 * had failed, with the last value that is needed. Operations say themselves when they need not run (fsdp__recall). What
 * could differ the second time is noted the first time: numbers (fsdp__recomputation_number), and values that are read
 * without being inputs (fsdp__recomputation_value). A recomputation inside another is a part of that one. */
#include "autograd/recompute.h"

#include "base/alloc.h"
#include "base/compiler.h"

/* ---- the forward ---- */

static fsdp_status keep_inputs(fsdp__recomputation *c, fsdp_tensor *const *inputs, int count)
{
    c->inputs = fsdp__calloc((size_t)count + 1, sizeof *c->inputs);
    c->wanted = fsdp__calloc((size_t)count + 1, sizeof *c->wanted);
    c->versions = fsdp__calloc((size_t)count + 1, sizeof *c->versions);
    FSDP__TRY_NEW(c->inputs && c->wanted && c->versions);
    for (int i = 0; i < count; i++) {
        FSDP_TRY(fsdp__tensor_alias(inputs[i], &c->inputs[i]));
        c->input_count++;
        c->wanted[i] = fsdp_tensor_requires_grad(inputs[i]);
        c->versions[i] = inputs[i]->storage->version;
    }
    return FSDP_OK;
}

static bool is_input(const fsdp__storage *storage, fsdp_tensor *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (inputs[i] && inputs[i]->storage == storage)
            return true;
    return false;
}

static bool keeps(fsdp__recomputation *c, const fsdp__traits *traits)
{
    bool cheap = c->options.mode == FSDP_RECOMPUTE_CHEAP, selective = c->options.mode == FSDP_RECOMPUTE_SELECTIVE;

    if (traits->dear == FSDP__DEAR_PRODUCT)
        return cheap || (selective && c->products++ % 2 == 0);
    return traits->dear == FSDP__DEAR_LOSS || ((cheap || selective) && traits->dear == FSDP__DEAR_ATTENTION);
}

uint64_t fsdp__recomputation_kept_version(const fsdp__recomputation_entry *e)
{
    uint64_t version = 0;

    for (int i = 0; i < e->kept_count; i++)
        version += e->kept[i]->storage->version;
    return version;
}

static fsdp_status keep_outputs(fsdp__recomputation_entry *e, fsdp_tensor *const *outputs, int count)
{
    FSDP__TRY_NEW(e->kept = fsdp__calloc((size_t)count, sizeof *e->kept));
    for (; e->kept_count < count; e->kept_count++)
        FSDP_TRY(fsdp__tensor_alias(outputs[e->kept_count], &e->kept[e->kept_count]));
    e->kept_version = fsdp__recomputation_kept_version(e);
    return FSDP_OK;
}

bool fsdp__recomputation_has_entry(const fsdp__traits *traits, int saved_count)
{
    return saved_count > 0 || traits->dear;
}

/* Gives up a saved tensor's bytes; its shape stays, for the comparison. */
static fsdp_status give_up(fsdp__recomputation *c, fsdp_tensor *saved)
{
    if (!c->nothing)
        FSDP_TRY(fsdp__storage_create(saved->storage->device, 1, FSDP_MEMORY_ACTIVATION, false, &c->nothing));
    c->nothing->refs++;
    fsdp__storage_unref(saved->storage);
    saved->storage = c->nothing;
    return FSDP_OK;
}

fsdp_status fsdp__recomputation_note(fsdp__recomputation *c, fsdp__node *node, fsdp_tensor *const *inputs,
                                     fsdp_tensor *const *outputs)
{
    bool kept;
    fsdp__recomputation_entry *e;

    if (!fsdp__recomputation_has_entry(node->traits, node->saved_count))
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&c->entries, c->entry_count, &c->entry_capacity, sizeof *c->entries));
    e = &c->entries[c->entry_count];
    *e = (fsdp__recomputation_entry){.op = node->op, .node = node, .read = fsdp__origin_of(inputs, node->input_count)};
    node->recomputation = c;
    node->place = c->entry_count++;
    c->refs++;
    kept = keeps(c, node->traits);
    if (kept)
        FSDP_TRY(keep_outputs(e, outputs, node->output_count));
    for (int i = 0; i < node->saved_count; i++) {
        fsdp_tensor *saved = node->saved[i];
        bool own = saved && !is_input(saved->storage, inputs, node->input_count);

        e->own = e->own || own;
        if (!saved || (kept && own))
            continue;
        FSDP_TRY(give_up(c, saved));
    }
    return FSDP_OK;
}

/* Drops results that the second run never asks for: those of operations after its last one, and those of the last one,
 * which need not run if its inputs are all that it saved. */
static void drop_unread(fsdp__recomputation *c)
{
    int64_t last = fsdp__recomputation_last(c);

    for (int64_t i = FSDP__MAX(last, 0); i < c->entry_count; i++)
        if (i > last || !c->entries[i].own)
            fsdp__recomputation_drop(&c->entries[i]);
}

/* ---- the function ---- */

fsdp_status fsdp__recomputation_call(const fsdp__recomputation *c, fsdp_tensor *const *inputs, int count,
                                     fsdp_tensor **outputs)
{
    if (c->function_many)
        return c->function_many(c->arg, inputs, count, outputs, c->output_count);
    outputs[0] = c->function(c->arg, inputs, count);
    if (outputs[0])
        return FSDP_OK;
    return fsdp_last_status() != FSDP_OK ? fsdp_last_status()
                                         : FSDP_FAIL(FSDP_STATE, "the recomputed function gave no output");
}

static fsdp_status run_first(fsdp__recomputation *c, fsdp__autograd *autograd, fsdp_tensor *const *inputs, int count,
                             fsdp_tensor **outputs)
{
    fsdp__origins *origins = fsdp__origins_make(c->context);
    fsdp_status status;
    uint64_t before;

    FSDP__TRY_NEW(origins);
    FSDP_TRY(keep_inputs(c, inputs, count));
    FSDP_TRY(fsdp_scope_begin(c->context));
    before = fsdp__origins_begin(origins);
    autograd->recomputation = c;
    status = fsdp__recomputation_call(c, inputs, count, outputs);
    autograd->recomputation = NULL;
    drop_unread(c);
    origins->run = before;
    fsdp_scope_end_many(c->context, outputs, c->output_count);
    return status;
}

static bool all_there(fsdp_tensor *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (!inputs[i]) /* the call that should have made it has failed and said why */
            return false;
    return true;
}

static bool is_plain(const fsdp_context *context, fsdp_recompute_mode mode)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);

    return mode == FSDP_RECOMPUTE_NONE || !fsdp_grad_enabled(context) || (autograd && autograd->recomputation);
}

/* Begins a recomputation as a copy of `like`, since nodes will hold it. */
static fsdp_status begin(const fsdp__recomputation *like, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                         fsdp__recomputation **out)
{
    fsdp__autograd *autograd = fsdp__autograd_make(like->context);
    fsdp__recomputation *c = autograd ? fsdp__calloc(1, sizeof *c) : NULL;

    if (!c)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot begin a recomputed function");
    *c = *like;
    *out = c;
    return run_first(c, autograd, inputs, count, outputs);
}

static fsdp_status run(const fsdp__recomputation *like, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs)
{
    fsdp__recomputation *c = NULL;
    fsdp_status status;

    for (int i = 0; outputs && i < like->output_count; i++)
        outputs[i] = NULL;
    if (!like->context || (!like->function && !like->function_many))
        status = FSDP_FAIL(FSDP_INVALID, "fsdp_recompute needs a context and a function");
    else if (!outputs || like->output_count < 1)
        status = FSDP_FAIL(FSDP_INVALID, "fsdp_recompute needs room for at least one output");
    else if (like->options.mode < FSDP_RECOMPUTE_NONE || like->options.mode > FSDP_RECOMPUTE_CHEAP)
        status = FSDP_FAIL(FSDP_INVALID, "fsdp_recompute: there is no mode %d", (int)like->options.mode);
    else if (!all_there(inputs, count))
        status = fsdp_last_status() != FSDP_OK ? fsdp_last_status()
                                               : FSDP_FAIL(FSDP_INVALID, "an input of fsdp_recompute is missing");
    else if (is_plain(like->context, like->options.mode))
        status = fsdp__recomputation_call(like, inputs, count, outputs);
    else
        status = begin(like, inputs, count, outputs, &c);
    for (int i = 0; outputs && i < like->output_count && status != FSDP_OK; i++)
        outputs[i] = NULL;
    if (c)
        fsdp__recomputation_unref(c); /* the nodes hold their own references */
    else if (like->options.free_arg)
        like->options.free_arg(like->arg);
    return status;
}

static fsdp_recompute_options chosen(const fsdp_recompute_options *options)
{
    return options ? *options : (fsdp_recompute_options){.mode = FSDP_RECOMPUTE_FULL};
}

fsdp_tensor *fsdp_recompute(fsdp_context *context, fsdp_recompute_function function, void *arg,
                            fsdp_tensor *const *inputs, int count, const fsdp_recompute_options *options)
{
    const fsdp__recomputation like = {
        .refs = 1, .context = context, .function = function, .arg = arg, .output_count = 1, .options = chosen(options)};
    fsdp_tensor *output;

    (void)run(&like, inputs, count, &output);
    return output;
}

fsdp_status fsdp_recompute_many(fsdp_context *context, fsdp_recompute_function_many function, void *arg,
                                fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs, int output_count,
                                const fsdp_recompute_options *options)
{
    const fsdp__recomputation like = {.refs = 1,
                                      .context = context,
                                      .function_many = function,
                                      .arg = arg,
                                      .output_count = output_count,
                                      .options = chosen(options)};

    return run(&like, inputs, count, outputs);
}
