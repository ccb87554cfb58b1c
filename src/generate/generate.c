/* generate.c - one token after the other. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/rng.h"
#include "device/device.h"
#include "fsdp/comm.h"
#include "generate/generate.h"

/* A generation in progress. */
typedef struct generator {
    fsdp_module *module;
    fsdp_context *context;
    fsdp_device *device;
    const fsdp_model_config *config;
    const fsdp_generate_options *options;
    uint64_t key;
    float *logits; /* vocab_size */
    fsdp__candidate *scratch;
} generator;

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
    return FSDP_OK;
}

static fsdp_status find_device(fsdp_module *module, fsdp_device **out)
{
    fsdp_parameters parameters = {0};

    FSDP_TRY(fsdp_module_parameters(module, &parameters));
    *out = parameters.count ? fsdp_tensor_device(parameters.items[0].tensor) : NULL;
    fsdp_parameters_release(&parameters);
    if (!*out || fsdp_device_is_meta(*out))
        return FSDP_FAIL(FSDP_STATE, "cannot generate: the model is on the meta device: materialize and load it first");
    return FSDP_OK;
}

/* Logits after `count` tokens, of which the last max_seq_len are looked at. */
static fsdp_status forward(generator *g, const int32_t *tokens, int64_t count)
{
    int64_t window = FSDP__MIN(count, g->config->max_seq_len);
    fsdp_tensor *input, *logits;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(g->context));
    input = fsdp_from_data(g->device, FSDP_I32, FSDP_SHAPE(1, window), tokens + count - window);
    logits = fsdp_call(g->module, input); /* (1,1,V) */
    status = logits ? fsdp_tensor_read(logits, FSDP_F32, g->logits) : fsdp_last_status();
    fsdp_scope_end(g->context, NULL);
    return status;
}

/* Rank 0's, by host memory that the device reaches. */
static fsdp_status broadcast_answer(const generator *g, int32_t answer[2])
{
    size_t bytes = 2 * sizeof *answer;
    fsdp_stream *stream = fsdp_device_stream(g->device);
    fsdp_status status, done;
    void *memory;

    FSDP_TRY(fsdp__device_alloc_host(g->device, bytes, &memory));
    memcpy(memory, answer, bytes);
    status = fsdp_broadcast(fsdp_world(g->context), memory, 2, FSDP_I32, 0, stream);
    done = fsdp_stream_synchronize(stream);
    memcpy(answer, memory, bytes);
    fsdp__device_free_host(g->device, memory, bytes);
    FSDP_TRY(status);
    return done;
}

/* The next token, and whether to go on: rank 0's word. */
static fsdp_status next(generator *g, const int32_t *tokens, int64_t count, int64_t made,
                        bool (*each)(void *arg, int32_t token), void *arg, int32_t out[2])
{
    float draw = fsdp__rng_uniform(g->key, (uint64_t)made);
    int rank = fsdp_context_rank(g->context);

    FSDP_TRY(forward(g, tokens, count));
    FSDP_TRY(fsdp__sample(g->logits, g->config->vocab_size, g->options->temperature, g->options->top_k, draw,
                          g->scratch, &out[0]));
    out[1] = rank == 0 && each ? each(arg, out[0]) : true;
    if (fsdp_context_world_size(g->context) > 1)
        FSDP_TRY(broadcast_answer(g, out));
    if (rank != 0 && each)
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

fsdp_status fsdp_generate(fsdp_module *module, int32_t *tokens, int64_t *count, const fsdp_generate_options *options,
                          bool (*each)(void *arg, int32_t token), void *arg)
{
    generator g = {.module = module, .options = options};
    fsdp_status status = FSDP_OK;
    bool was_training;

    FSDP_TRY(check(module, tokens, count, options));
    FSDP_TRY(find_device(module, &g.device));
    g.context = module->context;
    g.config = fsdp_model_get_config(module);
    g.key = fsdp__rng_key(options->seed, "generate");
    was_training = module->training;
    fsdp_module_train(module, false);
    fsdp_no_grad_begin(g.context);
    g.logits = fsdp__malloc((size_t)g.config->vocab_size * sizeof *g.logits);
    g.scratch = g.logits ? fsdp__malloc((size_t)g.config->vocab_size * sizeof *g.scratch) : NULL;
    if (!g.scratch) {
        status = fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot generate");
        goto out;
    }
    FSDP_TRY_GOTO(status, fsdp_model_set_last_logits_only(module, true), out);
    FSDP_TRY_GOTO(status, generate(&g, tokens, count, each, arg), out);
out:
    fsdp_model_set_last_logits_only(module, false);
    fsdp_no_grad_end(g.context);
    fsdp_module_train(module, was_training);
    fsdp__free(g.scratch);
    fsdp__free(g.logits);
    return status;
}
