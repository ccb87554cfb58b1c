/* causal_lm.c - the root of all models: body, head, loss. */
#include <float.h>
#include <math.h>

#include "base/compiler.h"
#include "models/models.h"
#include "ops/op.h"

typedef struct causal_lm {
    fsdp_module base;
    fsdp_model_config config;
    bool last_logits_only;
    fsdp_module *body, *blocks, *lm_head; /* children, and the body's list of blocks */
} causal_lm;

/* ---- head: a Linear without bias that also makes the loss, so that it sees its weight and the targets at once ---- */

typedef struct lm_head {
    fsdp_layer layer;
    int64_t dim, vocab_size; /* of the whole weight: it may be a shard itself */
    fsdp_cross_entropy_options loss;
} lm_head;

fsdp_tensor *fsdp__loss_of_each(fsdp_tensor *logits, fsdp_tensor *targets)
{
    return fsdp_nll_loss(fsdp_log_softmax(fsdp_cast(logits, FSDP_F32)), targets, FSDP_LOSS_NONE);
}

fsdp_tensor *fsdp__softcapped(fsdp_tensor *logits, float softcap)
{
    return softcap > 0 ? fsdp_scale(fsdp_tanh(fsdp_scale(logits, 1 / (double)softcap)), (double)softcap) : logits;
}

/* Maps hidden (B,T,C) to logits (B,T,V), or hidden and targets (B,T) to the loss () or (B,T). */
static fsdp_tensor *head_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const lm_head *head = (const lm_head *)self;
    fsdp_tensor *logits;

    if (count == 2 && head->loss.reduction != FSDP_LOSS_NONE)
        return fsdp_linear_cross_entropy_with(inputs[0], head->layer.weight, inputs[1], &head->loss);
    logits = fsdp__softcapped(fsdp_linear(inputs[0], head->layer.weight, FSDP_NO_BIAS), head->loss.softcap);
    return count == 2 ? fsdp__loss_of_each(logits, inputs[1]) : logits;
}

static void describe_head(const fsdp_module *self, char *text, size_t text_bytes)
{
    const lm_head *head = (const lm_head *)self;

    snprintf(text, text_bytes, "in_features=%lld, out_features=%lld, bias=False", (long long)head->dim,
             (long long)head->vocab_size);
}

static const fsdp_module_type head_type = {.name = "Linear", .forward = head_forward, .describe = describe_head};

const fsdp_cross_entropy_options *fsdp__head_loss(const fsdp_module *head)
{
    return head->type == &head_type ? &((const lm_head *)head)->loss : NULL;
}

/* Makes the head. `tied` is NULL, or the embedding's weight. */
static fsdp_module *head_create(const fsdp__model_plan *plan, fsdp_tensor *tied)
{
    const fsdp_model_config *config = plan->config;
    fsdp_init normal = {.kind = FSDP_INIT_NORMAL, .b = config->init_std};
    lm_head *head = NULL;
    fsdp_layer *layer;

    if (fsdp_module_create(plan->context, &head_type, sizeof *head, &head) != FSDP_OK)
        return NULL;
    head->dim = config->dim;
    head->vocab_size = config->vocab_size;
    head->loss.softcap = config->logits_softcap;
    layer = &head->layer;
    if (tied)
        return fsdp__module_built(&layer->base,
                                  fsdp_module_tie_parameter(&layer->base, "weight", &layer->weight, tied));
    return fsdp__module_built(&layer->base,
                              fsdp_module_add_parameter(&layer->base, "weight", &layer->weight, plan->device, FSDP_F32,
                                                        FSDP_SHAPE(config->vocab_size, config->dim), normal));
}

/* ---- root ---- */

