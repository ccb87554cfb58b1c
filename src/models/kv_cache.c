/* kv_cache.c - keys and values of the tokens that a model has seen. */
#include "base/alloc.h"
#include "base/status.h"
#include "models/models.h"
#include "tensor/tensor.h"

struct fsdp__kv_layer {
    fsdp_kv_cache *cache;
    fsdp_tensor *keys, *values; /* (B,G,S,D), S the capacity: a head's are contiguous. NULL before the first call */
};

struct fsdp_kv_cache {
    fsdp_module *model;              /* held */
    const fsdp_model_config *config; /* the model's */
    int64_t batch, capacity, length, layer_count;
    int64_t rotated_for; /* the fsdp__rope_length of the last call */
    fsdp__kv_layer *layers;
};

/* ---- life cycle ---- */

static fsdp_status check(const fsdp_model_config *config, int64_t batch, int64_t capacity)
{
    if (batch < 1 || capacity < 1)
        return FSDP_FAIL(FSDP_INVALID, "a cache of %lld sequences of %lld tokens: expected at least 1",
                         (long long)batch, (long long)capacity);
    if (config->architecture == FSDP_GPT2 && capacity > config->max_seq_len)
        return FSDP_FAIL(FSDP_INVALID, "a cache of %lld tokens: the model has %lld positions", (long long)capacity,
                         (long long)config->max_seq_len);
    return FSDP_OK;
}

fsdp_status fsdp__kv_cache_create(fsdp_module *model, const fsdp_model_config *config, int64_t batch, int64_t capacity,
                                  fsdp_kv_cache **out)
{
    FSDP__FREED fsdp_kv_cache *cache = NULL;

    FSDP_TRY(check(config, batch, capacity));
    cache = fsdp__calloc(1, sizeof *cache);
    if (!cache)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make a cache");
    cache->layer_count = config->n_layers;
    cache->layers = fsdp__calloc((size_t)cache->layer_count, sizeof *cache->layers);
    if (!cache->layers)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot make a cache");
    for (int64_t i = 0; i < cache->layer_count; i++)
        cache->layers[i].cache = cache;
    cache->model = fsdp_module_ref(model);
    cache->config = config;
    cache->batch = batch;
    cache->capacity = capacity;
    *out = fsdp__take(&cache);
    return FSDP_OK;
}

void fsdp_kv_cache_free(fsdp_kv_cache *cache)
{
    if (!cache)
        return;
    for (int64_t i = 0; i < cache->layer_count; i++) {
        fsdp_tensor_unref(cache->layers[i].keys);
        fsdp_tensor_unref(cache->layers[i].values);
    }
    fsdp_module_unref(cache->model);
    FSDP__FREE_ALL(cache->layers, cache);
}

bool fsdp__kv_cache_is_of(const fsdp_kv_cache *cache, const fsdp_module *model)
{
    return cache->model == model;
}

int64_t fsdp_kv_cache_length(const fsdp_kv_cache *cache)
{
    return cache ? cache->length : 0;
}

fsdp_status fsdp_kv_cache_truncate(fsdp_kv_cache *cache, int64_t length)
{
    if (!cache)
        return FSDP__FAIL_NULL("cannot truncate a cache: it is NULL");
    if (length < 0 || length > cache->length)
        return FSDP_FAIL(FSDP_INVALID, "cannot leave %lld tokens in a cache of %lld", (long long)length,
                         (long long)cache->length);
    cache->length = length;
    return FSDP_OK;
}

/* ---- a call ---- */

/* With dynamic positions keys keep the rotation that they got, as transformers keeps them. */
bool fsdp__kv_cache_can_grow(const fsdp_kv_cache *cache, int64_t count)
{
    return cache->length == 0 || cache->config->rope_type != FSDP_ROPE_LONGROPE ||
           fsdp__rope_length(cache->config, cache->length + count) == cache->rotated_for;
}

