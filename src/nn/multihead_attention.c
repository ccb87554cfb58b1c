/* multihead_attention.c - MultiheadAttention. Without masks and dropout it uses the attention kernel, otherwise a
 * product with explicit scores. */
#include "nn/multihead_attention.h"

#include <math.h>

#include "base/rng.h"
#include "nn/layers.h"

typedef struct multihead_attention {
    fsdp_module base;
    fsdp_tensor *in_proj_weight, *in_proj_bias; /* the bias is NULL if there is none */
    fsdp_module *out_proj;
    int64_t embed_dim, heads;
    bool batch_first, has_bias;
    float dropout;
    uint64_t seed, calls;
} multihead_attention;

/* ---- masks as inputs ---- */

/* Returns the argument for these masks. A recomputed module calls again with it, so it must stay valid. */
static const fsdp_attention_masks *argument_of(bool key_padding, bool attention, bool causal)
{
#define MASKS(k, a, c)                                                                                  \
    {                                                                                                   \
        .key_padding = (k) ? FSDP_NO_BIAS : NULL, .attention = (a) ? FSDP_NO_BIAS : NULL, .causal = (c) \
    }
    static const fsdp_attention_masks all[] = {MASKS(0, 0, 0), MASKS(1, 0, 0), MASKS(0, 1, 0), MASKS(1, 1, 0),
                                               MASKS(0, 0, 1), MASKS(1, 0, 1), MASKS(0, 1, 1), MASKS(1, 1, 1)};
#undef MASKS
    return &all[key_padding + 2 * attention + 4 * causal];
}

void *fsdp__masks_put(const fsdp_attention_masks *masks, fsdp_tensor **inputs, int *count)
{
    const fsdp_attention_masks m = masks ? *masks : (fsdp_attention_masks){0};

    *count = 0;
    if (m.key_padding)
        inputs[(*count)++] = m.key_padding;
    if (m.attention)
        inputs[(*count)++] = m.attention;
    return (void *)(uintptr_t)argument_of(m.key_padding, m.attention, m.causal);
}

int fsdp__masks_take(const void *arg, fsdp_tensor *const *inputs, int count, fsdp_attention_masks *out)
{
    const fsdp_attention_masks *which = arg;
    int there = which ? (which->key_padding != NULL) + (which->attention != NULL) : 0;

    *out = (fsdp_attention_masks){.causal = which && which->causal};
    if (which && which->key_padding)
        out->key_padding = inputs[count - there];
    if (which && which->attention)
        out->attention = inputs[count - 1];
    return there;
}

/* ---- explicit scores ---- */

/* Applies a mask whose shape fits scores (N,H,L,S). A numeric mask is added. Where a boolean one is true, scores become
 * far lower than all others, but finite, so that a query that may see no key sees all of them alike. */
static fsdp_tensor *masked(fsdp_tensor *scores, fsdp_tensor *mask)
{
    fsdp_dtype dtype = fsdp_tensor_dtype(scores);

    if (fsdp_tensor_dtype(mask) == FSDP_BOOL)
        return fsdp_masked_fill(scores, mask, dtype == FSDP_F16 ? -6e4 : -3e38);
    return fsdp_add(scores, fsdp_cast(mask, dtype));
}

static fsdp_tensor *refuse(const char *what, const fsdp_tensor *mask, const char *must)
{
    FSDP_FAIL(FSDP_INVALID, "%s %s must be %s, of bool or floating numbers", what,
              FSDP__SHOWN_SHAPE(fsdp_tensor_ndim(mask), fsdp_tensor_shape(mask)), must);
    return NULL;
}

static bool is_mask(const fsdp_tensor *mask)
{
    return fsdp_tensor_dtype(mask) == FSDP_BOOL || fsdp_dtype_is_floating(fsdp_tensor_dtype(mask));
}

static fsdp_tensor *mask_keys(fsdp_tensor *scores, fsdp_tensor *mask)
{
    const int64_t *shape = fsdp_tensor_shape(scores), *m = fsdp_tensor_shape(mask);

    if (!is_mask(mask) || fsdp_tensor_ndim(mask) != 2 || m[0] != shape[0] || m[1] != shape[3])
        return refuse("key padding mask", mask, "(N,S)");
    mask = fsdp_reshape(mask, FSDP_SHAPE(shape[0], 1, 1, shape[3]));
    return mask ? masked(scores, mask) : NULL;
}

