/* llama.c - the body of Llama and similar models: rotary positions, RMS norms, grouped key/value heads, gated MLP. */
#include "base/alloc.h"
#include "models/models.h"

/* The types of a part, by architecture: they differ in the names that transformers gives them. */
#define TYPES_OF(part, ...)                                                                                         \
    {                                                                                                               \
        [FSDP_LLAMA] = {.name = "Llama" part, __VA_ARGS__}, [FSDP_MISTRAL] = {.name = "Mistral" part, __VA_ARGS__}, \
        [FSDP_QWEN2] = {.name = "Qwen2" part, __VA_ARGS__},                                                         \
    }

/* Makes a layer that maps (B,T,in) to (B,T,out). */
static fsdp_module *linear_create(const fsdp__model_plan *plan, int64_t in, int64_t out, bool bias)
{
    fsdp_init normal = {.kind = FSDP_INIT_NORMAL, .b = plan->config->init_std}, zeros = {.kind = FSDP_INIT_ZEROS};
    fsdp_linear_options options = {.no_bias = !bias, .weight_init = &normal, .bias_init = &zeros};

    return fsdp_linear_create(plan->context, plan->device, in, out, &options);
}

static fsdp_module *norm_create(const fsdp__model_plan *plan)
{
    return fsdp_rmsnorm_create(plan->context, plan->device, plan->config->dim, plan->config->norm_eps);
}

/* ---- rotary positions: one table of frequencies for all blocks ---- */

typedef struct rotary {
    fsdp_module base;
    fsdp_tensor *inv_freq; /* (D/2) f32 */
    fsdp_model_config config;
} rotary;

static const fsdp_module_type rotary_types[] = TYPES_OF("RotaryEmbedding", .forward = NULL);

static fsdp_status fill_frequencies(fsdp_module *module, fsdp_tensor *buffer)
{
    rotary *m = (rotary *)module;
    float *frequencies = fsdp__malloc((size_t)(m->config.head_dim / 2) * sizeof(float));
    fsdp_status status;

    if (!frequencies)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make rotary frequencies");
    fsdp__rope_frequencies(&m->config, frequencies);
    status = fsdp_tensor_write(buffer, FSDP_F32, frequencies);
    fsdp__free(frequencies);
    return status;
}

static fsdp_status build_rotary(rotary *m, const fsdp__model_plan *plan)
{
    m->config = *plan->config;
    FSDP_TRY(fsdp_tensor_create(plan->device, FSDP_F32, FSDP_SHAPE(m->config.head_dim / 2), FSDP_MEMORY_WORKSPACE,
                                &m->inv_freq));
    return fsdp__module_add_filled_buffer(&m->base, "inv_freq", &m->inv_freq, fill_frequencies);
}

static rotary *rotary_create(const fsdp__model_plan *plan)
{
    rotary *m = NULL;

    if (fsdp_module_create(plan->context, &rotary_types[plan->config->architecture], sizeof *m, &m) != FSDP_OK)
        return NULL;
    return (rotary *)fsdp__module_built(&m->base, build_rotary(m, plan));
}

/* ---- attention ---- */

typedef struct attention {
    fsdp_module base;
    fsdp_module *q_proj, *k_proj, *v_proj, *o_proj;
    rotary *positions; /* the body's; holds a reference */
    int64_t heads, kv_heads, head_dim;
} attention;

static fsdp_tensor *rotated(fsdp_tensor *x, fsdp_tensor *frequencies, fsdp_tensor *positions, int64_t first)
{
    return positions ? fsdp_rope_at(x, frequencies, positions) : fsdp_rope(x, frequencies, first);
}

/* Maps x (B,T,C), and positions if any, to (B,T,C), after the tokens of `cached`. */
static fsdp_status attention_forward(fsdp_module *self, void *cached, fsdp_tensor *const *inputs, int count,
                                     fsdp_tensor **outputs, int output_count)
{
    attention *m = (attention *)self;
    fsdp_tensor *x = inputs[0], *frequencies = m->positions->inv_freq;
    int64_t B = fsdp_tensor_size(x, 0), T = fsdp_tensor_size(x, 1), D = m->head_dim;
    int64_t first = fsdp__kv_layer_position(cached);
    fsdp_tensor *positions = fsdp__positions_of(inputs, count);
    const fsdp_attention_options options = {.causal = true, .positions = positions};
    fsdp_tensor *q = fsdp_reshape(fsdp_call(m->q_proj, x), FSDP_SHAPE(B, T, m->heads, D));
    fsdp_tensor *k = fsdp_reshape(fsdp_call(m->k_proj, x), FSDP_SHAPE(B, T, m->kv_heads, D));
    fsdp_tensor *v = fsdp_reshape(fsdp_call(m->v_proj, x), FSDP_SHAPE(B, T, m->kv_heads, D));
    fsdp_tensor *y;

    (void)output_count;
    q = rotated(q, frequencies, positions, first);
    k = rotated(k, frequencies, positions, first);
    FSDP_TRY(fsdp__kv_layer_extend(cached, &k, &v));
    y = fsdp_attention(q, k, v, &options);
    outputs[0] = fsdp_call(m->o_proj, fsdp_reshape(y, FSDP_SHAPE(B, T, m->heads * D)));
    return FSDP_OK;
}

