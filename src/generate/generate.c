/* generate.c - generates one token after the other. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/rng.h"
#include "device/device.h"
#include "fsdp/comm.h"
#include "fsdp/shard.h"
#include "generate/generate.h"
#include "models/models.h"
#include "nn/module.h"

/* Holds a generation in progress. */
typedef struct generator {
    fsdp_module *module;
    fsdp_context *context;
    fsdp_device *device;
    const fsdp_model_config *config;
    const fsdp_generate_options *options;
    fsdp_kv_cache *cache; /* NULL: none */
    int64_t first;        /* the first of the tokens that the model sees */
    uint64_t key;
    float *logits; /* vocab_size */
    fsdp__candidate *scratch;
    int32_t *answer; /* ANSWER_BYTES of the host that the device reaches; NULL: on one rank */
} generator;

enum {
    ANSWER_BYTES = 2 * sizeof(int32_t)
};

static fsdp_status check(fsdp_module *module, const int32_t *tokens, const int64_t *count,
                         const fsdp_generate_options *options)
{
    if (!module || !tokens || !count || !options)
        return FSDP_FAIL(FSDP_INVALID, "cannot generate: module, tokens, count and options are required");
    if (!fsdp_model_get_config(module))
        return FSDP_FAIL(FSDP_INVALID, "cannot generate with a %s: it was not made by fsdp_model_create",
                         module->type->name);
    if (*count < 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot generate: the prompt is empty: give at least one token");
    if (options->max_new_tokens < 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot generate %lld tokens", (long long)options->max_new_tokens);
    if (!(options->temperature >= 0 && isfinite(options->temperature)))
        return FSDP_FAIL(FSDP_INVALID, "cannot generate: temperature %g is not 0 or above",
                         (double)options->temperature);
    if (options->top_k < 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot generate: top_k %lld is negative", (long long)options->top_k);
    if (!(options->top_p >= 0 && options->top_p <= 1))
        return FSDP_FAIL(FSDP_INVALID, "cannot generate: top_p %g is not between 0 and 1", (double)options->top_p);
    if (options->cache && options->no_cache)
        return FSDP_FAIL(FSDP_INVALID, "cannot generate: a cache is given, and no_cache is set: choose one");
    if (options->cache && !fsdp__kv_cache_is_of(options->cache, module))
        return FSDP_FAIL(FSDP_INVALID, "cannot generate: the cache was made for another model");
    if (options->stop_token_count < 0 || (options->stop_token_count > 0 && !options->stop_tokens))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot generate: the number of stop tokens is %lld, but no list of them is given",
                         (long long)options->stop_token_count);
    return FSDP_OK;
}

static fsdp_status find_device(fsdp_module *module, fsdp_device **out)
{
    FSDP_TRY(fsdp__module_device(module, out));
    if (!*out || fsdp_device_is_meta(*out))
        return FSDP_FAIL(FSDP_STATE, "cannot generate: the model is on the meta device: materialize and load it first");
    return FSDP_OK;
}

/* Makes room for one more token: if there is none, only the later half of the tokens stays. */
static fsdp_status make_room(generator *g, int64_t count)
{
    if (count - g->first <= g->config->max_seq_len)
        return FSDP_OK;
    g->first = count - FSDP__MAX(g->config->max_seq_len / 2, 1);
    return g->cache ? fsdp_kv_cache_truncate(g->cache, 0) : FSDP_OK;
}

/* Computes the logits after `count` tokens. */
static fsdp_status forward(generator *g, const int32_t *tokens, int64_t count)
{
    fsdp_tensor *input, *logits;
    fsdp_status status;
    int64_t known;

    FSDP_TRY(make_room(g, count));
    known = g->first + (g->cache ? fsdp_kv_cache_length(g->cache) : 0);
    if (g->cache && !fsdp__kv_cache_can_grow(g->cache, count - known)) {
        FSDP_TRY(fsdp_kv_cache_truncate(g->cache, 0));
        known = g->first;
    }
    FSDP_TRY(fsdp_scope_begin(g->context));
    input = fsdp_from_data(g->device, FSDP_I32, FSDP_SHAPE(1, count - known), tokens + known);
    logits = g->cache ? fsdp_model_call_cached(g->module, g->cache, input) : fsdp_call(g->module, input);
    /* They are (1,1,V), unless `each` has changed what the model answers. */
    if (logits && fsdp_tensor_size(logits, 1) > 1)
        logits = fsdp_slice(logits, 1, fsdp_tensor_size(logits, 1) - 1, 1);
    status = logits ? fsdp_tensor_read(logits, FSDP_F32, g->logits) : fsdp_last_status();
    fsdp_scope_end(g->context, NULL);
    return status;
}

/* Broadcasts rank 0's answer, through host memory that the device reaches: it is pinned, which costs more than the
 * broadcast, and so is taken once. */
static fsdp_status broadcast_answer(const generator *g, int32_t answer[2])
{
    fsdp_stream *stream = fsdp_device_stream(g->device);
    fsdp_status status;

    memcpy(g->answer, answer, ANSWER_BYTES);
    status = fsdp_broadcast(fsdp_world(g->context), g->answer, 2, FSDP_I32, 0, stream);
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream));
    memcpy(answer, g->answer, ANSWER_BYTES);
    return status;
}

