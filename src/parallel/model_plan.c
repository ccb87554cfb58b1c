/* model_plan.c - the plans of the models of models/: which modules are cut, and what lies how between them. */
#include <string.h>

#include "models/models.h"
#include "parallel/degrees.h"
#include "parallel/plan.h"

enum {
    MAX_ENTRIES = 24
};

typedef struct recipe {
    const fsdp_model_config *config;
    const fsdp__family *family; /* NULL: GPT-2 */
    const fsdp_model_parallel_options *options;
    fsdp_layout between; /* how hidden states lie between attention and MLP */
    int count;
    fsdp__tp_entry entries[MAX_ENTRIES];
} recipe;

static const fsdp_layout replicated = {.kind = FSDP_LAYOUT_REPLICATED}, copied = {.kind = FSDP_LAYOUT_COPIED};
static const fsdp_layout partial = {.kind = FSDP_LAYOUT_PARTIAL};

static fsdp_parallel_style *add(recipe *r, const char *pattern, const fsdp__style_kind *kind)
{
    fsdp__tp_entry *e = &r->entries[r->count++];

    *e = (fsdp__tp_entry){.pattern = pattern, .kind = kind};
    return &e->style;
}

/* ---- parts that all models have ---- */

/* Adds a module whose first projections are column-wise: it prepares its input for them, unless they do so themselves.
 */
static void add_branch(recipe *r, const char *pattern)
{
    fsdp_parallel_style *style;

    if (r->options->async || (r->options->per_projection && r->between.kind == FSDP_LAYOUT_REPLICATED))
        return;
    style = add(r, pattern, &fsdp__prepare_input);
    style->from[0] = r->between;
    style->to[0] = copied;
}

static fsdp_parallel_style *add_column(recipe *r, const char *pattern)
{
    fsdp_parallel_style *style = add(r, pattern, &fsdp__column_wise);

    style->async = r->options->async;
    if (style->async)
        style->from[0] = r->between;
    else if (!r->options->per_projection || r->between.kind != FSDP_LAYOUT_REPLICATED)
        style->from[0] = copied;
    return style;
}

static void add_segments(fsdp_parallel_style *style, int count, const int64_t *segments)
{
    style->segment_count = count;
    memcpy(style->segments, segments, (size_t)count * sizeof *segments);
}

static void add_row(recipe *r, const char *pattern)
{
    fsdp_parallel_style *style = add(r, pattern, &fsdp__row_wise);

    style->to[0] = r->between;
    style->async = r->options->async;
}

/* Adds norms or dropouts, which have nothing to do with ranks unless they work on parts of the sequence. */
static void add_sequence(recipe *r, const char *pattern)
{
    if (r->options->sequence_parallel)
        (void)add(r, pattern, &fsdp__known_sequence);
}

/* Adds the end of the body and the head, which takes the hidden states whole. */
static void add_end(recipe *r, const char *body, const char *norm)
{
    fsdp_parallel_style *style;

    add_sequence(r, norm);
    if (r->options->sequence_parallel) {
        style = add(r, body, &fsdp__prepare_output);
        style->from[0] = r->between;
        style->to[0] = copied;
    }
    style = add(r, "lm_head", &fsdp__model_head);
    style->from[0] = r->options->sequence_parallel ? copied : replicated;
    style->to[0] = replicated;
    style->loss_parallel = r->options->loss_parallel;
}

/* ---- Llama and its like ---- */

static void add_llama_attention(recipe *r)
{
    const fsdp_model_config *c = r->config;
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const fsdp__style_kind *norm = r->family->norm_whole ? &fsdp__heads_norm : &fsdp__head_norm;

    add_branch(r, "model.layers.*.self_attn");
    if (r->family->fused) {
        add_segments(add_column(r, "model.layers.*.self_attn.qkv_proj"), 3, (const int64_t[]){q, kv, kv});
    } else {
        (void)add_column(r, "model.layers.*.self_attn.q_proj");
        (void)add_column(r, "model.layers.*.self_attn.k_proj");
        (void)add_column(r, "model.layers.*.self_attn.v_proj");
    }
    if (r->family->norm_whole || r->family->norm_heads) {
        (void)add(r, "model.layers.*.self_attn.q_norm", norm);
        (void)add(r, "model.layers.*.self_attn.k_norm", norm);
    }
    add_row(r, "model.layers.*.self_attn.o_proj");
}

