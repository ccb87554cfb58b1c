/* llama.c - the body of Llama and of families like it (families.c): rotary positions, RMS norms, grouped key/value
 * heads, gated MLP. */
#include <math.h>

#include "base/alloc.h"
#include "models/models.h"
#include "ops/op.h"

/* Lists the types of a part, by architecture: they differ in the names that transformers gives them. */
#define TYPE(architecture, family, body, part, ...) [architecture] = {.name = family part, __VA_ARGS__},
#define TYPES_OF(...)                     \
    {                                     \
        FSDP__FAMILIES(TYPE, __VA_ARGS__) \
    }

static const fsdp__family *family_of(const fsdp__model_plan *plan)
{
    return fsdp__family_of(plan->config->architecture);
}

/* Makes a layer that maps (B,T,in) to (B,T,out). */
static fsdp_module *linear_create(const fsdp__model_plan *plan, int64_t in, int64_t out, bool bias)
{
    fsdp_init normal = {.kind = FSDP_INIT_NORMAL, .b = plan->config->init_std}, zeros = {.kind = FSDP_INIT_ZEROS};
    fsdp_linear_options options = {.no_bias = !bias, .weight_init = &normal, .bias_init = &zeros};

    return fsdp_linear_create(plan->context, plan->device, in, out, &options);
}

static fsdp_module *norm_create(const fsdp__model_plan *plan, int64_t dim)
{
    float eps = plan->config->norm_eps;

    return family_of(plan)->gemma ? fsdp__rmsnorm_plus_one_create(plan->context, plan->device, dim, eps)
                                  : fsdp_rmsnorm_create(plan->context, plan->device, dim, eps);
}

/* ---- rotary positions: tables of frequencies for all blocks ---- */

typedef struct rotary {
    fsdp_module base;
    fsdp_tensor *inv_freq;       /* (fsdp__rotary_dim / 2) f32, as the others */
    fsdp_tensor *local_inv_freq; /* of local layers; NULL: the same */
    fsdp_tensor *long_inv_freq;  /* for long calls (fsdp__rope_length); NULL before the first */
    int64_t long_length;         /* of which */
    fsdp_model_config config;
} rotary;

static void destroy_rotary(fsdp_module *self)
{
    fsdp_tensor_unref(((rotary *)self)->long_inv_freq);
}

static const fsdp_module_type rotary_types[] = TYPES_OF("RotaryEmbedding", .forward = NULL, .destroy = destroy_rotary);

/* Writes the frequencies for calls of `length` tokens. */
static fsdp_status write_frequencies(const rotary *m, int64_t length, bool local, fsdp_tensor *to)
{
    FSDP__FREED float *frequencies = fsdp__malloc((size_t)fsdp_tensor_numel(to) * sizeof(float));

    if (!frequencies)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make rotary frequencies");
    fsdp__rope_frequencies(&m->config, length, local, frequencies);
    return fsdp_tensor_write(to, FSDP_F32, frequencies);
}

static fsdp_status fill_frequencies(fsdp_module *module, fsdp_tensor *buffer)
{
    return write_frequencies((const rotary *)module, 0, false, buffer);
}

static fsdp_status fill_local_frequencies(fsdp_module *module, fsdp_tensor *buffer)
{
    return write_frequencies((const rotary *)module, 0, true, buffer);
}

static fsdp_status new_frequencies(const rotary *m, fsdp_device *device, fsdp_tensor **out)
{
    return fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(fsdp__rotary_dim(&m->config) / 2), FSDP_MEMORY_WORKSPACE,
                              out);
}

static fsdp_status build_rotary(rotary *m, const fsdp__model_plan *plan)
{
    m->config = *plan->config;
    FSDP_TRY(new_frequencies(m, plan->device, &m->inv_freq));
    FSDP_TRY(fsdp__module_add_filled_buffer(&m->base, "inv_freq", &m->inv_freq, fill_frequencies));
    if (!(m->config.local_rope_theta > 0))
        return FSDP_OK;
    FSDP_TRY(new_frequencies(m, plan->device, &m->local_inv_freq));
    return fsdp__module_add_filled_buffer(&m->base, "local_inv_freq", &m->local_inv_freq, fill_local_frequencies);
}

