/* cmd_plan.c - fsdp plan: will it fit, and how long will it take? */
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/on_device.h"
#include "config/size.h"
#include "plan/fit.h"
#include "plan/measure.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "plan/schedule.h"
#include "plan/show_plan.h"
#include "report/step_picture.h"
#include "train/run_config.h"

typedef struct request {
    fsdp__on_paper paper;
    fsdp__on_device device;
    const char *price_text, *fit, *trace;
    fsdp__traced_step step; /* of the trace, if there is one */
    fsdp__output measure, schedule, memory_svg;
    bool json, no_time;
    int64_t room; /* of a rank, in bytes */
    double price; /* of a device and hour */
} request;

static void usage(void)
{
    puts("fsdp plan FOLDER|PRESET|CONFIG.yaml [-n RANKS] [--machines MACHINES]\n"
         "    [--device cpu|cuda|cuda:CARD|FILE] [--fit SIZE] [--section.key=value]\n"
         "fsdp plan --measure FILE [--device cpu|cuda]\n"
         "mpirun ... fsdp plan --measure FILE\n"
         "\n"
         "Says whether a run will fit, and how long it will take.\n"
         "\n"
         "Memory: what a rank has at the peak of a step, by kind, when in the step and in\n"
         "which module that is, what its activations are of, and what it sends. The engine\n"
         "counts it in a step that allocates nothing, as for 'fsdp explain': to the byte\n"
         "what the ledger of a run will show without workspace. Time: that step, priced\n"
         "kernel by kernel. No rank is started and no weights are read.\n"
         "\n" FSDP__ON_PAPER_HELP "  --device DEVICE         where the run will be: cpu or cuda (those here,\n"
         "                          measured for some seconds first), cuda:CARD (such as\n"
         "                          cuda:H100, by its data sheet), or a file of --measure\n"
         "                          (default: training.device, or cpu)\n"
         "  --network GBITS         Gbit/s out of a machine, and into it (default: 10, or\n"
         "                          400 with a data sheet)\n"
         "  --fit SIZE              list the settings that fit into so much memory of a\n"
         "                          rank (24GiB), the fastest first, with config lines:\n"
         "                          strategy, recomputation, offload, microbatches\n"
         "  --schedule FILE         plan when parameters and gradients travel: units\n"
         "                          merged, split, kept whole and gathered ahead so that\n"
         "                          a step is shortest, in parallelism.schedule_memory\n"
         "                          or all that a rank has; write the file that\n"
         "                          parallelism.schedule takes\n"
         "  --price PRICE           of a GPU, or of a machine without, for an hour\n"
         "  --no-time               plan the memory only; measure nothing\n"
         "  --measure FILE          measure this machine's device for up to a minute, and\n"
         "                          write the file that --device takes; as ranks on\n"
         "                          several machines: measure the network between them,\n"
         "                          and add it to that file\n"
         "  --memory-svg FILE       draw what is live when, by kind, and a line at what a\n"
         "                          rank has, or at the SIZE of --fit\n"
         "  --trace TRACE           in that picture, below it, what a step of a run had\n"
         "                          (metrics.trace.path)\n"
         "  --json                  print everything as JSON\n"
         "  --section.key=value     sets any other key of fsdp train");
}

/* ---- the device ---- */

/* Gets what `--device` names, or else the config, unless nobody asks for the time. */
static fsdp_status open_device(request *r)
{
    const fsdp_train_config *config = r->paper.config;
    const char *name = r->device.name;

    if (r->no_time && !name)
        return FSDP_OK;
    name = name ? name : config->parallelism.schedule_prices;
    name = name ? name : config->training.device;
    return fsdp__on_device_open(&r->device, name ? name : "cpu", !r->no_time, r->paper.config);
}

static fsdp_status print_prices(const void *prices, FILE *out)
{
    return fsdp__prices_print(prices, out);
}

static const fsdp__output_kind kind_of_prices = {{"{\n \"fsdp_prices\": ", NULL},
                                                 "holds no prices that --measure wrote"};

