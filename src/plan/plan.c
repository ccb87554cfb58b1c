/* plan.c - makes a plan: a dry run of the rank that has the most, and of the other ranks of its machine where they send
 * something. */
#include "plan/plan.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/device.h"
#include "train/run_config.h"

enum {
    MOST_NEIGHBOURS = 16, /* ranks of a machine that are counted one by one */
    MOST_SEARCHED = 64    /* ranks among which the one with the most is looked for */
};

/* ---- what crosses the network ---- */

int64_t fsdp__sum_of_calls(const int64_t numbers[FSDP_COLLECTIVES])
{
    int64_t sum = 0;

    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++)
        sum += numbers[kind];
    return sum;
}

/* Returns over how many machines gathers and reductions of one copy go, and over how many copies' sums are added. */
static void machines_of(const fsdp_explanation *e, int *shards, int *copies)
{
    int machine_ranks = e->world_size / e->machines, ranks = e->world_size / FSDP__MAX(e->replicas, 1);

    *shards = FSDP__MAX(ranks / machine_ranks, 1);
    *copies = e->machines / *shards;
}

/* Returns whether what each unit gathers and reduces crosses the network as often, and in the dtype, that the
 * explanation says. */
static bool has_least(const fsdp_explanation *e, const fsdp_train_config *c)
{
    int machine_ranks = e->world_size / e->machines, ranks = e->world_size / FSDP__MAX(e->replicas, 1);

    return c->parallelism.gather_dtype == FSDP_TRAIN_GATHER_NONE && !c->adapter.quantize &&
           c->parallelism.reshard_after_forward <= 0 && c->parallelism.ddp_compress <= FSDP_DTYPE_NONE &&
           (ranks < machine_ranks || ranks % machine_ranks == 0);
}

static int64_t least_of(const fsdp_explanation *e)
{
    double gathered = 0, reduced = 0, least;
    int shards, copies;

    for (int64_t i = 0; i < e->unit_count; i++) {
        const fsdp_explained_unit *u = &e->units[i];

        gathered += (double)u->gathers * (double)u->numel * (double)fsdp_dtype_size(e->param_dtype);
        reduced += (double)u->numel * (double)fsdp_dtype_size(e->reduce_dtype);
    }
    machines_of(e, &shards, &copies);
    least = (gathered + reduced) * (shards - 1) / shards;
    return (int64_t)(least + 2 * reduced / shards * (copies - 1) / copies);
}

static fsdp_status measure_rank(const fsdp__explain_source *source, int rank, fsdp_explained_step *out)
{
    FSDP__SCOPED(fsdp__explain_close) fsdp__explain_run run = {0};

    FSDP_TRY(fsdp__explain_open(source, rank, &run));
    return fsdp__measure_step(run.run, out);
}

/* Finds the rank that has the most. That is rank 0, unless each rank's part of a flat vector has its own parameters:
 * then it depends on which they are. Copies of a part are alike. */
static fsdp_status find_fullest(fsdp__plan *plan, const fsdp__explain_source *source)
{
    const fsdp_train_config *c = &source->config;
    int ranks = source->world_size / (int)FSDP__MAX(c->parallelism.data_parallel_replicate_degree, 1);
    size_t most = 0;

    if (c->parallelism.strategy != FSDP_TRAIN_FSDP1 || c->parallelism.fsdp1_use_orig_params != 1)
        return FSDP_OK;
    plan->unsearched = ranks > MOST_SEARCHED;
    for (int rank = 0; rank < ranks && !plan->unsearched; rank++) {
        fsdp_explained_step step;

        FSDP_TRY(measure_rank(source, rank, &step));
        if (step.peak_total_bytes <= most)
            continue;
        most = step.peak_total_bytes;
        plan->e->rank = rank;
    }
    return FSDP_OK;
}

/* Adds what the other ranks of the machine send and receive. Of a machine with many ranks each counts as the planned
 * one does. */
