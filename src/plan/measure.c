/* measure.c - trains small models, and notes how long each kernel takes at each size. */
#include "plan/measure.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/probe.h"
#include "base/sort.h"
#include "base/text.h"
#include "device/device.h"
#include "fsdp/models.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "fsdp/tensor.h"

/* Holds what a model has that is trained. */
typedef struct sample_model {
    const char *preset;
    int64_t layers, dim, ffn, vocabulary, batch, seq_len;
    fsdp_dtype dtype;
} sample_model;

static const sample_model models[] = {
    {"llama-1m", 1, 768, 2048, 8192, 2, 256, FSDP_F32},   {"gpt-10m", 2, 384, 1536, 256, 4, 256, FSDP_F32},
    {"llama-1m", 2, 256, 640, 1024, 4, 128, FSDP_F32},    {"llama-1m", 1, 768, 2048, 8192, 2, 256, FSDP_BF16},
    {"gpt-10m", 2, 768, 3072, 8192, 2, 256, FSDP_F32},    {"gpt-10m", 2, 384, 1536, 256, 4, 256, FSDP_BF16},
    {"llama-1m", 1, 1536, 4096, 16384, 2, 256, FSDP_F32},
};
static const sample_model smallest = {"llama-1m", 1, 64, 128, 256, 1, 16, FSDP_F32};

/* ---- what was measured ---- */

/* A call of a kernel. Calls of one kernel, dtype and class have about the same size: twice its binary logarithm. */
typedef struct call {
    fsdp__kernel kernel;
    fsdp_dtype dtype;
    int class;
    double work, size, ns;
    fsdp__stamp begun, done;
} call;

typedef struct gauge {
    const fsdp_device *device;
    bool on;
    call *calls; /* of all steps; those of the step at hand begin at `first` */
    int64_t call_count, call_capacity, first;
    double wall_ns, processor_ns, kernel_ns, kernels; /* of all steps that count; processor: of this thread */
    fsdp_status status;
} gauge;

static fsdp_status begin(gauge *g, const fsdp__probe_event *e)
{
    call *c;

    if (fsdp__grow(&g->calls, g->call_count, &g->call_capacity, sizeof *g->calls))
        return FSDP_NO_MEMORY;
    c = &g->calls[g->call_count];
    *c = (call){.kernel = (fsdp__kernel)e->kind};
    c->work = fsdp__price_work(c->kernel, e->object);
    c->size = fsdp__price_size(c->kernel, e->object, c->work, &c->dtype);
    c->class = (int)lrint(2 * log2(fmax(c->size, 1)));
    FSDP_TRY(fsdp__stream_stamp(e->stream, &c->begun));
    g->call_count++;
    return FSDP_OK;
}

static fsdp_status hear(void *arg, fsdp__probe_event *e)
{
    gauge *g = arg;
    fsdp_status status = FSDP_OK;

    if (!g->on || e->kind >= FSDP__KERNELS || fsdp__stream_device(e->stream) != g->device)
        return FSDP_OK;
    if (e->point == FSDP__POINT_KERNEL_BEGUN)
        status = begin(g, e);
    else if (g->call_count > 0)
        status = fsdp__stream_stamp(e->stream, &g->calls[g->call_count - 1].done);
    if (status != FSDP_OK && g->status == FSDP_OK)
        g->status = status;
    return FSDP_OK;
}

/* Reads the stamps of a step. */
static fsdp_status add_step(gauge *g, double wall_ns)
{
    for (; g->first < g->call_count; g->first++) {
        call *c = &g->calls[g->first];
        int64_t begun = 0, done = 0;

        FSDP_TRY(fsdp__stamp_read(&c->begun, &begun));
        FSDP_TRY(fsdp__stamp_read(&c->done, &done));
        c->ns = (double)(done - begun);
        g->kernel_ns += c->ns;
        g->kernels++;
    }
    g->wall_ns += wall_ns;
    return FSDP_OK;
}

/* ---- training ---- */

typedef struct trainee {
    const sample_model *model;
    fsdp_context *context;
    fsdp_device *device;
    fsdp_module *module;
    fsdp_optimizer *optimizer;
} trainee;

static fsdp_status shard(const trainee *t)
{
    fsdp_shard_options options = {.mp_policy = {.param_dtype = t->model->dtype, .reduce_dtype = FSDP_F32}};

    for (int64_t i = 0; i < fsdp_model_block_count(t->module); i++)
        FSDP_TRY(fsdp_fully_shard(fsdp_model_block(t->module, i), &options));
    return fsdp_fully_shard(t->module, &options);
}

