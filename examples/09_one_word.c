/* 09_one_word.c - runs the same training as DDP, ZeRO-1, -2, -3, FSDP1 or FSDP2, chosen by one word: the loss is the
 * same, and what a rank holds and sends differs. Of two steps of two microbatches the second one is measured.
 *
 *     fsdp run -n 4 -- ./09_one_word                   all of them, a line each
 *     fsdp run -n 4 -- ./09_one_word zero2             or ddp, zero1, zero3, fsdp1, fsdp2 */
#include <fsdp/fsdp.h>
#include <string.h>

enum {
    DIM = 64,
    BATCH = 8, /* samples of a microbatch */
    MICROBATCHES = 2
};

/* Shards the model in the way that the word names. */
static fsdp_status shard(fsdp_module *model, const char *word)
{
    static const char *const classes[] = {"Sequential"}; /* the type of a block */
    fsdp_wrap_policy blocks = {.kind = FSDP_WRAP_CLASSES, .classes = classes, .class_count = 1};
    fsdp_fsdp1_options fsdp1 = {.auto_wrap_policy = &blocks, .use_orig_params = true};
    fsdp_shard_options fsdp2 = {.zero_stage = strncmp(word, "zero", 4) ? 0 : word[4] - '0'};

    if (!strcmp(word, "ddp"))
        return fsdp_replicate(model, NULL);
    if (!strcmp(word, "fsdp1"))
        return fsdp_fsdp1_wrap(model, &fsdp1);
    if (strncmp(word, "zero", 4) != 0 && strcmp(word, "fsdp2") != 0)
        return FSDP_FAIL(FSDP_INVALID, "'%s' is none of ddp, zero1, zero2, zero3, fsdp1, fsdp2", word);
    return fsdp_fully_shard_by_policy(model, &blocks, &fsdp2);
}

/* Says before each microbatch whether its backward is the step's last. FSDP reduces gradients in every backward here,
 * as ZeRO-2 and -3 do; ZeRO-1 and DDP add them up on the rank first. */
static fsdp_status begin_microbatch(fsdp_module *model, const char *word, bool last)
{
    return !strcmp(word, "ddp")        ? fsdp_module_set_requires_gradient_sync(model, last, true)
           : !strncmp(word, "zero", 4) ? fsdp_module_set_is_last_microbatch(model, last)
                                       : FSDP_OK;
}

static fsdp_module *block(fsdp_context *c)
{
    fsdp_module *layers[] = {fsdp_linear_create(c, fsdp_cpu(c), DIM, 4 * DIM, NULL), fsdp_gelu_create(c, false),
                             fsdp_linear_create(c, fsdp_cpu(c), 4 * DIM, DIM, NULL)};

    return fsdp_sequential_create(c, layers, 3);
}

static fsdp_status microbatch(fsdp_module *model, int number, double *loss)
{
    fsdp_context *c = model->context;
    float values[BATCH * DIM];
    fsdp_tensor *x, *difference, *mean;

    for (int i = 0; i < BATCH * DIM; i++)
        values[i] = (float)((i * 37 + number * 101 + fsdp_context_rank(c) * 53) % 97) / 97;
    x = fsdp_from_data(fsdp_cpu(c), FSDP_F32, FSDP_SHAPE(BATCH, DIM), values);
    difference = fsdp_add(fsdp_call(model, x), fsdp_scale(x, -1)); /* the model learns to give back its input */
    mean = fsdp_scale(fsdp_mean(fsdp_mul(difference, difference)), 1.0 / MICROBATCHES);
    if (!mean)
        return fsdp_last_status();
    FSDP_TRY(fsdp_tensor_item(mean, loss));
    return fsdp_backward(mean);
}