static fsdp_status check_call(const causal_lm *m, const void *cache, fsdp_tensor *const *inputs, int count)
{
    static const char *const names[] = {"tokens", "targets", "positions"};
    const char *name = m->base.type->name;

    if (count > 3)
        return FSDP_FAIL(FSDP_INVALID, "%s takes tokens, targets and positions, not %d inputs", name, count);
    for (int i = 0; i < count; i++)
        if (fsdp_tensor_dtype(inputs[i]) != FSDP_I32 || fsdp_tensor_ndim(inputs[i]) != 2)
            return FSDP_FAIL(FSDP_INVALID, "%s takes %s as int32 (B,T), not as %s of %d dimensions", name, names[i],
                             fsdp_dtype_name(fsdp_tensor_dtype(inputs[i])), fsdp_tensor_ndim(inputs[i]));
    if (m->last_logits_only && count == 1 && fsdp_tensor_size(inputs[0], 1) == 0)
        return FSDP_FAIL(FSDP_INVALID, "%s: there is no last position of rows without tokens", name);
    if (count == 3 && cache)
        return FSDP_FAIL(FSDP_INVALID, "%s takes no positions with a cache: a row of it is one document", name);
    if (count == 3) {
        int64_t pairs;
        fsdp_tensor *positions;

        FSDP_TRY(fsdp__op_check_positions(name, inputs[2], fsdp_tensor_size(inputs[0], 0),
                                          fsdp_tensor_size(inputs[0], 1), &positions, &pairs));
    }
    if (m->base.training && m->config.attention_dropout > 0 && fsdp_grad_enabled(m->base.context))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot train with attention dropout %g: set %s to 0 in the model's config.json",
                         (double)m->config.attention_dropout,
                         m->config.architecture == FSDP_GPT2 ? "attn_pdrop" : "attention_dropout");
    return FSDP_OK;
}

static fsdp_status causal_lm_forward(fsdp_module *self, void *cache, fsdp_tensor *const *inputs, int count,
                                     fsdp_tensor **outputs, int output_count)
{
    causal_lm *m = (causal_lm *)self;
    fsdp_tensor *hidden;

    (void)output_count;
    FSDP_TRY(check_call(m, cache, inputs, count));
    hidden = fsdp__call_placed(m->body, cache, inputs[0], count > 2 ? inputs[2] : NULL); /* (B,T,C) */
    if (m->last_logits_only && count == 1)
        hidden = fsdp_slice(hidden, 1, fsdp_tensor_size(inputs[0], 1) - 1, 1);
    outputs[0] = count > 1 ? fsdp_call(m->lm_head, hidden, inputs[1]) : fsdp_call(m->lm_head, hidden);
    return FSDP_OK;
}

#define FAMILY(architecture, family, body, ...) \
    [architecture] = {.name = family "ForCausalLM", .forward_many = causal_lm_forward},
static const fsdp_module_type types[] = {[FSDP_GPT2] = {.name = "GPT2LMHeadModel", .forward_many = causal_lm_forward},
                                         FSDP__FAMILIES(FAMILY, )};
#undef FAMILY

static fsdp_status build(causal_lm *m, const fsdp__model_plan *plan)
{
    bool gpt2 = plan->config->architecture == FSDP_GPT2;
    fsdp__model_body body = {0};
    fsdp_tensor *tied;

    FSDP_TRY(gpt2 ? fsdp__gpt2_body_create(plan, &body) : fsdp__llama_body_create(plan, &body));
    FSDP_TRY(fsdp__add_part(&m->base, gpt2 ? "transformer" : "model", body.module, &m->body));
    m->blocks = body.blocks;
    tied = plan->config->tie_word_embeddings ? body.embedding->weight : NULL;
    FSDP__ADD_PART(m, lm_head, head_create(plan, tied));
    return FSDP_OK;
}

