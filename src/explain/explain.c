/* explain.c - makes an explanation: each rank is built, and one of them takes a step. */
#include "explain/explain.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "train/run_config.h"

enum {
    MOST_PARTS = 4096,   /* ranks whose parts are listed: each of them is built */
    MOST_RANKS = 1 << 20 /* which take seconds */
};

/* ---- dry ---- */

static fsdp_status name_all(fsdp_explanation *e, const fsdp__explain_source *source, const fsdp_train_run *run)
{
    const fsdp_train_config *c = &source->config;
    const char *model = c->model.path ? c->model.path : c->model.preset;

    if (source->model)
        model = source->model->name ? source->model->name : run->model->type->name;
    e->model = fsdp__strdup(model);
    e->strategy = fsdp__explain_strategy(c);
    e->policy = fsdp__explain_policy(source);
    return e->model && e->strategy && e->policy ? FSDP_OK : FSDP_NO_MEMORY;
}

/* Counts the parameters of a model with quantized weights: those of its config, and those of the adapter. */
static void count_quantized(fsdp_explanation *e, const fsdp__explain_source *source, const fsdp_train_run *run)
{
    if (source->model || !source->config.adapter.quantize)
        return;
    e->model_numel = fsdp_model_config_parameters(&run->model_config);
    for (int64_t i = 0; i < e->parameter_count; i++)
        e->model_numel += strstr(e->parameters[i].name, "lora_") ? e->parameters[i].numel : 0;
}

fsdp_status fsdp__explain_describe(fsdp_explanation *e, const fsdp__explain_source *source, const fsdp_train_run *run)
{
    const fsdp_train_config *c = &source->config;

    FSDP_TRY(name_all(e, source, run));
    e->microbatches = run->microbatches;
    e->local_batch = source->model ? 0 : c->training.local_batch_size;
    e->seq_len = source->model ? 0 : c->training.seq_len;
    e->param_dtype = (fsdp_dtype)c->training.mixed_precision_param;
    e->reduce_dtype = (fsdp_dtype)c->training.mixed_precision_reduce;
    FSDP_TRY(fsdp__explain_units(e, run->model));
    FSDP_TRY(fsdp__explain_parameters(e, run->model));
    count_quantized(e, source, run);
    return FSDP_OK;
}

static void add_network(fsdp_explanation *e, const fsdp_explained_network *of_rank)
{
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        e->machine.sent[kind] += of_rank->sent[kind];
        e->machine.received[kind] += of_rank->received[kind];
        e->machine.messages[kind] += of_rank->messages[kind];
    }
}

/* Returns whether what the rank sends is part of the explained machine's traffic. */
static bool is_counted(const fsdp_explanation *e, int rank)
{
    int ranks = e->world_size / e->machines;

    return e->machines > 1 && rank / ranks == e->rank / ranks;
}

static fsdp_status explain_rank(fsdp_explanation *e, const fsdp__explain_source *source, int rank)
{
    FSDP__SCOPED(fsdp__explain_close) fsdp__explain_run run = {0};
    fsdp_explained_step step;

    FSDP_TRY(fsdp__explain_open(source, rank, &run));
    if (rank == e->rank) {
        FSDP_TRY(fsdp__explain_describe(e, source, run.run));
        FSDP_TRY(fsdp__explain_tree(e, run.run->model));
    }
    FSDP_TRY(fsdp__explain_parts(e, run.run->model, rank));
    if (rank == e->rank) {
        FSDP_TRY(fsdp__settle_steps(run.run));
        FSDP_TRY(fsdp__record_step(run.run, e));
    } else if (is_counted(e, rank)) {
        FSDP_TRY(fsdp__measure_step(run.run, &step));
    }
    if (is_counted(e, rank))
        add_network(e, rank == e->rank ? &e->step.network : &step.network);
    return FSDP_OK;
}

/* Explains all ranks, beginning with the one whose step is shown: it says which parameters there are. */
static fsdp_status explain(fsdp_explanation *e, const fsdp__explain_source *source)
{
    int64_t done = 0;

    FSDP_TRY(explain_rank(e, source, e->rank));
    fsdp__explain_tell(source, ++done);
    for (int rank = 0; rank < e->world_size; rank++) {
        if (rank == e->rank || (source->built < e->world_size && !is_counted(e, rank)))
            continue;
        FSDP_TRY(explain_rank(e, source, rank));
        fsdp__explain_tell(source, ++done);
    }
    return FSDP_OK;
}

