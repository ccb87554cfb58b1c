/* gpt2.c - GPT-2's body: learned positions, pre-norm blocks, one matrix for q, k and v. */
#include <math.h>

#include "base/rng.h"
#include "models/models.h"

/* Makes a dropout, whose draws differ from place to place, and, where nobody says which rows of a batch a rank has,
 * from rank to rank. */
static fsdp_module *dropout_create(const fsdp__model_plan *plan, const char *name, int64_t layer, float p)
{
    uint64_t place = (uint64_t)layer, own = (uint64_t)fsdp_context_rank(plan->context) << 32 | place;

    return fsdp__dropout_create(plan->context, p, fsdp__rng_key(own, name), fsdp__rng_key(place, name));
}

static fsdp_init normal(float deviation)
{
    return (fsdp_init){.kind = FSDP_INIT_NORMAL, .b = deviation};
}

static fsdp_init residual_init(const fsdp_model_config *config)
{
    return normal(config->init_std / sqrtf(2.0f * (float)config->n_layers));
}

/* ---- attention ---- */

typedef struct attention {
    fsdp_module base;
    fsdp_module *c_attn, *c_proj, *attn_dropout, *resid_dropout;
    int64_t head_dim;
} attention;

/* Returns how many heads qkv (B,T,3C) has: if c_attn is cut by heads, this rank's. */
static int64_t heads_of(const attention *m, const fsdp_tensor *qkv)
{
    return fsdp_tensor_size(qkv, 2) / 3 / m->head_dim;
}

/* Maps qkv (B,T,3C) to (B,T,C), after the tokens of `cached`, or of sequences that are cut over ranks. */
static fsdp_tensor *attend_apart(const attention *m, fsdp__kv_layer *cached, fsdp_tensor *qkv,
                                 const fsdp_attention_options *options)
{
    int64_t B = fsdp_tensor_size(qkv, 0), T = fsdp_tensor_size(qkv, 1), C = fsdp_tensor_size(qkv, 2) / 3;
    int64_t count = heads_of(m, qkv);
    fsdp_tensor *heads = fsdp_reshape(qkv, FSDP_SHAPE(B, T, 3 * count, m->head_dim));
    fsdp_tensor *q = fsdp_slice(heads, 2, 0, count), *k = fsdp_slice(heads, 2, count, count);
    fsdp_tensor *v = fsdp_slice(heads, 2, 2 * count, count);

    if (fsdp__kv_layer_extend(cached, &k, &v) != FSDP_OK)
        return NULL;
    return fsdp_reshape(fsdp__attend(&m->base, q, k, v, options), FSDP_SHAPE(B, T, C));
}

/* Maps x (B,T,C), and positions if any, to (B,T,C). */
static fsdp_status attention_forward(fsdp_module *self, void *cached, fsdp_tensor *const *inputs, int count,
                                     fsdp_tensor **outputs, int output_count)
{
    attention *m = (attention *)self;
    fsdp_tensor *qkv = fsdp_call(m->c_attn, inputs[0]), *y; /* (B,T,3C) */
    const fsdp_attention_options options = {.causal = true, .positions = fsdp__positions_of(inputs, count)};

    (void)output_count;
    FSDP__TRY_MADE(qkv);
    y = cached || fsdp__cut_attention_of(self)
            ? attend_apart(m, cached, qkv, &options)
            : fsdp_attention_packed(qkv, heads_of(m, qkv), heads_of(m, qkv), &options);
    outputs[0] = fsdp_call(m->resid_dropout, fsdp_call(m->c_proj, y));
    return FSDP_OK;
}

static const fsdp_module_type attention_type = {.name = "GPT2Attention", .forward_many = attention_forward};

static fsdp_status build_attention(attention *m, const fsdp__model_plan *plan, int64_t layer)
{
    const fsdp_model_config *config = plan->config;
    fsdp_init matrix = normal(config->init_std), residual = residual_init(config);
    int64_t dim = config->dim;

    m->head_dim = config->head_dim;
    FSDP__ADD_PART(m, c_attn, fsdp_conv1d_create(plan->context, plan->device, dim, 3 * dim, &matrix));
    FSDP__ADD_PART(m, c_proj, fsdp_conv1d_create(plan->context, plan->device, dim, dim, &residual));
    FSDP__ADD_PART(m, attn_dropout, dropout_create(plan, "attn_dropout", layer, config->attention_dropout));
    FSDP__ADD_PART(m, resid_dropout, dropout_create(plan, "resid_dropout", layer, config->dropout));
    return FSDP_OK;
}

