/* context_parallel.c - models whose sequences are cut over ranks: tokens and targets at the root, positions at the
 * body, attention of each block, and the loss. */
#include "parallel/context_parallel.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "fsdp/parallel.h"
#include "fsdp/parallelize.h"
#include "models/models.h"
#include "ops/op.h"
#include "parallel/chunks.h"
#include "parallel/degrees.h"
#include "parallel/plan.h"

typedef struct context_plan {
    fsdp__cut_attention attention; /* first: what modules find */
    int64_t refs;
    fsdp_mesh *mesh; /* a reference */
    fsdp_process_group *group;
    fsdp__side_stream *side; /* of keys and values; NULL: none yet */
    int64_t rank, ranks;
    /* The fields below describe the call that is running. */
    bool is_cut;   /* it was given this rank's tokens alone */
    bool is_whole; /* each rank computes all of it, as a text is generated */
    double weight; /* of this rank's loss in that of the sequences */
} context_plan;

static const char root_key;

static void leave(void *arg, fsdp_module *module)
{
    context_plan *plan = arg;

    (void)module;
    if (--plan->refs > 0)
        return;
    fsdp__side_stream_unref(plan->side);
    fsdp_mesh_unref(plan->mesh);
    fsdp__free(plan);
}

/* Returns this rank's two chunks of x (B,T). */
static fsdp_tensor *own_chunks(const context_plan *plan, fsdp_tensor *x)
{
    int64_t chunk = x->shape[1] / (2 * plan->ranks);
    fsdp_tensor *const parts[] = {fsdp_slice(x, 1, fsdp__chunk_number(plan->ranks, plan->rank, 0) * chunk, chunk),
                                  fsdp_slice(x, 1, fsdp__chunk_number(plan->ranks, plan->rank, 1) * chunk, chunk)};

    return fsdp_concat(parts, 2, 1);
}

/* Does the same on the host; `to` has room for as many. */
static void copy_own_chunks(const context_plan *plan, const int32_t *x, int64_t rows, int64_t time, int32_t *to)
{
    int64_t chunk = time / (2 * plan->ranks);

    for (int64_t i = 0; i < 2 * rows; i++)
        memcpy(to + i * chunk, x + i / 2 * time + fsdp__chunk_number(plan->ranks, plan->rank, i % 2) * chunk,
               (size_t)chunk * sizeof *to);
}

/* Checks a whole sequence: one rank's part would not show that it is too long, or another rank's alone. */
static fsdp_status check_length(const context_plan *plan, fsdp_module *model, int64_t length, bool documents)
{
    const fsdp_model_config *config = fsdp_model_get_config(model);

    if (config->architecture == FSDP_GPT2 && !documents && length > config->max_seq_len)
        return fsdp__fail_long_sequence(length, config->max_seq_len);
    return fsdp__check_cut_length("sequence length", length, (fsdp__degree){.ranks = plan->ranks});
}

/* Checks what all ranks have before each takes its part: what is wrong in one of them is an error of all, with the
 * place in the whole sequence. */
static fsdp_status check_whole_inputs(const context_plan *plan, fsdp_module *model, fsdp_tensor *const *inputs,
                                      int count)
{
    const fsdp_model_config *config = fsdp_model_get_config(model);
    const char *name = model->type->name;
    int64_t valid, table = config->max_seq_len;

    for (int i = 0; i < count; i++) {
        FSDP_TRY(check_length(plan, model, inputs[i]->shape[1], count > 2));
        if (!fsdp__shape_equal(inputs[0], inputs[i])) {
            fsdp__op_misfit(name, "tokens", inputs[0], i == 1 ? "targets" : "positions", inputs[i]);
            return FSDP_INVALID;
        }
    }
    FSDP_TRY(fsdp__op_check_indices(name, "id", inputs[0], config->vocab_size, config->vocab_size, &valid));
    if (count > 1)
        FSDP_TRY(fsdp__op_check_indices(name, "target", inputs[1], config->vocab_size, FSDP_IGNORE_TARGET, &valid));
    return count > 2 && config->architecture == FSDP_GPT2
               ? fsdp__op_check_indices(name, "id", inputs[2], table, table, &valid)
               : FSDP_OK;
}

static int64_t count_learned(const int32_t *targets, int64_t numel)
{
    int64_t count = 0;

    for (int64_t i = 0; i < numel; i++)
        count += targets[i] != FSDP_IGNORE_TARGET;
    return count;
}