/* Measures the network of a world that somebody has started, and puts it into the file, which has the rest. */
static fsdp_status add_network(request *r, fsdp_context *context)
{
    bool leads = fsdp_context_rank(context) == 0;
    fsdp_status status = FSDP_OK;

    if (fsdp_context_machines(context) == 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "--measure: %d ranks on one machine: with several ranks the network between "
                         "machines is measured; leave out what has started them",
                         fsdp_context_world_size(context));
    if (leads)
        status = fsdp__prices_read(r->measure.path, &r->device.prices);
    if (status != FSDP_OK)
        status = fsdp_fail_prefix(status, "--measure: the network is added to a file that one process has measured");
    FSDP_TRY(fsdp_agree(fsdp_world(context), status));
    FSDP_TRY(fsdp__measure_network(context, &r->device.prices));
    if (!leads)
        return FSDP_OK;
    FSDP_TRY(fsdp__output_write(&r->measure, "--measure", print_prices, &r->device.prices));
    printf("%s: network between %d machines: %.3g us a call, %.3g Gbit/s\n", FSDP__SHOWN_PATH(r->measure.path),
           fsdp_context_machines(context), 1e6 * r->device.prices.network.latency,
           8e-9 * r->device.prices.network.per_second);
    return FSDP_OK;
}