static void destroy_attention(fsdp_module *self)
{
    attention *m = (attention *)self;

    if (m->positions)
        fsdp_module_unref(&m->positions->base);
}

static const fsdp_module_type attention_types[] =
    TYPES_OF("Attention", .forward_many = attention_forward, .destroy = destroy_attention);

static fsdp_status build_attention(attention *m, const fsdp__model_plan *plan, rotary *positions)
{
    const fsdp_model_config *config = plan->config;
    int64_t q = config->n_heads * config->head_dim, kv = config->n_kv_heads * config->head_dim;
    bool qkv_bias = config->attention_bias || config->architecture == FSDP_QWEN2;

    m->heads = config->n_heads;
    m->kv_heads = config->n_kv_heads;
    m->head_dim = config->head_dim;
    m->positions = (rotary *)fsdp_module_ref(&positions->base);
    FSDP_TRY(fsdp__add_part(&m->base, "q_proj", linear_create(plan, config->dim, q, qkv_bias), &m->q_proj));
    FSDP_TRY(fsdp__add_part(&m->base, "k_proj", linear_create(plan, config->dim, kv, qkv_bias), &m->k_proj));
    FSDP_TRY(fsdp__add_part(&m->base, "v_proj", linear_create(plan, config->dim, kv, qkv_bias), &m->v_proj));
    return fsdp__add_part(&m->base, "o_proj", linear_create(plan, q, config->dim, config->attention_bias), &m->o_proj);
}

static fsdp_module *attention_create(const fsdp__model_plan *plan, rotary *positions)
{
    attention *m = NULL;

    if (fsdp_module_create(plan->context, &attention_types[plan->config->architecture], sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base, build_attention(m, plan, positions));
}

/* ---- mlp ---- */

typedef struct mlp {
    fsdp_module base;
    fsdp_module *gate_proj, *up_proj, *down_proj, *act_fn; /* act_fn is only shown: the product is fused */
} mlp;

/* Maps x (B,T,C) to (B,T,C). */
static fsdp_tensor *mlp_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    mlp *m = (mlp *)self;
    fsdp_tensor *gate = fsdp_call(m->gate_proj, inputs[0]), *up = fsdp_call(m->up_proj, inputs[0]); /* (B,T,F) */

    (void)count;
    return fsdp_call(m->down_proj, fsdp_swiglu(gate, up));
}

static const fsdp_module_type mlp_types[] = TYPES_OF("MLP", .forward = mlp_forward);

static fsdp_status build_mlp(mlp *m, const fsdp__model_plan *plan)
{
    int64_t dim = plan->config->dim, ffn_dim = plan->config->ffn_dim;
    bool bias = plan->config->mlp_bias;

    FSDP_TRY(fsdp__add_part(&m->base, "gate_proj", linear_create(plan, dim, ffn_dim, bias), &m->gate_proj));
    FSDP_TRY(fsdp__add_part(&m->base, "up_proj", linear_create(plan, dim, ffn_dim, bias), &m->up_proj));
    FSDP_TRY(fsdp__add_part(&m->base, "down_proj", linear_create(plan, ffn_dim, dim, bias), &m->down_proj));
    FSDP_TRY(fsdp__add_part(&m->base, "act_fn", fsdp_silu_create(plan->context), &m->act_fn));
    return FSDP_OK;
}