/* Counts targets of which something is learned. On the meta device all are such. */
static fsdp_status count_targets(const fsdp_tensor *targets, int64_t *out)
{
    FSDP__FREED int32_t *values = NULL;

    *out = fsdp_tensor_numel(targets);
    if (*out == 0 || !fsdp__device_has_bytes(targets->storage->device))
        return FSDP_OK;
    FSDP__TRY_NEW(values = fsdp__malloc((size_t)*out * sizeof *values));
    FSDP_TRY(fsdp_tensor_read(targets, FSDP_I32, values));
    *out = count_learned(values, *out);
    return FSDP_OK;
}

static double weight_of(int64_t own, int64_t all)
{
    return all > 0 ? (double)own / (double)all : 1;
}

/* Takes this rank's targets. A rank that has none to learn from gets targets of zeros, whose loss weighs nothing. */
static fsdp_status cut_targets(context_plan *plan, bool mean, fsdp_tensor **targets)
{
    fsdp_tensor *whole = *targets;
    int64_t all, own;

    *targets = own_chunks(plan, whole);
    plan->weight = 1;
    FSDP__TRY_MADE(*targets);
    if (!mean)
        return FSDP_OK;
    FSDP_TRY(count_targets(whole, &all));
    FSDP_TRY(count_targets(*targets, &own));
    plan->weight = weight_of(own, all);
    if (own > 0 || all == 0)
        return FSDP_OK;
    *targets = fsdp_zeros(whole->storage->device, FSDP_I32, 2, (*targets)->shape);
    return *targets ? FSDP_OK : fsdp_last_status();
}

/* Notes what a rank's positions in documents are known to be, although they leap from chunk to chunk. */
static void note_documents(const fsdp_tensor *positions, int64_t longest)
{
    fsdp__tensor_note_documents(positions, (fsdp__documents){.row = positions->shape[1],
                                                             .wrong = -1,
                                                             .pairs = fsdp_tensor_numel(positions), /* at least */
                                                             .longest = longest});
}

static fsdp_status cut_positions(const context_plan *plan, const char *model, const fsdp_tensor *tokens,
                                 fsdp_tensor **positions)
{
    int64_t pairs, longest;

    FSDP_TRY(fsdp__op_check_positions(model, *positions, tokens->shape[0], tokens->shape[1], positions, &pairs));
    longest = fsdp__op_longest_document(*positions);
    FSDP__TRY_MADE(*positions = own_chunks(plan, *positions));
    note_documents(*positions, longest);
    return FSDP_OK;
}

static bool takes_mean(const fsdp_cross_entropy_options *loss)
{
    return !loss || loss->reduction == FSDP_LOSS_MEAN;
}

/* Notes whether the call asks for last logits only. Each rank then computes all of it, without gradients. */
static fsdp_status check_whole(context_plan *plan, fsdp_module *model, int count)
{
    plan->is_whole = count == 1 && fsdp_model_last_logits_only(model);
    return plan->is_whole && fsdp_grad_enabled(model->context)
               ? FSDP_FAIL(FSDP_UNSUPPORTED,
                           "last logits of sequences that are cut over ranks are given without gradients: call "
                           "fsdp_no_grad_begin before")
               : FSDP_OK;
}

static fsdp_status enter_root(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    context_plan *plan = arg;

    FSDP_TRY(check_whole(plan, module, count));
    if (plan->is_cut || plan->is_whole)
        return FSDP_OK;
    if (count > 3)
        return FSDP_OK; /* the model says that this is wrong, and what else is */
    for (int i = 0; i < count; i++)
        if (inputs[i]->ndim != 2 || inputs[i]->dtype != FSDP_I32)
            return FSDP_OK;
    FSDP_TRY(check_whole_inputs(plan, module, inputs, count));
    if (count > 2)
        FSDP_TRY(cut_positions(plan, module->type->name, inputs[0], &inputs[2]));
    if (count > 1)
        FSDP_TRY(cut_targets(plan, takes_mean(fsdp__head_loss(fsdp_module_child(module, "lm_head"))), &inputs[1]));
    inputs[0] = own_chunks(plan, inputs[0]);
    return inputs[0] ? FSDP_OK : fsdp_last_status();
}

/* ---- what the root gives ---- */

typedef struct state {
    double ranks;
} state;

static fsdp_status multiply(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);
    fsdp_tensor *d = fsdp_scale(grads[0], s->ranks);

    return d ? fsdp__node_give(node, 0, d) : fsdp_last_status();
}

