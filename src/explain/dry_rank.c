/* dry_rank.c - makes a dry run of one rank, in a world of its own, and names what its config says. */
#include "explain/explain.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "train/run_config.h"

fsdp_module *fsdp__explain_build(const fsdp__explain_source *source, fsdp_context *context)
{
    fsdp_device *meta = fsdp_meta(context);
    fsdp_model_config config;

    if (!meta)
        return NULL;
    if (source->model)
        return source->model->build(source->model->arg, context, meta);
    if (fsdp__train_model_config(&source->config, &config) != FSDP_OK)
        return NULL;
    return fsdp_model_create(context, meta, &config);
}

/* Refuses more microbatches than a step on paper may have. */
static fsdp_status check_microbatches(const fsdp__explain_source *source)
{
    int64_t global = source->config.training.global_batch_size, local = source->config.training.local_batch_size;
    int64_t data_ranks = fsdp__train_data_ranks(&source->config, source->world_size);
    int64_t ranks = FSDP__MAX(data_ranks, 1);

    if (global / ranks / local <= FSDP__MICROBATCHES_MOST)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "training.global_batch_size %lld makes %lld microbatches of %lld sequence%s in a step: at most %d "
                     "are counted: raise training.local_batch_size",
                     (long long)global, (long long)(global / ranks / local), (long long)local, fsdp__plural(local),
                     FSDP__MICROBATCHES_MOST);
}

fsdp_status fsdp__explain_open(const fsdp__explain_source *source, int rank, fsdp__explain_run *out)
{
    const fsdp_explain_model *model = source->model;
    fsdp_status status;
    bool held;

    *out = (fsdp__explain_run){.context = NULL};
    if (model)
        out->own =
            (fsdp__train_own){.build = model->build, .loss = model->loss, .arg = model->arg, .policy = source->policy};
    out->own.schedule = source->schedule;
    FSDP_TRY(check_microbatches(source));
    FSDP_TRY(fsdp_context_create_fake_machines(rank, source->machines, source->world_size / source->machines,
                                               source->one_level, &out->context));
    fsdp_context_set_log(out->context, FSDP_LOG_ERROR, NULL, NULL); /* warnings are for those who run it */
    status = fsdp__train_run_create_dry(out->context, &source->config, &out->own, &out->run);
    if (status == FSDP_OK) {
        if (source->passes_over)
            out->run->passed_over = FSDP__MAX(out->run->microbatches - FSDP__MICROBATCHES_TAKEN - 1, 0);
        return FSDP_OK;
    }
    held = fsdp_hold_error(true);
    fsdp__explain_close(out);
    fsdp_release_error(held);
    return status;
}

void fsdp__explain_close(fsdp__explain_run *run)
{
    fsdp_train_run_free(run->run);
    fsdp_context_free(run->context);
    *run = (fsdp__explain_run){.context = NULL};
}

void fsdp__explain_tell(const fsdp__explain_source *source, int64_t done)
{
    const fsdp_explain_options *o = source->options;

    if (o && o->progress)
        o->progress(o->progress_arg, done, source->built + (o->sweep ? FSDP__MOST_VARIANTS : 0));
}

/* ---- words ---- */

char *fsdp__explain_strategy(const fsdp_train_config *config)
{
    static const char *const names[] = {"fsdp2", "zero1", "zero2", "zero3", "hsdp", "fsdp1", "ddp"};
    static const char *const fsdp1_names[] = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                                              "hybrid_shard_zero2"};
    const char *name = names[config->parallelism.strategy];

    if (config->parallelism.strategy == FSDP_TRAIN_FSDP1)
        return fsdp__sprintf("%s %s", name, fsdp1_names[fsdp__train_fsdp1_strategy(config)]);
    return fsdp__strdup(name);
}

static char *class_names(const fsdp_train_config *config)
{
    char *text = fsdp__strdup("class");

    for (int64_t i = 0; text && i < config->parallelism.wrap_class_count; i++) {
        char *longer = fsdp__sprintf("%s%s%s", text, i ? ", " : " ", config->parallelism.wrap_classes[i]);

        fsdp__free(text);
        text = longer;
    }
    return text;
}

static char *own_policy(const fsdp_wrap_policy *policy)
{
    switch (policy->kind) {
    case FSDP_WRAP_NONE:
        return fsdp__strdup("root");
    case FSDP_WRAP_ALWAYS:
        return fsdp__strdup("always");
    case FSDP_WRAP_SIZE:
        if (policy->min_num_params > 0)
            return fsdp__sprintf("size %lld", (long long)policy->min_num_params);
        return fsdp__strdup("size");
    default:
        return fsdp__strdup("the program's");
    }
}

char *fsdp__explain_policy(const fsdp__explain_source *source)
{
    const fsdp_train_config *c = &source->config;

    if (c->parallelism.strategy == FSDP_TRAIN_DDP)
        return fsdp__strdup("buckets");
    if (source->schedule || c->parallelism.schedule)
        return fsdp__strdup("a schedule");
    if (source->policy)
        return own_policy(source->policy);
    switch (c->parallelism.wrap_policy) {
    case FSDP_TRAIN_WRAP_ROOT:
        return fsdp__strdup("root");
    case FSDP_TRAIN_WRAP_SIZE:
        if (c->parallelism.wrap_min_num_params > 0)
            return fsdp__sprintf("size %lld", (long long)c->parallelism.wrap_min_num_params);
        return fsdp__strdup("size");
    case FSDP_TRAIN_WRAP_CLASS:
        return class_names(c);
    case FSDP_TRAIN_WRAP_ALWAYS:
        return fsdp__strdup("always");
    default:
        return fsdp__strdup("blocks");
    }
}
