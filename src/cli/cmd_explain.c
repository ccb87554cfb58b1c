/* cmd_explain.c - fsdp explain: shows what a strategy does to a model, and what it costs, before anything runs. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/compiler.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "cli/bar.h"
#include "cli/cli.h"
#include "cli/overrides.h"
#include "explain/explain.h"
#include "train/strategy_word.h"

typedef struct request {
    fsdp_train_config *config;
    const char *strategy, *policy, *svg;
    const char *ranks, *machines, *batch, *seq_len, *microbatches, *rank;
    bool one_level, json;
    fsdp_explain_options options;
    fsdp__bar bar;
} request;

static void usage(void)
{
    puts("fsdp explain FOLDER|PRESET|CONFIG.yaml [-n RANKS] [--strategy NAME]\n"
         "    [--wrap-policy POLICY]\n"
         "\n"
         "Explains what a strategy does to a model: its units, who holds which rows, what\n"
         "a step gathers and when, what that costs in memory, calls and bytes, and what\n"
         "coarser and finer units would cost. The engine counts all of it to the byte, in\n"
         "a step that allocates nothing. No rank is started and no weights are read; only\n"
         "config.json is read from a folder.\n"
         "\n"
         "  -n, -np, --ranks RANKS  number of ranks to assume (default: 2)\n"
         "  --machines MACHINES     number of machines to assume, with equal numbers of\n"
         "                          ranks; the result says what goes between machines, for\n"
         "                          this rank and for its machine (default: 1)\n"
         "  --one-level             assume that ranks of a machine share nothing:\n"
         "                          FSDP_ONE_LEVEL=1 (docs/cluster.md)\n"
         "  --strategy NAME         fsdp2, zero1, zero2, zero3, hsdp (if the config gives\n"
         "                          no number: 2 copies, or one on each machine), fsdp1,\n"
         "                          fsdp1:STRATEGY (such as fsdp1:shard_grad_op) or ddp\n"
         "                          (default: the config's, or fsdp2)\n"
         "  --wrap-policy POLICY    blocks, root, always, size (100000000 parameters),\n"
         "                          size:PARAMETERS or class:NAME+NAME (default: blocks)\n"
         "  --batch N               sequences of a microbatch on one rank (default:\n"
         "                          training.local_batch_size)\n"
         "  --seq-len N             tokens of a sequence (default: training.seq_len, or\n"
         "                          all that the model takes)\n"
         "  --microbatches N        microbatches of a step (default: 1, or what follows\n"
         "                          from training.global_batch_size)\n"
         "  --rank R                the rank whose step is explained (default: 0, which\n"
         "                          has the most of everything)\n"
         "  --json                  print everything as JSON\n"
         "  --svg FILE              draw who holds which rows, and what is whole when\n"
         "  --section.key=value     sets any other key of fsdp train");
}

/* ---- the config ---- */

static fsdp_status set_number(fsdp_train_config *config, const char *option, const char *key, const char *value)
{
    fsdp_status status = value ? fsdp_train_config_set(config, key, value) : FSDP_OK;

    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "%s", option);
}

static fsdp_status set_options(const request *r)
{
    int64_t copies = r->config->parallelism.data_parallel_replicate_degree;
    fsdp_status status = r->strategy ? fsdp__train_set_strategy(r->config, r->strategy) : FSDP_OK;

    /* as a run on these machines has it */
    if (r->options.machines > 1 && r->config->parallelism.strategy == FSDP_TRAIN_HSDP)
        r->config->parallelism.data_parallel_replicate_degree = copies;
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "--strategy");
    status = r->policy ? fsdp__train_set_policy(r->config, r->policy) : FSDP_OK;
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "--wrap-policy");
    FSDP_TRY(set_number(r->config, "--batch", "training.local_batch_size", r->batch));
    return set_number(r->config, "--seq-len", "training.seq_len", r->seq_len);
}

static fsdp_status read_numbers(request *r)
{
    int64_t ranks = 2, machines = 1, rank = 0;

    if (r->ranks)
        FSDP_TRY(fsdp__args_integer("-n", r->ranks, 1, 1 << 16, &ranks));
    if (r->machines)
        FSDP_TRY(fsdp__args_integer("--machines", r->machines, 1, 1 << 16, &machines));
    if (machines > ranks)
        return FSDP_FAIL(FSDP_INVALID, "--machines is %lld, more than the %lld ranks: give more ranks with -n",
                         (long long)machines, (long long)ranks);
    if (ranks % machines != 0)
        return FSDP_FAIL(
            FSDP_INVALID,
            "--machines is %lld, which does not divide the %lld ranks: each machine must have equally many",
            (long long)machines, (long long)ranks);
    if (r->one_level && machines == 1)
        return FSDP_FAIL(FSDP_INVALID, "--one-level needs several machines: give --machines");
    if (r->rank)
        FSDP_TRY(fsdp__args_integer("--rank", r->rank, 0, ranks - 1, &rank));
    r->options = (fsdp_explain_options){.world_size = (int)ranks,
                                        .rank = (int)rank,
                                        .sweep = true,
                                        .machines = (int)machines,
                                        .one_level = r->one_level};
    return FSDP_OK;
}