static const fsdp__op loss_op = {.name = "parallel_loss", .backward = multiply};

/* Returns the sum of all ranks' parts of a loss. The engine will average gradients over the ranks, so the backward
 * multiplies this rank's gradient by their number. */
static fsdp_tensor *whole_loss(const context_plan *plan, fsdp_tensor *loss)
{
    fsdp_tensor *part = loss ? fsdp_scale(loss, plan->weight) : NULL;
    fsdp_context *context = part ? fsdp_device_context(part->storage->device) : NULL;
    const state s = {(double)plan->ranks};
    fsdp_tensor *sum;

    if (!part)
        return NULL;
    fsdp_no_grad_begin(context);
    sum = fsdp_parallel_all_reduce(part, plan->group);
    fsdp_no_grad_end(context);
    return sum && fsdp__record(&loss_op, &part, 1, &sum, 1, NULL, 0, &s, sizeof s) == FSDP_OK ? sum : NULL;
}

/* Returns what there is of each token, logits (B,T,V) or losses (B,T), of whole sequences, in order. */
static fsdp_tensor *of_all_tokens(const context_plan *plan, fsdp_tensor *x)
{
    int64_t own = x ? x->shape[1] : 0, chunk = own / 2, chunks = 2 * plan->ranks;
    fsdp_tensor *all = fsdp_parallel_all_gather(x, 1, own * plan->ranks, plan->group);
    FSDP__FREED fsdp_tensor **parts = fsdp__malloc((size_t)chunks * sizeof *parts);

    if (!parts)
        (void)fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot order tokens");
    if (!all || !parts)
        return NULL;
    for (int64_t i = 0; i < chunks; i++)
        parts[i] = fsdp_slice(all, 1, fsdp__chunk_place(plan->ranks, i) * chunk, chunk);
    return fsdp_concat(parts, (int)chunks, 1);
}

static fsdp_status leave_root(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                              fsdp_tensor **outputs, int output_count)
{
    const context_plan *plan = arg;
    const fsdp_cross_entropy_options *loss = fsdp__head_loss(fsdp_module_child(module, "lm_head"));
    bool one = count > 1 && !(loss && loss->reduction == FSDP_LOSS_NONE);

    (void)inputs, (void)output_count;
    if (plan->is_whole)
        return FSDP_OK;
    outputs[0] = one ? whole_loss(plan, outputs[0]) : of_all_tokens(plan, outputs[0]);
    return outputs[0] ? FSDP_OK : fsdp_last_status();
}

static fsdp_status agree(void *arg, fsdp_module *module, fsdp_status mine)
{
    const context_plan *plan = arg;

    (void)module;
    return fsdp_agree(plan->group, mine);
}

static void describe(void *arg, char *text, size_t bytes)
{
    const context_plan *plan = arg;

    snprintf(text, bytes, "context parallel over %lld rank%s", (long long)plan->ranks, fsdp__plural(plan->ranks));
}

/* ---- inside ---- */

/* Tells whether each rank computes the whole sequence in this call. If the call is computed again in a backward, the
 * answer is that of its first run: `plan->is_whole` may belong to a later call by then. */
static fsdp_status find_whole(const context_plan *plan, bool *out)
{
    uint64_t is_whole = plan->is_whole;

    FSDP_TRY(fsdp__recomputation_number(fsdp_process_group_context(plan->group), &is_whole));
    *out = is_whole != 0;
    return FSDP_OK;
}

/* Makes positions (B,T/W) of this rank's tokens in the sequence. They are noted to be right, although they leap, and to
 * have no pairs: they are of no documents. */
static fsdp_tensor *positions_of(const context_plan *plan, const fsdp_tensor *tokens)
{
    int64_t rows = tokens->shape[0], time = tokens->shape[1], chunk = time / 2;
    FSDP__FREED int32_t *values = fsdp__malloc((size_t)(rows * time + 1) * sizeof *values);
    fsdp_tensor *positions;

    if (!values) {
        (void)fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot number the tokens of a sequence");
        return NULL;
    }
    for (int64_t i = 0; i < rows * time; i++) {
        int64_t t = i % time;

        values[i] = (int32_t)(fsdp__chunk_number(plan->ranks, plan->rank, t / chunk) * chunk + t % chunk);
    }
    positions = fsdp_from_data(tokens->storage->device, FSDP_I32, 2, tokens->shape, values);
    if (positions)
        fsdp__tensor_note_documents(positions,
                                    (fsdp__documents){.row = time, .wrong = -1, .longest = time * plan->ranks});
    return positions;
}

