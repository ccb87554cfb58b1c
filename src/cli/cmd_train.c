/* cmd_train.c - fsdp train CONFIG.yaml. With -n N this process starts N ranks of itself, hands them its config and
 * waits for them; a rank (or the only process) joins by the environment and trains. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/line.h"
#include "cli/overrides.h"
#include "cli/own_process.h"
#include "cli/restarts.h"
#include "cli/sweep.h"
#include "cli/torchrun.h"
#include "format/file_list.h"
#include "launch/launch.h"
#include "launch/variables.h"
#include "plan/schedule.h"
#include "train/run_config.h"
#include "watch/trace_file.h"

enum {
    SAVE_GRACE_MS = 600 * 1000 /* for the end of a step and a checkpoint; a user in a hurry sends the signal twice */
};

#define RANK_OPTION "as-rank"   /* tells a rank that a process of this program started it, and where its config is */
#define STEPS_OPTION "steps-to" /* where rank 0 writes how far it is */
#define RUN_OPTION "run"        /* what the run is called */

typedef struct session {
    fsdp_train_config *config;
    fsdp_context *context;
    fsdp__progress progress;
    fsdp__interrupt interrupt;
    fsdp__restarts restarts;
    fsdp__ranks ranks;
    fsdp__line line;
    const char *run;      /* the name that `ps` shows */
    _Atomic int64_t step; /* the last one taken */
    _Atomic bool trained; /* all steps are taken */
    bool replaces;        /* the export that an earlier run has left in the same folder */
    int64_t resumed;      /* the step that it began behind */
    int64_t steps_fd;     /* of a rank whose launcher wants to know the step; -1 */
    char *flight;         /* the folder for the ranks' last calls */
    bool as_rank;         /* another process of this program started this one, and prints what went wrong */
} session;

static void usage(void)
{
    puts("fsdp train CONFIG.yaml [-n RANKS] [--section.key=value ...] [--print-config]\n"
         "fsdp train --help SECTION    list the keys of one section, such as checkpoint\n"
         "\n"
         "Trains a model, fully sharded, as the config says.\n"
         "\n"
         "  -n, -np, --ranks RANKS  number of processes to start (default: 1, or, if\n"
         "                          mpirun, srun or torchrun started this process, the\n"
         "                          ranks that they started)\n"
         "  --nproc-per-node RANKS  the same; 'fsdp run --help' lists other options of\n"
         "                          torchrun that are accepted\n"
         "  --max-restarts K        if a rank fails, start all ranks again from the newest\n"
         "                          checkpoint, at most K times\n"
         "  --min-ranks M           if the same failure comes back, continue with fewer\n"
         "                          ranks, but at least M\n"
         "  --print-config          print the resulting config and stop\n"
         "  --sweep section.key=value,value\n"
         "                          a run for each value, or each combination if the\n"
         "                          option is given several times; one after the other,\n"
         "                          each in a folder of its own, with one table at the\n"
         "                          end. The same command goes on with a sweep that was\n"
         "                          ended\n"
         "  --sweep-folder FOLDER   where these folders are (default: sweep)\n"
         "  --section.key=value     replaces the file's value; there need not be a file.\n"
         "                          '--section.key value' is the same, unless the value\n"
         "                          begins with '--'. If a key is given twice, the last\n"
         "                          one counts; keys that take a list (--data.path,\n"
         "                          --model.frozen, ...) collect all that are given\n"
         "\n"
         "Keys:\n");
    (void)fsdp_train_config_help(NULL, stdout);
}

/* Prints the help, or that of one section. The name of a config file is ignored here. */
static int help(const fsdp__args *args)
{
    const char *name = args->positional_count > 0 ? args->positional[0] : NULL;

    if (!name || strpbrk(name, "./"))
        usage();
    else if (fsdp_train_config_help(name, stdout) != FSDP_OK && !ferror(stdout))
        return fsdp__usage_error("%s", fsdp_last_error());
    return 0;
}

/* ---- what a run reports ---- */

