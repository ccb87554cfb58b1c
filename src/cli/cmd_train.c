/* cmd_train.c - fsdp train CONFIG.yaml. With -n N this process starts N ranks of itself, hands them its config and
 * waits for them; a rank (or the only process) joins by the environment and trains. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/overrides.h"
#include "cli/process.h"
#include "launch/launch.h"
#include "launch/variables.h"

#define RANK_OPTION "as-rank" /* tells a started rank from the process that starts them, and where its config is */

typedef struct session {
    fsdp_train_config *config;
    fsdp_context *context;
    fsdp__progress progress;
    fsdp__interrupt interrupt;
    bool as_rank; /* started by another process of this program, which says what went wrong */
} session;

static void usage(void)
{
    puts("fsdp train CONFIG.yaml [-n RANKS] [--section.key=value ...] [--print-config]\n"
         "\n"
         "  -n, -np, --ranks RANKS  rank processes to start here (default: 1, or the ranks this process is one of)\n"
         "  --print-config          print the config that results, and stop\n"
         "  --section.key=value     in place of what the file says; the file itself may be left out. '--section.key\n"
         "                          value' is the same, but for a value that begins with '--'. Of a key that is given\n"
         "                          twice the last counts; several --data.path, --model.frozen, or\n"
         "                          --parallelism.wrap_classes, are one list\n"
         "\nKeys:\n");
    (void)fsdp_train_config_help(stdout);
}

/* ---- what a run tells ---- */

static void started(void *arg, const fsdp_train_summary *summary)
{
    session *s = arg;

    fsdp__progress_start(&s->progress, s->config, summary, fsdp_context_threads(s->context));
}

static void stepped(void *arg, const fsdp_train_report *report)
{
    session *s = arg;

    fsdp__progress_step(&s->progress, report);
    if (report->step == s->config->training.steps)
        fsdp__progress_end(&s->progress);
}

static void exported(void *arg, const char *path)
{
    session *s = arg;

    if (s->progress.prints)
        printf("model written to %s\n", path);
}

static void logged(void *arg, fsdp_log_level level, const char *line)
{
    session *s = arg;

    fsdp__progress_clear(&s->progress);
    (void)fsdp__failure("%s%s", level == FSDP_LOG_WARNING ? "warning: " : "", line);
}

static void holds(void *arg, fsdp_hub_hold *hold)
{
    session *s = arg;

    fsdp__interrupt_holds(&s->interrupt, hold);
}

/* A rank that only learned of a failure lets the rank that caused it speak: it is ended in the meantime. */
static void failed(void *arg, fsdp_status status, const char *message)
{
    session *s = arg;
    int rank = fsdp_context_rank(s->context);
    bool learned = status == FSDP_COMM || (status == FSDP_MISMATCH && rank != 0);

    fsdp__progress_clear(&s->progress);
    if (s->as_rank)
        return;
    if (learned && fsdp_context_world_size(s->context) > 1)
        nanosleep(&(struct timespec){.tv_nsec = 500 * 1000 * 1000}, NULL);
    if (fsdp_context_world_size(s->context) > 1 && rank != 0)
        fsdp__failure("rank %d: %s", rank, message);
    else
        fsdp__failure("%s", message);
}

/* ---- the two roles ---- */

/* A log that cannot be written is no reason to lose the run: it has gone on, and says so now. The launcher speaks for
 * its ranks, main for a process alone. */
static fsdp_status check_output(session *s)
{
    char text[256];

    if (!s->as_rank || !s->progress.prints || !fsdp__output_failed(text, sizeof text))
        return FSDP_OK;
    fsdp_abort(s->context, text);
    return FSDP_FAIL(FSDP_IO, "%s", text);
}

/* training.threads is said on purpose; OMP_NUM_THREADS may be there for all programs. */
static fsdp_status make_context(session *s)
{
    int threads = (int)s->config->training.threads;

    return threads > 0 ? fsdp__context_from_env(threads, &s->context) : fsdp_context_from_env(&s->context);
}