static fsdp_status run_body(void *arg, fsdp_module *module, void *cache, fsdp_tensor *const *inputs, int count,
                            fsdp_tensor **outputs, int output_count)
{
    const context_plan *plan = arg;
    fsdp_tensor *both[2] = {inputs[0]};
    bool is_whole;

    FSDP_TRY(find_whole(plan, &is_whole));
    if (is_whole)
        return module->type->forward_many(module, cache, inputs, count, outputs, output_count);
    if (cache)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "a cache of keys and values is not cut over ranks: set "
                                           "fsdp_model_set_last_logits_only, and each computes all");
    FSDP__TRY_MADE(both[1] = count > 1 ? inputs[1] : positions_of(plan, inputs[0]));
    return module->type->forward_many(module, NULL, both, 2, outputs, output_count);
}

static fsdp_tensor *attend(fsdp__cut_attention *self, fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                           const fsdp_attention_options *options)
{
    context_plan *plan = (context_plan *)self;
    const fsdp__documents *known = options->positions ? fsdp__tensor_documents(options->positions) : NULL;
    fsdp_attention_options own = *options;
    bool is_whole;

    if (find_whole(plan, &is_whole) != FSDP_OK)
        return NULL;
    if (is_whole)
        return fsdp_attention(q, k, v, options);
    if (known && known->pairs == 0)
        own.positions = NULL;
    if (!q || plan->ranks == 1)
        return fsdp_parallel_attention(q, k, v, &own, plan->group);
    return fsdp__side_stream_open(&plan->side, fsdp_tensor_device(q)) == FSDP_OK
               ? fsdp__attention_over_ranks(q, k, v, &own, plan->group, plan->side)
               : NULL;
}

/* ---- calls with what the host has ---- */

/* Makes a tensor of this rank's chunks of x; NULL: of zeros. */
static fsdp_status make_own(const context_plan *plan, const fsdp__host_call *call, const int32_t *x, fsdp_tensor **out)
{
    const int64_t shape[] = {call->rows, call->time / plan->ranks};
    FSDP__FREED int32_t *values = NULL;

    if (x) {
        FSDP__TRY_NEW(values = fsdp__malloc((size_t)(shape[0] * shape[1] + 1) * sizeof *values));
        copy_own_chunks(plan, x, call->rows, call->time, values);
    }
    *out = values ? fsdp_from_data(call->device, FSDP_I32, 2, shape, values)
                  : fsdp_zeros(call->device, FSDP_I32, 2, shape);
    return *out ? FSDP_OK : fsdp_last_status();
}

/* Does what cut_targets() does without reading the targets from the device. */
static fsdp_status make_targets(context_plan *plan, const fsdp__host_call *call, fsdp_tensor **out)
{
    int64_t chunk = call->time / (2 * plan->ranks), numel = call->rows * call->time, own = 0, all;

    if (!call->targets) {
        plan->weight = 1 / (double)plan->ranks;
        return make_own(plan, call, NULL, out);
    }
    all = count_learned(call->targets, numel);
    for (int64_t i = 0; i < 2 * call->rows; i++)
        own += count_learned(
            call->targets + i / 2 * call->time + fsdp__chunk_number(plan->ranks, plan->rank, i % 2) * chunk, chunk);
    plan->weight = weight_of(own, all);
    return make_own(plan, call, own > 0 || all == 0 ? call->targets : NULL, out);
}

static fsdp_tensor *call_own(context_plan *plan, fsdp_module *model, const fsdp__host_call *call)
{
    fsdp_tensor *inputs[3] = {NULL}, *loss;

    if (check_length(plan, model, call->time, call->positions) != FSDP_OK ||
        make_own(plan, call, call->tokens, &inputs[0]) != FSDP_OK || make_targets(plan, call, &inputs[1]) != FSDP_OK)
        return NULL;
    if (call->positions) {
        if (make_own(plan, call, call->positions, &inputs[2]) != FSDP_OK)
            return NULL;
        note_documents(inputs[2], fsdp__documents_of(call->positions, call->rows, call->time).longest);
    }
    plan->is_cut = true;
    loss = call->positions ? fsdp_call(model, inputs[0], inputs[1], inputs[2]) : fsdp_call(model, inputs[0], inputs[1]);
    plan->is_cut = false;
    return loss;
}

