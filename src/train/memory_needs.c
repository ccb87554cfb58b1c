/* memory_needs.c - what memory a run needs, before it takes any. Only what is certain counts: a run that is refused
 * could not have run. What the allocator rounds up, gathers of cast parameters, kernels' scratch and the program itself
 * come on top. */
#include <errno.h>
#include <stdio.h>

#include "base/compiler.h"
#include "base/limits.h"
#include "base/text.h"
#include "device/device.h"
#include "train/run_config.h"
#include "train/run_start.h"

static const char raise_limit[] = "raise the limit";

typedef struct needs {
    double parameters, gradients, optimizer, activations; /* in bytes: an absurd batch would overflow integers */
    double copy;          /* of the weights and state that a thread writes to a checkpoint, or of the best weights */
    const char *copy_for; /* says which of the two */
} needs;

/* Adds up the needs. In a backward gradients grow as activations are freed, so only the larger of them counts. */
static double sum(const needs *n)
{
    return n->parameters + n->optimizer + n->copy + FSDP__MAX(n->gradients, n->activations);
}

/* Estimates a rank's activations of one microbatch: what each layer's backward surely reads, that is the inputs of the
 * products, of which a rank of a team has its part. For a recomputed block it is the block's input, the rest for one
 * block at a time, and what selective mode surely keeps. */
static double activations(const fsdp_train_config *c, const fsdp_model_config *m)
{
    int64_t layer = 2 * m->dim + (m->n_heads + 2 * m->n_kv_heads) * m->head_dim + m->ffn_dim, all = 0;
    int64_t selective = m->dim + m->n_heads * m->head_dim + m->ffn_dim;
    double tokens = (double)c->training.local_batch_size * (double)c->training.seq_len / fsdp__train_team(c);
    bool whole = false;

    for (int64_t i = 0; i < m->n_layers; i++) {
        fsdp_recompute_mode mode = fsdp__train_recompute_of(c, i);

        whole = whole || mode == FSDP_RECOMPUTE_NONE || mode == FSDP_RECOMPUTE_CHEAP;
        all += mode == FSDP_RECOMPUTE_FULL ? m->dim : mode == FSDP_RECOMPUTE_SELECTIVE ? selective : layer;
    }
    if (!whole)
        all = FSDP__MAX(all, layer);
    return tokens * (double)all * (double)fsdp_dtype_size((fsdp_dtype)c->training.mixed_precision_param);
}

double fsdp__train_moments(const fsdp_train_config *c)
{
    switch (c->optimizer.name) {
    case FSDP_TRAIN_SGD:
        return c->optimizer.momentum > 0 ? 1 : 0;
    case FSDP_TRAIN_LION:
    case FSDP_TRAIN_MUON: /* of hidden matrices; two of all else */
        return 1;
    case FSDP_TRAIN_ADAFACTOR: /* of vectors one; of matrices a number for each row and column */
        return 0;
    case FSDP_TRAIN_ADAMW8BIT: /* two bytes an element of hidden matrices */
        return 0.5;
    default:
        return 2;
    }
}

/* Returns the bytes of all parameters as they are held. Until the model is built, it is the least that they may be. */
static double bytes_held(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    double numel = (double)fsdp_model_config_parameters(&run->model_config);
    double each = c->adapter.quantize == FSDP_QUANTIZE_NF4 ? 0.5
                  : c->adapter.quantize == FSDP_QUANTIZE_INT8
                      ? 1
                      : (double)fsdp_dtype_size((fsdp_dtype)c->adapter.base_dtype);

    return run->parameter_bytes > 0 ? run->parameter_bytes : each * numel;
}

/* Computes the needs of `ranks` of the world's ranks: each has its part of what is sharded, and its own activations. */
static needs needs_of(const fsdp_train_run *run, int ranks)
{
    const fsdp_train_config *c = run->config;
    double bytes = 4 * (double)fsdp_model_config_parameters(&run->model_config); /* if shards are float32 */
    double copies = fsdp__train_replicas(c, fsdp_context_world_size(run->context));
    double part = copies * bytes * ranks / fsdp_context_world_size(run->context);
    /* Only a built model knows which parameters are trained. */
    double trained = c->model.frozen_count > 0 || run->lora ? (double)run->trained_parameters / (bytes / 4) : 1;
    double kept = (double)run->kept_parameters / (bytes / 4);
    double moments = (fsdp__train_moments(c) * (trained + kept) + (c->training.ema_decay > 0 ? trained : 0)) * part;
    /* This is for an asynchronous checkpoint, where replicas have one writer. */
    bool async = fsdp__train_saves(c) && c->checkpoint.async_mode == 1;
    bool best = fsdp__train_exports_best(c) && !fsdp__train_saves(c);

    return (needs){.parameters = part * bytes_held(run) / bytes,
                   .gradients = trained * part,
                   .optimizer = moments,
                   .activations = ranks * activations(c, &run->model_config),
                   .copy = async  ? (part + moments) / copies
                           : best ? part
                                  : 0,
                   .copy_for = async ? "asynchronous checkpoints" : "the best weights"};
}

/* Computes the bytes that this rank has on its GPU: everything that is not offloaded, and copies for writing. */
static needs needs_of_gpu(const fsdp_train_run *run)
{
    needs n = needs_of(run, 1);

    n.copy = 0;
    if (run->config->training.enable_cpu_offload)
        n.parameters = n.gradients = n.optimizer = 0;
    return n;
}

