/* cmd_plan.c - fsdp plan: will it fit, and how long will it take? */
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "base/limits.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/on_paper.h"
#include "plan/plan.h"
#include "plan/show_plan.h"

typedef struct request {
    fsdp__on_paper paper;
    const char *device, *price_text;
    bool json;
    double price;
    fsdp__prices prices;
    bool has_prices;
} request;

static void usage(void)
{
    puts("fsdp plan FOLDER|PRESET|CONFIG.yaml [-n RANKS] [--machines MACHINES]\n"
         "    [--section.key=value ...]\n"
         "\n"
         "Says whether a run will fit: the memory of a rank at the peak of a step, by kind,\n"
         "when in the step and in which module that is, what its activations are of, and\n"
         "what it sends. The engine counts all of it in a step that allocates nothing, as\n"
         "for 'fsdp explain': to the byte what the ledger of a run will show. No rank is\n"
         "started and no weights are read.\n"
         "\n" FSDP__ON_PAPER_HELP "  --json                  print everything as JSON\n"
         "  --section.key=value     sets any other key of fsdp train");
}

/* Finds out how much memory a rank has here. */
static fsdp__plan_question question_of(const request *r)
{
    fsdp__memory_limit limit = fsdp__memory_limit_of_all();
    fsdp__plan_question q = {.price = r->price};

    if (limit.bytes != FSDP__NO_LIMIT) {
        q.room = (double)limit.bytes / (double)(r->paper.world_size / r->paper.machine_count);
        q.room_name = limit.name;
    }
    return q;
}

static int tell(const request *r)
{
    const fsdp__plan_options options = {.world_size = (int)r->paper.world_size,
                                        .machines = (int)r->paper.machine_count,
                                        .one_level = r->paper.one_level};
    fsdp__plan_question question = question_of(r);
    fsdp__plan *plan = NULL;
    int status = 0;

    if (fsdp__plan_make(r->paper.config, &options, &plan) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if ((r->json ? fsdp__plan_json : fsdp__plan_print)(plan, &question, stdout) != FSDP_OK && !ferror(stdout))
        status = fsdp__failure("%s", fsdp_last_error());
    fsdp__plan_free(plan);
    return status;
}

static int with_config(request *r, int argc, char **argv)
{
    const fsdp__option options[] = {FSDP__ON_PAPER_OPTIONS(&r->paper), {"json", 0, NULL, &r->json}, {0}};
    fsdp__overrides over = {.config = r->paper.config};
    fsdp__args args = {.options = options, .dotted = fsdp__override_skip, .positional_most = 1, .arg = &over};
    fsdp__args again = {.options = options, .dotted = fsdp__override_set, .positional_most = 1, .arg = &over};
    int status;

    if (!fsdp__take_line(&args, "plan", usage, argc, argv, &status))
        return status;
    if (args.rest)
        return fsdp__usage_error("plan: nothing may follow '--'");
    if (args.positional_count == 0)
        return fsdp__usage_error("plan: no model given: a folder, a preset such as llama-1m, or a config");
    if (fsdp__on_paper_numbers(&r->paper, 1000000) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (fsdp__on_paper_model(&r->paper, args.positional[0]) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__on_paper_keys(&r->paper) != FSDP_OK || fsdp__args_parse(&again, "plan", argc, argv) != FSDP_OK ||
        fsdp__on_paper_microbatches(&r->paper) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    return tell(r);
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
