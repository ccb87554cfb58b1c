/* line.h - the command lines of ranks that somebody else has started: each rank has its own, and they must agree. */
#pragma once

#include "cli/cli.h"

/* Holds the arguments that a command was given. */
typedef struct fsdp__line {
    const char *command;
    const fsdp__args *args; /* parsed */
    /* options that may differ, such as paths of a machine, up to a NULL; NULL: none. "": the words */
    const char *const *local;
    char *keys; /* --section.key=value, as fsdp__line_key has seen them; fsdp__free it */
} fsdp__line;

/* Notes a key, as fsdp__args.dotted. A key that does not exist is FSDP_INVALID. */
fsdp_status fsdp__line_key(void *line, const char *key, const char *value);
/* Fails on all ranks if one was given something else than rank 0; the message names the rank, the machine and the
 * difference. Does nothing if this program has started the ranks, because it has made their lines. [collective] */
fsdp_status fsdp__line_agree(const fsdp__line *line, const fsdp__ranks *ranks, fsdp_context *context);
/* Refuses a wrong command line, by the last error: prints it, and tells the other ranks, which may have another line
 * and would wait for this rank. Returns FSDP__USAGE. */
int fsdp__line_refuse(void);