static bool is_stop(const fsdp_generate_options *options, int32_t token)
{
    for (int64_t i = 0; i < options->stop_token_count; i++)
        if (options->stop_tokens[i] == token)
            return true;
    return false;
}

/* Chooses the next token, and whether to go on: rank 0 decides. */
static fsdp_status next(generator *g, const int32_t *tokens, int64_t count, int64_t made,
                        bool (*each)(void *arg, int32_t token), void *arg, int32_t out[2])
{
    float draw = fsdp__rng_uniform(g->key, (uint64_t)made);
    int rank = fsdp_context_rank(g->context);
    bool stops;

    FSDP_TRY(forward(g, tokens, count));
    FSDP_TRY(fsdp__sample(g->logits, g->config->vocab_size, g->options, draw, g->scratch, &out[0]));
    stops = is_stop(g->options, out[0]);
    out[1] = !stops && (rank != 0 || !each || each(arg, out[0]));
    if (g->answer)
        FSDP_TRY(broadcast_answer(g, out));
    if (rank != 0 && each && !is_stop(g->options, out[0]))
        each(arg, out[0]);
    return FSDP_OK;
}

static fsdp_status generate(generator *g, int32_t *tokens, int64_t *count, bool (*each)(void *arg, int32_t token),
                            void *arg)
{
    for (int64_t made = 0; made < g->options->max_new_tokens; made++) {
        int32_t answer[2];

        FSDP_TRY(next(g, tokens, *count, made, each, arg, answer));
        tokens[(*count)++] = answer[0];
        if (!answer[1])
            break;
    }
    return FSDP_OK;
}

static fsdp_status prepare(generator *g, int64_t count)
{
    int64_t most = count + FSDP__MAX(g->options->max_new_tokens, 1) - 1; /* the model never sees the last token */
    size_t vocab_size = (size_t)g->config->vocab_size;

    g->first = FSDP__MAX(count - g->config->max_seq_len, 0);
    g->logits = fsdp__malloc(vocab_size * sizeof *g->logits);
    g->scratch = g->logits ? fsdp__malloc(vocab_size * sizeof *g->scratch) : NULL;
    if (!g->scratch)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot generate");
    if (fsdp_context_world_size(g->context) > 1)
        FSDP_TRY(fsdp__device_alloc_host(g->device, ANSWER_BYTES, (void **)&g->answer));
    g->cache = g->options->cache;
    if (g->cache && (g->first > 0 || fsdp_kv_cache_length(g->cache) >= count)) /* something is left to compute */
        FSDP_TRY(fsdp_kv_cache_truncate(g->cache, g->first > 0 ? 0 : count - 1));
    if (!g->options->no_cache && !g->cache)
        FSDP_TRY(fsdp_kv_cache_create(g->module, 1, FSDP__MIN(most, g->config->max_seq_len), &g->cache));
    FSDP_TRY(fsdp_model_set_last_logits_only(g->module, true));
    return g->options->reshard ? FSDP_OK : fsdp_module_set_keep_unsharded(g->module, true);
}