/* Returns the step of the newest checkpoint on disk; -1: there is none. */
static int64_t newest_checkpoint(const fsdp_train_config *config)
{
    FSDP__FREED int64_t *steps = NULL;
    int64_t count = 0, newest = -1;

    if (fsdp__train_saves(config) && fsdp_checkpoint_list(config->checkpoint.folder, &steps, &count) == FSDP_OK &&
        count > 0)
        newest = steps[count - 1];
    return newest;
}

/* Says when a signal has ended a run, after `step`, and what is lost. */
static const char *lost_text(const fsdp_train_config *c, long long step, bool trained, char *text, size_t bytes)
{
    long long newest = newest_checkpoint(c);
    char when[60] = " before its first step";

    text[0] = '\0';
    if (step > 0)
        snprintf(when, sizeof when, " after step %lld", step);
    if (trained && c->save.path) /* the export may be complete, or missing */
        snprintf(text, bytes, "%s, at the export to '%s'", when, c->save.path);
    else if (newest >= 0 && step == newest)
        snprintf(text, bytes, "%s, which has a checkpoint: the same command continues from it", when);
    else if (newest >= 0 && step > newest)
        snprintf(text, bytes, "%s; the newest checkpoint is of step %lld", when, newest);
    else if (newest < 0)
        snprintf(text, bytes, "%s: nothing was kept%s", when,
                 fsdp__train_saves(c) ? "" : " (checkpoint.folder keeps checkpoints)");
    return text;
}

static void last_words(void *arg)
{
    const session *s = arg;
    char lost[512];

    /* For a started rank the launcher says what else is lost. */
    if (!s->as_rank && *lost_text(s->config, s->step, s->trained, lost, sizeof lost))
        (void)fsdp__failure("interrupted%s", lost);
    if (fsdp__trace_is_open(s->config, s->resumed, s->step) && !fsdp__trace_files_stop())
        (void)fsdp__failure("the trace '%s' was not written: the run has ended among the steps that it is of",
                            s->config->metrics.trace.path);
}

static void started(void *arg, const fsdp_train_summary *summary)
{
    session *s = arg;

    s->step = s->resumed = summary->resumed_step;
    fsdp__progress_start(&s->progress, s->config, summary, fsdp_context_threads(s->context));
    fsdp__interrupt_asks(&s->interrupt, fsdp__train_saves(s->config));
}

static void stepped(void *arg, const fsdp_train_report *report)
{
    session *s = arg;

    s->step = report->step;
    (void)fsdp__interrupt_signal(&s->interrupt); /* waits for good behind last words: no step has a line after them */
    if (s->progress.prints)
        fsdp__restarts_step((int)s->steps_fd, report->step);
    fsdp__progress_step(&s->progress, report);
}

static void validating(void *arg, int64_t done, int64_t all)
{
    session *s = arg;

    fsdp__progress_validating(&s->progress, done, all);
}

static void validated(void *arg, const fsdp_train_validation *validation)
{
    session *s = arg;

    fsdp__progress_validation(&s->progress, s->config, validation);
}

static void trained(void *arg, int64_t step)
{
    session *s = arg;
    FSDP__FREED char *list = s->config->save.path ? fsdp__path_join(s->config->save.path, FSDP__LIST_NAME) : NULL;

    (void)step;
    s->replaces = list && fsdp__path_exists(list);
    s->trained = true;
    fsdp__restarts_note((int)s->steps_fd, FSDP__RESTARTS_TRAINED);
    fsdp__interrupt_asks(&s->interrupt, false); /* nobody asks any more what the run should do */
    fsdp__progress_end(&s->progress);
}

static void exported(void *arg, const char *path)
{
    session *s = arg;

    if (s->progress.prints)
        printf("%s written to %s%s\n", fsdp__train_exports_adapter(s->config) ? "adapter" : "model",
               FSDP__SHOWN_PATH(path), fsdp__in_place(s->replaces && strcmp(path, s->config->save.path) == 0));
}

static void saved(void *arg, const fsdp_train_saved *saved)
{
    session *s = arg;

    fsdp__progress_saved(&s->progress, saved);
}

static void logged(void *arg, fsdp_log_level level, const char *line)
{
    session *s = arg;

    fsdp__progress_clear(&s->progress);
    (void)fsdp__failure("%s%s", level == FSDP_LOG_WARNING ? "warning: " : "", line);
}

