/* line.h - the command lines of ranks that somebody else has started: each has its own, and they must say the same. */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include "cli/cli.h"

/* What a command was given. */
typedef struct fsdp__line {
    const char *command;
    const fsdp__args *args;   /* parsed */
    const char *const *local; /* options that may differ, as paths of a machine: up to a NULL; NULL: none. "": words */
    char *keys;               /* --section.key=value, as fsdp__line_key has seen them; fsdp__free it */
} fsdp__line;

/* As fsdp__args.dotted: notes a key. One that there is not is FSDP_INVALID. */
fsdp_status fsdp__line_key(void *line, const char *key, const char *value);
/* Fails on all ranks where one was given something else than rank 0, with rank, machine and what it is. Nothing to do
 * where this program has started the ranks, whose line it has made. [collective] */
fsdp_status fsdp__line_agree(const fsdp__line *line, const fsdp__ranks *ranks, fsdp_context *context);
/* A line that is wrong, by the last error: says so, and lets the other ranks know, who may have another one and would
 * wait for this rank. Returns FSDP__USAGE. */
int fsdp__line_refuse(void);

#endif