static fsdp_status open_trainee(trainee *t)
{
    const sample_model *m = t->model;
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_model_config config;
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {.count = 0};

    FSDP_TRY(fsdp_model_preset(m->preset, &config));
    config.n_layers = m->layers;
    config.dim = m->dim;
    config.ffn_dim = m->ffn;
    config.vocab_size = m->vocabulary;
    config.head_dim = 64;
    config.n_heads = m->dim / 64;
    config.n_kv_heads = config.n_heads;
    config.max_seq_len = m->seq_len;
    config.tie_word_embeddings = false;
    t->module = fsdp_model_create(t->context, fsdp_meta(t->context), &config);
    if (!t->module)
        return fsdp_last_status();
    FSDP_TRY(shard(t));
    FSDP_TRY(fsdp_module_materialize(t->module, t->device));
    FSDP_TRY(fsdp_module_initialize(t->module, 0));
    FSDP_TRY(fsdp_module_parameters(t->module, &parameters));
    return fsdp_adamw_create(&parameters, &adam, &t->optimizer);
}

static fsdp_status forward_and_backward(const trainee *t)
{
    int64_t shape[2] = {t->model->batch, t->model->seq_len};
    fsdp_tensor *loss =
        fsdp_call(t->module, fsdp_zeros(t->device, FSDP_I32, 2, shape), fsdp_zeros(t->device, FSDP_I32, 2, shape));
    double value;

    if (!loss)
        return fsdp_last_status();
    FSDP_TRY(fsdp_tensor_item(loss, &value));
    return fsdp_backward(loss);
}

static fsdp_status step(const trainee *t)
{
    double norm;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(t->context));
    status = forward_and_backward(t);
    fsdp_scope_end(t->context, NULL);
    FSDP_TRY(status);
    FSDP_TRY(fsdp_clip_grad_norm(t->optimizer, 1, &norm));
    FSDP_TRY(fsdp_optimizer_step(t->optimizer));
    FSDP_TRY(fsdp_optimizer_zero_grad(t->optimizer));
    return fsdp_stream_synchronize(fsdp_device_stream(t->device));
}

/* Returns for how long this thread has had a core. */
static int64_t processor_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Takes steps until `until`, but two at least, the first of which does not count. */
static fsdp_status take_steps(gauge *g, const trainee *t, int64_t until)
{
    for (int i = 0; i < 2 || fsdp__clock_ns() < until; i++) {
        int64_t start = fsdp__clock_ns(), ran = processor_ns();

        g->on = i > 0;
        FSDP_TRY(step(t));
        g->on = false;
        FSDP_TRY(g->status);
        g->processor_ns += i > 0 ? (double)(processor_ns() - ran) : 0;
        if (i > 0)
            FSDP_TRY(add_step(g, (double)(fsdp__clock_ns() - start)));
    }
    return FSDP_OK;
}

static fsdp_status train(gauge *g, fsdp_context *context, fsdp_device *device, const sample_model *model, int64_t until)
{
    trainee t = {.model = model, .context = context, .device = device};
    fsdp_status status = open_trainee(&t);

    if (status == FSDP_OK)
        status = take_steps(g, &t, until);
    fsdp_optimizer_free(t.optimizer);
    fsdp_module_unref(t.module);
    return status;
}

static fsdp_status train_all(gauge *g, fsdp_context *context, fsdp_device *device, double seconds)
{
    const uint64_t points = FSDP__POINT_BIT(FSDP__POINT_KERNEL_BEGUN) | FSDP__POINT_BIT(FSDP__POINT_KERNEL_DONE);
    int64_t start = fsdp__clock_ns(), all = (int64_t)(seconds * 1e9);
    fsdp__subscriber *subscriber = fsdp__context_subscribe(context, points, hear, g);
    fsdp_status status = subscriber ? FSDP_OK : FSDP_NO_MEMORY;
    size_t count = FSDP__COUNT_OF(models);

    g->device = device;
    if (seconds <= 0 && status == FSDP_OK)
        status = train(g, context, device, &smallest, start);
    for (size_t i = 0; i < count && seconds > 0 && status == FSDP_OK && (i < 2 || fsdp__clock_ns() - start < all); i++)
        status = train(g, context, device, &models[i], start + all * (int64_t)(i + 1) / (int64_t)count);
    fsdp__unsubscribe(subscriber);
    return status;
}

/* ---- prices ---- */

static bool are_alike(const call *a, const call *b)
{
    return a->kernel == b->kernel && a->dtype == b->dtype && a->class == b->class;
}

/* Sorts calls that are alike together, the fastest first. */
static int by_rate(const void *a, const void *b)
{
    const call *x = a, *y = b;
    double left = x->work * y->ns, right = y->work * x->ns;

    FSDP__ORDER_BY(x->kernel, y->kernel);
    FSDP__ORDER_BY(x->dtype, y->dtype);
    FSDP__ORDER_BY(x->class, y->class);
    return (left < right) - (left > right);
}

/* Makes a rate of alike calls, the fastest first. Those that take over ten times the median are left out: something
 * else has happened there. All others count, since a run has slow ones, too. */
