/* cmd_explain.c - fsdp explain: shows what a strategy does to a model, and what it costs, before anything runs. */
#include <stdio.h>

#include "base/compiler.h"
#include "cli/cli.h"
#include "cli/on_device.h"
#include "plan/changes.h"
#include "plan/show_plan.h"
#include "train/run_config.h"

typedef struct request {
    fsdp__on_paper paper;
    fsdp__on_device device;
    fsdp__output svg;
    const char *rank;
    bool json;
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
         "coarser and finer units would cost. It ends with what would be better, and why.\n"
         "The engine counts all of it to the byte, in steps that allocate nothing. No\n"
         "rank is started and no weights are read; only config.json is read from a\n"
         "folder.\n"
         "\n" FSDP__ON_PAPER_HELP "  --rank R                the rank whose step is explained (default: 0, which\n"
         "                          has the most of everything, except with\n"
         "                          fsdp1_use_orig_params: 'fsdp plan' says which has)\n"
         "  --device DEVICE         judge what would be better by its time there, as 'fsdp\n"
         "                          plan' tells it: cpu or cuda (those here, measured for\n"
         "                          some seconds first), cuda:CARD, or a file that 'plan\n"
         "                          --measure' wrote (default: by bytes, calls and FLOPs)\n"
         "  --network GBITS         with it: Gbit/s out of a machine, and into it\n"
         "  --json                  print everything as JSON\n"
         "  --svg FILE              draw who holds which rows, and what is whole when\n"
         "  --section.key=value     sets any other key of fsdp train");
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
    status = fsdp_explain(NULL, r->paper.config, &r->options, out);
    fsdp__bar_clear(&r->bar);
    return status;
}

/* Explains the run, and finds out what would be better. */
static fsdp_status find_all(request *r, fsdp_explanation **out, fsdp__changes *changes)
{
    fsdp__plan_question question = fsdp__on_device_room(&r->device, &r->paper);
    fsdp__plan_options options = {.world_size = (int)r->paper.world_size,
                                  .machines = (int)r->paper.machine_count,
                                  .one_level = r->paper.one_level,
                                  .prices = question.prices};

    FSDP_TRY(fsdp__on_device_schedule(&options, question.room, r->paper.config));
    FSDP_TRY(explain(r, out));
    return fsdp__changes_find(r->paper.config, &options, question.room, changes);
}

static fsdp_status print(const request *r, const fsdp_explanation *e, const fsdp__changes *changes)
{
    const fsdp__prices *prices = r->device.has_prices ? &r->device.prices : NULL;

    if (r->json)
        return fsdp__changes_json(changes, e, stdout);
    FSDP_TRY(fsdp_explanation_print(e, stdout));
    FSDP_TRY(fsdp__changes_print(changes, stdout));
    if (prices) {
        fputs("\nTimes of a step: ", stdout);
        fsdp__plan_put_source(prices, e->world_size, stdout);
    }
    return FSDP_OK;
}

/* Says it if a step does not fit. That is not an error: the user may ask about another machine. */
static void say_whether_it_fits(const request *r, const fsdp_explanation *e)
{
    fsdp__plan_question question = fsdp__on_device_room(&r->device, &r->paper);
    char room[160];

    if (e->microbatches > 0 && !fsdp__plan_fits(&e->step, &question, room, sizeof room))
        (void)fsdp__failure("a step does not fit: %s", room);
}

/* Prints everything, the file first: whoever reads the rest may close it before the end. If output is lost, main says
 * why. */
static int tell(request *r)
{
    FSDP__SCOPED(fsdp_explanation_free_at) fsdp_explanation *e = NULL;
    fsdp__changes changes;
    int status = 0;

    if (fsdp__output_check(&r->svg, r->paper.config, "--svg", &fsdp__output_svg) != FSDP_OK ||
        (r->device.name && fsdp__on_device_open(&r->device, r->device.name, true, r->paper.config) != FSDP_OK) ||
        find_all(r, &e, &changes) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__output_write(&r->svg, "--svg", print_svg, e) != FSDP_OK)
        status = fsdp__failure("%s", fsdp_last_error());
    if (print(r, e, &changes) != FSDP_OK && !ferror(stdout))
        status = fsdp__failure("%s", fsdp_last_error());
    if (!r->json)
        fsdp__output_tell(&r->svg, "picture");
    say_whether_it_fits(r, e);
    return status;
}

/* ---- the command line ---- */

static fsdp_status read_numbers(request *r)
{
    int64_t rank = 0;

    FSDP_TRY(fsdp__on_paper_numbers(&r->paper, 1 << 16));
    FSDP_TRY(fsdp__on_device_numbers(&r->device));
    FSDP_TRY(fsdp__args_integer("--rank", r->rank, 0, r->paper.world_size - 1, &rank));
    r->options = (fsdp_explain_options){.world_size = (int)r->paper.world_size,
                                        .rank = (int)rank,
                                        .sweep = true,
                                        .machines = (int)r->paper.machine_count,
                                        .one_level = r->paper.one_level};
    return FSDP_OK;
}

static const fsdp__option_rule rules[] = {
    {"network", "device", NULL}, {"network", "machines", NULL}, {"one-level", "machines", NULL}, {0}};

static int with_config(request *r, int argc, char **argv)
{
    const fsdp__option options[] = {FSDP__ON_PAPER_OPTIONS(&r->paper), FSDP__ON_DEVICE_OPTIONS(&r->device),
                                    {"rank", 0, &r->rank, NULL},       {"svg", 0, &r->svg.path, NULL},
                                    {"json", 0, NULL, &r->json},       {0}};
    fsdp__overrides over = {.config = r->paper.config};
    fsdp__args args = {
        .options = options, .rules = rules, .dotted = fsdp__override_skip, .positional_most = 1, .arg = &over};
    int status;

    if (!fsdp__take_line(&args, "explain", usage, argc, argv, &status))
        return status;
    if (args.rest)
        return fsdp__usage_error("explain: nothing may follow '--'");
    if (args.positional_count == 0)
        return fsdp__usage_error("explain: no model given: a folder, a preset such as llama-1m, or a config");
    if (read_numbers(r) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    status = fsdp__on_paper_config(&r->paper, &args, "explain", argc, argv);
    return status == 0 ? tell(r) : status;
}

int fsdp__cmd_explain(int argc, char **argv)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;

    if (fsdp_train_config_create(&config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return with_config(&(request){.paper.config = config}, argc, argv);
}