static fsdp_status count_machine(fsdp__plan *plan, const fsdp__explain_source *source)
{
    const fsdp_explained_network *own = &plan->e->step.network;
    int ranks = source->world_size / source->machines, first = plan->e->rank / ranks * ranks;
    fsdp_explained_step step;

    plan->crossing.out = fsdp__sum_of_calls(own->sent);
    plan->crossing.in = fsdp__sum_of_calls(own->received);
    if (ranks > MOST_NEIGHBOURS) {
        plan->crossing.out *= ranks;
        plan->crossing.in *= ranks;
        ranks = 1;
    }
    for (int rank = first; rank < first + ranks; rank++) {
        if (rank == plan->e->rank || ranks == 1)
            continue;
        FSDP_TRY(measure_rank(source, rank, &step));
        plan->crossing.out += fsdp__sum_of_calls(step.network.sent);
        plan->crossing.in += fsdp__sum_of_calls(step.network.received);
    }
    plan->crossing.least = has_least(plan->e, &source->config) ? least_of(plan->e) : 0;
    return FSDP_OK;
}

/* ---- the plan ---- */

static void count_host(fsdp__plan *plan, const fsdp_train_run *run)
{
    fsdp_device *host = run->offloaded ? fsdp__dry(run->context) : NULL;
    fsdp_memory_stats memory;

    if (!host)
        return;
    fsdp_device_memory(host, &memory);
    plan->host_bytes = memory.peak_without_workspace_bytes;
}

static fsdp_status record(fsdp__plan *plan, const fsdp__explain_source *source, const fsdp__plan_options *options)
{
    FSDP__SCOPED(fsdp__explain_close) fsdp__explain_run run = {0};

    FSDP_TRY(find_fullest(plan, source));
    FSDP_TRY(fsdp__explain_open(source, plan->e->rank, &run));
    FSDP_TRY(fsdp__explain_describe(plan->e, source, run.run));
    FSDP_TRY(fsdp__settle_steps(run.run));
    FSDP_TRY(fsdp__plan_record(plan, run.run, options));
    plan->model_hash = run.run->model_hash;
    plan->gpu = !fsdp__device_host_access(run.run->device);
    plan->tokens_per_step = (double)run.run->sequences * (double)source->config.training.seq_len;
    count_host(plan, run.run);
    return FSDP_OK;
}

/* Returns whether the microbatches of a step are alike. DDP's buckets that reduce in each of them need other memory in
 * some of them. */
static bool are_alike(const fsdp_train_config *config)
{
    return config->parallelism.strategy != FSDP_TRAIN_DDP || config->training.no_sync != 0;
}

static fsdp_status make(const fsdp_train_config *config, const fsdp__plan_options *options, fsdp__plan *plan)
{
    fsdp__explain_source source = {.config = *config,
                                   .world_size = options->world_size,
                                   .machines = options->machines,
                                   .one_level = options->one_level,
                                   .schedule = options->schedule,
                                   .passes_over = !options->moments && !options->every_microbatch && are_alike(config),
                                   .built = 1};
    fsdp_explanation *e = fsdp__calloc(1, sizeof *e);

    plan->e = e;
    FSDP__TRY_NEW(e);
    e->world_size = options->world_size;
    e->machines = options->machines;
    e->one_level = options->one_level;
    e->part_count = e->replicas = 1;
    e->team = fsdp__train_team(config);
    plan->steps = config->training.steps;
    plan->validates = fsdp__train_validates(config);
    FSDP_TRY(record(plan, &source, options));
    return options->machines > 1 && !options->rank_alone ? count_machine(plan, &source) : FSDP_OK;
}

fsdp_status fsdp__plan_make(const fsdp_train_config *config, const fsdp__plan_options *options, fsdp__plan **out)
{
    FSDP__SCOPED(fsdp__plan_free_at) fsdp__plan *plan = fsdp__calloc(1, sizeof *plan);
    fsdp_status status = plan ? make(config, options, plan) : FSDP_NO_MEMORY;

    *out = NULL;
    if (status != FSDP_OK)
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    *out = fsdp__take(&plan);
    return FSDP_OK;
}

fsdp_status fsdp__plan_try(fsdp_status set, const fsdp_train_config *config, const fsdp__plan_options *options,
                           fsdp__plan **out)
{
    *out = NULL;
    if (set == FSDP_OK)
        set = fsdp__plan_make(config, options, out);
    return set == FSDP_INVALID || set == FSDP_UNSUPPORTED ? FSDP_OK : set;
}

void fsdp__plan_free(fsdp__plan *plan)
{
    if (!plan)
        return;
    fsdp_explanation_free(plan->e);
    FSDP__FREE_ALL(plan->computed, plan->moments, plan);
}
