/* cli.h - the commands of the program `fsdp`. Each gets its own arguments (argv[0] is the command's name) and returns
 * the exit status: 0, FAILED, USAGE if the command line itself is wrong, or the one that its ranks ended with. */
#pragma once

#include "base/text.h"
#include "cli/bar.h"
#include "config/args.h"
#include "fsdp/fsdp.h"

enum {
    FSDP__FAILED = 1,
    FSDP__USAGE = 2,
    FSDP__MOST_RANKS = 4096 /* that can be started here */
};

int fsdp__cmd_train(int argc, char **argv);
int fsdp__cmd_explain(int argc, char **argv);
int fsdp__cmd_plan(int argc, char **argv);
int fsdp__cmd_compare(int argc, char **argv);
int fsdp__cmd_report(int argc, char **argv);
int fsdp__cmd_run(int argc, char **argv);
int fsdp__cmd_eval(int argc, char **argv);
int fsdp__cmd_generate(int argc, char **argv);
int fsdp__cmd_diff(int argc, char **argv);
int fsdp__cmd_convert(int argc, char **argv);
int fsdp__cmd_inspect(int argc, char **argv);
int fsdp__cmd_verify(int argc, char **argv);
int fsdp__cmd_repair(int argc, char **argv);
int fsdp__cmd_flight(int argc, char **argv);
int fsdp__cmd_tokenize(int argc, char **argv);

/* Shows a path in a line of output as errors show it, so that no name moves a cursor or splits the line. Nearly every
 * path is there as a whole, for whoever copies it. */
#define FSDP__SHOWN_PATH(path) fsdp__shown((path), FSDP__ROOM(4096))

/* ---- fail.c ---- */

/* Parses the line of a command. Returns whether there is more to do; otherwise *out_status is the exit status: the line
 * is wrong, or its help has been printed. */
bool fsdp__take_line(fsdp__args *args, const char *command, void (*usage)(void), int argc, char **argv,
                     int *out_status);
/* Print "fsdp: <message>" on stderr; they return FSDP__USAGE and FSDP__FAILED. */
int fsdp__usage_error(const char *format, ...) FSDP_PRINTF(1, 2);
int fsdp__failure(const char *format, ...) FSDP_PRINTF(1, 2);

/* ---- output.c ---- */

/* Holds what a file that is replaced must begin with: one of `firsts`, which ends with NULL. `otherwise` says what is
 * wrong if it does not: "is no SVG picture". An empty file will do. */
typedef struct fsdp__output_kind {
    const char *firsts[3], *otherwise;
} fsdp__output_kind;
extern const fsdp__output_kind fsdp__output_svg;

/* Checks that a path, which `option` gave, is not standard output, where the command prints: '-', or its file. */
fsdp_status fsdp__output_is_apart(const char *option, const char *path);
/* A file that a command writes beside what it prints. */
typedef struct fsdp__output {
    const char *path;       /* NULL: nobody has asked for it */
    bool replaces, written; /* an earlier file; all of it */
} fsdp__output;

/* Checks that a command that reads what `config` names may write the file at the end; `option` asked for it. A file
 * that is there already must be of the kind; NULL: any. */
fsdp_status fsdp__output_check(fsdp__output *output, const fsdp_train_config *config, const char *option,
                               const fsdp__output_kind *kind);
/* Checks that two files that one command writes are not the same, however their paths are spelled. */
fsdp_status fsdp__output_is_other(const fsdp__output *output, const char *option, const fsdp__output *than,
                                  const char *than_option);

enum {
    FSDP__OUTPUT_JOBS = 2
};
/* Says who prints a file. */
typedef struct fsdp__output_job {
    fsdp__output *output;
    const char *option;
    fsdp_status (*print)(const void *what, FILE *out);
} fsdp__output_job;

/* Writes what is printed about `what` to the files, of which there are at most FSDP__OUTPUT_JOBS: all of them, or where
 * one cannot be written none. A symbolic link stays, and its target is written. Leaves out files that nobody has asked
 * for. */
fsdp_status fsdp__outputs_write(const fsdp__output_job *jobs, int count, const void *what);
/* Does so with one file. */
static inline fsdp_status fsdp__output_write(fsdp__output *output, const char *option,
                                             fsdp_status (*print)(const void *what, FILE *out), const void *what)
{
    return fsdp__outputs_write(&(fsdp__output_job){output, option, print}, 1, what);
}
/* Prints, after a command's output, that the file has it, if it was written: `what` is "picture". */
void fsdp__output_tell(const fsdp__output *output, const char *what);

/* ---- dtype_option.c ---- */

/* Parses one of the floating dtypes, by any of its names. */
fsdp_status fsdp__dtype_option(const char *text, fsdp_dtype *out);

/* ---- cache.c ---- */

/* Gives "fsdp" in $XDG_CACHE_HOME, otherwise in ~/.cache; fsdp__free it. It is NULL if the environment names
 * neither. */
fsdp_status fsdp__cache_folder(char **out);
/* Has tokens kept in that folder if a tokenizer would read text (data.tokenizer, or the model's own) and data.cache is
 * not set. Each process asks its own environment: what is handed over, or written to a file, has no such folder. */
fsdp_status fsdp__default_cache(fsdp_train_config *config);