/* Runs a step. *between: bytes of gradients after the first microbatch. */
static fsdp_status step(fsdp_module *model, fsdp_optimizer *adamw, const char *word, double *loss, size_t *between)
{
    fsdp_memory_stats memory;
    double parts[MICROBATCHES];

    for (int i = 0; i < MICROBATCHES; i++) {
        FSDP_TRY(fsdp_scope_begin(model->context));
        FSDP_TRY(begin_microbatch(model, word, i + 1 == MICROBATCHES));
        FSDP_TRY(microbatch(model, i, &parts[i]));
        fsdp_scope_end(model->context, NULL);
        fsdp_device_memory(fsdp_cpu(model->context), &memory);
        *between = i == 0 ? memory.live_bytes[FSDP_MEMORY_GRADIENT] : *between;
    }
    *loss = parts[0] + parts[1];
    FSDP_TRY(fsdp_optimizer_step(adamw));
    return fsdp_optimizer_zero_grad(adamw);
}

static void print(fsdp_context *c, const char *word, double loss, size_t between)
{
    fsdp_memory_stats m;
    fsdp_comm_stats s;
    int64_t sent;

    fsdp_device_memory(fsdp_cpu(c), &m);
    fsdp_context_comm_stats(c, &s);
    sent = s.bytes_sent[FSDP_ALL_GATHER] + s.bytes_sent[FSDP_REDUCE_SCATTER] + s.bytes_sent[FSDP_ALL_REDUCE];
    printf("%-6s %7.4f %10zu %8zu %9zu %9zu %6lld %8lld %8lld %8lld\n", word, loss,
           m.live_bytes[FSDP_MEMORY_PARAMETER_SHARD] / 1024, m.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER] / 1024,
           between / 1024, m.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE] / 1024, (long long)sent / 1024,
           (long long)s.calls[FSDP_ALL_GATHER], (long long)s.calls[FSDP_REDUCE_SCATTER],
           (long long)s.calls[FSDP_ALL_REDUCE]);
}

static fsdp_status train(fsdp_module *model, const char *word, fsdp_optimizer **adamw)
{
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_context *c = model->context;
    fsdp_parameters parameters;
    size_t between;
    double loss;

    FSDP_TRY(fsdp_module_initialize(model, 1));
    FSDP_TRY(shard(model, word));
    FSDP_TRY(fsdp_module_parameters(model, &parameters));
    FSDP_TRY(fsdp_adamw_create(&parameters, &options, adamw));
    fsdp_parameters_release(&parameters);
    FSDP_TRY(step(model, *adamw, word, &loss, &between)); /* the first step makes what later ones use again */
    fsdp_device_reset_peak(fsdp_cpu(c));
    fsdp_context_reset_comm_stats(c);
    FSDP_TRY(step(model, *adamw, word, &loss, &between));
    if (fsdp_context_rank(c) == 0)
        print(c, word, loss, between);
    return FSDP_OK;
}

static fsdp_status run(fsdp_context *c, const char *word)
{
    fsdp_module *blocks[] = {block(c), block(c), block(c), block(c)}, *model = fsdp_sequential_create(c, blocks, 4);
    fsdp_optimizer *adamw = NULL;
    fsdp_status status = model ? train(model, word, &adamw) : fsdp_last_status();

    fsdp_optimizer_free(adamw);
    fsdp_module_unref(model);
    return status;
}

int main(int argc, char **argv)
{
    static char *all[] = {"ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"};
    char **words = argc > 1 ? argv + 1 : all;
    fsdp_context *c = NULL;
    fsdp_status status = fsdp_context_from_env(&c);

    if (status == FSDP_OK && fsdp_context_rank(c) == 0)
        printf("rank 0, KiB:   parameters    whole gradients optimizer         all-    reduce-  all-\n"
               "word      loss    at rest  at most   between     state   sent  gathers scatters  reduces\n");
    for (int i = 0; i < (argc > 1 ? argc - 1 : 6) && status == FSDP_OK; i++)
        status = run(c, words[i]);
    if (status != FSDP_OK)
        fprintf(stderr, "09_one_word: %s\n", fsdp_last_error());
    fsdp_context_free(c);
    return status != FSDP_OK;
}
