/* bench_step - measures time and memory of training steps on fixed random tokens; prints one JSON line on rank 0.
 *
 *     bench_step --model gpt-10m --batch 8 --seq 256                     one process
 *     fsdp run -n 2 -- bench_step --model gpt-10m --batch 4 --seq 256    --batch is per rank
 *
 * --mode is one of the ways to shard: fsdp2, zero1, zero2, zero3 (options.zero_stage), fsdp1, ddp, ddp-zero (with its
 * optimizer's state partitioned), or none. --layers and --dim change the model (width in heads of 64, the feed-forward
 * in proportion), --group gives that many blocks to one fully_shard; --parts makes smaller units: attention and MLP of
 * each block, embedding, head; the last two stay whole after a forward. --tensor N cuts layers over teams of N ranks,
 * which share the sequences of --batch, before FSDP2 shards over the teams; --sequence cuts their sequences, too,
 * --async sends what that takes in pieces, and the loss is made from parts of the vocabulary. The model has --seq
 * positions and an untied head. The optimizer is AdamW; a step is forward, backward, step, zero_grad. The printed loss
 * is that of the first step: close to the logarithm of the vocabulary. bench/compare.py runs it beside a peer. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/probe.h"
#include "base/rng.h"
#include "device/kernels.h"
#include "fsdp/fsdp1.h"
#include "fsdp/launch.h"
#include "fsdp/models.h"
#include "fsdp/optim.h"
#include "fsdp/parallelize.h"
#include "fsdp/replicate.h"

typedef struct options {
    const char *model;
    long batch, seq, steps, warmup;
    long layers, dim; /* 0: as in the preset */
    long group;       /* blocks in one gather */
    long tensor;      /* ranks of a team */
    const char *mode;
    bool bf16, copy, parts, keep_last, sequence, async;
    fsdp_reshard reshard;
    fsdp_overlap overlap;
} options;

typedef struct rank_report {
    double pss_mb, rss_mb;
    fsdp_memory_stats memory;
    int64_t kernel_ns[FSDP__KERNEL_CLASSES], comm_ns, wait_ns, faults, cpu_ns;
    int64_t sent, sent_in_teams; /* bytes, to data parallel ranks and to those of the team */
} rank_report;

/* The mesh of a model that is cut over teams. */
typedef struct teams {
    fsdp_mesh *dp, *tp; /* NULL: there are none */
} teams;

static void check(fsdp_status status)
{
    if (status == FSDP_OK)
        return;
    fprintf(stderr, "bench_step: %s\n", fsdp_last_error());
    exit(1);
}

static fsdp_reshard reshard_named(const char *name)
{
    if (!strcmp(name, "always"))
        return FSDP_RESHARD_ALWAYS;
    return !strcmp(name, "never") ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO;
}

/* Sets an option without a value. */
static void set_flag(options *o, int letter)
{
    switch (letter) {
    case 'f':
        o->bf16 = true;
        break;
    case 'c':
        o->copy = true;
        break;
    case 'k':
        o->overlap = FSDP_OVERLAP_WORKER;
        break;
    case 'p':
        o->parts = true;
        break;
    case 'K':
        o->keep_last = true;
        break;
    case 'S':
        o->sequence = true;
        break;
    case 'a':
        o->sequence = o->async = true;
        break;
    default:
        exit(2);
    }
}

static void set_option(options *o, int letter)
{
    switch (letter) {
    case 'm':
        o->model = optarg;
        break;
    case 'b':
        o->batch = atol(optarg);
        break;
    case 's':
        o->seq = atol(optarg);
        break;
    case 'l':
        o->layers = atol(optarg);
        break;
    case 'd':
        o->dim = atol(optarg);
        break;
    case 'g':
        o->group = atol(optarg);
        break;
    case 'n':
        o->steps = atol(optarg);
        break;
    case 'w':
        o->warmup = atol(optarg);
        break;
    case 'o':
        o->mode = optarg;
        break;
    case 'r':
        o->reshard = reshard_named(optarg);
        break;
    case 't':
        o->tensor = atol(optarg);
        break;
    default:
        set_flag(o, letter);
    }
}