static int train(session *s)
{
    fsdp_train_listener listener = {
        .arg = s, .started = started, .stepped = stepped, .exported = exported, .failed = failed, .holds = holds};
    fsdp_status status;

    if (fsdp__interrupt_start(&s->interrupt) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (!s->as_rank)
        fsdp__explain_bus_errors();
    if (make_context(s) != FSDP_OK) {
        fsdp__interrupt_stop(&s->interrupt);
        return s->as_rank ? FSDP__FAILED : fsdp__failure("%s", fsdp_last_error());
    }
    s->progress.prints = fsdp_context_rank(s->context) == 0;
    s->progress.terminal = s->progress.prints && fsdp__bar_possible(STDERR_FILENO);
    fsdp_context_set_log(s->context, s->config->comm.trace ? FSDP_LOG_DEBUG : FSDP_LOG_INFO, logged, s);
    status = fsdp_train(s->context, s->config, &listener);
    if (status == FSDP_OK)
        status = check_output(s);
    fsdp_context_free(s->context);
    fsdp__interrupt_stop(&s->interrupt);
    return status == FSDP_OK ? 0 : FSDP__FAILED;
}

static int launch(const session *s, int ranks)
{
    fsdp_launch_options options = {.ranks = ranks};
    int threads = (int)s->config->training.threads;
    char as_rank[40];
    const char *const argv[] = {"/proc/self/exe", "train", as_rank, NULL};
    int fd = -1, status;

    /* A rank that cannot read it has joined nobody yet, and nobody would say why it ended. */
    if (threads == 0 && fsdp__read_threads(&threads) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__hand_over(s->config, &fd) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    snprintf(as_rank, sizeof as_rank, "--" RANK_OPTION "=%d", fd);
    options.argv = argv;
    status = fsdp__launch_ranks(&options);
    close(fd);
    return status;
}

static int be_rank(session *s, const char *fd_text)
{
    int64_t fd = 0;

    s->as_rank = true;
    if (fsdp__args_integer("--" RANK_OPTION, fd_text, 3, INT_MAX, &fd) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (fsdp__take_over((int)fd, s->config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return train(s);
}

/* main says why what was printed has not arrived. */
static int print_config(const session *s)
{
    if (fsdp_train_config_print(s->config, stdout) == FSDP_OK || ferror(stdout))
        return 0;
    return fsdp__failure("%s", fsdp_last_error());
}

static int with_config(session *s, int argc, char **argv)
{
    const char *ranks_text = NULL, *rank_fd = NULL;
    bool help = false, print = false;
    const fsdp__option options[] = {{"ranks", 'n', &ranks_text, NULL}, {"help", 'h', NULL, &help},
                                    {"print-config", 0, NULL, &print}, {"np", 0, &ranks_text, NULL},
                                    {RANK_OPTION, 0, &rank_fd, NULL},  {0}};
    fsdp__overrides over = {.config = s->config};
    fsdp__args args = {.options = options, .dotted = fsdp__override_skip, .positional_most = 1, .arg = &over};
    fsdp__args again = {.options = options, .dotted = fsdp__override_set, .positional_most = 1, .arg = &over};
    int64_t ranks = 1;

    if (fsdp__args_parse(&args, "train", argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (help) {
        usage();
        return 0;
    }
    if (rank_fd)
        return be_rank(s, rank_fd);
    if (args.positional_count == 0 && argc == 1)
        return fsdp__usage_error("train: no config file given; see 'fsdp train --help'");
    if (args.rest)
        return fsdp__usage_error("train: nothing may follow '--'");
    if (ranks_text && fsdp__args_integer("-n", ranks_text, 1, 4096, &ranks) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (args.positional_count && fsdp_train_config_load(s->config, args.positional[0]) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__args_parse(&again, "train", argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (print)
        return print_config(s);
    if (ranks == 1)
        return train(s);
    if (fsdp_train_config_check(s->config, (int)ranks) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return launch(s, (int)ranks);
}

int fsdp__cmd_train(int argc, char **argv)
{
    session s = {0};
    int status;

    (void)signal(SIGPIPE, SIG_IGN); /* whoever reads the log may go: the run goes on (check_output) */
    if (fsdp_train_config_create(&s.config) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    status = with_config(&s, argc, argv);
    fsdp_train_config_free(s.config);
    return status;
}