static void add_rate(const call *calls, int64_t count, fsdp__prices *out, double *bytes, double *ns)
{
    const call *middle = &calls[count / 2];
    double work = 0, sizes = 0, taken = 0;

    for (int64_t i = 0; i < count && calls[i].ns * middle->work <= 10 * middle->ns * calls[i].work; i++) {
        work += calls[i].work;
        sizes += calls[i].work * calls[i].size;
        taken += calls[i].ns;
    }
    if (work <= 0 || taken <= 0)
        return;
    if (out->rate_count < FSDP__PRICE_RATES)
        out->rates[out->rate_count++] =
            (fsdp__price_rate){calls->kernel, calls->dtype, sizes / work, work / taken * 1e9};
    *bytes += calls->dtype == FSDP_DTYPE_NONE ? work : 0;
    *ns += calls->dtype == FSDP_DTYPE_NONE ? taken : 0;
}

static void add_rates(const gauge *g, fsdp__prices *out)
{
    double bytes = 0, ns = 0;
    int64_t alike;

    qsort(g->calls, (size_t)g->call_count, sizeof *g->calls, by_rate);
    for (int64_t i = 0; i < g->call_count; i += alike) {
        alike = 1;
        while (i + alike < g->call_count && are_alike(&g->calls[i], &g->calls[i + alike]))
            alike++;
        add_rate(&g->calls[i], alike, out, &bytes, &ns);
    }
    out->per_second = bytes / fmax(ns, 1) * 1e9;
    out->launch = fmax(g->wall_ns - g->kernel_ns, 0) / fmax(g->kernels, 1) * 1e-9;
    fsdp__prices_sort(out);
}

static fsdp_status describe(fsdp_device *device, int threads, bool measures, fsdp__prices *out)
{
    fsdp__device_facts facts = fsdp__device_look(device);
    fsdp__memory_limit limit = fsdp__memory_limit_of_all();

    out->gpu = facts.card[0] != '\0';
    snprintf(out->source, sizeof out->source, "measured");
    snprintf(out->device, sizeof out->device, "%s", out->gpu ? facts.card : "this machine's CPU");
    out->cores = out->gpu ? 0 : threads;
    out->memory_bytes = out->gpu ? (double)facts.memory_bytes : limit.bytes == FSDP__NO_LIMIT ? 0 : (double)limit.bytes;
    out->network = (fsdp__price_link){5e-5, 1.25e9};
    if (out->gpu) {
        out->host = (fsdp__price_link){1e-5, 25e9};
        out->peers = fsdp__price_of_link(facts.card, fsdp__device_worst_link(device, INT_MAX));
        out->machine.latency = 5e-5;
        return FSDP_OK;
    }
    out->machine.per_second = out->per_second;
    return measures ? fsdp__measure_machine(threads, out) : FSDP_OK;
}

fsdp_status fsdp__prices_measure(const char *name, double seconds, fsdp__prices *out)
{
    const fsdp_context_options options = {.threads = fsdp__allowed_cores()};
    gauge g = {.status = FSDP_OK};
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    fsdp_device *device;
    fsdp_status status;

    *out = (fsdp__prices){.rate_count = 0};
    FSDP_TRY(fsdp_context_create(&options, &context));
    device = fsdp_device_open(context, name);
    status = !device ? fsdp_last_status() : seconds < 0 ? FSDP_OK : train_all(&g, context, device, seconds);
    if (status == FSDP_OK) {
        if (seconds >= 0)
            add_rates(&g, out);
        status = describe(device, options.threads, seconds >= 0, out);
        /* This thread computes, or spins until the others have. So it wants a core all the time. */
        out->busy = out->gpu ? 0 : fmax(0, 1 - g.processor_ns / fmax(g.wall_ns, 1));
    }
    fsdp__free(g.calls);
    return status;
}

fsdp_status fsdp__prices_find(const char *option, const char *name, bool timed, fsdp__prices *out)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0)
        return fsdp__prices_measure(name, timed ? FSDP__PRICES_QUICK : -1, out);
    if (strncmp(name, "cuda:", 5) == 0)
        return fsdp__prices_of_card(name + 5, out);
    if (strchr(name, '/') || fsdp__path_exists(name) || fsdp__ends_with(name, ".json"))
        return fsdp__prices_read(name, out);
    return FSDP_FAIL(FSDP_INVALID, "%s is '%s': expected cpu, cuda, cuda:CARD, or a file of prices", option, name);
}

void fsdp__prices_of_machine(int threads, int ranks_of_machine, fsdp__prices *prices)
{
    double times = (double)threads / prices->cores * ranks_of_machine;

    for (int i = 0; i < prices->rate_count; i++)
        prices->rates[i].per_second *= times;
    prices->per_second *= times;
    prices->cores = threads * ranks_of_machine;
}

double fsdp__room_of(const fsdp__prices *prices, int ranks_of_machine, const char **name)
{
    if (!prices) {
        fsdp__memory_limit limit = fsdp__memory_limit_of_all();

        *name = limit.name;
        return limit.bytes == FSDP__NO_LIMIT ? 0 : (double)limit.bytes / ranks_of_machine;
    }
    *name = prices->gpu ? "all memory of the card" : "its share of the machine's memory";
    return prices->gpu ? prices->memory_bytes : prices->memory_bytes / ranks_of_machine;
}