static options parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"model", 1, NULL, 'm'},
        {"batch", 1, NULL, 'b'},
        {"seq", 1, NULL, 's'},
        {"layers", 1, NULL, 'l'},
        {"dim", 1, NULL, 'd'},
        {"group", 1, NULL, 'g'},
        {"steps", 1, NULL, 'n'},
        {"warmup", 1, NULL, 'w'},
        {"mode", 1, NULL, 'o'},
        {"bf16", 0, NULL, 'f'},
        {"reshard", 1, NULL, 'r'},
        {"no-shared-memory", 0, NULL, 'c'},
        {"worker", 0, NULL, 'k'},
        {"parts", 0, NULL, 'p'},
        {"keep-last", 0, NULL, 'K'},
        {"tensor", 1, NULL, 't'},
        {"sequence", 0, NULL, 'S'},
        {"async", 0, NULL, 'a'},
        {0},
    };
    options o = {
        .model = "gpt-10m", .batch = 8, .seq = 256, .steps = 10, .warmup = 3, .group = 1, .tensor = 1, .mode = "fsdp2"};
    int letter;

    while ((letter = getopt_long(argc, argv, "", known, NULL)) != -1)
        set_option(&o, letter);
    return o;
}

static double pss_mb(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    double kb = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %lf kB", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb / 1024;
}

static void resize(fsdp_model_config *config, const options *o)
{
    if (o->layers)
        config->n_layers = o->layers;
    if (o->dim) {
        config->ffn_dim = config->ffn_dim * o->dim / config->dim;
        config->n_kv_heads = config->n_kv_heads == config->n_heads ? o->dim / 64 : 1;
        config->n_heads = o->dim / 64;
        config->head_dim = 64;
        config->dim = o->dim;
    }
}

/* Shards those of the children that the model has: GPT-2 and Llama name the same parts differently. */
static void shard_children(fsdp_module *module, const char *const *names, const fsdp_shard_options *shard)
{
    for (; *names; names++) {
        fsdp_module *child = fsdp_module_child(module, *names);

        if (child)
            check(fsdp_fully_shard(child, shard));
    }
}

static void shard_parts(fsdp_module *model, const fsdp_shard_options *shard)
{
    static const char *const of_block[] = {"attn", "self_attn", "mlp", NULL};
    static const char *const of_model[] = {"transformer.wte", "model.embed_tokens", "lm_head", NULL};
    fsdp_shard_options whole = *shard;

    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        shard_children(fsdp_model_block(model, i), of_block, shard);
    whole.reshard_after_forward = FSDP_RESHARD_NEVER;
    shard_children(model, of_model, &whole);
}

/* Shards --group blocks at a time, or their parts, then the root. */
static void shard_model(fsdp_module *model, const options *o, const fsdp_shard_options *shard)
{
    int64_t blocks = o->parts ? 0 : fsdp_model_block_count(model);
    fsdp_module *together[64];

    if (o->parts)
        shard_parts(model, shard);
    for (int64_t i = 0; i < blocks;) {
        int count = 0;

        do
            together[count++] = fsdp_model_block(model, i++);
        while (i < blocks && count < o->group && count < 64);
        check(fsdp_fully_shard_modules(together, count, shard));
    }
    check(fsdp_fully_shard(model, shard));
    if (o->keep_last) {
        fsdp_module *last = fsdp_model_block(model, fsdp_model_block_count(model) - 1);

        check(fsdp_module_set_reshard_after_forward(o->parts ? fsdp_module_child(last, "mlp") : last, false, false));
    }
}

static bool is_mode(const options *o, const char *mode)
{
    return strcmp(o->mode, mode) == 0;
}

static void wrap_fsdp1(fsdp_module *model, const options *o)
{
    fsdp_fsdp1_options fsdp1 = {.overlap = o->overlap, .no_shared_memory = o->copy};

    if (o->bf16)
        fsdp1.mixed_precision = (fsdp_fsdp1_mixed_precision){.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32};
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        check(fsdp_fsdp1_wrap(fsdp_model_block(model, i), &fsdp1));
    check(fsdp_fsdp1_wrap(model, &fsdp1));
}