fsdp_module *fsdp_model_create(fsdp_context *context, fsdp_device *device, const fsdp_model_config *config)
{
    fsdp__model_plan plan = {.context = context, .device = device, .config = config};
    causal_lm *m = NULL;

    if (!context || !device || fsdp_model_config_check(config) != FSDP_OK)
        return NULL;
    if (fsdp_module_create(context, &types[config->architecture], sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->config = *config;
    return fsdp__module_built(&m->base, build(m, &plan));
}

static causal_lm *as_causal_lm(fsdp_module *module)
{
    for (size_t i = 0; module && i < FSDP__COUNT_OF(types); i++)
        if (module->type == &types[i])
            return (causal_lm *)module;
    return NULL;
}

int64_t fsdp_model_block_count(fsdp_module *model)
{
    causal_lm *m = as_causal_lm(model);

    return m ? fsdp_module_child_count(m->blocks) : 0;
}

fsdp_module *fsdp_model_block(fsdp_module *model, int64_t index)
{
    int64_t count = fsdp_model_block_count(model);
    const char *name;

    if (index < 0 || index >= count) {
        FSDP_FAIL(FSDP_INVALID, "there is no block %lld: the model has %lld", (long long)index, (long long)count);
        return NULL;
    }
    return fsdp_module_child_at(as_causal_lm(model)->blocks, index, &name);
}

const fsdp_model_config *fsdp_model_get_config(fsdp_module *model)
{
    causal_lm *m = as_causal_lm(model);

    return m ? &m->config : NULL;
}

fsdp_status fsdp_model_set_last_logits_only(fsdp_module *model, bool on)
{
    causal_lm *m = as_causal_lm(model);

    if (!m)
        return FSDP_FAIL(FSDP_INVALID, "not a model made by fsdp_model_create");
    m->last_logits_only = on;
    return FSDP_OK;
}

bool fsdp_model_last_logits_only(fsdp_module *model)
{
    const causal_lm *m = as_causal_lm(model);

    return m && m->last_logits_only;
}

fsdp_status fsdp_model_set_loss(fsdp_module *model, fsdp_loss_reduction reduction, double scale)
{
    causal_lm *m = as_causal_lm(model);
    fsdp_cross_entropy_options *loss;

    if (!m)
        return FSDP_FAIL(FSDP_INVALID, "not a model made by fsdp_model_create");
    if (reduction != FSDP_LOSS_MEAN && reduction != FSDP_LOSS_SUM && reduction != FSDP_LOSS_NONE)
        return FSDP_FAIL(FSDP_INVALID, "a model's loss is FSDP_LOSS_MEAN, FSDP_LOSS_SUM or FSDP_LOSS_NONE, not %d",
                         (int)reduction);
    if (!(fabs(scale) <= FLT_MAX) || (reduction != FSDP_LOSS_SUM && scale != 0))
        return FSDP_FAIL(FSDP_INVALID, "the scale of a model's loss is %g: it must be %s", scale,
                         reduction == FSDP_LOSS_MEAN   ? "0 for a mean: take FSDP_LOSS_SUM"
                         : reduction == FSDP_LOSS_NONE ? "0 without a sum"
                                                       : "finite in f32");
    loss = &((lm_head *)m->lm_head)->loss;
    loss->reduction = reduction;
    loss->scale = scale;
    return FSDP_OK;
}

fsdp_status fsdp_kv_cache_create(fsdp_module *model, int64_t batch, int64_t capacity, fsdp_kv_cache **out)
{
    const fsdp_model_config *config = fsdp_model_get_config(model);

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "a cache needs a place for the result");
    *out = NULL;
    if (!config)
        return FSDP_FAIL(FSDP_INVALID, "a cache needs a model made by fsdp_model_create");
    return fsdp__kv_cache_create(model, config, batch, capacity, out);
}

fsdp_tensor *fsdp_model_call_cached(fsdp_module *model, fsdp_kv_cache *cache, fsdp_tensor *tokens)
{
    fsdp_tensor *logits;

    if (!tokens)
        return NULL;
    if (fsdp__kv_cache_begin(cache, model, tokens) != FSDP_OK)
        return NULL;
    logits = fsdp__call_with(model, cache, tokens);
    if (logits)
        fsdp__kv_cache_end(cache, tokens);
    return logits;
}
