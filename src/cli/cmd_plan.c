/* cmd_plan.c - fsdp plan: will it fit, and how long will it take? */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/on_paper.h"
#include "config/size.h"
#include "plan/cards.h"
#include "plan/fit_text.h"
#include "plan/measure.h"
#include "plan/plan.h"
#include "plan/prices_file.h"
#include "plan/show_plan.h"

enum {
    QUICK_SECONDS = 3, /* before a plan */
    LONG_SECONDS = 45  /* for a file */
};

typedef struct request {
    fsdp__on_paper paper;
    const char *device, *price_text, *measure, *network_text, *fit;
    bool json, no_time;
    int64_t room;          /* of a rank, in bytes */
    double price, network; /* of a device and hour; Gbit/s */
    fsdp__prices prices;
    bool has_prices;
} request;

static void usage(void)
{
    puts("fsdp plan FOLDER|PRESET|CONFIG.yaml [-n RANKS] [--machines MACHINES]\n"
         "    [--device cpu|cuda|cuda:CARD|FILE] [--fit SIZE] [--section.key=value]\n"
         "fsdp plan --measure FILE [--device cpu|cuda]\n"
         "\n"
         "Says whether a run will fit, and how long it will take.\n"
         "\n"
         "Memory: what a rank has at the peak of a step, by kind, when in the step and in\n"
         "which module that is, what its activations are of, and what it sends. The engine\n"
         "counts it in a step that allocates nothing, as for 'fsdp explain': to the byte\n"
         "what the ledger of a run will show. Time: that step, priced kernel by kernel. No\n"
         "rank is started and no weights are read.\n"
         "\n" FSDP__ON_PAPER_HELP "  --device DEVICE         where the run will be: cpu or cuda (those here,\n"
         "                          measured for some seconds first), cuda:CARD (such as\n"
         "                          cuda:H100, by its data sheet), or a file of --measure\n"
         "                          (default: training.device, or cpu)\n"
         "  --network GBITS         Gbit/s out of a machine, and into it (default: 10, or\n"
         "                          400 with a data sheet)\n"
         "  --fit SIZE              list the settings that fit into so much memory of a\n"
         "                          rank (24GiB), the fastest first, with config lines:\n"
         "                          strategy, recomputation, offload, microbatches\n"
         "  --price PRICE           of a GPU, or of a machine without, for an hour\n"
         "  --no-time               plan the memory only; measure nothing\n"
         "  --measure FILE          measure this machine's device for up to a minute, and\n"
         "                          write the file that --device takes\n"
         "  --json                  print everything as JSON\n"
         "  --section.key=value     sets any other key of fsdp train");
}

/* ---- the device ---- */

static fsdp_status measure(request *r, const char *name, double seconds)
{
    FSDP_TRY(fsdp__prices_measure(name, seconds, &r->prices));
    r->has_prices = true;
    return FSDP_OK;
}

/* Gets what `--device` names: the device that is here, a card, or a file of prices. */
static fsdp_status find_prices(request *r)
{
    const char *name = r->device ? r->device : r->paper.config->training.device;

    if (r->no_time && !r->device)
        return FSDP_OK;
    if (!name || strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0)
        return measure(r, name ? name : "cpu", QUICK_SECONDS);
    if (strncmp(name, "cuda:", 5) == 0)
        FSDP_TRY(fsdp__prices_of_card(name + 5, &r->prices));
    else if (strchr(name, '/') || fsdp__path_exists(name) || fsdp__ends_with(name, ".json"))
        FSDP_TRY(fsdp__prices_read(name, &r->prices));
    else
        return FSDP_FAIL(FSDP_INVALID, "--device is '%s': expected cpu, cuda, cuda:CARD, or a file of prices", name);
    r->has_prices = true;
    return FSDP_OK;
}

/* Makes the run that is planned one on that device. */
static fsdp_status set_device(request *r)
{
    if (r->network > 0)
        r->prices.network.per_second = r->network * 1e9 / 8;
    if (!r->has_prices)
        return FSDP_OK;
    return fsdp_train_config_set(r->paper.config, "training.device", r->prices.gpu ? "cuda" : "cpu");
}

