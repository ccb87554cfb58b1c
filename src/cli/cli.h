/* cli.h - the commands of the program `fsdp`. Each gets its own arguments (argv[0] is the command's name) and returns
 * the exit status: 0, FAILED, USAGE when the command line itself is wrong, or what its ranks ended with. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/bar.h"
#include "config/args.h"
#include "fsdp/fsdp.h"

enum {
    FSDP__FAILED = 1,
    FSDP__USAGE = 2
};

int fsdp__cmd_train(int argc, char **argv);
int fsdp__cmd_explain(int argc, char **argv);
int fsdp__cmd_compare(int argc, char **argv);
int fsdp__cmd_run(int argc, char **argv);
int fsdp__cmd_generate(int argc, char **argv);
int fsdp__cmd_inspect(int argc, char **argv);
int fsdp__cmd_repair(int argc, char **argv);

/* "fsdp: <message>" on stderr; returns FSDP__USAGE, or FSDP__FAILED. */
int fsdp__usage_error(const char *format, ...) FSDP_PRINTF(1, 2);
int fsdp__failure(const char *format, ...) FSDP_PRINTF(1, 2);

/* ---- output.c ---- */

/* Whether a command that reads what `config` names may write `path` in the end; `option` asked for it. */
fsdp_status fsdp__output_check(const fsdp_train_config *config, const char *option, const char *path);

/* ---- handover.c ---- */

/* A config for ranks that this process will start: they inherit the descriptor, which is the caller's to close. */
fsdp_status fsdp__hand_over(const fsdp_train_config *config, int *fd);
/* What was handed over into a config at its defaults; closes the descriptor. */
fsdp_status fsdp__take_over(int fd, fsdp_train_config *config);

/* ---- ranks.c ---- */

/* Starts ranks and waits for them; says what went wrong. The exit status is a shell's: that of the first rank to fail,
 * or 128 + signal; an interrupted launcher dies of the signal itself. */
int fsdp__launch_ranks(const fsdp_launch_options *options);

/* ---- progress.c ---- */

typedef struct fsdp__progress {
    bool prints;   /* this rank prints */
    bool terminal; /* stderr is one that can draw a bar */
    fsdp__bar bar;
    int ranks;
    int64_t steps, log_freq, tokens_per_step;
    double flops_per_token;
    int64_t began_ns, logged_ns;
    int64_t logged_step;
    bool has_loss;
    double first_loss, last_loss;
    int64_t skipped, epoch;
} fsdp__progress;

void fsdp__progress_start(fsdp__progress *progress, const fsdp_train_config *config, const fsdp_train_summary *summary,
                          int threads);
void fsdp__progress_step(fsdp__progress *progress, const fsdp_train_report *report);
/* Takes the bar away. */
void fsdp__progress_clear(fsdp__progress *progress);
void fsdp__progress_end(fsdp__progress *progress);

/* "0.98M" */
const char *fsdp__short_count(int64_t value, char *text, size_t text_bytes);

#endif
