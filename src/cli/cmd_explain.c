/* cmd_explain.c - fsdp explain: what a strategy does to a model, and what it costs, before anything runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/overrides.h"

typedef struct request {
    fsdp_train_config *config;
    const char *strategy, *policy, *svg;
    const char *ranks, *batch, *seq_len, *microbatches, *rank;
    bool json, help;
    fsdp_explain_options options;
} request;

static void usage(void)
{
    puts(
        "fsdp explain FOLDER|PRESET|CONFIG.yaml [-n RANKS] [--strategy NAME] [--wrap-policy POLICY]\n"
        "\n"
        "What a strategy does to a model: its units, who holds which rows, what is gathered when in a step, what that\n"
        "costs in memory, calls and bytes, and what coarser and finer units would cost. All of it is counted by the\n"
        "engine, to the byte, in a step without bytes: no rank is started, no weights are read; of a folder only\n"
        "config.json is.\n"
        "\n"
        "  -n, -np, --ranks RANKS  ranks that there would be (default: 2)\n"
        "  --strategy NAME         fsdp2, zero1, zero2, zero3, hsdp, fsdp1, ddp; fsdp1:STRATEGY, as\n"
        "                          fsdp1:shard_grad_op (default: what the config says, fsdp2)\n"
        "  --wrap-policy POLICY    blocks, root, always, size or size:PARAMETERS, class:NAME+NAME (default: blocks)\n"
        "  --batch N               sequences of a microbatch and rank (default: training.local_batch_size)\n"
        "  --seq-len N             tokens of a sequence (default: training.seq_len, or all that the model takes)\n"
        "  --microbatches N        of a step (default: 1, or what training.global_batch_size makes of it)\n"
        "  --rank R                whose step is told (default: 0, who has the most of everything)\n"
        "  --json                  print all of it as JSON\n"
        "  --svg FILE              write who holds which rows, and what is whole when, as a picture\n"
        "  --section.key=value     any other key of fsdp train");
}

/* ---- the config ---- */

static fsdp_status set_number(fsdp_train_config *config, const char *option, const char *key, const char *value)
{
    fsdp_status status = value ? fsdp_train_config_set(config, key, value) : FSDP_OK;

    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "%s", option);
}

/* "fsdp1:shard_grad_op", "size:20000" and "class:A+B" in two. */
static const char *split(const char *text, char *word, size_t bytes)
{
    size_t length = strcspn(text, ":");

    snprintf(word, bytes, "%.*s", (int)length, text);
    return text[length] ? text + length + 1 : NULL;
}

static fsdp_status set_strategy(const request *r)
{
    char name[80];
    const char *of = split(r->strategy, name, sizeof name);

    FSDP_TRY(fsdp_train_config_set(r->config, "parallelism.strategy", name));
    if (of && r->config->parallelism.strategy != FSDP_TRAIN_FSDP1)
        return FSDP_FAIL(FSDP_INVALID, "%s takes nothing behind a colon", name);
    return of ? fsdp_train_config_set(r->config, "parallelism.fsdp1_strategy", of) : FSDP_OK;
}

static fsdp_status set_classes(const request *r, const char *names)
{
    char name[120];

    FSDP_TRY(fsdp_train_config_set(r->config, "parallelism.wrap_classes", ""));
    while (*names) {
        size_t length = strcspn(names, "+");

        snprintf(name, sizeof name, "%.*s", (int)length, names);
        FSDP_TRY(fsdp_train_config_add(r->config, "parallelism.wrap_classes", name));
        names += length + (names[length] == '+');
    }
    return FSDP_OK;
}

static fsdp_status set_policy(const request *r)
{
    char name[80];
    const char *of = split(r->policy, name, sizeof name);

    FSDP_TRY(fsdp_train_config_set(r->config, "parallelism.wrap_policy", name));
    r->config->parallelism.wrap_min_num_params = 0;
    FSDP_TRY(fsdp_train_config_set(r->config, "parallelism.wrap_classes", ""));
    if (of && r->config->parallelism.wrap_policy == FSDP_TRAIN_WRAP_SIZE)
        return fsdp_train_config_set(r->config, "parallelism.wrap_min_num_params", of);
    if (of && r->config->parallelism.wrap_policy == FSDP_TRAIN_WRAP_CLASS)
        return set_classes(r, of);
    return of ? FSDP_FAIL(FSDP_INVALID, "%s takes nothing behind a colon", name) : FSDP_OK;
}

static fsdp_status set_options(const request *r)
{
    fsdp_status status = r->strategy ? set_strategy(r) : FSDP_OK;

    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "--strategy");
    status = r->policy ? set_policy(r) : FSDP_OK;
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "--wrap-policy");
    FSDP_TRY(set_number(r->config, "--batch", "training.local_batch_size", r->batch));
    return set_number(r->config, "--seq-len", "training.seq_len", r->seq_len);
}

