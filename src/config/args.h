/* args.h - a command line: options in any place, "--name=value" or "--name value", until "--". A name may have one dash
 * ("-np 2"), a letter its value behind it ("-n2"). A value that begins with two dashes needs the "=". Of an option that
 * is given twice the last counts. */
#ifndef CONFIG_ARGS_H
#define CONFIG_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "fsdp/status.h"

typedef struct fsdp__option {
    const char *name;   /* without dashes */
    char letter;        /* 0: none */
    const char **value; /* takes a value: where it goes; NULL: a flag */
    bool *flag;
} fsdp__option;

typedef struct fsdp__args {
    const fsdp__option *options; /* up to a NULL name */
    /* Sees "--section.key=value" and "--section.key value" (key, value) in their order; NULL: they are unknown. */
    fsdp_status (*dotted)(void *arg, const char *key, const char *value);
    void *arg;
    const char *positional[2];
    int positional_count, positional_most;
    const char **list; /* room for argc of them, in place of `positional`; NULL: none */
    char **rest;       /* what follows "--"; NULL when there was none */
    bool runs;         /* the first word that belongs to no option begins `rest`, too */
} fsdp__args;

/* `command` is for messages. */
fsdp_status fsdp__args_parse(fsdp__args *args, const char *command, int argc, char **argv);
/* Whole numbers and numbers of options; `name` is for the message. */
fsdp_status fsdp__args_integer(const char *name, const char *text, int64_t least, int64_t most, int64_t *out);
fsdp_status fsdp__args_number(const char *name, const char *text, double least, double most, double *out);

#endif