static fsdp_module *mlp_create(const fsdp__model_plan *plan)
{
    mlp *m = NULL;

    if (fsdp_module_create(plan->context, &mlp_types[plan->config->architecture], sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base, build_mlp(m, plan));
}

/* ---- block ---- */

typedef struct block {
    fsdp_module base;
    fsdp_module *self_attn, *mlp, *input_layernorm, *post_attention_layernorm;
} block;

/* Adds and normalises, in one operation unless hooks need the norm to be called. */
static fsdp_tensor *add_norm(fsdp_module *norm, fsdp_tensor *x, fsdp_tensor *residual, fsdp_tensor **sum)
{
    if (!fsdp__has_hooks(norm))
        return fsdp_add_rmsnorm(x, residual, fsdp__layer(norm)->weight, fsdp__layer(norm)->eps, sum);
    *sum = fsdp_add(x, residual);
    return fsdp_call(norm, *sum);
}

/* Maps x (B,T,C), and positions if any, to (B,T,C). */
static fsdp_status block_forward(fsdp_module *self, void *cached, fsdp_tensor *const *inputs, int count,
                                 fsdp_tensor **outputs, int output_count)
{
    block *m = (block *)self;
    fsdp_tensor *a = fsdp__call_placed(m->self_attn, cached, fsdp_call(m->input_layernorm, inputs[0]),
                                       fsdp__positions_of(inputs, count));
    fsdp_tensor *x = NULL; /* inputs[0] + a */
    fsdp_tensor *h = add_norm(m->post_attention_layernorm, a, inputs[0], &x);

    (void)output_count;
    outputs[0] = fsdp_add(x, fsdp_call(m->mlp, h));
    return FSDP_OK;
}

static const fsdp_module_type block_types[] = TYPES_OF("DecoderLayer", .forward_many = block_forward);

static fsdp_status build_block(block *m, const fsdp__model_plan *plan, rotary *positions)
{
    FSDP_TRY(fsdp__add_part(&m->base, "self_attn", attention_create(plan, positions), &m->self_attn));
    FSDP_TRY(fsdp__add_part(&m->base, "mlp", mlp_create(plan), &m->mlp));
    FSDP_TRY(fsdp__add_part(&m->base, "input_layernorm", norm_create(plan), &m->input_layernorm));
    FSDP_TRY(fsdp__add_part(&m->base, "post_attention_layernorm", norm_create(plan), &m->post_attention_layernorm));
    return FSDP_OK;
}

static fsdp_module *block_create(const fsdp__model_plan *plan, rotary *positions)
{
    block *m = NULL;

    if (fsdp_module_create(plan->context, &block_types[plan->config->architecture], sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base, build_block(m, plan, positions));
}

/* ---- body ---- */

typedef struct body {
    fsdp_module base;
    fsdp_module *embed_tokens, *layers, *norm, *rotary_emb;
} body;

/* Maps tokens (B,T), and positions if any, to (B,T,C). */
static fsdp_status body_forward(fsdp_module *self, void *cache, fsdp_tensor *const *inputs, int count,
                                fsdp_tensor **outputs, int output_count)
{
    body *m = (body *)self;
    fsdp_tensor *x = fsdp_call(m->embed_tokens, inputs[0]);

    (void)output_count;
    for (int64_t i = 0; i < fsdp_module_child_count(m->layers); i++)
        x = fsdp__call_placed(fsdp_module_child_at(m->layers, i, &(const char *){NULL}), fsdp__kv_cache_layer(cache, i),
                              x, fsdp__positions_of(inputs, count));
    outputs[0] = fsdp_call(m->norm, x);
    return FSDP_OK;
}

static const fsdp_module_type body_types[] = TYPES_OF("Model", .forward_many = body_forward);

static fsdp_status build_layers(body *m, const fsdp__model_plan *plan, rotary *positions)
{
    const fsdp_model_config *config = plan->config;
    fsdp_init normal = {.kind = FSDP_INIT_NORMAL, .b = config->init_std};

    FSDP_TRY(
        fsdp__add_part(&m->base, "embed_tokens",
                       fsdp_embedding_create(plan->context, plan->device, config->vocab_size, config->dim, &normal),
                       &m->embed_tokens));
    FSDP_TRY(fsdp__add_part(&m->base, "layers", fsdp_module_list_create(plan->context), &m->layers));
    for (int64_t layer = 0; layer < config->n_layers; layer++)
        FSDP_TRY(fsdp_module_list_append(m->layers, block_create(plan, positions)));
    return fsdp__add_part(&m->base, "norm", norm_create(plan), &m->norm);
}

/* Builds the table of frequencies first, since the blocks need it, and lists it last. */
static fsdp_status build_body(body *m, const fsdp__model_plan *plan)
{
    rotary *positions = rotary_create(plan);
    fsdp_status status = positions ? build_layers(m, plan, positions) : fsdp_last_status();

    if (status == FSDP_OK)
        return fsdp__add_part(&m->base, "rotary_emb", &positions->base, &m->rotary_emb);
    if (positions)
        fsdp_module_unref(&positions->base);
    return status;
}

fsdp_status fsdp__llama_body_create(const fsdp__model_plan *plan, fsdp__model_body *out)
{
    body *m = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp_module_create(plan->context, &body_types[plan->config->architecture], sizeof *m, &m));
    status = build_body(m, plan);
    if (!fsdp__module_built(&m->base, status))
        return status;
    *out = (fsdp__model_body){.module = &m->base, .blocks = m->layers, .embedding = (fsdp_layer *)m->embed_tokens};
    return FSDP_OK;
}