/* ---- handover.c ---- */

/* Writes a config for ranks that this process will start. They inherit the descriptor; the caller closes it. */
fsdp_status fsdp__hand_over(const fsdp_train_config *config, int *fd);
/* Reads what was handed over into a config that has its defaults; closes the descriptor. */
fsdp_status fsdp__take_over(int fd, fsdp_train_config *config);
/* Copies rank 0's config to the other ranks, whose configs have their defaults, if somebody else has started the ranks.
 * Its file need not be on their machines. [collective] */
fsdp_status fsdp__share_config(fsdp_context *context, fsdp_train_config *config);

/* ---- ranks.c ---- */

typedef struct fsdp__ranks {
    int64_t count;       /* of the world; 0: not known before joining it */
    int rank;            /* of this process, if it joins */
    bool joins;          /* others have started the ranks, and this process is one of them; otherwise it starts them */
    bool over_mpi;       /* it joins the others by MPI, where they would wait for it forever */
    const char *starter; /* who has started them, for messages */
} fsdp__ranks;

/* Finds what `-n text` means in this environment. NULL: it was not given, which means one rank, or all that were
 * started. A number other than the number of ranks that were started is FSDP_INVALID. */
fsdp_status fsdp__ranks_read(const char *text, fsdp__ranks *out);
/* Finds what `--comm-timeout text` means, as comm.timeout of a config. NULL: it was not given. */
fsdp_status fsdp__comm_timeout_option(const char *text, double *out);
/* Prints the last error as fsdp__failure does. If others have started this process, it adds which rank this is, because
 * the lines of all ranks are one stream. `ranks` may be NULL: they have not. */
int fsdp__rank_failure(const fsdp__ranks *ranks);
/* Reports a failure of a process that has not joined the others yet, by the last error: prints it, and tells the other
 * ranks, which would wait for this one. Returns `exit_status` (FAILED or USAGE). */
int fsdp__ranks_refuse(const fsdp__ranks *ranks, int exit_status);
/* Does the same, as far as possible, for a process that has failed to join them. Returns FAILED. */
int fsdp__ranks_fail_to_join(const fsdp__ranks *ranks);
/* Makes `ps` show "fsdp: rank 3 of 4, RUN" in place of the command line, which main has copied. */
void fsdp__ranks_title(const fsdp_context *context, const char *run);

/* Ends the work of ranks that a launcher has started: all are done. Fails where the log of rank 0 could not be written,
 * which is no reason to lose the run before. Their last calls are not to blame for that. [collective] */
fsdp_status fsdp__ranks_check_output(fsdp_context *context);
/* Starts ranks and waits for them; prints what went wrong. The exit status is that of a shell: the status of the first
 * rank to fail, or 128 + signal. An interrupted launcher dies of the signal itself. */
int fsdp__launch_ranks(const fsdp_launch_options *options);
/* Does the second half of fsdp__launch_ranks: prints how a launch has failed, by the last error, and returns the exit
 * status. */
int fsdp__ranks_failed(fsdp_status status, const fsdp_launch_report *report);

/* ---- flight.c ---- */

/* Folders that nobody has named have this in their path. They stay, as all records of a run that has died do. */
#define FSDP__FLIGHT_TEMPORARY "/fsdp-flight-"
/* Chooses the folder for the records of ranks' last calls (fsdp/watch.h); fsdp__free it. `config`: that of a training,
 * or NULL. `starter`: the process that has started the ranks of this machine, by which they name a folder if nothing
 * else does. */
fsdp_status fsdp__flight_choose(const fsdp_train_config *config, int starter, char **out);

/* ---- progress.c ---- */

typedef struct fsdp__progress {
    bool prints;      /* this rank prints */
    bool on_terminal; /* stdout is a terminal: lines should fit it */
    fsdp__bar bar;
    int machines;
    bool gpus; /* of several ranks */
    int64_t steps, log_freq;
    int64_t step; /* the last one taken */
    double flops_per_token;
    double mfu_per_token; /* MFU of one token a second; 0: there is none */
    double tps;           /* tokens per second of all ranks, over the newest steps */
    char news[40];        /* what the bar says about validations */
    int64_t began_ns, logged_ns;
    int64_t first_step; /* earlier runs have stopped before it */
    int64_t logged_step, logged_tokens;
    bool has_loss;
    double first_loss, last_loss;
    int64_t skipped, epoch, tokens, first_tokens;
} fsdp__progress;

void fsdp__progress_start(fsdp__progress *progress, const fsdp_train_config *config, const fsdp_train_summary *summary,
                          int threads);
void fsdp__progress_step(fsdp__progress *progress, const fsdp_train_report *report);
void fsdp__progress_validating(fsdp__progress *progress, int64_t done, int64_t all);
void fsdp__progress_validation(fsdp__progress *progress, const fsdp_train_config *config,
                               const fsdp_train_validation *validation);
void fsdp__progress_saved(fsdp__progress *progress, const fsdp_train_saved *saved);
/* Clears the bar. */
void fsdp__progress_clear(fsdp__progress *progress);
void fsdp__progress_end(fsdp__progress *progress);

/* Writes a count in few characters: "0.98M". */
const char *fsdp__short_count(int64_t value, char *text, size_t text_bytes);