fsdp_status fsdp__kv_cache_begin(fsdp_kv_cache *cache, const fsdp_module *model, const fsdp_tensor *tokens)
{
    if (!cache)
        return FSDP__FAIL_NULL("a call with a cache needs one: it is NULL");
    if (cache->model != model)
        return FSDP_FAIL(FSDP_INVALID, "the cache was made for another model");
    if (tokens->ndim != 2 || tokens->shape[0] != cache->batch || tokens->shape[1] < 1)
        return FSDP_FAIL(FSDP_INVALID, "tokens %s do not fit a cache of %lld sequences", FSDP__SHAPE_OF(tokens),
                         (long long)cache->batch);
    if (tokens->shape[1] > cache->capacity - cache->length)
        return FSDP_FAIL(FSDP_INVALID, "the cache holds %lld of %lld tokens: %lld more do not fit",
                         (long long)cache->length, (long long)cache->capacity, (long long)tokens->shape[1]);
    if (!fsdp__kv_cache_can_grow(cache, tokens->shape[1]))
        return FSDP_FAIL(
            FSDP_STATE,
            "the cache has %lld tokens, and %lld more change the model's rotary positions (longrope): empty "
            "it with fsdp_kv_cache_truncate and give all tokens",
            (long long)cache->length, (long long)tokens->shape[1]);
    if (fsdp_grad_enabled(model->context))
        return FSDP_FAIL(FSDP_STATE, "a call with a cache has no gradients: call fsdp_no_grad_begin before");
    return FSDP_OK;
}

void fsdp__kv_cache_end(fsdp_kv_cache *cache, const fsdp_tensor *tokens)
{
    cache->length += tokens->shape[1];
    cache->rotated_for = fsdp__rope_length(cache->config, cache->length);
}

int64_t fsdp__kv_cache_position(const fsdp_kv_cache *cache)
{
    return cache ? cache->length : 0;
}

fsdp__kv_layer *fsdp__kv_cache_layer(fsdp_kv_cache *cache, int64_t layer)
{
    return cache ? &cache->layers[layer] : NULL;
}

int64_t fsdp__kv_layer_position(const fsdp__kv_layer *layer)
{
    return layer ? layer->cache->length : 0;
}

/* Drops *all if its dtype is no longer the one in which the model computes (fsdp_module_to); the cache must be empty
 * then. */
static fsdp_status follow_dtype(const fsdp_kv_cache *cache, fsdp_tensor **all, fsdp_dtype dtype)
{
    if (!*all || (*all)->dtype == dtype)
        return FSDP_OK;
    if (cache->length > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "the cache has %lld tokens in %s, but the model computes in %s now: forget them with "
                         "fsdp_kv_cache_truncate",
                         (long long)cache->length, fsdp_dtype_name((*all)->dtype), fsdp_dtype_name(dtype));
    fsdp_tensor_unref(fsdp__take(all));
    return FSDP_OK;
}

/* Copies *part (B,T,G,D) to its place in *all, which is made at the first call, and makes *part a view of all tokens up
 * to there. */
static fsdp_status extend(const fsdp_kv_cache *cache, fsdp_tensor **all, fsdp_tensor **part)
{
    const fsdp_tensor *x = *part;
    fsdp_tensor *in_time, *place; /* (B,S,G,D) */

    FSDP__TRY_MADE(x);
    FSDP_TRY(follow_dtype(cache, all, x->dtype));
    if (!*all)
        FSDP_TRY(fsdp_tensor_create(x->storage->device, x->dtype,
                                    FSDP_SHAPE(x->shape[0], x->shape[2], cache->capacity, x->shape[3]),
                                    FSDP_MEMORY_ACTIVATION, all));
    in_time = fsdp_transpose(*all, 1, 2);
    FSDP__TRY_MADE(place = fsdp_slice(in_time, 1, cache->length, x->shape[1]));
    FSDP_TRY(fsdp_tensor_copy_(place, x));
    *part = fsdp_slice(in_time, 1, 0, cache->length + x->shape[1]);
    return *part ? FSDP_OK : fsdp_last_status();
}

fsdp_status fsdp__kv_layer_extend(fsdp__kv_layer *layer, fsdp_tensor **keys, fsdp_tensor **values)
{
    if (!layer)
        return FSDP_OK;
    FSDP_TRY(extend(layer->cache, &layer->keys, keys));
    return extend(layer->cache, &layer->values, values);
}