static fsdp_tensor *mask_pairs(fsdp_tensor *scores, fsdp_tensor *mask)
{
    const int64_t *shape = fsdp_tensor_shape(scores), *m = fsdp_tensor_shape(mask);
    int ndim = fsdp_tensor_ndim(mask);

    if (!is_mask(mask) || (ndim != 2 && ndim != 3) || m[ndim - 2] != shape[2] || m[ndim - 1] != shape[3] ||
        (ndim == 3 && m[0] != shape[0] * shape[1]))
        return refuse("attention mask", mask, "(L,S) or (N heads,L,S)");
    mask = ndim == 3 ? fsdp_reshape(mask, 4, shape) : mask;
    return mask ? masked(scores, mask) : NULL;
}

static fsdp_tensor *dropped(multihead_attention *m, fsdp_tensor *weights)
{
    uint32_t words[4];

    if (!m->base.training || m->dropout == 0.0f)
        return weights;
    fsdp__philox(m->seed, m->calls, words);
    m->calls += !fsdp_recomputing(m->base.context);
    return fsdp_dropout(weights, m->dropout, (uint64_t)words[0] << 32 | words[1]);
}

/* Computes q (N,L,H,D), k, v (N,S,H,D) -> (N,L,H,D) */
static fsdp_tensor *with_scores(multihead_attention *m, fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                                const fsdp_attention_masks *masks)
{
    double scale = 1.0 / sqrt((double)(m->embed_dim / m->heads));
    fsdp_tensor *keys = fsdp_transpose(fsdp_transpose(k, 1, 2), 2, 3); /* (N,H,D,S) */
    fsdp_tensor *scores = fsdp_matmul(fsdp_scale(fsdp_transpose(q, 1, 2), scale), keys);
    bool added = masks->attention && fsdp_tensor_dtype(masks->attention) != FSDP_BOOL;

    if (scores && added) /* before a boolean one: their sum may be too large for float16 */
        scores = mask_pairs(scores, masks->attention);
    if (scores && masks->key_padding)
        scores = mask_keys(scores, masks->key_padding);
    if (scores && masks->attention && !added)
        scores = mask_pairs(scores, masks->attention);
    return fsdp_transpose(fsdp_matmul(dropped(m, fsdp_softmax(scores)), fsdp_transpose(v, 1, 2)), 1, 2);
}

/* ---- the forward ---- */

/* Returns part `index` of the projection of x (N,T,E): (N,T,H,D). */
static fsdp_tensor *project(const multihead_attention *m, fsdp_tensor *x, int64_t index)
{
    int64_t e = m->embed_dim;
    fsdp_tensor *weight = fsdp_slice(m->in_proj_weight, 0, index * e, e);
    fsdp_tensor *bias = m->has_bias ? fsdp_slice(m->in_proj_bias, 0, index * e, e) : FSDP_NO_BIAS;

    return fsdp_reshape(fsdp_linear(x, weight, bias), FSDP_SHAPE(fsdp_tensor_shape(x)[0], -1, m->heads, e / m->heads));
}

static bool check_inputs(const multihead_attention *m, fsdp_tensor *const *inputs, int count,
                         const fsdp_attention_masks *masks)
{
    if (count != 1 && count != 3) {
        FSDP_FAIL(FSDP_INVALID, "%d inputs: it takes one, or query, key and value", count);
        return false;
    }
    for (int i = 0; i < count; i++)
        if (fsdp_tensor_ndim(inputs[i]) != 3 || fsdp_tensor_shape(inputs[i])[2] != m->embed_dim) {
            FSDP_FAIL(FSDP_INVALID, "input %s must be %s with E = %lld",
                      FSDP__SHOWN_SHAPE(fsdp_tensor_ndim(inputs[i]), fsdp_tensor_shape(inputs[i])),
                      m->batch_first ? "(N,L,E)" : "(L,N,E)", (long long)m->embed_dim);
            return false;
        }
    if (masks->causal && (masks->key_padding || masks->attention)) {
        FSDP_FAIL(FSDP_UNSUPPORTED, "causal together with a mask: mask out later positions in it");
        return false;
    }
    if (masks->causal && count == 3 &&
        fsdp_tensor_shape(inputs[0])[m->batch_first] != fsdp_tensor_shape(inputs[1])[m->batch_first]) {
        FSDP_FAIL(FSDP_INVALID, "causal with different numbers of queries and keys");
        return false;
    }
    return true;
}

/* Computes q, k, v (N,T,E) -> (N,L,E), before the last projection. */
static fsdp_tensor *attend(multihead_attention *m, fsdp_tensor *const *in, bool self, const fsdp_attention_masks *masks)
{
    const fsdp_attention_options options = {.causal = masks->causal};
    bool scores = masks->key_padding || masks->attention || (m->base.training && m->dropout > 0.0f);
    fsdp_tensor *q, *k, *v, *out;

    if (scores && masks->causal) {
        FSDP_FAIL(FSDP_UNSUPPORTED, "causal together with dropout of attention weights: give it as a mask");
        return NULL;
    }
    if (self && !scores)
        return fsdp_attention_packed(
            fsdp_linear(in[0], m->in_proj_weight, m->has_bias ? m->in_proj_bias : FSDP_NO_BIAS), m->heads, m->heads,
            &options);
    q = project(m, in[0], 0);
    k = project(m, in[1], 1);
    v = project(m, in[2], 2);
    if (!q || !k || !v)
        return NULL;
    out = scores ? with_scores(m, q, k, v, masks) : fsdp_attention(q, k, v, &options);
    return fsdp_reshape(out, FSDP_SHAPE(fsdp_tensor_shape(q)[0], -1, m->embed_dim));
}

