/* cmd_compare.c - fsdp compare CONFIG.yaml: what each strategy costs. Each one is started several times, in turns, so
 * that whatever disturbs the machine disturbs all of them, and a failure is that of one alone. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/compare_starts.h"
#include "cli/overrides.h"
#include "cli/torchrun.h"
#include "compare/compare_table.h"
#include "launch/variables.h"
#include "train/run_config.h"

enum {
    STEPS = 4,
    ROUNDS = 3,
    RANDOM_BYTES = 1 << 20
};

typedef struct session {
    fsdp__comparison comparison;
    const char *strategies, *policies, *worlds;
    fsdp__output markdown, svg;
    bool json;
    int random_fd; /* random data, if the user named none; -1: not used */
} session;

static void usage(void)
{
    puts("fsdp compare CONFIG.yaml|PRESET -n RANKS [--strategies LIST] [--policies LIST]\n"
         "    [--section.key=value ...]\n"
         "\n"
         "Trains some steps with each strategy, and compares what they cost.\n"
         "\n"
         "  -n, -np, --ranks RANKS  number of processes to start\n"
         "  --nproc-per-node RANKS  the same; 'fsdp run --help' lists other options of\n"
         "                          torchrun that are accepted\n"
         "  --strategies LIST       values of parallelism.strategy, from\n"
         "                          ddp,zero1,zero2,zero3,fsdp2,hsdp,fsdp1 (default: all),\n"
         "                          fsdp1:STRATEGY, such as fsdp1:shard_grad_op, and\n"
         "                          in teams fsdp2:tpN (of a layer), fsdp2:cpN (of a\n"
         "                          sequence) or fsdp2:cpN+tpN, so also the others;\n"
         "                          losses are compared with those of the first\n"
         "  --policies LIST         values of parallelism.wrap_policy: blocks, root,\n"
         "                          always, size (100000000), size:PARAMETERS or\n"
         "                          class:NAME+NAME (default: the config's)\n"
         "  --steps N               steps that are measured in each start (default: 4),\n"
         "                          after 2 that are not\n"
         "  --rounds N              how often each strategy is started, in turns\n"
         "                          (default: 3)\n"
         "  --worlds LIST           other numbers of ranks for which to say memory and\n"
         "                          bytes (default: 1,2,4,8,16,64)\n"
         "  --markdown FILE         also write the table as Markdown\n"
         "  --svg FILE              also draw it as bars\n"
         "  --json                  print JSON instead of the table: every figure, and\n"
         "                          bytes exactly\n"
         "  --section.key=value     replaces the file's value, as in fsdp train\n"
         "\n"
         "CONFIG.yaml is what fsdp train reads. Every strategy trains on the same data;\n"
         "keys that belong to one strategy are ignored for the others. A preset alone\n"
         "trains on random bytes. metrics.jsonl and export.path are not written. If a\n"
         "strategy fails, or does not fit the config, the reason is printed and the others\n"
         "go on; the exit status is 1 if one has failed. A strategy or policy that is not\n"
         "possible at all is refused before anything runs.");
}

/* ---- other numbers of ranks ---- */

/* Computes the figures on other numbers of ranks. A failure is only a warning, so that it does not cost what was
 * measured. */
static void look_elsewhere(fsdp__comparison *c)
{
    for (int v = 0; v < c->variants.count; v++)
        for (int i = 0; i < c->worlds.count; i++)
            if (fsdp__elsewhere_find(c->variants.items[v].config, c->ranks, c->worlds.ranks[i],
                                     &c->worlds.figures[v][i]) != FSDP_OK)
                fsdp__failure("warning: %s on %s: %s", c->variants.items[v].label, c->worlds.labels[i],
                              fsdp_last_error());
}

/* ---- files ---- */

static fsdp_status print_markdown(const void *c, FILE *out)
{
    fsdp__comparison_print_markdown(c, out);
    return FSDP_OK;
}

static fsdp_status print_svg(const void *c, FILE *out)
{
    fsdp__comparison_print_svg(c, out);
    return FSDP_OK;
}

/* Writes both files, or neither. A full disk costs only them: then this says so. */
static int write_files(session *s)
{
    const fsdp__output_job files[] = {{&s->markdown, "--markdown", print_markdown}, {&s->svg, "--svg", print_svg}};

    if (fsdp__outputs_write(files, FSDP__COUNT_OF(files), &s->comparison) == FSDP_OK)
        return 0;
    return fsdp__failure("%s", fsdp_last_error());
}

static bool one_failed(const fsdp__comparison *c)
{
    bool failed = false;

    for (int v = 0; v < c->variants.count; v++)
        failed = failed || c->figures[v].failure[0];
    return failed;
}