static fsdp_module *attention_create(const fsdp__model_plan *plan, int64_t layer)
{
    attention *m = NULL;

    if (fsdp_module_create(plan->context, &attention_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base, build_attention(m, plan, layer));
}

/* ---- mlp ---- */

typedef struct mlp {
    fsdp_module base;
    fsdp_module *c_fc, *c_proj, *act, *dropout;
} mlp;

/* Maps x (B,T,C) to (B,T,C). */
static fsdp_tensor *mlp_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    mlp *m = (mlp *)self;
    fsdp_tensor *y;

    (void)count;
    if (!fsdp__mlp_joined(m->c_fc, m->act, m->c_proj, inputs[0], &y))
        y = fsdp_call(m->c_proj, fsdp_call(m->act, fsdp_call(m->c_fc, inputs[0])));
    return fsdp_call(m->dropout, y);
}

static const fsdp_module_type mlp_type = {.name = "GPT2MLP", .forward = mlp_forward};

static fsdp_status build_mlp(mlp *m, const fsdp__model_plan *plan, int64_t layer)
{
    const fsdp_model_config *config = plan->config;
    fsdp_init matrix = normal(config->init_std), residual = residual_init(config);

    FSDP__ADD_PART(m, c_fc, fsdp_conv1d_create(plan->context, plan->device, config->dim, config->ffn_dim, &matrix));
    FSDP__ADD_PART(m, c_proj, fsdp_conv1d_create(plan->context, plan->device, config->ffn_dim, config->dim, &residual));
    FSDP__ADD_PART(m, act, fsdp_gelu_create(plan->context, !config->gelu_erf));
    FSDP__ADD_PART(m, dropout, dropout_create(plan, "mlp_dropout", layer, config->dropout));
    return FSDP_OK;
}

