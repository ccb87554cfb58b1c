/* 04_trace_a_step.c - what happens to every group of parameters in one training step, when, and what it does to memory:
 * a line for each event of this rank, with the bytes that are live then. The second step of a small Llama is shown.
 *
 *     fsdp run -n 2 -- ./04_trace_a_step              as it is by default
 *     fsdp run -n 2 -- ./04_trace_a_step always       or never, or a number of ranks: reshard_after_forward */
#include <fsdp/fsdp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BATCH = 2,
    SEQUENCE = 128
};

typedef struct trace {
    fsdp_context *context;
    struct timespec start;
    bool on;
} trace;

/* ---- recording and printing ---- */

static double milliseconds_since(const struct timespec *start)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) * 1e3 + (double)(now.tv_nsec - start->tv_nsec) / 1e6;
}

static void print_line(const trace *t, const char *event, const char *group)
{
    static const fsdp_memory_kind kinds[] = {FSDP_MEMORY_PARAMETER_SHARD, FSDP_MEMORY_OPTIMIZER_STATE,
                                             FSDP_MEMORY_UNSHARDED_PARAMETER, FSDP_MEMORY_GRADIENT,
                                             FSDP_MEMORY_ACTIVATION};
    fsdp_memory_stats memory;

    if (!t->on || fsdp_context_rank(t->context) != 0)
        return;
    fsdp_device_memory(fsdp_cpu(t->context), &memory);
    printf("%9.3f  %-13s %-15s", milliseconds_since(&t->start), event, group && *group ? group : "(root)");
    for (int k = 0; k < 5; k++)
        printf(" %9.1f%s", (double)memory.live_bytes[kinds[k]] / 1024, k < 4 ? "" : "\n");
}

static void see(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    static const char *const names[] = {"unshard",      "wait",         "reshard",       "pre_forward",
                                        "post_forward", "pre_backward", "post_backward", "reduce"};
    fsdp_shard_info info;

    if (fsdp_module_shard_info(module, &info) == FSDP_OK)
        print_line(arg, names[event], info.name);
}

/* ---- the run ---- */

static fsdp_status build(fsdp_context *context, const fsdp_shard_options *options, fsdp_module **out)
{
    fsdp_model_config config;

    FSDP_TRY(fsdp_model_preset("llama-1m", &config));
    config.max_seq_len = SEQUENCE;
    *out = fsdp_model_create(context, fsdp_meta(context), &config);
    if (!*out)
        return fsdp_last_status();
    for (int64_t i = 0; i < fsdp_model_block_count(*out); i++)
        FSDP_TRY(fsdp_fully_shard(fsdp_model_block(*out, i), options));
    FSDP_TRY(fsdp_fully_shard(*out, options));
    FSDP_TRY(fsdp_module_materialize(*out, fsdp_cpu(context)));
    return fsdp_module_initialize(*out, 1);
}

static fsdp_status step(trace *t, fsdp_module *model, fsdp_optimizer *adamw)
{
    int32_t tokens[BATCH * SEQUENCE], targets[BATCH * SEQUENCE];
    fsdp_device *cpu = fsdp_cpu(t->context);
    fsdp_tensor *loss;

    for (int i = 0; i < BATCH * SEQUENCE; i++) {
        tokens[i] = (i * 7 + fsdp_context_rank(t->context)) % 200;
        targets[i] = ((i + 1) * 7) % 200;
    }
    clock_gettime(CLOCK_MONOTONIC, &t->start);
    print_line(t, "step", NULL);
    FSDP_TRY(fsdp_scope_begin(t->context));
    loss = fsdp_call(model, fsdp_from_data(cpu, FSDP_I32, FSDP_SHAPE(BATCH, SEQUENCE), tokens),
                     fsdp_from_data(cpu, FSDP_I32, FSDP_SHAPE(BATCH, SEQUENCE), targets));
    if (!loss)
        return fsdp_last_status();
    print_line(t, "backward", NULL);
    FSDP_TRY(fsdp_backward(loss));
    fsdp_scope_end(t->context, NULL);
    print_line(t, "optimizer", NULL);
    FSDP_TRY(fsdp_optimizer_step(adamw));
    FSDP_TRY(fsdp_optimizer_zero_grad(adamw));
    print_line(t, "end", NULL);
    return FSDP_OK;
}

static fsdp_status run(trace *t, const fsdp_shard_options *options, fsdp_module **model, fsdp_optimizer **adamw)
{
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_parameters parameters;

    FSDP_TRY(build(t->context, options, model));
    FSDP_TRY(fsdp_module_parameters(*model, &parameters));
    FSDP_TRY(fsdp_adamw_create(&parameters, &adam, adamw));
    fsdp_parameters_release(&parameters);
    FSDP_TRY(fsdp_module_set_shard_listener(*model, see, t));
    FSDP_TRY(step(t, *model, *adamw)); /* the first step makes what later ones use again */
    t->on = true;
    if (fsdp_context_rank(t->context) == 0)
        printf("       ms  event         group           %9s %9s %9s %9s %9s  KiB\n", "shards", "optimizer",
               "unsharded", "gradients", "activat.");
    return step(t, *model, *adamw);
}

static void choose(const char *word, fsdp_shard_options *options)
{
    bool always = !strcmp(word, "always");

    if (always || !strcmp(word, "never"))
        options->reshard_after_forward = always ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_NEVER;
    else
        options->reshard_after_forward_ranks = atoi(word);
}

int main(int argc, char **argv)
{
    fsdp_shard_options options = {0};
    trace t = {0};
    fsdp_module *model = NULL;
    fsdp_optimizer *adamw = NULL;
    fsdp_status status = fsdp_context_from_env(&t.context);

    if (argc > 1)
        choose(argv[1], &options);
    if (status == FSDP_OK)
        status = run(&t, &options, &model, &adamw);
    if (status != FSDP_OK)
        fprintf(stderr, "04_trace_a_step: %s\n", fsdp_last_error());
    fsdp_optimizer_free(adamw);
    fsdp_module_unref(model);
    fsdp_context_free(t.context);
    return status != FSDP_OK;
}