static rotary *rotary_create(const fsdp__model_plan *plan)
{
    rotary *m = NULL;

    if (fsdp_module_create(plan->context, &rotary_types[plan->config->architecture], sizeof *m, &m) != FSDP_OK)
        return NULL;
    return (rotary *)fsdp__module_built(&m->base, build_rotary(m, plan));
}

/* Returns the frequencies for a call whose last token is number `last`, or that has these positions. Those of long
 * calls follow from that alone, so that a block which runs again gets the same. Positions that are known come first:
 * those of sequences that are cut over ranks may be longer than a rank's part. */
static fsdp_tensor *frequencies_of(rotary *m, bool local, int64_t last, const fsdp_tensor *positions)
{
    int64_t length = fsdp__rope_length(&m->config, last);
    fsdp_tensor *made = NULL;

    if (local && m->local_inv_freq)
        return m->local_inv_freq;
    if (positions && (length > 0 || fsdp__tensor_documents(positions))) {
        last = fsdp__op_longest_document(positions);
        if (last == 0)
            return NULL;
        length = fsdp__rope_length(&m->config, last);
    }
    if (length == 0)
        return m->inv_freq;
    if (m->long_inv_freq && m->long_length == length)
        return m->long_inv_freq;
    if (new_frequencies(m, fsdp_tensor_device(m->inv_freq), &made) != FSDP_OK)
        return NULL;
    /* The tensor of another length may still be part of a graph: it stays as it is. */
    fsdp_tensor_unref(m->long_inv_freq);
    m->long_inv_freq = made;
    m->long_length = length;
    return write_frequencies(m, length, false, made) == FSDP_OK ? made : NULL;
}

/* ---- attention ---- */

typedef struct attention {
    fsdp_module base;
    fsdp_module *q_proj, *k_proj, *v_proj, *qkv_proj, *o_proj; /* either the first three, or qkv_proj */
    fsdp_module *q_norm, *k_norm;                              /* NULL: none */
    rotary *positions;                                         /* the body's; holds a reference */
    int64_t heads, kv_heads, head_dim;                         /* of the whole layer: projections may be cut by heads */
    bool local, has_rope, norm_whole;
    float rope_scale; /* of the part that rotates */
    fsdp_attention_options options;
} attention;

/* Queries (B,T,H,D), keys and values (B,T,G,D). */
typedef struct qkv {
    fsdp_tensor *q, *k, *v;
    bool joined; /* they are strided parts of one tensor, and q and k are needed by nobody but rope */
} qkv;

static fsdp_tensor *normalised(fsdp_module *norm, bool now, fsdp_tensor *x)
{
    return norm && now ? fsdp_call(norm, x) : x;
}

/* Views x (B,T,heads*D) as heads, as many as it has: of projections that are cut, this rank's. */
static fsdp_tensor *by_heads(fsdp_tensor *x, int64_t head_dim)
{
    return x ? fsdp_reshape(x, FSDP_SHAPE(x->shape[0], x->shape[1], x->shape[2] / head_dim, head_dim)) : NULL;
}

/* Projects x (B,T,C) by three projections. */
static qkv project(attention *m, fsdp_tensor *x)
{
    fsdp_module *const projections[] = {m->q_proj, m->k_proj, m->v_proj};
    fsdp_tensor *parts[3];
    bool together = fsdp__linears_together(projections, 3, x, parts);
    /* norms would copy their parts */
    bool joined = !together && !m->q_norm && fsdp__linears_joined(projections, 3, x, parts), done = together || joined;
    fsdp_tensor *q = normalised(m->q_norm, m->norm_whole, done ? parts[0] : fsdp_call(m->q_proj, x));
    fsdp_tensor *k = normalised(m->k_norm, m->norm_whole, done ? parts[1] : fsdp_call(m->k_proj, x));
    fsdp_tensor *v = done ? parts[2] : fsdp_call(m->v_proj, x);

    return (qkv){
        .q = by_heads(q, m->head_dim), .k = by_heads(k, m->head_dim), .v = by_heads(v, m->head_dim), .joined = joined};
}

/* Does the same by one. */
static qkv project_fused(attention *m, fsdp_tensor *x)
{
    fsdp_tensor *all = by_heads(fsdp_call(m->qkv_proj, x), m->head_dim), *parts[3] = {NULL};
    int64_t kv = all ? all->shape[2] * m->kv_heads / (m->heads + 2 * m->kv_heads) : 0;

    (void)fsdp_split(all, 2, 3, (const int64_t[]){all ? all->shape[2] - 2 * kv : 0, kv, kv}, parts);
    return (qkv){.q = parts[0], .k = parts[1], .v = parts[2]};
}