static fsdp_status plan(void *arg, FILE *out)
{
    session *s = arg;

    return fsdp__schedule_plan_run(s->context, s->config, out);
}

static void holds(void *arg, fsdp_hub_hold *hold)
{
    session *s = arg;

    fsdp__interrupt_holds(&s->interrupt, hold);
}

static void saver(void *arg, fsdp_checkpoint_saver *saver)
{
    session *s = arg;

    fsdp__interrupt_saver(&s->interrupt, saver);
}

static fsdp_train_demand demand(void *arg)
{
    session *s = arg;

    return fsdp__interrupt_demand(&s->interrupt);
}

/* Prints the lines below the first, with the rank that they are of where there are several. */
static void print_details(const session *s, const char *message)
{
    int ranks = fsdp_context_world_size(s->context), rank = fsdp_context_rank(s->context);
    char whose[24] = "";

    if (ranks > 1)
        snprintf(whose, sizeof whose, "[rank %d] ", rank);
    for (const char *line = strchr(message, '\n'); line; line = strchr(line, '\n')) {
        line++;
        fsdp__failure("%s%.*s", whose, (int)strcspn(line, "\n"), line);
    }
}

/* Reports a failure. A rank that only learned of it waits, so that the rank that caused it can speak; this one is ended
 * in the meantime. */
static void failed(void *arg, fsdp_status status, const char *message)
{
    session *s = arg;
    int rank = fsdp_context_rank(s->context);
    bool learned = status == FSDP_COMM || (status == FSDP_MISMATCH && rank != 0);

    fsdp__progress_clear(&s->progress);
    if (status == FSDP_INTERRUPTED)
        fsdp__restarts_note((int)s->steps_fd, FSDP__RESTARTS_TOLD);
    if (s->as_rank) { /* the launcher says the first line */
        print_details(s, message);
        return;
    }
    if (learned && fsdp_context_world_size(s->context) > 1)
        nanosleep(&(struct timespec){.tv_nsec = 500 * 1000 * 1000}, NULL);
    if (rank != 0 && fsdp__text_behind_rank(message, &(int){0}) == message)
        fsdp__failure("rank %d: %.*s", rank, (int)strcspn(message, "\n"), message);
    else
        fsdp__failure("%.*s", (int)strcspn(message, "\n"), message);
    print_details(s, message);
}

/* ---- the two roles ---- */

/* Makes the context. training.threads was set on purpose, while OMP_NUM_THREADS may be meant for all programs. */
static fsdp_status make_context(session *s)
{
    int threads = (int)s->config->training.threads;

    return threads > 0 ? fsdp__context_from_env(threads, &s->context) : fsdp_context_from_env(&s->context);
}

/* Gets the config if somebody else has started the ranks. Only rank 0 has read it, so the others do not know yet how
 * long to wait for a rank. */
static fsdp_status receive_config(session *s)
{
    int seconds = 0;

    FSDP_TRY(fsdp__read_join_seconds(&seconds));
    FSDP_TRY(fsdp_context_set_comm_timeout(s->context, seconds));
    FSDP_TRY(fsdp__line_agree(&s->line, &s->ranks, s->context));
    return fsdp__share_config(s->context, s->config);
}

static fsdp_status share_config(session *s)
{
    fsdp_status status = s->ranks.joins ? receive_config(s) : FSDP_OK;

    if (status == FSDP_OK)
        status = fsdp__default_cache(s->config);
    if (status != FSDP_OK) {
        fsdp_abort(s->context, fsdp_last_error());
        failed(s, status, fsdp_last_error());
        fsdp_context_free(s->context);
        return status;
    }
    if (s->ranks.joins && s->config->training.threads > 0)
        fsdp__context_set_threads(s->context, (int)s->config->training.threads);
    return FSDP_OK;
}

static fsdp_status join(session *s)
{
    fsdp_status status = make_context(s);

    if (status == FSDP_OK) {
        fsdp__ranks_title(s->context, s->run);
        return share_config(s);
    }
    if (!s->as_rank)
        (void)fsdp__ranks_fail_to_join(&s->ranks);
    return status;
}