static void add_llama_mlp(recipe *r)
{
    int64_t ffn = r->config->ffn_dim;

    add_branch(r, "model.layers.*.mlp");
    if (r->family->fused) {
        add_segments(add_column(r, "model.layers.*.mlp.gate_up_proj"), 2, (const int64_t[]){ffn, ffn});
    } else {
        (void)add_column(r, "model.layers.*.mlp.gate_proj");
        (void)add_column(r, "model.layers.*.mlp.up_proj");
    }
    add_row(r, "model.layers.*.mlp.down_proj");
}

static void add_llama(recipe *r)
{
    bool before = r->family->norm_before, after = r->family->norm_after;

    if (before)
        add_sequence(r, "model.layers.*.input_layernorm");
    add_llama_attention(r);
    add_sequence(r, "model.layers.*.post_attention_layernorm");
    add_llama_mlp(r);
    if (before && after)
        add_sequence(r, "model.layers.*.pre_feedforward_layernorm");
    if (after)
        add_sequence(r, "model.layers.*.post_feedforward_layernorm");
    add(r, "model.embed_tokens", &fsdp__row_wise)->to[0] = r->between;
    add_end(r, "model", "model.norm");
}

/* ---- GPT-2 ---- */

/* Positions are added before sequences are cut: so each rank has the whole gradient of their table, and need not send
 * it. */
static void add_gpt2_start(recipe *r)
{
    bool sequence = r->options->sequence_parallel;

    add(r, "transformer.wte", &fsdp__row_wise)->to[0] = sequence ? partial : replicated;
    if (sequence)
        add(r, "transformer.wpe", &fsdp__added_to_sum)->to[0] = r->between;
    add_sequence(r, "transformer.drop");
}

static void add_gpt2(recipe *r)
{
    int64_t dim = r->config->dim;

    add_gpt2_start(r);
    add_sequence(r, "transformer.h.*.ln_1");
    add_branch(r, "transformer.h.*.attn");
    add_segments(add_column(r, "transformer.h.*.attn.c_attn"), 3, (const int64_t[]){dim, dim, dim});
    add_row(r, "transformer.h.*.attn.c_proj");
    add_sequence(r, "transformer.h.*.attn.resid_dropout");
    add_sequence(r, "transformer.h.*.ln_2");
    add_branch(r, "transformer.h.*.mlp");
    (void)add_column(r, "transformer.h.*.mlp.c_fc");
    add_row(r, "transformer.h.*.mlp.c_proj");
    add_sequence(r, "transformer.h.*.mlp.dropout");
    add_end(r, "transformer", "transformer.ln_f");
}

/* ---- the call ---- */

fsdp_status fsdp_model_parallel_check(const fsdp_model_config *c, int64_t ranks)
{
    if (!c)
        return FSDP_FAIL(FSDP_INVALID, "model_parallel_check needs a config");
    if (ranks < 1)
        return FSDP_FAIL(FSDP_INVALID, "attention cannot be cut over %lld ranks: 1 or more are possible",
                         (long long)ranks);
    return fsdp__check_heads((fsdp__degree){"the number of ranks that compute each layer together", ranks}, c,
                             "n_heads", "n_kv_heads");
}

fsdp_status fsdp_model_parallelize(fsdp_module *model, fsdp_mesh *mesh, const fsdp_model_parallel_options *options)
{
    static const fsdp_model_parallel_options none = {0};
    const fsdp_model_config *config = model ? fsdp_model_get_config(model) : NULL;
    recipe r = {.config = config, .options = options ? options : &none};
    fsdp_status status;

    if (!model || !mesh)
        return FSDP_FAIL(FSDP_INVALID, "tensor parallelism needs a model and a mesh, but the %s is NULL",
                         model ? "mesh" : "model");
    if (!config)
        return FSDP_FAIL(FSDP_INVALID, "a %s was not made by fsdp_model_create: give fsdp_parallelize_module its plan",
                         model->type->name);
    r.family = fsdp__family_of(config->architecture);
    r.between = r.options->sequence_parallel ? (fsdp_layout){.kind = FSDP_LAYOUT_SHARDED, .dim = 1} : replicated;
    status = fsdp_model_parallel_check(config, fsdp_mesh_size(mesh, -1));
    if (status == FSDP_OK && r.options->async && !r.options->sequence_parallel)
        status = FSDP_FAIL(FSDP_INVALID,
                           "asynchronous tensor parallelism needs sequence_parallel: without it nothing is gathered "
                           "before a product, or scattered behind it");
    if (r.family)
        add_llama(&r);
    else
        add_gpt2(&r);
    return fsdp__parallelize(model, mesh, r.entries, r.count, status);
}