/* Maps x (B,T,C), and positions if any, to (B,T,C), after the tokens of `cached`. */
static fsdp_status attention_forward(fsdp_module *self, void *cached, fsdp_tensor *const *inputs, int count,
                                     fsdp_tensor **outputs, int output_count)
{
    attention *m = (attention *)self;
    int64_t first = fsdp__kv_layer_position(cached);
    qkv x = m->qkv_proj ? project_fused(m, inputs[0]) : project(m, inputs[0]);
    int64_t T = x.q ? x.q->shape[1] : 0; /* the projections may gather it */
    fsdp_tensor *positions = fsdp__positions_of(inputs, count), *y;
    fsdp_attention_options options = m->options;

    (void)output_count;
    options.positions = positions;
    x.q = normalised(m->q_norm, !m->norm_whole, x.q);
    x.k = normalised(m->k_norm, !m->norm_whole, x.k);
    if (m->has_rope) {
        fsdp_tensor *frequencies = frequencies_of(m->positions, m->local, first + T, positions);
        fsdp_tensor *both[] = {x.q, x.k};

        FSDP_TRY(fsdp__op_rope(2, both, frequencies, positions, first, m->rope_scale, x.joined));
        x.q = both[0];
        x.k = both[1];
    }
    FSDP_TRY(fsdp__kv_layer_extend(cached, &x.k, &x.v));
    y = fsdp__attend(self, x.q, x.k, x.v, &options);
    outputs[0] = fsdp_call(m->o_proj, fsdp_flatten(y, 2, 3));
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

static fsdp_status add_projections(attention *m, const fsdp__model_plan *plan)
{
    const fsdp_model_config *config = plan->config;
    int64_t q = config->n_heads * config->head_dim, kv = config->n_kv_heads * config->head_dim;
    bool bias = config->attention_bias, qkv_bias = bias || family_of(plan)->qkv_bias;

    if (family_of(plan)->fused) {
        FSDP__ADD_PART(m, o_proj, linear_create(plan, q, config->dim, bias));
        return fsdp__add_part(&m->base, "qkv_proj", linear_create(plan, config->dim, q + 2 * kv, qkv_bias),
                              &m->qkv_proj);
    }
    FSDP__ADD_PART(m, q_proj, linear_create(plan, config->dim, q, qkv_bias));
    FSDP__ADD_PART(m, k_proj, linear_create(plan, config->dim, kv, qkv_bias));
    FSDP__ADD_PART(m, v_proj, linear_create(plan, config->dim, kv, qkv_bias));
    return fsdp__add_part(&m->base, "o_proj", linear_create(plan, q, config->dim, bias), &m->o_proj);
}

static fsdp_status add_norms(attention *m, const fsdp__model_plan *plan)
{
    int64_t q = m->norm_whole ? m->heads : 1, k = m->norm_whole ? m->kv_heads : 1;

    if (!m->norm_whole && !family_of(plan)->norm_heads)
        return FSDP_OK;
    FSDP__ADD_PART(m, q_norm, norm_create(plan, q * m->head_dim));
    return fsdp__add_part(&m->base, "k_norm", norm_create(plan, k * m->head_dim), &m->k_norm);
}

/* Holds what the blocks of a body share, and which of them is built. */
typedef struct block_plan {
    const fsdp__model_plan *plan;
    rotary *positions;
    int64_t layer;
} block_plan;

static fsdp_status build_attention(attention *m, const block_plan *b)
{
    const fsdp_model_config *config = b->plan->config;

    m->heads = config->n_heads;
    m->kv_heads = config->n_kv_heads;
    m->head_dim = config->head_dim;
    m->norm_whole = family_of(b->plan)->norm_whole;
    m->local = fsdp_model_layer_is_local(config, b->layer);
    m->has_rope = fsdp_model_layer_has_rope(config, b->layer);
    m->rope_scale = fsdp__rope_scale(config, b->layer);
    m->options = (fsdp_attention_options){.causal = true,
                                          .scale = fsdp__attention_scale(config, b->layer),
                                          .window = m->local ? config->window : 0,
                                          .softcap = config->attention_softcap};
    m->positions = (rotary *)fsdp_module_ref(&b->positions->base);
    FSDP_TRY(add_projections(m, b->plan));
    return add_norms(m, b->plan);
}

static fsdp_module *attention_create(const block_plan *b)
{
    attention *m = NULL;

    if (fsdp_module_create(b->plan->context, &attention_types[b->plan->config->architecture], sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base, build_attention(m, b));
}

/* ---- mlp ---- */

typedef struct mlp {
    fsdp_module base;
    fsdp_module *gate_proj, *up_proj, *gate_up_proj, *down_proj; /* either the first two, or gate_up_proj */
    fsdp_module *act_fn;                                         /* is only shown: the product is fused */
    bool gelu;
} mlp;

/* Maps x (B,T,C) to (B,T,C). */
static fsdp_tensor *mlp_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    mlp *m = (mlp *)self;
    fsdp_module *const projections[] = {m->gate_proj, m->up_proj};
    fsdp_tensor *parts[2] = {NULL}, *y; /* gate, up (B,T,F) */

    (void)count;
    if (m->gate_up_proj) {
        (void)fsdp_split(fsdp_call(m->gate_up_proj, inputs[0]), 2, 2, NULL, parts);
    } else if (!fsdp__linears_together(projections, 2, inputs[0], parts) &&
               !fsdp__linears_joined(projections, 2, inputs[0], parts)) {
        parts[0] = fsdp_call(m->gate_proj, inputs[0]);
        parts[1] = fsdp_call(m->up_proj, inputs[0]);
    }
    if (fsdp__gated_joined(m->down_proj, m->gelu, parts[0], parts[1], &y))
        return y;
    return fsdp_call(m->down_proj, m->gelu ? fsdp_geglu_tanh(parts[0], parts[1]) : fsdp_swiglu(parts[0], parts[1]));
}

static const fsdp_module_type mlp_types[] = TYPES_OF("MLP", .forward = mlp_forward);

static fsdp_status build_mlp(mlp *m, const fsdp__model_plan *plan)
{
    int64_t dim = plan->config->dim, ffn_dim = plan->config->ffn_dim;
    bool bias = plan->config->mlp_bias, fused = family_of(plan)->fused;

    m->gelu = family_of(plan)->gemma;
    if (fused) {
        FSDP__ADD_PART(m, gate_up_proj, linear_create(plan, dim, 2 * ffn_dim, bias));
    } else {
        FSDP__ADD_PART(m, gate_proj, linear_create(plan, dim, ffn_dim, bias));
        FSDP__ADD_PART(m, up_proj, linear_create(plan, dim, ffn_dim, bias));
    }
    FSDP__ADD_PART(m, down_proj, linear_create(plan, ffn_dim, dim, bias));
    return fsdp__add_part(&m->base, fused ? "activation_fn" : "act_fn",
                          m->gelu ? fsdp_gelu_create(plan->context, true) : fsdp_silu_create(plan->context),
                          &m->act_fn);
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
    fsdp_module *self_attn, *mlp;
    fsdp_module *before_attn, *after_attn, *before_mlp, *after_mlp; /* norms; NULL: none */
    bool gemma;
} block;

/* Adds and normalises, in one operation where there is one and no hooks need the norm to be called. */
static fsdp_tensor *add_norm(const block *m, fsdp_tensor *x, fsdp_tensor *residual, fsdp_tensor **sum)
{
    fsdp_module *norm = m->before_mlp;

    if (norm && !m->gemma && !fsdp__has_hooks(norm))
        return fsdp_add_rmsnorm(x, residual, fsdp__layer(norm)->weight, fsdp__layer(norm)->eps, sum);
    *sum = fsdp_add(x, residual);
    return normalised(norm, true, *sum);
}

/* Maps x (B,T,C), and positions if any, to (B,T,C). */
static fsdp_status block_forward(fsdp_module *self, void *cached, fsdp_tensor *const *inputs, int count,
                                 fsdp_tensor **outputs, int output_count)
{
    block *m = (block *)self;
    fsdp_tensor *a = fsdp__call_placed(m->self_attn, cached, normalised(m->before_attn, true, inputs[0]),
                                       fsdp__positions_of(inputs, count));
    fsdp_tensor *x = NULL; /* inputs[0] + a */
    fsdp_tensor *h = add_norm(m, normalised(m->after_attn, true, a), inputs[0], &x);

    (void)output_count;
    outputs[0] = fsdp_add(x, normalised(m->after_mlp, true, fsdp_call(m->mlp, h)));
    return FSDP_OK;
}

static const fsdp_module_type block_types[] = TYPES_OF("DecoderLayer", .forward_many = block_forward);

static fsdp_status add_norm_part(block *m, const fsdp__model_plan *plan, const char *name, fsdp_module **slot)
{
    return fsdp__add_part(&m->base, name, norm_create(plan, plan->config->dim), slot);
}

/* Adds the norms. The name of the one before the MLP depends on whether there is one after attention. */
static fsdp_status add_block_norms(block *m, const fsdp__model_plan *plan)
{
    bool before = family_of(plan)->norm_before, after = family_of(plan)->norm_after;

    if (before)
        FSDP_TRY(add_norm_part(m, plan, "input_layernorm", &m->before_attn));
    FSDP_TRY(add_norm_part(m, plan, "post_attention_layernorm", after ? &m->after_attn : &m->before_mlp));
    if (before && after)
        FSDP_TRY(add_norm_part(m, plan, "pre_feedforward_layernorm", &m->before_mlp));
    return after ? add_norm_part(m, plan, "post_feedforward_layernorm", &m->after_mlp) : FSDP_OK;
}

static fsdp_status build_block(block *m, const block_plan *b)
{
    m->gemma = family_of(b->plan)->gemma;
    FSDP__ADD_PART(m, self_attn, attention_create(b));
    FSDP__ADD_PART(m, mlp, mlp_create(b->plan));
    return add_block_norms(m, b->plan);
}

static fsdp_module *block_create(const block_plan *b)
{
    block *m = NULL;

    if (fsdp_module_create(b->plan->context, &block_types[b->plan->config->architecture], sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base, build_block(m, b));
}

/* ---- body ---- */

typedef struct body {
    fsdp_module base;
    fsdp_module *embed_tokens, *layers, *norm, *rotary_emb;
    float embedding_scale; /* 0: 1 */
} body;

/* Multiplies by the factor as it is in x's dtype. */
static fsdp_tensor *scaled(fsdp_tensor *x, float factor)
{
    return factor > 0 ? fsdp_mul(x, fsdp_scalar(x, (double)factor)) : x;
}

/* Maps tokens (B,T), and positions if any, to (B,T,C). */
static fsdp_status body_forward(fsdp_module *self, void *cache, fsdp_tensor *const *inputs, int count,
                                fsdp_tensor **outputs, int output_count)
{
    body *m = (body *)self;
    fsdp_tensor *x = scaled(fsdp_call(m->embed_tokens, inputs[0]), m->embedding_scale);

    (void)output_count;
    /* What a block writes while it runs the first time would be missing when it is computed again. */
    if (!frequencies_of((rotary *)m->rotary_emb, false, fsdp__kv_cache_position(cache) + fsdp_tensor_size(inputs[0], 1),
                        fsdp__positions_of(inputs, count)))
        return fsdp_last_status();
    for (int64_t i = 0; i < fsdp_module_child_count(m->layers); i++)
        x = fsdp__call_placed(fsdp_module_child_at(m->layers, i, &(const char *){NULL}), fsdp__kv_cache_layer(cache, i),
                              x, fsdp__positions_of(inputs, count));
    outputs[0] = fsdp_call(m->norm, x);
    return FSDP_OK;
}

#define BODY(architecture, family, body, ...) [architecture] = {.name = body, .forward_many = body_forward},
static const fsdp_module_type body_types[] = {FSDP__FAMILIES(BODY, )};
#undef BODY

static fsdp_status build_layers(body *m, const fsdp__model_plan *plan, rotary *positions)
{
    const fsdp_model_config *config = plan->config;
    fsdp_init normal = {.kind = FSDP_INIT_NORMAL, .b = config->init_std};

    m->embedding_scale = family_of(plan)->gemma ? sqrtf((float)config->dim) : 0;
    FSDP__ADD_PART(m, embed_tokens,
                   fsdp_embedding_create(plan->context, plan->device, config->vocab_size, config->dim, &normal));
    FSDP__ADD_PART(m, layers, fsdp_module_list_create(plan->context));
    for (int64_t layer = 0; layer < config->n_layers; layer++)
        FSDP_TRY(fsdp_module_list_append(m->layers, block_create(&(block_plan){plan, positions, layer})));
    return fsdp__add_part(&m->base, "norm", norm_create(plan, config->dim), &m->norm);
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