static fsdp_module *mlp_create(const fsdp__model_plan *plan, int64_t layer)
{
    mlp *m = NULL;

    if (fsdp_module_create(plan->context, &mlp_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base, build_mlp(m, plan, layer));
}

/* ---- block ---- */

typedef struct block {
    fsdp_module base;
    fsdp_module *ln_1, *attn, *ln_2, *mlp;
} block;

/* Adds and normalises, in one operation unless hooks need the norm to be called. */
static fsdp_tensor *add_norm(fsdp_module *norm, fsdp_tensor *x, fsdp_tensor *residual, fsdp_tensor **sum)
{
    const fsdp_layer *ln = fsdp__layer(norm);

    if (!fsdp__has_hooks(norm))
        return fsdp_add_layernorm(x, residual, ln->weight, ln->bias, ln->eps, sum);
    *sum = fsdp_add(x, residual);
    return fsdp_call(norm, *sum);
}

/* Maps x (B,T,C), and positions if any, to (B,T,C). */
static fsdp_status block_forward(fsdp_module *self, void *cached, fsdp_tensor *const *inputs, int count,
                                 fsdp_tensor **outputs, int output_count)
{
    block *m = (block *)self;
    fsdp_tensor *positions = fsdp__positions_of(inputs, count);
    fsdp_tensor *a = fsdp__call_placed(m->attn, cached, fsdp_call(m->ln_1, inputs[0]), positions);
    fsdp_tensor *x = NULL; /* inputs[0] + a */
    fsdp_tensor *h = add_norm(m->ln_2, a, inputs[0], &x);

    (void)output_count;
    outputs[0] = fsdp_add(x, fsdp_call(m->mlp, h));
    return FSDP_OK;
}

static const fsdp_module_type block_type = {.name = "GPT2Block", .forward_many = block_forward};

static fsdp_status build_block(block *m, const fsdp__model_plan *plan, int64_t layer)
{
    int64_t dim = plan->config->dim;
    float eps = plan->config->norm_eps;

    FSDP__ADD_PART(m, ln_1, fsdp_layernorm_create(plan->context, plan->device, dim, eps));
    FSDP__ADD_PART(m, attn, attention_create(plan, layer));
    FSDP__ADD_PART(m, ln_2, fsdp_layernorm_create(plan->context, plan->device, dim, eps));
    FSDP__ADD_PART(m, mlp, mlp_create(plan, layer));
    return FSDP_OK;
}

static fsdp_module *block_create(const fsdp__model_plan *plan, int64_t layer)
{
    block *m = NULL;

    if (fsdp_module_create(plan->context, &block_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base, build_block(m, plan, layer));
}

/* ---- body ---- */

typedef struct body {
    fsdp_module base;
    fsdp_module *wte, *wpe, *drop, *h, *ln_f;
} body;

fsdp_status fsdp__fail_long_sequence(int64_t tokens, int64_t positions)
{
    return FSDP_FAIL(FSDP_INVALID, "sequence of %lld tokens is longer than the model's %lld positions",
                     (long long)tokens, (long long)positions);
}

/* Runs as a method of the table of positions: x (B,T,C) -> x + the given positions, or T positions after the tokens of
 * `cache`. It returns the sum and not the positions: as a view of the table they would have no bytes after a forward
 * that reshards it. */
static fsdp_status add_positions(fsdp_module *self, void *cache, fsdp_tensor *const *inputs, int count,
                                 fsdp_tensor **outputs, int output_count)
{
    fsdp_tensor *positions = fsdp__layer(self)->weight, *given = fsdp__positions_of(inputs, count); /* (P,C), (B,T) */
    int64_t first = fsdp__kv_cache_position(cache), T = fsdp_tensor_size(inputs[0], 1);

    (void)output_count;
    if (given) {
        outputs[0] = fsdp_add(inputs[0], fsdp_embedding(positions, given));
        return FSDP_OK;
    }
    if (first + T > fsdp_tensor_size(positions, 0))
        return fsdp__fail_long_sequence(first + T, fsdp_tensor_size(positions, 0));
    outputs[0] = fsdp_add(inputs[0], fsdp_slice(positions, 0, first, T));
    return FSDP_OK;
}

/* Maps tokens (B,T), and positions if any, to (B,T,C). */
static fsdp_status body_forward(fsdp_module *self, void *cache, fsdp_tensor *const *inputs, int count,
                                fsdp_tensor **outputs, int output_count)
{
    body *m = (body *)self;
    fsdp_tensor *x = fsdp_call(m->wte, inputs[0]); /* the backward reaches it last: DDP's buckets are in that order */
    fsdp_tensor *placed, *positions = fsdp__positions_of(inputs, count);

    (void)output_count;
    FSDP_TRY(fsdp_module_call_method_many(m->wpe, add_positions, cache, (fsdp_tensor *const[]){x, positions}, count,
                                          &placed, 1));
    x = fsdp_call(m->drop, placed);
    for (int64_t i = 0; i < fsdp_module_child_count(m->h); i++)
        x = fsdp__call_placed(fsdp_module_child_at(m->h, i, &(const char *){NULL}), fsdp__kv_cache_layer(cache, i), x,
                              positions);
    outputs[0] = fsdp_call(m->ln_f, x);
    return FSDP_OK;
}

static const fsdp_module_type body_type = {.name = "GPT2Model", .forward_many = body_forward};

static fsdp_status build_body(body *m, const fsdp__model_plan *plan)
{
    const fsdp_model_config *config = plan->config;
    fsdp_init table = normal(config->init_std);

    FSDP__ADD_PART(m, wte, fsdp_embedding_create(plan->context, plan->device, config->vocab_size, config->dim, &table));
    FSDP__ADD_PART(m, wpe,
                   fsdp_embedding_create(plan->context, plan->device, config->max_seq_len, config->dim, &table));
    FSDP__ADD_PART(m, drop, dropout_create(plan, "drop", 0, config->embd_dropout));
    FSDP__ADD_PART(m, h, fsdp_module_list_create(plan->context));
    for (int64_t layer = 0; layer < config->n_layers; layer++)
        FSDP_TRY(fsdp_module_list_append(m->h, block_create(plan, layer)));
    FSDP__ADD_PART(m, ln_f, fsdp_layernorm_create(plan->context, plan->device, config->dim, config->norm_eps));
    return FSDP_OK;
}

fsdp_status fsdp__gpt2_body_create(const fsdp__model_plan *plan, fsdp__model_body *out)
{
    body *m = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp_module_create(plan->context, &body_type, sizeof *m, &m));
    status = build_body(m, plan);
    if (!fsdp__module_built(&m->base, status))
        return status;
    *out = (fsdp__model_body){.module = &m->base, .blocks = m->h, .embedding = (fsdp_layer *)m->wte};
    return FSDP_OK;
}
