/* cli.h - the commands of the program `fsdp`. Each gets its own arguments (argv[0] is the command's name) and returns
 * the exit status: 0, FAILED, USAGE when the command line itself is wrong, or what its ranks ended with. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/bar.h"
#include "config/args.h"
#include "fsdp/fsdp.h"

enum {
    FSDP__FAILED = 1,
    FSDP__USAGE = 2,
    FSDP__MOST_RANKS = 4096 /* that are started here */
};

int fsdp__cmd_train(int argc, char **argv);
int fsdp__cmd_explain(int argc, char **argv);
int fsdp__cmd_compare(int argc, char **argv);
int fsdp__cmd_run(int argc, char **argv);
int fsdp__cmd_eval(int argc, char **argv);
int fsdp__cmd_generate(int argc, char **argv);
int fsdp__cmd_diff(int argc, char **argv);
int fsdp__cmd_convert(int argc, char **argv);
int fsdp__cmd_inspect(int argc, char **argv);
int fsdp__cmd_verify(int argc, char **argv);
int fsdp__cmd_repair(int argc, char **argv);
int fsdp__cmd_tokenize(int argc, char **argv);

/* "fsdp: <message>" on stderr; returns FSDP__USAGE, or FSDP__FAILED. */
int fsdp__usage_error(const char *format, ...) FSDP_PRINTF(1, 2);
int fsdp__failure(const char *format, ...) FSDP_PRINTF(1, 2);

/* ---- output.c ---- */

/* Whether a command that reads what `config` names may write `path` in the end; `option` asked for it. */
fsdp_status fsdp__output_check(const fsdp_train_config *config, const char *option, const char *path);
/* What `print` prints of `what` as the file `path`, whole or not at all; a symbolic link stays, and where it leads is
 * written. Nothing to do for NULL. */
fsdp_status fsdp__output_write(const char *option, const char *path, fsdp_status (*print)(const void *what, FILE *out),
                               const void *what);

/* ---- dtype_option.c ---- */

/* One of the floating dtypes, by any of its names. */
fsdp_status fsdp__dtype_option(const char *text, fsdp_dtype *out);

/* ---- cache.c ---- */

/* "fsdp" in $XDG_CACHE_HOME, else in ~/.cache; fsdp__free it. NULL where the environment names neither. */
fsdp_status fsdp__cache_folder(char **out);
/* That one where a tokenizer would read text (data.tokenizer, or one of the model), and there is no data.cache. */
fsdp_status fsdp__default_cache(fsdp_train_config *config);

/* ---- handover.c ---- */

/* A config for ranks that this process will start: they inherit the descriptor, which is the caller's to close. */
fsdp_status fsdp__hand_over(const fsdp_train_config *config, int *fd);
/* What was handed over into a config at its defaults; closes the descriptor. */
fsdp_status fsdp__take_over(int fd, fsdp_train_config *config);
/* Where somebody else has started the ranks: rank 0's config into those of the others, which are at their defaults; its
 * file need not be on their machines. [collective] */
fsdp_status fsdp__share_config(fsdp_context *context, fsdp_train_config *config);

/* ---- ranks.c ---- */

typedef struct fsdp__ranks {
    int64_t count;       /* of the world; 0: only who joins it learns it */
    int rank;            /* this process's, where it joins */
    bool joins;          /* others have started the ranks, this process is one of them; else it starts them */
    bool over_mpi;       /* it joins the others by MPI, where they wait for it without end */
    const char *starter; /* who has, for messages */
} fsdp__ranks;

/* What `-n text` means in this environment. NULL: it was not given, which is one rank, or all that were started. A
 * number that is not theirs is FSDP_INVALID. */
fsdp_status fsdp__ranks_read(const char *text, fsdp__ranks *out);
/* What `--comm-timeout text` means, as comm.timeout of a config. NULL: it was not given. */
fsdp_status fsdp__comm_timeout_option(const char *text, double *out);
/* The last error, as fsdp__failure; where others have started this process with who it is, for their lines are one
 * stream. NULL: they have not. */
int fsdp__rank_failure(const fsdp__ranks *ranks);
/* Of a process that fails before it has joined the others, by the last error: says it, and lets them know, who would
 * wait for it. Returns `exit_status` (FAILED or USAGE). */
int fsdp__ranks_refuse(const fsdp__ranks *ranks, int exit_status);
/* Of one that has failed to join them: the same, as far as it can. Returns FAILED. */
int fsdp__ranks_fail_to_join(const fsdp__ranks *ranks);
/* Has `ps` show "fsdp: rank 3 of 4, RUN" in place of the command line, which main has copied. */
void fsdp__ranks_title(const fsdp_context *context, const char *run);

/* Starts ranks and waits for them; says what went wrong. The exit status is a shell's: that of the first rank to fail,
 * or 128 + signal; an interrupted launcher dies of the signal itself. */
int fsdp__launch_ranks(const fsdp_launch_options *options);
/* The second half of it: says how a launch has failed, by the last error, and how to exit. */
int fsdp__ranks_failed(fsdp_status status, const fsdp_launch_report *report);

/* ---- progress.c ---- */

typedef struct fsdp__progress {
    bool prints;      /* this rank prints */
    bool terminal;    /* stderr is one that can draw a bar */
    bool on_terminal; /* stdout is one: lines are to fit it */
    fsdp__bar bar;
    int machines;
    int64_t steps, log_freq, tokens_per_step;
    int64_t step; /* taken last */
    double flops_per_token;
    double tps;    /* tokens a second of all ranks, of the newest steps */
    char news[40]; /* what the bar says of validations */
    int64_t began_ns, logged_ns;
    int64_t first_step; /* before which earlier runs have stopped */
    int64_t logged_step;
    bool has_loss;
    double first_loss, last_loss;
    int64_t skipped, epoch, tokens;
} fsdp__progress;

void fsdp__progress_start(fsdp__progress *progress, const fsdp_train_config *config, const fsdp_train_summary *summary,
                          int threads);
void fsdp__progress_step(fsdp__progress *progress, const fsdp_train_report *report);
void fsdp__progress_validating(fsdp__progress *progress, int64_t done, int64_t all);
void fsdp__progress_validation(fsdp__progress *progress, const fsdp_train_config *config,
                               const fsdp_train_validation *validation);
void fsdp__progress_saved(fsdp__progress *progress, const fsdp_train_saved *saved);
/* Takes the bar away. */
void fsdp__progress_clear(fsdp__progress *progress);
void fsdp__progress_end(fsdp__progress *progress);

/* "0.98M" */
const char *fsdp__short_count(int64_t value, char *text, size_t text_bytes);

#endif