/* Cuts the layers over teams of --tensor consecutive ranks. */
static void cut_layers(fsdp_module *model, const options *o, teams *t)
{
    static const char *const names[] = {"dp", "tp"};
    const fsdp_model_parallel_options plan = {
        .sequence_parallel = o->sequence, .loss_parallel = true, .async = o->async};
    fsdp_mesh *mesh;

    check(fsdp_mesh_create(model->context, 2,
                           (const int64_t[]){fsdp_context_world_size(model->context) / o->tensor, o->tensor}, names,
                           &mesh));
    check(fsdp_mesh_slice(mesh, 1, &names[0], &t->dp));
    check(fsdp_mesh_slice(mesh, 1, &names[1], &t->tp));
    fsdp_mesh_unref(mesh);
    check(fsdp_model_parallelize(model, t->tp, &plan));
}

/* Shards the model in the way that --mode names. */
static void enter(fsdp_module *model, const options *o, teams *t)
{
    fsdp_shard_options shard = {
        .reshard_after_forward = o->reshard, .overlap = o->overlap, .no_shared_memory = o->copy};

    if (o->tensor > 1)
        cut_layers(model, o, t);
    shard.mesh = t->dp;
    if (o->bf16)
        shard.mp_policy = (fsdp_mp_policy){.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32};
    if (strncmp(o->mode, "zero", 4) == 0)
        shard.zero_stage = atoi(o->mode + 4);
    if (is_mode(o, "fsdp1"))
        wrap_fsdp1(model, o);
    else if (strncmp(o->mode, "ddp", 3) == 0)
        check(fsdp_replicate(model, &(fsdp_replicate_options){.overlap = o->overlap, .no_shared_memory = o->copy}));
    else if (is_mode(o, "fsdp2") || shard.zero_stage > 0)
        shard_model(model, o, &shard);
    else if (!is_mode(o, "none")) {
        fprintf(stderr, "bench_step: --mode %s is none\n", o->mode);
        exit(2);
    }
}

static fsdp_module *build(fsdp_context *context, const options *o, fsdp_model_config *config, teams *t)
{
    fsdp_module *model;

    check(fsdp_model_preset(o->model, config));
    resize(config, o);
    config->max_seq_len = o->seq;
    config->tie_word_embeddings = false;
    model = fsdp_model_create(context, fsdp_meta(context), config);
    check(model ? FSDP_OK : fsdp_last_status());
    enter(model, o, t);
    check(fsdp_module_materialize(model, fsdp_cpu(context)));
    check(fsdp_module_initialize(model, 0));
    return model;
}

