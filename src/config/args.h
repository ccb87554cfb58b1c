/* args.h - parses a command line. Every command has the flag --help, or -h. Options may stand anywhere before "--", as
 * "--name=value" or "--name value". A name may also have one dash ("-np 2"), and a letter may have its value right
 * after it ("-n2"). A value that begins with two dashes needs the "=". If an option is given twice, the last one
 * counts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "config/keys.h"
#include "fsdp/status.h"

typedef struct fsdp__option {
    const char *name;   /* without dashes */
    char letter;        /* 0: none */
    const char **value; /* where the option's value goes; NULL: it is a flag */
    bool *flag;
} fsdp__option;

/* Says beside which options an option counts for nothing. There are spaces between names. */
typedef struct fsdp__option_rule {
    const char *option;
    const char *needs;    /* the option that must be given, too; NULL: none */
    const char *excludes; /* none of these may be; NULL: all may */
} fsdp__option_rule;

typedef struct fsdp__args {
    const fsdp__option *options;    /* ends with a NULL name */
    const fsdp__option_rule *rules; /* ends with a NULL option; or NULL */
    /* Gets "--section.key=value" and "--section.key value" (key, value) in order; NULL: they are unknown options. */
    fsdp_status (*dotted)(void *arg, const char *key, const char *value);
    void *arg;
    const fsdp__key_table *keys; /* whose keys an unknown option may mean; NULL: none */
    const char *positional[2];
    int positional_count, positional_most;
    const char **list; /* room for argc words, used in place of `positional`; NULL: none */
    char **rest;       /* what follows "--"; NULL if there was none */
    bool runs;         /* the first word that belongs to no option begins `rest`, too */
    bool help;         /* becomes true if help was asked for */
} fsdp__args;

/* Parses the command line. `command` is for messages. */
fsdp_status fsdp__args_parse(fsdp__args *args, const char *command, int argc, char **argv);
/* Parse the value of an option, a whole number or any number; `name` is for messages. Without one (NULL) `*out` stays.
 */
fsdp_status fsdp__args_integer(const char *name, const char *text, int64_t least, int64_t most, int64_t *out);
fsdp_status fsdp__args_number(const char *name, const char *text, double least, double most, double *out);