/* Prints everything, the files first: whoever reads the table may close it before its end. */
static int tell(session *s)
{
    const fsdp__comparison *c = &s->comparison;
    int status = one_failed(c) ? FSDP__FAILED : 0;

    if (fsdp__comparison_first(c) < 0) { /* mostly all for the same reason */
        for (int v = 0; v < c->variants.count; v++)
            if (c->figures[v].failure[0])
                return fsdp__failure("%s", c->figures[v].failure);
        return fsdp__failure("%s", c->variants.items[0].refused);
    }
    status = write_files(s) ? FSDP__FAILED : status;
    if (s->json)
        return fsdp__comparison_print_json(c, stdout) == FSDP_OK || ferror(stdout)
                   ? status
                   : fsdp__failure("%s", fsdp_last_error());
    fsdp__comparison_print(c, stdout);
    fsdp__output_tell(&s->markdown, "table");
    fsdp__output_tell(&s->svg, "picture");
    return status;
}

/* ---- what is compared ---- */

/* Makes random data: the same bytes in every run. */
static fsdp_status make_random_data(fsdp_train_config *config, int *fd)
{
    FSDP__FREED unsigned char *bytes = fsdp__malloc(RANDOM_BYTES);
    uint32_t state = 1;
    fsdp_status status;
    char path[40];

    FSDP__TRY_NEW(bytes);
    for (int i = 0; i < RANDOM_BYTES; i++) {
        state = state * 1664525 + 1013904223;
        bytes[i] = (unsigned char)(' ' + (state >> 24) % 95);
    }
    *fd = memfd_create("fsdp-random-data", 0);
    status = *fd >= 0 ? fsdp__file_pwrite(*fd, "random data", bytes, RANDOM_BYTES, 0)
                      : FSDP_FAIL(FSDP_IO, "cannot make random data: %s%s", strerrordesc_np(errno),
                                  fsdp__limit_behind(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
    if (status == FSDP_OK)
        status = fsdp_train_config_set(config, "data.path", path);
    return status == FSDP_OK ? fsdp_train_config_set(config, "data.format", "text") : status;
}

/* Reads a config file, or takes a preset of that name if there is no such file. */
static fsdp_status read_config(fsdp_train_config *config, const char *name, bool *is_preset)
{
    fsdp_model_config preset;
    bool held = fsdp_hold_error(true);

    *is_preset = !fsdp__path_exists(name) && fsdp_model_preset(name, &preset) == FSDP_OK;
    fsdp_release_error(held);
    return *is_preset ? fsdp_train_config_set(config, "model.preset", name) : fsdp_train_config_load(config, name);
}

static fsdp_status prepare(session *s, fsdp_train_config *config, bool is_preset)
{
    fsdp__comparison *c = &s->comparison;

    if (is_preset && config->data.path_count == 0)
        FSDP_TRY(make_random_data(config, &s->random_fd));
    c->config = config;
    FSDP_TRY(fsdp__variants_create(config, c->ranks, s->strategies, s->policies, &c->variants));
    FSDP_TRY(fsdp__output_check(&s->markdown, config, "--markdown", NULL));
    FSDP_TRY(fsdp__output_check(&s->svg, config, "--svg", &fsdp__output_svg));
    FSDP_TRY(fsdp__output_is_other(&s->svg, "--svg", &s->markdown, "--markdown"));
    c->figures = fsdp__calloc((size_t)c->variants.count, sizeof *c->figures);
    c->worlds.figures = fsdp__calloc((size_t)c->variants.count, sizeof *c->worlds.figures);
    return c->figures && c->worlds.figures ? FSDP_OK : FSDP_NO_MEMORY;
}

static int compare(session *s, fsdp_train_config *config, bool is_preset)
{
    int threads = (int)config->training.threads;

    if (fsdp__default_cache(config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    /* If a rank could not read this, it would end before it had joined anyone, and nobody would say why. */
    if (threads == 0 && fsdp__read_threads(&threads) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (prepare(s, config, is_preset) != FSDP_OK ||
        fsdp__compare_starts(&s->comparison, fsdp__bar_possible()) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__comparison_first(&s->comparison) >= 0)
        look_elsewhere(&s->comparison);
    return tell(s);
}

/* ---- the command line ---- */

typedef struct texts {
    const char *ranks, *steps, *rounds, *config_fd, *records_fd;
    fsdp__torchrun torchrun;
} texts;

static fsdp_status read_numbers(session *s, texts *t)
{
    int64_t ranks = 1, steps = STEPS, rounds = ROUNDS;

    FSDP_TRY(fsdp__torchrun_read("compare", &t->torchrun, &t->ranks));
    FSDP_TRY(fsdp__args_integer("-n", t->ranks, 1, FSDP__MOST_RANKS, &ranks));
    FSDP_TRY(fsdp__args_integer("--steps", t->steps, 1, FSDP__MEASURED_STEPS, &steps));
    FSDP_TRY(fsdp__args_integer("--rounds", t->rounds, 1, 1000, &rounds));
    s->comparison.ranks = (int)ranks;
    s->comparison.steps = (int)steps;
    s->comparison.rounds = (int)rounds;
    return FSDP_OK;
}

static fsdp_status refuse_others(void)
{
    fsdp__ranks started;

    FSDP_TRY(fsdp__ranks_read(NULL, &started));
    if (!started.joins || started.count == 1)
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_INVALID,
        "compare: it starts its own ranks, but %s has started this process as one of several: run it by itself",
        started.starter);
}

/* Refuses a key of which each strategy has its own value: it would count for none. */
static fsdp_status refuse_replaced(const session *s, int argc, char **argv)
{
    if (fsdp__override_is_given(argc, argv, "parallelism.strategy"))
        return FSDP_FAIL(FSDP_INVALID, "compare: --parallelism.strategy counts for none of the strategies: name those "
                                       "to compare by --strategies");
    if (s->policies && fsdp__override_is_given(argc, argv, "parallelism.wrap_policy"))
        return FSDP_FAIL(FSDP_INVALID, "compare: both --policies and --parallelism.wrap_policy give policies: leave "
                                       "one of them out");
    return FSDP_OK;
}

static int with_config(session *s, fsdp_train_config *config, int argc, char **argv)
{
    texts t = {0};
    const fsdp__option options[] = {{"ranks", 'n', &t.ranks, NULL},
                                    {"np", 0, &t.ranks, NULL},
                                    FSDP__TORCHRUN_OPTIONS(&t.torchrun),
                                    {"strategies", 0, &s->strategies, NULL},
                                    {"policies", 0, &s->policies, NULL},
                                    {"steps", 0, &t.steps, NULL},
                                    {"rounds", 0, &t.rounds, NULL},
                                    {"worlds", 0, &s->worlds, NULL},
                                    {"markdown", 0, &s->markdown.path, NULL},
                                    {"svg", 0, &s->svg.path, NULL},
                                    {"json", 0, NULL, &s->json},
                                    {FSDP__AS_RANK_OPTION, 0, &t.config_fd, NULL},
                                    {FSDP__RECORDS_OPTION, 0, &t.records_fd, NULL},
                                    {0}};
    fsdp__overrides over = {.config = config};
    fsdp__args args = {.options = options, .dotted = fsdp__override_skip, .positional_most = 1, .arg = &over};
    fsdp__args again = {.options = options, .dotted = fsdp__override_set, .positional_most = 1, .arg = &over};
    bool is_preset = false;
    int status;

    if (!fsdp__take_line(&args, "compare", usage, argc, argv, &status))
        return status;
    if (read_numbers(s, &t) != FSDP_OK || fsdp__worlds_read(s->worlds, &s->comparison.worlds) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (t.config_fd && t.records_fd)
        return fsdp__compare_rank(t.config_fd, t.records_fd, s->comparison.steps);
    if (args.rest)
        return fsdp__usage_error("compare: nothing may follow '--'");
    if (refuse_others() != FSDP_OK || refuse_replaced(s, argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (args.positional_count == 0 && argc == 1)
        return fsdp__usage_error("compare: no config file given; see 'fsdp compare --help'");
    if (!t.ranks)
        return fsdp__usage_error("compare: say how many ranks: fsdp compare %s -n 2",
                                 args.positional_count ? FSDP__SHELL_WORD(args.positional[0]) : "CONFIG.yaml");
    if (fsdp__variants_check_words(s->strategies, s->policies) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (args.positional_count && read_config(config, args.positional[0], &is_preset) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__args_parse(&again, "compare", argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    return compare(s, config, is_preset);
}

int fsdp__cmd_compare(int argc, char **argv)
{
    session s = {.random_fd = -1, .worlds = "1,2,4,8,16,64"};
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;
    int status;

    if (fsdp_train_config_create(&config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    status = with_config(&s, config, argc, argv);
    for (int v = 0; v < s.comparison.variants.count && s.comparison.figures; v++)
        fsdp__figures_release(&s.comparison.figures[v]);
    FSDP__FREE_ALL(s.comparison.figures, s.comparison.worlds.figures);
    fsdp__variants_release(&s.comparison.variants);
    if (s.random_fd >= 0)
        close(s.random_fd);
    return status;
}
