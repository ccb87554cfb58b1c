/* bench_generate - measures the time of a prompt and of each token after it; prints one JSON line on rank 0.
 *
 *     bench_generate --model llama-100m --prompt 64 --tokens 64                     one process
 *     fsdp run -n 2 -- bench_generate --model llama-100m                            sharded
 *
 * --dtype is that of the weights, --no-cache computes all tokens again for each, --reshard gathers for each token. The
 * model has random weights; the most likely token is taken. The floor is the time in which the bytes that a token needs
 * come out of memory: all weights that take part in products, once, at the rate at which all cores together read a
 * large array. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fsdp/generate.h"
#include "fsdp/launch.h"
#include "fsdp/shard.h"

typedef struct options {
    const char *model, *dtype;
    long prompt, tokens;
    bool no_cache, reshard;
} options;

typedef struct times {
    int64_t began, first, last; /* ns */
    long tokens;
} times;

static void check(fsdp_status status)
{
    if (status == FSDP_OK)
        return;
    fprintf(stderr, "bench_generate: %s\n", fsdp_last_error());
    exit(1);
}

static options parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"model", 1, NULL, 'm'},
        {"dtype", 1, NULL, 'd'},
        {"prompt", 1, NULL, 'p'},
        {"tokens", 1, NULL, 't'},
        {"no-cache", 0, NULL, 'n'},
        {"reshard", 0, NULL, 'r'},
        {0},
    };
    options o = {.model = "llama-100m", .dtype = "float32", .prompt = 64, .tokens = 64};
    int letter;

    while ((letter = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (letter == 'm')
            o.model = optarg;
        else if (letter == 'd')
            o.dtype = optarg;
        else if (letter == 'p')
            o.prompt = atol(optarg);
        else if (letter == 't')
            o.tokens = atol(optarg);
        else if (letter == 'n')
            o.no_cache = true;
        else if (letter == 'r')
            o.reshard = true;
        else
            exit(2);
    }
    return o;
}

/* Returns the bytes per second at which all threads together read an array that no cache holds: the best of a few
 * runs. */
static double measure_bandwidth(void)
{
    const int64_t count = (int64_t)64 << 20;
    float *data = malloc((size_t)count * sizeof *data), sum = 0;
    double best = 0;

    if (!data)
        exit(1);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++)
        data[i] = (float)(i & 7);
    for (int trial = 0; trial < 6; trial++) {
        int64_t began = fsdp__clock_ns();
        double rate;
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += data[i];
        rate = (double)count * 4 / ((double)(fsdp__clock_ns() - began) / 1e9);
        best = rate > best ? rate : best;
    }
    free(data);
    return sum == 0 ? 0 : best;
}

static fsdp_module *make_model(fsdp_context *context, const options *o, fsdp_model_config *config)
{
    fsdp_module *model;

    check(fsdp_model_preset(o->model, config));
    model = fsdp_model_create(context, fsdp_meta(context), config);
    check(model ? FSDP_OK : fsdp_last_status());
    if (strcmp(o->dtype, "bfloat16") == 0)
        check(fsdp_module_to(model, FSDP_BF16));
    if (fsdp_context_world_size(context) > 1) {
        for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
            check(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
        check(fsdp_fully_shard(model, NULL));
    }
    check(fsdp_module_materialize(model, fsdp_cpu(context)));
    check(fsdp_module_initialize(model, 1));
    return model;
}

static bool note_time(void *arg, int32_t token)
{
    times *t = arg;

    (void)token;
    t->last = fsdp__clock_ns();
    if (t->tokens++ == 0)
        t->first = t->last;
    return true;
}

static times run(fsdp_module *model, const options *o)
{
    fsdp_generate_options generate = {.max_new_tokens = o->tokens, .no_cache = o->no_cache, .reshard = o->reshard};
    int32_t *tokens = calloc((size_t)(o->prompt + o->tokens), sizeof *tokens);
    int64_t count = o->prompt;
    times t = {.began = fsdp__clock_ns()};

    for (int64_t i = 0; tokens && i < count; i++)
        tokens[i] = (int32_t)(i * 7 % 250);
    t.began = fsdp__clock_ns();
    check(tokens ? fsdp_generate(model, tokens, &count, &generate, note_time, &t) : FSDP_NO_MEMORY);
    free(tokens);
    return t;
}

int main(int argc, char **argv)
{
    options o = parse(argc, argv);
    fsdp_context *context;
    fsdp_model_config config;
    fsdp_module *model;
    double bandwidth, bytes, token_ns, floor_ns;
    times t;

    check(fsdp_context_from_env(&context));
    bandwidth = measure_bandwidth();
    model = make_model(context, &o, &config);
    (void)run(model, &(options){.prompt = o.prompt, .tokens = 2, .no_cache = o.no_cache});
    t = run(model, &o);
    bytes = (double)(fsdp_model_config_parameters(&config) - config.vocab_size * config.dim) *
            (strcmp(o.dtype, "bfloat16") == 0 ? 2 : 4);
    token_ns = t.tokens > 1 ? (double)(t.last - t.first) / (double)(t.tokens - 1) : 0;
    floor_ns = bytes / bandwidth * 1e9;
    if (fsdp_context_rank(context) == 0)
        printf("{\"model\": \"%s\", \"dtype\": \"%s\", \"ranks\": %d, \"cache\": %s, \"prompt\": %ld, \"tokens\": %ld, "
               "\"prompt_ms\": %.1f, \"token_ms\": %.2f, \"tokens_per_s\": %.1f, \"weights_mb\": %.0f, "
               "\"read_gb_per_s\": %.1f, \"of_floor\": %.2f}\n",
               o.model, o.dtype, fsdp_context_world_size(context), o.no_cache ? "false" : "true", o.prompt, t.tokens,
               (double)(t.first - t.began) / 1e6, token_ns / 1e6, 1e9 / token_ns, bytes / 1e6, bandwidth / 1e9,
               floor_ns / token_ns);
    fsdp_module_unref(model);
    fsdp_context_free(context);
    return 0;
}