/* Finds out how much memory a rank has: all of its GPU's, or its share of a machine's. */
static fsdp__plan_question question_of(const request *r)
{
    fsdp__memory_limit limit = fsdp__memory_limit_of_all();
    double ranks = (double)(r->paper.world_size / r->paper.machine_count);
    fsdp__plan_question q = {.price = r->price, .prices = r->has_prices && !r->no_time ? &r->prices : NULL};

    if (r->has_prices && r->prices.memory_bytes > 0) {
        q.room = r->prices.gpu ? r->prices.memory_bytes : r->prices.memory_bytes / ranks;
        q.room_name = r->prices.gpu ? "all memory of the card" : "its share of the machine's memory";
    } else if (!r->has_prices && limit.bytes != FSDP__NO_LIMIT) {
        q.room = (double)limit.bytes / ranks;
        q.room_name = limit.name;
    }
    return q;
}

static fsdp_status print_prices(const void *prices, FILE *out)
{
    return fsdp__prices_print(prices, out);
}

/* Measures the device that is here, and writes a file. */
static int measure_to(request *r)
{
    static const fsdp__output_kind kind = {{"{\n \"fsdp_prices\": ", NULL}, "holds no prices that --measure wrote"};
    const char *name = r->device ? r->device : "cpu";

    if (strcmp(name, "cpu") != 0 && strncmp(name, "cuda", 4) != 0)
        return fsdp__usage_error("--device is '%s': what can be measured is cpu or cuda", name);
    if (fsdp__output_check(r->paper.config, "--measure", r->measure, &kind) != FSDP_OK ||
        measure(r, name, LONG_SECONDS) != FSDP_OK ||
        fsdp__output_write("--measure", r->measure, print_prices, &r->prices) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    printf("%s: %d rates of %s\n", r->measure, r->prices.rate_count, r->prices.device);
    return 0;
}

/* ---- the plan ---- */

/* Lists the settings that fit. */
static int tell_fit(const request *r, const fsdp__plan_options *options)
{
    fsdp__fit fit;
    fsdp_status status = fsdp__fit_find(r->paper.config, options, (double)r->room, &fit);

    if (status == FSDP_OK)
        status = r->json ? fsdp__fit_json(&fit, stdout) : fsdp__fit_print(&fit, options, stdout);
    if (status == FSDP_OK && r->json)
        status = fsdp__fit_check(&fit);
    return status == FSDP_OK || ferror(stdout) ? 0 : fsdp__failure("%s", fsdp_last_error());
}

static int tell(request *r)
{
    fsdp__plan_options options = {.world_size = (int)r->paper.world_size,
                                  .machines = (int)r->paper.machine_count,
                                  .one_level = r->paper.one_level};
    fsdp__plan_question question;
    fsdp__plan *plan = NULL;
    int status = 0;

    if (find_prices(r) != FSDP_OK || set_device(r) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    question = question_of(r);
    options.prices = question.prices;
    if (r->fit)
        return tell_fit(r, &options);
    if (fsdp__plan_make(r->paper.config, &options, &plan) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if ((r->json ? fsdp__plan_json : fsdp__plan_print)(plan, &question, stdout) != FSDP_OK && !ferror(stdout))
        status = fsdp__failure("%s", fsdp_last_error());
    fsdp__plan_free(plan);
    return status;
}

static fsdp_status read_numbers(request *r)
{
    if (r->fit && (!fsdp__size_parse(r->fit, &r->room) || r->room <= 0))
        return FSDP_FAIL(FSDP_INVALID, "--fit is '%s': expected a size, such as 24GiB", r->fit);
    if (r->price_text)
        FSDP_TRY(fsdp__args_number("--price", r->price_text, 0, 1e6, &r->price));
    return r->network_text ? fsdp__args_number("--network", r->network_text, 1e-6, 1e6, &r->network) : FSDP_OK;
}

static int with_config(request *r, int argc, char **argv)
{
    const fsdp__option options[] = {
        FSDP__ON_PAPER_OPTIONS(&r->paper),  {"device", 0, &r->device, NULL},   {"network", 0, &r->network_text, NULL},
        {"price", 0, &r->price_text, NULL}, {"no-time", 0, NULL, &r->no_time}, {"measure", 0, &r->measure, NULL},
        {"fit", 0, &r->fit, NULL},          {"json", 0, NULL, &r->json},       {0}};
    fsdp__overrides over = {.config = r->paper.config};
    fsdp__args args = {.options = options, .dotted = fsdp__override_skip, .positional_most = 1, .arg = &over};
    int status;

    if (!fsdp__take_line(&args, "plan", usage, argc, argv, &status))
        return status;
    if (args.rest)
        return fsdp__usage_error("plan: nothing may follow '--'");
    if (r->measure)
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
    request r = {.json = false};
    int status;

    if (fsdp_train_config_create(&r.paper.config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    status = with_config(&r, argc, argv);
    fsdp_train_config_free(r.paper.config);
    return status;
}
