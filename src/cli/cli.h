/* cli.h - the commands of the program `fsdp`. Each gets its own arguments (argv[0] is the command's name) and returns
 * the exit status: 0, FAILED, or USAGE when the command line itself is wrong. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "fsdp/fsdp.h"

enum {
    FSDP__FAILED = 1,
    FSDP__USAGE = 2
};

int fsdp__cmd_train(int argc, char **argv);
int fsdp__cmd_run(int argc, char **argv);
int fsdp__cmd_generate(int argc, char **argv);
int fsdp__cmd_inspect(int argc, char **argv);

/* "fsdp: <message>" on stderr; returns FSDP__USAGE, or FSDP__FAILED. */
int fsdp__usage_error(const char *format, ...) FSDP_PRINTF(1, 2);
int fsdp__failure(const char *format, ...) FSDP_PRINTF(1, 2);

/* ---- args.c: options in any place, "--name=value" or "--name value", until "--" ---- */

typedef struct fsdp__option {
    const char *name;   /* without dashes */
    char letter;        /* 0: none */
    const char **value; /* takes a value: where it goes; NULL: a flag */
    bool *flag;
} fsdp__option;

typedef struct fsdp__args {
    const fsdp__option *options; /* up to a NULL name */
    /* Sees "--section.key=value" options (key, value); NULL: they are unknown. Returns 0 or an exit status. */
    int (*dotted)(void *arg, const char *key, const char *value);
    void *arg;
    const char *positional[2];
    int positional_count, positional_most;
    char **rest; /* what follows "--"; NULL when there was none */
} fsdp__args;

/* 0, or FSDP__USAGE after saying why. `command` is for messages. */
int fsdp__args_parse(fsdp__args *args, const char *command, int argc, char **argv);
/* Whole numbers and numbers of options; `name` is for the message. 0 or FSDP__USAGE. */
int fsdp__args_integer(const char *name, const char *text, int64_t least, int64_t most, int64_t *out);
int fsdp__args_number(const char *name, const char *text, double least, double most, double *out);

/* ---- progress.c ---- */

typedef struct fsdp__progress {
    bool speaks;   /* this rank prints */
    bool terminal; /* stderr is one: draw a bar */
    bool drawn;    /* a bar stands on the terminal */
    int64_t steps, log_freq, tokens_per_step;
    double flops_per_token;
    int64_t began_ns, logged_ns, drawn_ns;
    int64_t logged_step;
    double first_loss, last_loss;
} fsdp__progress;

void fsdp__progress_start(fsdp__progress *progress, const fsdp_train_config *config, const fsdp_train_summary *summary,
                          int threads);
void fsdp__progress_step(fsdp__progress *progress, const fsdp_train_report *report);
/* Takes the bar away. */
void fsdp__progress_clear(fsdp__progress *progress);
void fsdp__progress_end(fsdp__progress *progress);

/* "1,234,567" and "1.21GiB", "0.98M". */
const char *fsdp__thousands(int64_t value, char *text, size_t text_bytes);
const char *fsdp__gibibytes(size_t bytes, char *text, size_t text_bytes);
const char *fsdp__short_count(int64_t value, char *text, size_t text_bytes);

#endif