/* Sets the number of microbatches. Call it after all other keys are set. */
static fsdp_status set_microbatches(const request *r)
{
    int64_t count = 1;

    if (!r->microbatches)
        return FSDP_OK;
    FSDP_TRY(fsdp__args_integer("--microbatches", r->microbatches, 1, 1 << 16, &count));
    r->config->training.global_batch_size = count * r->config->training.local_batch_size * r->options.world_size;
    return FSDP_OK;
}

/* Reads a config if the name is that of one, a folder if it exists or if the name is a path, otherwise a preset. */
static fsdp_status read_model(const request *r, const char *name)
{
    fsdp_model_config model;
    struct stat info;

    if (stat(name, &info) == 0 ? !S_ISDIR(info.st_mode)
                               : fsdp__ends_with(name, ".yaml") || fsdp__ends_with(name, ".yml"))
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

/* ---- what is printed ---- */

static fsdp_status print_svg(const void *e, FILE *out)
{
    return fsdp_explanation_svg(e, out);
}

static void draw(void *arg, int64_t done, int64_t all)
{
    request *r = arg;

    fsdp__bar_draw(&r->bar, done, all);
}

static fsdp_status explain(request *r, fsdp_explanation **out)
{
    fsdp_status status;

    r->options.progress = draw;
    r->options.progress_arg = r;
    fsdp__bar_begin(&r->bar);
    status = fsdp_explain(NULL, r->config, &r->options, out);
    fsdp__bar_clear(&r->bar);
    return status;
}

/* Says whether a step fits into this machine. If it does not, that is not an error: the user may ask about another
 * machine. */
static void say_whether_it_fits(const fsdp_explanation *e)
{
    fsdp__memory_limit limit = fsdp__memory_limit_of_all();
    int64_t ranks = e->world_size / FSDP__MAX(e->machines, 1);
    double bytes = (double)e->step.peak_total_bytes * (double)ranks;
    char text[40], most[40];

    if (e->microbatches == 0 || limit.bytes == FSDP__NO_LIMIT || bytes <= (double)limit.bytes)
        return;
    (void)fsdp__failure("does not fit here: %lld rank%s of one machine take%s %s at the peak of a step, and %s is %s",
                        (long long)ranks, ranks == 1 ? "" : "s", ranks == 1 ? "s" : "",
                        fsdp__size_text(bytes, text, sizeof text), limit.name,
                        fsdp__size_text((double)limit.bytes, most, sizeof most));
}

/* Prints everything, the file first: whoever reads the rest may close it before the end. If output is lost, main says
 * why. */
static int tell(request *r)
{
    FSDP__SCOPED(fsdp_explanation_free_at) fsdp_explanation *e = NULL;
    int status = 0;

    if (fsdp__output_check(r->config, "--svg", r->svg) != FSDP_OK || explain(r, &e) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__output_write("--svg", r->svg, print_svg, e) != FSDP_OK)
        status = fsdp__failure("%s", fsdp_last_error());
    if ((r->json ? fsdp_explanation_json : fsdp_explanation_print)(e, stdout) != FSDP_OK && !ferror(stdout))
        status = fsdp__failure("%s", fsdp_last_error());
    say_whether_it_fits(e);
    return status;
}

/* ---- the command line ---- */

static int with_config(request *r, int argc, char **argv)
{
    const fsdp__option options[] = {{"ranks", 'n', &r->ranks, NULL},
                                    {"np", 0, &r->ranks, NULL},
                                    {"machines", 0, &r->machines, NULL},
                                    {"one-level", 0, NULL, &r->one_level},
                                    {"strategy", 0, &r->strategy, NULL},
                                    {"wrap-policy", 0, &r->policy, NULL},
                                    {"batch", 0, &r->batch, NULL},
                                    {"seq-len", 0, &r->seq_len, NULL},
                                    {"microbatches", 0, &r->microbatches, NULL},
                                    {"rank", 0, &r->rank, NULL},
                                    {"svg", 0, &r->svg, NULL},
                                    {"json", 0, NULL, &r->json},
                                    {0}};
    fsdp__overrides over = {.config = r->config};
    fsdp__args args = {.options = options, .dotted = fsdp__override_skip, .positional_most = 1, .arg = &over};
    fsdp__args again = {.options = options, .dotted = fsdp__override_set, .positional_most = 1, .arg = &over};
    int status;

    if (!fsdp__take_line(&args, "explain", usage, argc, argv, &status))
        return status;
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