/* Computes what `ranks` have on the host: all, or what is not on their GPUs. */
static needs needs_of_host(const fsdp_train_run *run, int ranks, bool gpu)
{
    needs n = needs_of(run, ranks);

    if (!gpu)
        return n;
    n.activations = 0;
    if (!run->config->training.enable_cpu_offload)
        n.parameters = n.gradients = n.optimizer = 0;
    return n;
}

/* Writes, beside a limit, "9.60GiB (parameters 2.40GiB, optimizer state 4.80GiB, ...)". */
static void describe(const needs *n, double limit, char *text, size_t text_bytes)
{
    char copy[80] = "";

    if (n->copy > 0)
        snprintf(copy, sizeof copy, "the copy of %s %s, ", n->copy_for, FSDP__SIZE(n->copy));
    snprintf(text, text_bytes,
             "%s (parameters %s, optimizer state %s, %sthe larger of gradients %s and activations %s)",
             fsdp__size_text_beside(sum(n), limit, FSDP__ROOM(24)), FSDP__SIZE(n->parameters), FSDP__SIZE(n->optimizer),
             copy, FSDP__SIZE(n->gradients), FSDP__SIZE(n->activations));
}

static fsdp_status check(const needs *n, const char *whose, const fsdp__memory_limit *limit, const char *otherwise)
{
    char text[320];

    if (sum(n) <= (double)limit->bytes)
        return FSDP_OK;
    describe(n, (double)limit->bytes, text, sizeof text);
    return FSDP_FAIL(FSDP_NO_MEMORY,
                     "%s at least %s, but %s is %s: take a smaller model, training.local_batch_size or "
                     "training.seq_len, or %s",
                     whose, text, limit->name, fsdp__size_text_beside((double)limit->bytes, sum(n), FSDP__ROOM(24)),
                     otherwise);
}

/* Checks this rank's own limits. A single process has everything in its own address space; with several, the parameters
 * lie in memory that they share and have mapped by now. Threads, libraries and segments need some too. */
static fsdp_status check_own(const fsdp_train_run *run, bool gpu)
{
    const uint64_t spare = (uint64_t)64 << 20;
    fsdp__memory_limit limit = fsdp__memory_limit_of_one();
    needs own = needs_of_host(run, 1, gpu);

    if (limit.bytes == FSDP__NO_LIMIT)
        return FSDP_OK;
    if (fsdp_context_world_size(run->context) > 1)
        own.parameters = 0;
    if (limit.bytes < spare)
        return FSDP_FAIL(FSDP_NO_MEMORY, "%s is %s, less than the program itself needs: raise the limit", limit.name,
                         FSDP__SIZE(limit.bytes));
    limit.bytes -= spare;
    return check(&own, "this rank needs", &limit, raise_limit);
}

/* Checks what this rank has on its GPU against all the memory of the card. */
static fsdp_status check_gpu(const fsdp_train_run *run, const fsdp__device_facts *facts)
{
    needs own = needs_of_gpu(run);
    fsdp__memory_limit limit = {.bytes = facts->memory_bytes, .name = "the memory of its GPU"};

    return check(&own, "this rank needs", &limit, "take more ranks, each with a GPU");
}

/* Checks that the threads that read ahead can be started; those that compute have been (backend/cpu/cpu_thread.c). */
static fsdp_status check_threads(const fsdp_train_run *run)
{
    int workers = (int)run->config->data.workers, most = workers > 0 ? fsdp__threads_startable(workers) : workers;

    if (most == workers || most >= 256)
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_NO_MEMORY,
        "this rank reads data ahead with %d threads, and the system starts %d beside those that compute%s: "
        "raise the limit, or set data.workers or training.threads (now %d)",
        workers, most, fsdp__limit_behind(EAGAIN), fsdp_context_threads(run->context));
}

fsdp_status fsdp__train_check_needs(const fsdp_train_run *run)
{
    const fsdp__device_facts facts = run->device ? fsdp__device_look(run->device) : (fsdp__device_facts){.card = ""};
    const bool gpu = facts.card[0] != '\0';
    needs all = needs_of_host(run, fsdp_context_local_world_size(run->context), gpu);
    fsdp__memory_limit limit = fsdp__memory_limit_of_all();
    uint64_t available = fsdp__memory_available();
    char text[320];

    if (gpu) {
        FSDP_TRY(fsdp__device_alive(run->device));
        FSDP_TRY(check_gpu(run, &facts));
    }
    FSDP_TRY(check(&all,
                   fsdp_context_local_world_size(run->context) > 1 ? "the ranks of this machine need" : "the run needs",
                   &limit, raise_limit));
    FSDP_TRY(check_own(run, gpu));
    FSDP_TRY(check_threads(run));
    if (sum(&all) > (double)available && fsdp_context_rank(run->context) == 0) {
        describe(&all, (double)available, text, sizeof text);
        fsdp_log(run->context, FSDP_LOG_WARNING, "the run needs at least %s, and only %s of memory are free now", text,
                 fsdp__size_text_beside((double)available, sum(&all), FSDP__ROOM(24)));
    }
    return FSDP_OK;
}