/* Records the calls of this rank. One that this program has started does so already, where its launcher says. */
static fsdp_status record(session *s)
{
    bool in_file = s->ranks.joins && s->config->metrics.flight_recorder;
    fsdp_status status = FSDP_OK;

    if (!s->as_rank)
        status = fsdp__flight_choose(s->config, s->ranks.joins ? getppid() : getpid(), &s->flight);
    if (status == FSDP_OK)
        status = fsdp_flight_start(s->context, s->flight, in_file, s->run);
    if (status != FSDP_OK) {
        (void)fsdp_fail_prefix(status, "metrics.flight_recorder");
        fsdp_abort(s->context, fsdp_last_error());
        failed(s, status, fsdp_last_error());
        fsdp_context_free(s->context);
        return status;
    }
    fsdp__interrupt_shows(&s->interrupt, s->context);
    return FSDP_OK;
}

static int train(session *s)
{
    fsdp_train_listener listener = {.arg = s,
                                    .started = started,
                                    .stepped = stepped,
                                    .validating = validating,
                                    .validated = validated,
                                    .trained = trained,
                                    .exported = exported,
                                    .failed = failed,
                                    .holds = holds,
                                    .saver = saver,
                                    .saved = saved,
                                    .demand = demand,
                                    .plan = plan};
    fsdp_status status;
    int signal;

    /* For a run that joins others, whether it saves is only known once its config has come. */
    if (fsdp__interrupt_start(&s->interrupt, s->ranks.joins || fsdp__train_saves(s->config), true) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (!s->as_rank)
        fsdp__explain_bus_errors();
    if (join(s) != FSDP_OK || record(s) != FSDP_OK) {
        fsdp__interrupt_stop(&s->interrupt);
        return FSDP__FAILED;
    }
    s->progress.prints = fsdp_context_rank(s->context) == 0;
    if (s->progress.prints)
        fsdp__interrupt_last_words(&s->interrupt, last_words, s);
    s->progress.bar.possible = s->progress.prints && fsdp__bar_possible();
    s->progress.on_terminal = isatty(STDOUT_FILENO);
    fsdp_context_set_log(s->context, s->config->comm.trace ? FSDP_LOG_DEBUG : FSDP_LOG_INFO, logged, s);
    status = fsdp_train(s->context, s->config, &listener);
    if (status == FSDP_OK && s->as_rank) /* main does it for a single process */
        status = fsdp__ranks_check_output(s->context);
    fsdp__interrupt_shows(&s->interrupt, NULL);
    fsdp_context_free(s->context);
    signal = fsdp__interrupt_signal(&s->interrupt);
    fsdp__interrupt_stop(&s->interrupt);
    /* All ranks end in the same way, whichever of them got the signal. */
    if (status == FSDP_INTERRUPTED)
        fsdp__die_of(signal ? signal : SIGTERM);
    return status == FSDP_OK ? 0 : FSDP__FAILED;
}

static fsdp_status launch_once(session *s, int ranks, fsdp_launch_report *report)
{
    fsdp_launch_options options = {.ranks = ranks,
                                   .interrupt_grace_ms = fsdp__train_saves(s->config) ? SAVE_GRACE_MS : 0};
    char as_rank[40], steps_to[40], run[200];
    const char *const argv[] = {"/proc/self/exe", "train", as_rank, steps_to, run, NULL};
    FSDP__CLOSED int fd = -1;

    FSDP_TRY(fsdp__restarts_begin(&s->restarts));
    FSDP_TRY(fsdp__hand_over(s->config, &fd));
    snprintf(as_rank, sizeof as_rank, "--" RANK_OPTION "=%d", fd);
    snprintf(steps_to, sizeof steps_to, "--" STEPS_OPTION "=%d", s->restarts.steps_fd);
    snprintf(run, sizeof run, "--" RUN_OPTION "=%s", s->run);
    options.argv = argv;
    options.flight = s->flight;
    fflush(NULL);
    return fsdp_launch(&options, report);
}

/* Says what is kept when ranks were told to end, by this process or by a signal to one of them. */
static fsdp_status tell_interrupted(const session *s, fsdp_status status, fsdp_launch_report *report)
{
    bool alone =
        status != FSDP_OK && !report->interrupted_by && fsdp__restarts_heard(&s->restarts, FSDP__RESTARTS_TOLD);
    int64_t step = fsdp__restarts_last_step(&s->restarts);
    char lost[512];

    if (status != FSDP_INTERRUPTED && !alone)
        return status;
    lost_text(s->config, step, fsdp__restarts_heard(&s->restarts, FSDP__RESTARTS_TRAINED), lost, sizeof lost);
    if (alone) /* this process had no signal to name */
        snprintf(report->reason, sizeof report->reason, "interrupted");
    snprintf(report->reason + strlen(report->reason), sizeof report->reason - strlen(report->reason), "%s", lost);
    return FSDP_FAIL(status, "%s", report->reason);
}

static int launch(session *s, int ranks)
{
    fsdp_launch_report report = {0};
    fsdp_status status;
    int threads = (int)s->config->training.threads;

    /* If a rank could not read this, it would end before it had joined anyone, and nobody would say why. */
    if (threads == 0 && fsdp__read_threads(&threads) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__flight_choose(s->config, getpid(), &s->flight) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    do
        status = tell_interrupted(s, launch_once(s, ranks, &report), &report);
    while (status != FSDP_OK && fsdp__restarts_again(&s->restarts, s->config, status, &report, &ranks));
    fsdp__restarts_end(&s->restarts);
    return status == FSDP_OK ? 0 : fsdp__ranks_failed(status, &report);
}

static int be_rank(session *s, const char *fd_text, const char *steps_text)
{
    int64_t fd = 0;

    s->as_rank = true;
    if (fsdp__args_integer("--" RANK_OPTION, fd_text, 3, INT_MAX, &fd) != FSDP_OK ||
        fsdp__args_integer("--" STEPS_OPTION, steps_text, -1, INT_MAX, &s->steps_fd) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (fsdp__take_over((int)fd, s->config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return train(s);
}

/* Prints the config. If output is lost, main says why. */
static int print_config(const session *s)
{
    if (fsdp_train_config_print(s->config, stdout) == FSDP_OK || ferror(stdout))
        return 0;
    return fsdp__failure("%s", fsdp_last_error());
}

typedef struct texts {
    const char *ranks, *rank_fd, *steps_fd;
    fsdp__torchrun torchrun;
    bool print;
    const char *sweep, *sweep_folder;
} texts;

/* Starts the ranks, or joins them. */
static int start(session *s, const texts *t)
{
    int ranks = (int)s->ranks.count;

    if (fsdp__restarts_read(&s->restarts, s->config, s->ranks.count, s->ranks.starter) != FSDP_OK)
        return fsdp__ranks_refuse(&s->ranks, FSDP__USAGE);
    if (t->print)
        return s->ranks.rank == 0 ? print_config(s) : 0;
    if (fsdp__default_cache(s->config) != FSDP_OK)
        return fsdp__ranks_refuse(&s->ranks, FSDP__FAILED);
    /* Ranks that others have started would have to meet before they hear of it. Those of several machines, which only
     * MPI joins, do: some defaults are by the number of machines. */
    if (s->ranks.joins && !s->ranks.over_mpi && s->ranks.rank == 0 && ranks > 1 &&
        fsdp__train_check_start(s->config, ranks) != FSDP_OK)
        return fsdp__ranks_refuse(&s->ranks, FSDP__FAILED);
    if (s->ranks.joins || (ranks == 1 && s->restarts.most == 0))
        return train(s);
    if (fsdp__train_check_start(s->config, ranks) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return launch(s, ranks);
}

/* Makes a run for each combination of values. */
static int sweep(const session *s, const texts *t, int argc, char **argv)
{
    fsdp__sweep all = {.folder = t->sweep_folder ? t->sweep_folder : "sweep"};
    int count = 0;

    if (s->ranks.joins)
        return fsdp__usage_error("train: --sweep starts its runs itself, and %s has started this process: start it "
                                 "without, with -n RANKS",
                                 s->ranks.starter);
    if (fsdp__sweep_collect(argc, argv, &all) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (t->ranks) {
        all.rest[count++] = "--ranks";
        all.rest[count++] = t->ranks;
    }
    if (s->restarts.most_text) {
        all.rest[count++] = "--max-restarts";
        all.rest[count++] = s->restarts.most_text;
    }
    if (s->restarts.least_text) {
        all.rest[count++] = "--min-ranks";
        all.rest[count++] = s->restarts.least_text;
    }
    return fsdp__sweep_run(&all, s->config);
}

static fsdp_status check_line(const fsdp__args *args, int argc)
{
    if (args->positional_count == 0 && argc == 1)
        return FSDP_FAIL(FSDP_INVALID, "train: no config file given; see 'fsdp train --help'");
    return args->rest ? FSDP_FAIL(FSDP_INVALID, "train: nothing may follow '--'") : FSDP_OK;
}

static int with_config(session *s, int argc, char **argv)
{
    texts t = {.rank_fd = NULL};
    const fsdp__option options[] = {{"ranks", 'n', &t.ranks, NULL},
                                    {"np", 0, &t.ranks, NULL},
                                    FSDP__TORCHRUN_OPTIONS(&t.torchrun),
                                    {"print-config", 0, NULL, &t.print},
                                    {"max-restarts", 0, &s->restarts.most_text, NULL},
                                    {"min-ranks", 0, &s->restarts.least_text, NULL},
                                    {RANK_OPTION, 0, &t.rank_fd, NULL},
                                    {STEPS_OPTION, 0, &t.steps_fd, NULL},
                                    {RUN_OPTION, 0, &s->run, NULL},
                                    {"sweep", 0, &t.sweep, NULL},
                                    {"sweep-folder", 0, &t.sweep_folder, NULL},
                                    {0}};
    fsdp__overrides over = {.config = s->config};
    fsdp__args args = {
        .options = options, .dotted = fsdp__line_key, .positional_most = 1, .arg = &s->line, .keys = &fsdp__train_keys};
    fsdp__args again = {.options = options, .dotted = fsdp__override_set, .positional_most = 1, .arg = &over};
    static const char *const local[] = {RUN_OPTION, NULL}; /* a name for people, made from the file's name */

    s->line.args = &args;
    s->line.local = local;
    if (fsdp__args_parse(&args, "train", argc, argv) != FSDP_OK)
        return fsdp__line_refuse();
    if (args.help)
        return help(&args);
    if (t.rank_fd)
        return be_rank(s, t.rank_fd, t.steps_fd);
    if (check_line(&args, argc) != FSDP_OK || fsdp__torchrun_read("train", &t.torchrun, &t.ranks) != FSDP_OK ||
        fsdp__ranks_read(t.ranks, &s->ranks) != FSDP_OK)
        return fsdp__line_refuse();
    s->run = args.positional_count ? basename(args.positional[0]) : "train";
    if (s->ranks.rank > 0) /* rank 0 reads the config for all */
        return start(s, &t);
    if (args.positional_count && fsdp_train_config_load(s->config, args.positional[0]) != FSDP_OK)
        return fsdp__ranks_refuse(&s->ranks, FSDP__FAILED);
    if (fsdp__args_parse(&again, "train", argc, argv) != FSDP_OK ||
        fsdp__override_check(s->config, argc, argv) != FSDP_OK)
        return fsdp__ranks_refuse(&s->ranks, FSDP__USAGE);
    return (t.sweep || t.sweep_folder) && !t.print ? sweep(s, &t, argc, argv) : start(s, &t);
}

int fsdp__cmd_train(int argc, char **argv)
{
    session s = {.line.command = "train", .steps_fd = -1, .restarts.steps_fd = -1};
    int status;

    (void)signal(SIGPIPE, SIG_IGN); /* if the reader of the log goes away, the run goes on (fsdp__ranks_check_output) */
    if (fsdp_train_config_create(&s.config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    status = with_config(&s, argc, argv);
    FSDP__FREE_ALL(s.flight, s.line.keys);
    fsdp_train_config_free(s.config);
    return status;
}
