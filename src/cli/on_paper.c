/* on_paper.c - reads the model and the ranks that plan and explain are asked about: these commands start no ranks. */
#include "cli/on_paper.h"

#include <string.h>
#include <sys/stat.h>

#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "explain/explain.h"
#include "fsdp/hub.h"
#include "train/run_config.h"
#include "train/strategy_word.h"

fsdp_status fsdp__on_paper_numbers(fsdp__on_paper *p, int64_t most)
{
    int64_t ranks = 2, machines = 1;

    FSDP_TRY(fsdp__args_integer("-n", p->ranks, 1, most, &ranks));
    FSDP_TRY(fsdp__args_integer("--machines", p->machines, 1, most, &machines));
    if (machines > ranks)
        return FSDP_FAIL(FSDP_INVALID, "--machines is %lld, more than the %lld ranks: give more ranks with -n",
                         (long long)machines, (long long)ranks);
    if (ranks % machines != 0)
        return FSDP_FAIL(
            FSDP_INVALID,
            "--machines is %lld, which does not divide the %lld ranks: each machine must have equally many",
            (long long)machines, (long long)ranks);
    if (p->one_level && machines == 1)
        return FSDP_FAIL(FSDP_INVALID, "--one-level needs several machines: give --machines");
    p->world_size = ranks;
    p->machine_count = machines;
    return FSDP_OK;
}

static fsdp_status read_model(const fsdp__on_paper *p, const char *name)
{
    fsdp_model_config model;
    struct stat info;

    if (stat(name, &info) == 0 ? !S_ISDIR(info.st_mode)
                               : fsdp__ends_with(name, ".yaml") || fsdp__ends_with(name, ".yml"))
        return fsdp_train_config_load(p->config, name);
    if (strchr(name, '/') || fsdp__path_exists(name)) {
        FSDP_TRY(fsdp_hub_read_config(name, &model));
        FSDP_TRY(fsdp_train_config_set(p->config, "model.path", name));
    } else {
        FSDP_TRY(fsdp_model_preset(name, &model));
        FSDP_TRY(fsdp_train_config_set(p->config, "model.preset", name));
    }
    p->config->training.seq_len = FSDP__MIN(p->config->training.seq_len, model.max_seq_len);
    return FSDP_OK;
}

static fsdp_status set_number(fsdp_train_config *config, const char *option, const char *key, const char *value)
{
    fsdp_status status = value ? fsdp_train_config_set(config, key, value) : FSDP_OK;

    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "%s", option);
}

static fsdp_status set_keys(const fsdp__on_paper *p)
{
    int64_t copies = p->config->parallelism.data_parallel_replicate_degree;
    fsdp_status status = p->strategy ? fsdp__train_set_strategy(p->config, p->strategy) : FSDP_OK;

    /* as a run on these machines has it */
    if (p->machine_count > 1 && p->config->parallelism.strategy == FSDP_TRAIN_HSDP)
        p->config->parallelism.data_parallel_replicate_degree = copies;
    FSDP_TRY(fsdp_fail_prefix(status, "--strategy"));
    status = p->policy ? fsdp__train_set_policy(p->config, p->policy) : FSDP_OK;
    FSDP_TRY(fsdp_fail_prefix(status, "--wrap-policy"));
    FSDP_TRY(set_number(p->config, "--batch", "training.local_batch_size", p->batch));
    return set_number(p->config, "--seq-len", "training.seq_len", p->seq_len);
}

/* Sets the number of microbatches, when all other keys are set. */
static fsdp_status set_microbatches(const fsdp__on_paper *p)
{
    int64_t count = 1;

    if (!p->microbatches)
        return FSDP_OK;
    FSDP_TRY(fsdp__args_integer("--microbatches", p->microbatches, 1, FSDP__MICROBATCHES_MOST, &count));
    p->config->training.global_batch_size =
        count * p->config->training.local_batch_size * fsdp__train_data_ranks(p->config, (int)p->world_size);
    return FSDP_OK;
}

int fsdp__on_paper_config(const fsdp__on_paper *p, const fsdp__args *args, const char *command, int argc, char **argv)
{
    fsdp__args again = {.options = args->options,
                        .dotted = fsdp__override_set,
                        .positional_most = args->positional_most,
                        .arg = args->arg};

    if (read_model(p, args->positional[0]) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (set_keys(p) != FSDP_OK || fsdp__args_parse(&again, command, argc, argv) != FSDP_OK ||
        set_microbatches(p) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (fsdp__train_check_on_paper(p->config, (int)p->world_size) != FSDP_OK) /* a device may be measured for long */
        return fsdp__failure("%s", fsdp_last_error());
    return 0;
}