static fsdp_status forward(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                           int output_count)
{
    multihead_attention *m = (multihead_attention *)self;
    fsdp_tensor *in[3], *out;
    fsdp_attention_masks masks;

    (void)output_count;
    count -= fsdp__masks_take(arg, inputs, count, &masks);
    if (!check_inputs(m, inputs, count, &masks))
        return fsdp_last_status();
    for (int i = 0; i < 3; i++) {
        in[i] = inputs[count == 3 ? i : 0];
        in[i] = m->batch_first ? in[i] : fsdp_transpose(in[i], 0, 1);
    }
    out = fsdp_call(m->out_proj, attend(m, in, count == 1, &masks));
    outputs[0] = m->batch_first ? out : fsdp_transpose(out, 0, 1);
    return outputs[0] ? FSDP_OK : fsdp_last_status();
}

static uint64_t *draws(fsdp_module *self)
{
    return &((multihead_attention *)self)->calls;
}

static const fsdp_module_type type = {.name = "MultiheadAttention", .forward_many = forward, .draws = draws};

fsdp_tensor *fsdp_multihead_attention(fsdp_module *module, fsdp_tensor *query, fsdp_tensor *key, fsdp_tensor *value,
                                      const fsdp_attention_masks *masks)
{
    fsdp_tensor *inputs[3 + FSDP__MOST_MASKS] = {query, key, value}, *out = NULL;
    bool self = query == key && key == value;
    int given = self ? 1 : 3, count;
    void *arg = fsdp__masks_put(masks, inputs + given, &count);

    return fsdp_module_call_many(module, arg, inputs, given + count, &out, 1) == FSDP_OK ? out : NULL;
}

/* ---- building ---- */

static fsdp_status build(multihead_attention *m, fsdp_context *context, fsdp_device *device)
{
    int64_t e = m->embed_dim;
    float bound = e > 0 ? (float)sqrt(6.0 / (4.0 * (double)e)) : 0.0f;
    const fsdp_init xavier = {FSDP_INIT_UNIFORM, -bound, bound}, zeros = {FSDP_INIT_ZEROS, 0.0f, 0.0f};

    if (e > INT32_MAX)
        return FSDP_FAIL(FSDP_INVALID, "MultiheadAttention: %lld features are too many", (long long)e);
    if (e < 1 || m->heads < 1 || e % m->heads != 0)
        return FSDP_FAIL(FSDP_INVALID, "MultiheadAttention: %lld features cannot be divided into %lld heads",
                         (long long)e, (long long)m->heads);
    if (!(m->dropout >= 0.0f && m->dropout < 1.0f))
        return FSDP_FAIL(FSDP_INVALID, "MultiheadAttention: dropout %g is outside [0, 1)", (double)m->dropout);
    FSDP_TRY(fsdp_module_add_parameter(&m->base, "in_proj_weight", &m->in_proj_weight, device, FSDP_F32,
                                       FSDP_SHAPE(3 * e, e), xavier));
    if (m->has_bias)
        FSDP_TRY(fsdp_module_add_parameter(&m->base, "in_proj_bias", &m->in_proj_bias, device, FSDP_F32,
                                           FSDP_SHAPE(3 * e), zeros));
    m->out_proj =
        fsdp_linear_create(context, device, e, e, &(fsdp_linear_options){.no_bias = !m->has_bias, .bias_init = &zeros});
    return fsdp_module_add_child(&m->base, "out_proj", m->out_proj);
}

fsdp_module *fsdp_multihead_attention_create(fsdp_context *context, fsdp_device *device, int64_t embed_dim,
                                             int64_t heads, const fsdp_multihead_attention_options *options)
{
    const fsdp_multihead_attention_options o = options ? *options : (fsdp_multihead_attention_options){0};
    multihead_attention *m = NULL;

    if (fsdp_module_create(context, &type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->embed_dim = embed_dim;
    m->heads = heads;
    m->batch_first = o.batch_first;
    m->has_bias = !o.no_bias;
    m->dropout = o.dropout;
    m->seed = o.seed;
    return fsdp__module_built(&m->base, build(m, context, device));
}