static fsdp_status read_numbers(request *r)
{
    int64_t ranks = 2, rank = 0;

    if (r->ranks)
        FSDP_TRY(fsdp__args_integer("-n", r->ranks, 1, 4096, &ranks));
    if (r->rank)
        FSDP_TRY(fsdp__args_integer("--rank", r->rank, 0, ranks - 1, &rank));
    r->options = (fsdp_explain_options){.world_size = (int)ranks, .rank = (int)rank, .sweep = true};
    return FSDP_OK;
}

/* After all other keys. */
static fsdp_status set_microbatches(const request *r)
{
    int64_t count = 1;

    if (!r->microbatches)
        return FSDP_OK;
    FSDP_TRY(fsdp__args_integer("--microbatches", r->microbatches, 1, 1 << 16, &count));
    r->config->training.global_batch_size = count * r->config->training.local_batch_size * r->options.world_size;
    return FSDP_OK;
}

/* A config where its name says so, a folder where there is one or a path is meant; else a preset. */
static fsdp_status read_model(const request *r, const char *name)
{
    size_t length = strlen(name);
    bool yaml = (length > 5 && strcmp(name + length - 5, ".yaml") == 0) ||
                (length > 4 && strcmp(name + length - 4, ".yml") == 0);
    fsdp_model_config model;

    if (yaml)
        return fsdp_train_config_load(r->config, name);
    if (strchr(name, '/') || fsdp__path_exists(name)) {
        FSDP_TRY(fsdp_hub_read_config(name, &model));
        FSDP_TRY(fsdp_train_config_set(r->config, "model.path", name));
    } else {
        FSDP_TRY(fsdp_model_preset(name, &model));
        FSDP_TRY(fsdp_train_config_set(r->config, "model.preset", name));
    }
    r->config->training.seq_len = FSDP__MIN(r->config->training.seq_len, model.max_seq_len);
    return FSDP_OK;
}

/* ---- what is told ---- */

static fsdp_status write_svg(const fsdp_explanation *e, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    fsdp_status status;

    if (!out)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot write '%s': out of memory", path);
    status = fsdp_explanation_svg(e, out);
    if (fclose(out) != 0 && status == FSDP_OK)
        status = FSDP_FAIL(FSDP_NO_MEMORY, "cannot write '%s': out of memory", path);
    if (status == FSDP_OK)
        status = fsdp__file_write_atomic(path, text, bytes);
    free(text);
    return status;
}

/* main says why what was printed has not arrived. The file first: whoever reads may go before the end. */
static int tell(const request *r)
{
    fsdp_explanation *e = NULL;
    int status = 0;

    if (fsdp__output_check(r->config, "--svg", r->svg) != FSDP_OK ||
        fsdp_explain(NULL, r->config, &r->options, &e) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (r->svg && write_svg(e, r->svg) != FSDP_OK)
        status = fsdp__failure("--svg: %s", fsdp_last_error());
    if ((r->json ? fsdp_explanation_json : fsdp_explanation_print)(e, stdout) != FSDP_OK && !ferror(stdout))
        status = fsdp__failure("%s", fsdp_last_error());
    fsdp_explanation_free(e);
    return status;
}

/* ---- the command line ---- */

static int with_config(request *r, int argc, char **argv)
{
    const fsdp__option options[] = {{"ranks", 'n', &r->ranks, NULL},
                                    {"np", 0, &r->ranks, NULL},
                                    {"strategy", 0, &r->strategy, NULL},
                                    {"wrap-policy", 0, &r->policy, NULL},
                                    {"batch", 0, &r->batch, NULL},
                                    {"seq-len", 0, &r->seq_len, NULL},
                                    {"microbatches", 0, &r->microbatches, NULL},
                                    {"rank", 0, &r->rank, NULL},
                                    {"svg", 0, &r->svg, NULL},
                                    {"json", 0, NULL, &r->json},
                                    {"help", 'h', NULL, &r->help},
                                    {0}};
    fsdp__overrides over = {.config = r->config};
    fsdp__args args = {.options = options, .dotted = fsdp__override_skip, .positional_most = 1, .arg = &over};
    fsdp__args again = {.options = options, .dotted = fsdp__override_set, .positional_most = 1, .arg = &over};

    if (fsdp__args_parse(&args, "explain", argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (r->help) {
        usage();
        return 0;
    }
    if (args.rest)
        return fsdp__usage_error("explain: nothing may follow '--'");
    if (args.positional_count == 0)
        return fsdp__usage_error("explain: no model given: a folder, a preset such as llama-1m, or a config");
    if (read_numbers(r) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (read_model(r, args.positional[0]) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (set_options(r) != FSDP_OK || fsdp__args_parse(&again, "explain", argc, argv) != FSDP_OK ||
        set_microbatches(r) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    return tell(r);
}

int fsdp__cmd_explain(int argc, char **argv)
{
    request r = {.config = NULL};
    int status;

    if (fsdp_train_config_create(&r.config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    status = with_config(&r, argc, argv);
    fsdp_train_config_free(r.config);
    return status;
}