static fsdp_status check(const fsdp_explain_model *model, const fsdp__explain_source *source, int rank)
{
    const fsdp_train_config *c = &source->config;

    if (source->world_size < 1 || rank < 0 || rank >= source->world_size)
        return FSDP_FAIL(FSDP_INVALID, "cannot explain rank %d of %d", rank, source->world_size);
    if (source->world_size > MOST_RANKS)
        return FSDP_FAIL(FSDP_INVALID, "cannot explain %d ranks: at most %d", source->world_size, MOST_RANKS);
    if (source->machines < 1 || source->world_size % source->machines != 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot explain %d rank%s on %d machines: each must have equally many",
                         source->world_size, fsdp__plural(source->world_size), source->machines);
    if (fsdp__train_plans_schedule(c) && !source->schedule)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "parallelism.schedule is plan, which a run answers when it starts, by the times of its "
                         "device, and fsdp_explain knows none: write a schedule with 'fsdp plan --schedule FILE', "
                         "and set parallelism.schedule to FILE");
    if (!model)
        return FSDP_OK;
    if (!model->build || !model->loss)
        return FSDP_FAIL(FSDP_INVALID, "a model that is explained needs a function that builds it, and one for its "
                                       "loss");
    if (!model->policy && c->parallelism.wrap_policy == FSDP_TRAIN_WRAP_BLOCKS &&
        c->parallelism.strategy != FSDP_TRAIN_DDP)
        return FSDP_FAIL(FSDP_INVALID, "a model of your own has no blocks: set parallelism.wrap_policy to root, size, "
                                       "class or always, or give a policy");
    return FSDP_OK;
}

static fsdp_status make(const fsdp_explain_model *model, const fsdp_train_config *config,
                        const fsdp_explain_options *options, fsdp_explanation *e)
{
    fsdp__explain_source source = {
        .model = model, .config = *config, .policy = model ? model->policy : NULL, .options = options};

    source.world_size = options && options->world_size ? options->world_size : 1;
    source.machines = options && options->machines ? options->machines : 1;
    source.one_level = options && options->one_level;
    e->rank = options ? options->rank : 0;
    FSDP_TRY(check(model, &source, e->rank));
    e->world_size = source.world_size;
    e->machines = source.machines;
    e->one_level = source.one_level;
    e->part_count = source.built = e->world_size;
    if (e->world_size > MOST_PARTS) {
        e->part_count = 1;
        e->first_part = e->rank;
        source.built = e->machines > 1 ? e->world_size / e->machines : 1;
    }
    e->replicas = 1;
    e->team = fsdp__train_team(&source.config);
    e->layer_ranks = (int)source.config.parallelism.tensor_parallel_degree;
    FSDP_TRY(explain(e, &source));
    return options && options->sweep ? fsdp__explain_other_units(e, &source) : FSDP_OK;
}

fsdp_status fsdp_explain(const fsdp_explain_model *model, const fsdp_train_config *config,
                         const fsdp_explain_options *options, fsdp_explanation **out)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *defaults = NULL;
    FSDP__SCOPED(fsdp_explanation_free_at) fsdp_explanation *e = NULL;
    fsdp_status status;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "fsdp_explain needs a place for its result");
    if (!config)
        FSDP_TRY(fsdp_train_config_create(&defaults));
    e = fsdp__calloc(1, sizeof *e);
    status = e ? make(model, config ? config : defaults, options, e) : FSDP_NO_MEMORY;
    if (status != FSDP_OK)
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    *out = fsdp__take(&e);
    return FSDP_OK;
}

/* ---- what is sharded already ---- */

static fsdp_status look(fsdp_explanation *e, fsdp_module *module)
{
    fsdp_context *context = module->context;

    e->world_size = fsdp_context_world_size(context);
    e->rank = e->first_part = fsdp_context_rank(context);
    e->part_count = e->replicas = e->team = e->layer_ranks = 1;
    e->machines = fsdp_context_machines(context);
    FSDP_TRY(fsdp__explain_units(e, module));
    if (e->unit_count == 0)
        return FSDP_FAIL(FSDP_STATE, "cannot explain this %s: nothing in it is sharded or replicated",
                         module->type->name);
    FSDP_TRY(fsdp__explain_parameters(e, module));
    FSDP_TRY(fsdp__explain_parts(e, module, e->rank));
    FSDP_TRY(fsdp__explain_tree(e, module));
    e->model = fsdp__strdup(module->type->name);
    return e->model ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp_explain_module(fsdp_module *module, fsdp_explanation **out)
{
    FSDP__SCOPED(fsdp_explanation_free_at) fsdp_explanation *e = NULL;
    fsdp_status status;

    if (!module || !out)
        return FSDP_FAIL(FSDP_INVALID, "fsdp_explain_module needs a module and a place for its result");
    e = fsdp__calloc(1, sizeof *e);
    status = e ? look(e, module) : FSDP_NO_MEMORY;
    if (status != FSDP_OK)
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    *out = fsdp__take(&e);
    return FSDP_OK;
}