/* Measures the device that is here, and writes a file. */
static int measure_device_to(request *r)
{
    const char *name = r->device.name ? r->device.name : "cpu";

    if (strcmp(name, "cpu") != 0 && strncmp(name, "cuda", 4) != 0)
        return fsdp__usage_error("--device is '%s': what can be measured is cpu or cuda", name);
    if (fsdp__output_check(&r->measure, r->paper.config, "--measure", &kind_of_prices) != FSDP_OK ||
        fsdp__on_device_measure(&r->device, name) != FSDP_OK ||
        fsdp__output_write(&r->measure, "--measure", print_prices, &r->device.prices) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    printf("%s: %d rates of %s%s\n", FSDP__SHOWN_PATH(r->measure.path), r->device.prices.rate_count,
           r->device.prices.device, fsdp__in_place(r->measure.replaces));
    if (r->device.prices.busy > FSDP__PRICES_BUSY)
        printf("Caution: other work had the processor for %.0f %% of the time: measure again when it is idle\n",
               100 * r->device.prices.busy);
    return 0;
}

/* Measures the device that is here; or, as one of several ranks, the network. */
static int measure_to(request *r)
{
    fsdp_context *context = NULL;
    fsdp_status status = fsdp_context_from_env(&context);
    bool alone = status == FSDP_OK && fsdp_context_world_size(context) == 1;
    int rank = status == FSDP_OK ? fsdp_context_rank(context) : 0;

    if (status == FSDP_OK && !alone)
        status = add_network(r, context);
    fsdp_context_free(context);
    if (alone)
        return measure_device_to(r);
    return status == FSDP_OK ? 0 : rank == 0 ? fsdp__failure("%s", fsdp_last_error()) : FSDP__FAILED;
}

/* ---- the plan ---- */

/* Lists the settings that fit. */
static int tell_fit(const request *r, const fsdp__plan_options *options)
{
    fsdp__fit fit;
    fsdp_status status = fsdp__fit_find(r->paper.config, options, (double)r->room, &fit);

    if (status == FSDP_OK)
        status = r->json ? fsdp__fit_json(&fit, stdout) : fsdp__fit_print(&fit, stdout);
    if (status == FSDP_OK && r->json)
        status = fsdp__fit_check(&fit);
    return status == FSDP_OK || ferror(stdout) ? 0 : fsdp__failure("%s", fsdp_last_error());
}

static fsdp_status print_schedule(const void *schedule, FILE *out)
{
    return fsdp__comm_schedule_print(schedule, out);
}

/* Plans when parameters and gradients travel, prints that, and writes the file that `--schedule` names. */
static int tell_schedule(request *r, const fsdp__plan_options *options, double room)
{
    static const fsdp__output_kind kind = {{"{\n \"fsdp_schedule\": ", NULL}, "holds no schedule"};
    const fsdp_train_config *config = r->paper.config;
    double memory = (double)config->parallelism.schedule_memory;
    FSDP__SCOPED(fsdp__scheduled_release) fsdp__scheduled found = {0};
    fsdp_status status = fsdp__output_check(&r->schedule, config, "--schedule", &kind);

    if (status == FSDP_OK)
        status = fsdp__schedule_find(config, options, memory > 0 ? memory : room, FSDP__SCHEDULE_TRIES, &found);
    if (status != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    status = r->json ? fsdp__scheduled_json(&found, stdout) : fsdp__scheduled_print(&found, stdout);
    if (status == FSDP_OK)
        status = fsdp__output_write(&r->schedule, "--schedule", print_schedule, found.plan);
    if (status == FSDP_OK && !r->json)
        printf("\nWritten to %s%s: --parallelism.schedule=%s\n", FSDP__SHOWN_PATH(r->schedule.path),
               fsdp__in_place(r->schedule.replaces), FSDP__SHELL_WORD(r->schedule.path));
    return status == FSDP_OK || ferror(stdout) ? 0 : fsdp__failure("%s", fsdp_last_error());
}

/* ---- the picture ---- */

typedef struct picture {
    const fsdp__plan *plan;
    const fsdp__traced_step *step; /* NULL: there is no trace */
    double limit;                  /* bytes of a rank; 0: not known */
} picture;

static double step_at(const void *of, int64_t i)
{
    const fsdp__traced_step *step = of;

    return (double)(i < step->first.count ? step->first.moments[i].at : step->ranks[0].ns);
}

static double step_bytes(const void *of, int64_t i, int kind)
{
    const fsdp__traced_step *step = of;

    return (double)step->first.moments[i].bytes[kind];
}

static fsdp_status print_picture(const void *arg, FILE *out)
{
    const picture *p = arg;
    int fills[FSDP_MEMORY_KINDS];
    const fsdp__stack measured = {.layers = FSDP_MEMORY_KINDS,
                                  .fills = fills,
                                  .count = p->step ? p->step->first.count : 0,
                                  .at = step_at,
                                  .value = step_bytes,
                                  .of = p->step};

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        fills[kind] = fsdp__memory_fill(kind);
    return fsdp__plan_memory_svg(p->plan, fills, p->step ? &measured : NULL, p->limit, out);
}

static fsdp_status draw(request *r, const fsdp__plan *plan, double limit)
{
    const picture p = {.plan = plan, .step = r->trace ? &r->step : NULL, .limit = limit};

    return fsdp__output_write(&r->memory_svg, "--memory-svg", print_picture, &p);
}

/* Makes the plan, draws it if that is asked for, and prints it, or with --fit what fits. */
static int tell_plan(request *r, const fsdp__plan_options *options, const fsdp__plan_question *question)
{
    FSDP__SCOPED(fsdp__plan_free_at) fsdp__plan *plan = NULL;
    int status = 0, told = 0;

    if (fsdp__plan_make(r->paper.config, options, &plan) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (r->memory_svg.path && draw(r, plan, r->fit ? (double)r->room : question->room) != FSDP_OK)
        status = fsdp__failure("%s", fsdp_last_error());
    if (r->fit)
        told = tell_fit(r, options);
    else if ((r->json ? fsdp__plan_json : fsdp__plan_print)(plan, question, stdout) != FSDP_OK && !ferror(stdout))
        told = fsdp__failure("%s", fsdp_last_error());
    if (!r->json)
        fsdp__output_tell(&r->memory_svg, "picture");
    return FSDP__MAX(status, told);
}

static fsdp_status read_trace(request *r)
{
    if (!r->trace)
        return FSDP_OK;
    FSDP_TRY(fsdp_fail_prefix(fsdp__traced_step_read(r->trace, &r->step), "--trace"));
    return r->step.first.count > 0 ? FSDP_OK : FSDP_FAIL(FSDP_INVALID, "--trace: '%s' counts no memory", r->trace);
}

static int tell(request *r)
{
    fsdp__plan_options options = {.world_size = (int)r->paper.world_size,
                                  .machines = (int)r->paper.machine_count,
                                  .one_level = r->paper.one_level};
    fsdp__plan_question question;

    if (fsdp__output_check(&r->memory_svg, r->paper.config, "--memory-svg", &fsdp__output_svg) != FSDP_OK ||
        read_trace(r) != FSDP_OK || open_device(r) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    question = fsdp__on_device_room(&r->device, &r->paper);
    question.price = r->price;
    if (r->no_time)
        question.prices = NULL;
    options.prices = question.prices;
    options.moments = r->memory_svg.path != NULL;
    if (r->fit && !r->memory_svg.path)
        return tell_fit(r, &options);
    if (r->schedule.path)
        return tell_schedule(r, &options, question.room);
    if (fsdp__on_device_schedule(&options, question.room, r->paper.config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return tell_plan(r, &options, &question);
}

static fsdp_status read_numbers(request *r)
{
    if (r->fit && (!fsdp__size_parse(r->fit, &r->room) || r->room <= 0))
        return FSDP_FAIL(FSDP_INVALID, "--fit is '%s': expected a size, such as 24GiB", r->fit);
    if (r->fit && strspn(r->fit, "0123456789.") == strlen(r->fit))
        return FSDP_FAIL(FSDP_INVALID, "--fit is '%s', which has no unit: is it %sGiB?", r->fit, r->fit);
    FSDP_TRY(fsdp__args_number("--price", r->price_text, 0, 1e6, &r->price));
    return fsdp__on_device_numbers(&r->device);
}

/* Refuses options of which one would count for nothing, and its file would not be written. */
static fsdp_status refuse_together(const request *r)
{
    const char *other = r->memory_svg.path ? "--memory-svg" : r->fit ? "--fit" : NULL;

    if (r->measure.path && r->schedule.path)
        other = "--schedule";
    if (other && (r->measure.path || r->schedule.path))
        return FSDP_FAIL(FSDP_INVALID, "plan: %s and %s are answered one at a time: leave one of them out",
                         r->measure.path ? "--measure" : "--schedule", other);
    return FSDP_OK;
}

static const fsdp__option_rule rules[] = {
    {"measure", NULL, FSDP__ON_PAPER_NAMES " network no-time json price"},
    {"price", NULL, "no-time fit schedule"},
    {"network", NULL, "no-time"},
    {"network", "machines", NULL},
    {"one-level", "machines", NULL},
    {"trace", "memory-svg", NULL},
    {0},
};

static int with_config(request *r, int argc, char **argv)
{
    const fsdp__option options[] = {FSDP__ON_PAPER_OPTIONS(&r->paper),
                                    FSDP__ON_DEVICE_OPTIONS(&r->device),
                                    {"price", 0, &r->price_text, NULL},
                                    {"no-time", 0, NULL, &r->no_time},
                                    {"measure", 0, &r->measure.path, NULL},
                                    {"fit", 0, &r->fit, NULL},
                                    {"schedule", 0, &r->schedule.path, NULL},
                                    {"json", 0, NULL, &r->json},
                                    {"memory-svg", 0, &r->memory_svg.path, NULL},
                                    {"trace", 0, &r->trace, NULL},
                                    {0}};
    fsdp__overrides over = {.config = r->paper.config};
    fsdp__args args = {
        .options = options, .rules = rules, .dotted = fsdp__override_skip, .positional_most = 1, .arg = &over};
    int status;

    if (!fsdp__take_line(&args, "plan", usage, argc, argv, &status))
        return status;
    if (args.rest)
        return fsdp__usage_error("plan: nothing may follow '--'");
    if (refuse_together(r) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (r->measure.path && args.positional_count > 0)
        return fsdp__usage_error("plan: --measure measures what is here, and no model: leave '%s' out",
                                 args.positional[0]);
    if (r->measure.path)
        return measure_to(r);
    if (args.positional_count == 0)
        return fsdp__usage_error("plan: no model given: a folder, a preset such as llama-1m, or a config");
    if (fsdp__on_paper_numbers(&r->paper, 1000000) != FSDP_OK || read_numbers(r) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    status = fsdp__on_paper_config(&r->paper, &args, "plan", argc, argv);
    return status == 0 ? tell(r) : status;
}

int fsdp__cmd_plan(int argc, char **argv)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;

    request r = {.price = 0};
    int status;

    if (fsdp_train_config_create(&config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    r.paper.config = config;
    status = with_config(&r, argc, argv);
    fsdp__traced_step_release(&r.step);
    return status;
}