static fsdp_tensor *make_whole(const fsdp__host_call *call, const int32_t *x)
{
    const int64_t shape[] = {call->rows, call->time};

    return x ? fsdp_from_data(call->device, FSDP_I32, 2, shape, x) : fsdp_zeros(call->device, FSDP_I32, 2, shape);
}

fsdp_tensor *fsdp__call_from_host(fsdp_module *model, const fsdp__host_call *call)
{
    context_plan *plan = fsdp__module_hooks_arg(model, &root_key);
    const fsdp_cross_entropy_options *loss = plan ? fsdp__head_loss(fsdp_module_child(model, "lm_head")) : NULL;
    fsdp_tensor *tokens, *targets;

    if (plan && takes_mean(loss))
        return call_own(plan, model, call);
    tokens = make_whole(call, call->tokens);
    targets = make_whole(call, call->targets);
    return call->positions ? fsdp_call(model, tokens, targets, make_whole(call, call->positions))
                           : fsdp_call(model, tokens, targets);
}

/* ---- the call ---- */

static fsdp_status check_model(fsdp_module *model, fsdp_mesh *mesh)
{
    const fsdp_model_config *config = fsdp_model_get_config(model);

    if (!config)
        return FSDP_FAIL(FSDP_INVALID, "a %s was not made by fsdp_model_create: its sequences cannot be cut over ranks",
                         model->type->name);
    if (fsdp__module_hooks_arg(
            fsdp_module_child(fsdp_model_block(model, 0), fsdp__family_of(config->architecture) ? "self_attn" : "attn"),
            fsdp__cut_attention_key()))
        return FSDP_FAIL(FSDP_STATE, "the model's sequences are cut over ranks already");
    return fsdp__check_work(model, FSDP__WORK_OF_SEQUENCES, mesh);
}

static fsdp_status add(context_plan *plan, fsdp_module *module, fsdp__module_hooks hooks)
{
    FSDP__TRY_MADE(module);
    hooks.arg = plan;
    hooks.free_arg = leave;
    FSDP_TRY(fsdp__module_add_hooks(module, &hooks));
    plan->refs++;
    return FSDP_OK;
}

static fsdp_status cut_dropout(void *arg, fsdp_module *module, const char *name)
{
    const context_plan *plan = arg;

    (void)name;
    fsdp__dropout_set_chunks(module, (fsdp__op_chunks){2 * plan->ranks,
                                                       {fsdp__chunk_number(plan->ranks, plan->rank, 0),
                                                        fsdp__chunk_number(plan->ranks, plan->rank, 1)}});
    return FSDP_OK;
}

static fsdp_status apply(context_plan *plan, fsdp_module *model)
{
    bool gpt2;

    FSDP_TRY(fsdp__share_dropout_seeds(model, plan->group, check_model(model, plan->mesh)));
    FSDP_TRY(fsdp__check_models_alike(model, plan->group));
    FSDP_TRY(fsdp__note_work(model, FSDP__WORK_OF_SEQUENCES, plan->mesh));
    gpt2 = !fsdp__family_of(fsdp_model_get_config(model)->architecture);
    FSDP_TRY(fsdp__module_walk(model, cut_dropout, plan));
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        FSDP_TRY(add(plan, fsdp_module_child(fsdp_model_block(model, i), gpt2 ? "attn" : "self_attn"),
                     (fsdp__module_hooks){.key = fsdp__cut_attention_key()}));
    FSDP_TRY(
        add(plan, fsdp_module_child(model, gpt2 ? "transformer" : "model"), (fsdp__module_hooks){.forward = run_body}));
    return add(plan, model,
               (fsdp__module_hooks){.key = &root_key,
                                    .pre_forward = enter_root,
                                    .post_forward = leave_root,
                                    .agree = agree,
                                    .describe = describe});
}

fsdp_status fsdp_model_context_parallel(fsdp_module *model, fsdp_mesh *mesh)
{
    context_plan *plan;
    fsdp_status status;

    FSDP_TRY(fsdp__check_mesh("context parallelism", "model", model, mesh));
    FSDP__TRY_NEW(plan = fsdp__calloc(1, sizeof *plan));
    *plan = (context_plan){.attention = {attend},
                           .refs = 1,
                           .mesh = fsdp_mesh_ref(mesh),
                           .group = fsdp_mesh_process_group(mesh, 0),
                           .rank = fsdp_mesh_coordinate(mesh, 0),
                           .ranks = fsdp_mesh_size(mesh, 0)};
    status = plan->group ? apply(plan, model) : fsdp_last_status();
    leave(plan, model);
    return status;
}