static double step(fsdp_module *model, fsdp_optimizer *adamw, const options *o, const int32_t *tokens,
                   const int32_t *targets)
{
    fsdp_context *context = model->context;
    fsdp_device *cpu = fsdp_cpu(context);
    fsdp_tensor *loss;
    double value;

    check(fsdp_scope_begin(context));
    loss = fsdp_call(model, fsdp_from_data(cpu, FSDP_I32, FSDP_SHAPE(o->batch, o->seq), tokens),
                     fsdp_from_data(cpu, FSDP_I32, FSDP_SHAPE(o->batch, o->seq), targets));
    check(loss ? FSDP_OK : fsdp_last_status());
    check(fsdp_tensor_item(loss, &value));
    check(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    check(fsdp_optimizer_step(adamw));
    check(fsdp_optimizer_zero_grad(adamw));
    return value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Adds up and compares what the ranks report. */
typedef struct summary {
    double pss, largest, live, together, cpu_ms; /* MB, and milliseconds a step of all ranks */
} summary;

static summary summarize(fsdp_context *context, const options *o, const rank_report *mine)
{
    void **objects;
    size_t *bytes;
    summary s = {0};

    check(fsdp_gather_objects(fsdp_world(context), mine, sizeof *mine, &objects, &bytes));
    for (int r = 0; r < fsdp_context_world_size(context); r++) {
        const rank_report *report = objects[r];

        s.pss += report->pss_mb;
        s.largest = fmax(s.largest, report->rss_mb);
        s.live = fmax(s.live, (double)report->memory.peak_total_bytes / 1048576);
        s.together += (double)(report->memory.peak_total_bytes - (r > 0 ? report->memory.shared_bytes : 0)) / 1048576;
        s.cpu_ms += (double)report->cpu_ns / 1e6 / (double)o->steps;
    }
    fsdp_objects_free(fsdp_world(context), objects, bytes);
    return s;
}

static void print(fsdp_context *context, const options *o, const fsdp_model_config *config, double *seconds,
                  double loss, const rank_report *mine)
{
    summary s = summarize(context, o, mine);
    int ranks = fsdp_context_world_size(context);
    double tokens = (double)(o->batch * o->seq * ranks / o->tensor), rate;

    if (fsdp_context_rank(context) != 0)
        return;
    qsort(seconds, (size_t)o->steps, sizeof *seconds, by_value);
    rate = tokens / seconds[o->steps / 2];
    printf("{\"model\": \"%s\", \"ranks\": %d, \"threads\": %d, \"batch\": %ld, \"seq\": %ld, \"bf16\": %s, "
           "\"params\": %lld, "
           "\"ms\": %.2f, \"ms_min\": %.2f, \"tok_s\": %.1f, \"tflops\": %.4f, \"loss\": %.4f, \"rss_mb\": %.0f, "
           "\"pss_sum_mb\": %.0f, \"ledger_peak_mb\": %.0f, \"ledger_sum_mb\": %.0f",
           o->model, ranks, fsdp_context_threads(context), o->batch, o->seq, o->bf16 ? "true" : "false",
           (long long)fsdp_model_config_parameters(config), seconds[o->steps / 2] * 1e3, seconds[0] * 1e3, rate,
           rate * fsdp_model_config_flops_per_token(config, o->seq) / 1e12, loss, s.largest, s.pss, s.live, s.together);
    printf(", \"gemm_ms\": %.2f, \"attention_ms\": %.2f, \"elementwise_ms\": %.2f, \"memory_ms\": %.2f, "
           "\"optimizer_ms\": %.2f, \"comm_ms\": %.2f, \"wait_ms\": %.2f, \"faults\": %.1f, \"cpu_ms\": %.2f, "
           "\"sent_mb\": %.3f, \"sent_in_teams_mb\": %.3f}\n",
           (double)mine->kernel_ns[FSDP__KERNEL_CLASS_GEMM] / 1e6 / (double)o->steps,
           (double)mine->kernel_ns[FSDP__KERNEL_CLASS_ATTENTION] / 1e6 / (double)o->steps,
           (double)mine->kernel_ns[FSDP__KERNEL_CLASS_ELEMENTWISE] / 1e6 / (double)o->steps,
           (double)mine->kernel_ns[FSDP__KERNEL_CLASS_MEMORY] / 1e6 / (double)o->steps,
           (double)mine->kernel_ns[FSDP__KERNEL_CLASS_OPTIMIZER] / 1e6 / (double)o->steps,
           (double)(mine->comm_ns - mine->wait_ns) / 1e6 / (double)o->steps,
           (double)mine->wait_ns / 1e6 / (double)o->steps, (double)mine->faults / (double)o->steps, s.cpu_ms,
           (double)mine->sent / 1e6 / (double)o->steps, (double)mine->sent_in_teams / 1e6 / (double)o->steps);
}

/* Adds what this process has used so far, `sign` times. */
static void add_usage(rank_report *report, int sign)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    report->faults += sign * (u.ru_minflt + u.ru_majflt);
    report->cpu_ns += sign * ((u.ru_utime.tv_sec + u.ru_stime.tv_sec) * INT64_C(1000000000) +
                              (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * INT64_C(1000));
}

/* Returns the bytes that this rank has sent so far: in its team, or in all groups. */
static int64_t sent_by(fsdp_context *context, const teams *t, bool in_teams)
{
    fsdp_comm_stats stats = {0};
    int64_t bytes = 0;

    if (!in_teams)
        fsdp_context_comm_stats(context, &stats);
    else if (t->tp)
        fsdp_process_group_stats(fsdp_mesh_process_group(t->tp, 0), &stats);
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++)
        bytes += stats.bytes_sent[kind];
    return bytes;
}

static void add_sent(fsdp_context *context, const teams *t, rank_report *report, int sign)
{
    int64_t in_teams = sent_by(context, t, true);

    report->sent += sign * (sent_by(context, t, false) - in_teams);
    report->sent_in_teams += sign * in_teams;
}

/* ---- time of kernels by class, on all threads of this rank ---- */

static _Atomic int64_t kernel_ns[FSDP__KERNEL_CLASSES];

static fsdp_status time_kernel(void *arg, fsdp__probe_event *e)
{
    static _Thread_local int64_t begun;

    (void)arg;
    if (e->point == FSDP__POINT_KERNEL_BEGUN)
        begun = e->ns;
    else if (e->kind < FSDP__KERNELS)
        atomic_fetch_add(&kernel_ns[fsdp__kernel_infos[e->kind].class], e->ns - begun);
    return FSDP_OK;
}

__attribute__((constructor)) static void time_kernels(void)
{
    static fsdp__subscriber timer = {.points = FSDP__POINT_BIT(FSDP__POINT_KERNEL_BEGUN) |
                                               FSDP__POINT_BIT(FSDP__POINT_KERNEL_DONE),
                                     .see = time_kernel};

    fsdp__subscribe(&timer);
}

/* Runs the steps, with the counters of those after the warm-up in `report`; returns the loss of the first one. */
static double measure(fsdp_context *context, fsdp_module *model, fsdp_optimizer *adamw, const options *o,
                      const teams *t, const int32_t *tokens, double *seconds, rank_report *report)
{
    double loss = 0;
    int64_t comm_ns, wait_ns;

    for (long i = -o->warmup; i < o->steps; i++) {
        int64_t start;

        if (i == 0) {
            for (int c = 0; c < FSDP__KERNEL_CLASSES; c++)
                atomic_store(&kernel_ns[c], 0);
            fsdp_context_comm_time(context, &comm_ns, &wait_ns);
            add_usage(report, -1);
            add_sent(context, t, report, -1);
        }
        /* All ranks start together, and a step is over when the slowest is done: each of them measures the same. */
        check(fsdp_barrier(fsdp_world(context)));
        start = fsdp__clock_ns();
        double value = step(model, adamw, o, tokens, tokens + o->batch * o->seq);
        check(fsdp_barrier(fsdp_world(context)));
        if (i == -o->warmup)
            loss = value;
        if (i >= 0)
            seconds[i] = (double)(fsdp__clock_ns() - start) / 1e9;
    }
    add_usage(report, 1);
    add_sent(context, t, report, 1);
    for (int c = 0; c < FSDP__KERNEL_CLASSES; c++)
        report->kernel_ns[c] = atomic_load(&kernel_ns[c]);
    fsdp_context_comm_time(context, &report->comm_ns, &report->wait_ns);
    report->comm_ns -= comm_ns;
    report->wait_ns -= wait_ns;
    return loss;
}

int main(int argc, char **argv)
{
    options o = parse(argc, argv);
    fsdp_context *context;
    fsdp_model_config config;
    fsdp_parameters parameters;
    fsdp_optimizer *adamw;
    fsdp_adam_options adam = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    rank_report report = {0};
    teams both = {0};
    struct rusage usage;
    double loss, *seconds = calloc((size_t)o.steps, sizeof *seconds);
    int32_t *tokens = calloc((size_t)(o.batch * o.seq) * 2, sizeof *tokens);

    check(fsdp_context_from_env(&context));
    fsdp_module *model = build(context, &o, &config, &both);
    check(fsdp_module_parameters(model, &parameters));
    check(fsdp_adamw_create(&parameters, &adam, &adamw));
    fsdp_parameters_release(&parameters);
    if (is_mode(&o, "ddp-zero"))
        check(fsdp_optimizer_partition_state(adamw, NULL));
    for (long i = 0; i < o.batch * o.seq * 2; i++)
        tokens[i] = (int32_t)(fsdp__rng_uniform(1 + (uint64_t)(fsdp_context_rank(context) / o.tensor), (uint64_t)i) *
                              (float)config.vocab_size);
    loss = measure(context, model, adamw, &o, &both, tokens, seconds, &report);
    fsdp_device_memory(fsdp_cpu(context), &report.memory);
    getrusage(RUSAGE_SELF, &usage);
    report.rss_mb = (double)usage.ru_maxrss / 1024;
    report.pss_mb = pss_mb();
    print(context, &o, &config, seconds, loss, &report);
    fsdp_optimizer_free(adamw);
    fsdp_module_unref(model);
    fsdp_mesh_unref(both.dp);
    fsdp_mesh_unref(both.tp);
    fsdp_context_free(context);
    free(tokens);
    free(seconds);
    return 0;
}