static void release(generator *g)
{
    if (g->cache != g->options->cache)
        fsdp_kv_cache_free(g->cache);
    else if (g->cache && g->first > 0)
        (void)fsdp_kv_cache_truncate(g->cache, 0);
    if (g->answer)
        fsdp__device_free_host(g->device, g->answer, ANSWER_BYTES);
    FSDP__FREE_ALL(g->scratch, g->logits);
}

/* ---- modes of modules, to be restored ---- */

typedef struct mode {
    bool training;
    bool sharded, keeps_unsharded;
} mode;

typedef struct modes {
    fsdp_named_modules modules;
    mode *of_each;
    bool last_logits_only;
} modes;

static void release_modes(modes *m)
{
    fsdp_named_modules_release(&m->modules);
    fsdp__free(m->of_each);
}

static fsdp_status look(fsdp_module *module, mode *out)
{
    fsdp_shard_info info;

    *out = (mode){.training = module->training, .sharded = fsdp_module_is_sharded(module)};
    if (!out->sharded)
        return FSDP_OK;
    FSDP_TRY(fsdp_module_shard_info(module, &info));
    out->keeps_unsharded = info.keeps_unsharded;
    return FSDP_OK;
}

static fsdp_status take(modes *m, fsdp_module *module)
{
    fsdp_status status = FSDP_OK;

    m->last_logits_only = fsdp_model_last_logits_only(module);
    FSDP_TRY(fsdp_module_modules(module, NULL, &m->modules));
    m->of_each = fsdp__calloc((size_t)m->modules.count, sizeof *m->of_each);
    if (!m->of_each)
        status = fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot generate");
    for (int64_t i = 0; i < m->modules.count && status == FSDP_OK; i++)
        status = look(m->modules.items[i].module, &m->of_each[i]);
    if (status != FSDP_OK)
        release_modes(m);
    return status;
}

/* Restores what modules keep unsharded. What is set on a module goes for all below it, so the outer ones come first, as
 * they do in the list. A module that does not keep its parameters unsharded is resharded. */
static fsdp_status restore_sharding(const modes *m)
{
    fsdp_status status = FSDP_OK;

    for (int64_t i = 0; i < m->modules.count; i++)
        if (m->of_each[i].sharded)
            FSDP_KEEP_FIRST(status,
                            fsdp_module_set_keep_unsharded(m->modules.items[i].module, m->of_each[i].keeps_unsharded));
    return status;
}

/* Restores all modules one by one: a module in eval mode inside of one that trains must not train from here on. */
static fsdp_status restore(modes *m, fsdp_module *module)
{
    fsdp_status status = restore_sharding(m);

    (void)fsdp_model_set_last_logits_only(module, m->last_logits_only);
    for (int64_t i = 0; i < m->modules.count; i++)
        m->modules.items[i].module->training = m->of_each[i].training;
    release_modes(m);
    return status;
}

/* ---- the call ---- */

fsdp_status fsdp_generate(fsdp_module *module, int32_t *tokens, int64_t *count, const fsdp_generate_options *options,
                          bool (*each)(void *arg, int32_t token), void *arg)
{
    generator g = {.module = module, .options = options};
    modes before = {.of_each = NULL};
    fsdp_status status;

    FSDP_TRY(check(module, tokens, count, options));
    FSDP_TRY(find_device(module, &g.device));
    g.context = module->context;
    g.config = fsdp_model_get_config(module);
    g.key = fsdp__rng_key(options->seed, "generate");
    FSDP_TRY(take(&before, module));
    fsdp_module_train(module, false);
    fsdp_no_grad_begin(g.context);
    status = prepare(&g, *count);
    if (status == FSDP_OK)
        status = generate(&g, tokens, count, each, arg);
    release(&g);
    fsdp_no_grad_end(g.context);
    FSDP_KEEP_FIRST(status, restore(&before, module));
    return status;
}
