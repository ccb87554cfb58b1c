/* fsdp/context.h - the context of a rank owns everything that the rank has; there are no mutable globals.
 *
 * A context, with all that was made from it, belongs to one thread at a time. It may be handed to another thread, if
 * something orders the two (a join, a mutex). Threads with different contexts do not disturb each other. What is marked
 * [thread-safe] may be called on any thread meanwhile, as long as the context lives. Ranks are processes with one
 * context each (see fsdp/launch.h), or threads of one process with a context each (tests, small programs).
 *
 * A child of fork() may start another program, or end. It must neither use nor free what its parent has made, because
 * it has none of its parent's threads, and the files of a save under way are the parent's. It may make contexts of its
 * own; but if its parent has computed on several threads, it can do so on one only, and more are FSDP_STATE.
 */
#ifndef FSDP_CONTEXT_H
#define FSDP_CONTEXT_H

#include "fsdp/status.h"

#define FSDP_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_context fsdp_context;

typedef enum fsdp_log_level {
    FSDP_LOG_ERROR,
    FSDP_LOG_WARNING,
    FSDP_LOG_INFO,
    FSDP_LOG_DEBUG,
} fsdp_log_level;

/* Receives one finished line, without a newline. It may be called on any thread, but never twice at a time for one
 * context. The default sink writes to stderr. */
typedef void (*fsdp_log_sink)(void *arg, fsdp_log_level level, const char *line);

typedef struct fsdp_context_options {
    int rank, world_size;             /* world_size 0 means 1 */
    int local_rank, local_world_size; /* on this machine; 0: the same as rank, world_size */
    int machine, machines;            /* 0: machines of local_world_size ranks each, in rank order */
    int threads; /* compute threads of this rank, at most 1024; 0: its share of the cores available */
} fsdp_context_options;

/* Creates a rank without communication. `options` may be NULL: rank 0 of 1. */
FSDP_API fsdp_status fsdp_context_create(const fsdp_context_options *options, fsdp_context **out);

/* Frees the context. Everything made from it must have been freed before; nothing checks that, but the log names memory
 * of a device that is still in use. NULL is allowed. */
FSDP_API void fsdp_context_free(fsdp_context *context);

FSDP_API int fsdp_context_rank(const fsdp_context *context);
FSDP_API int fsdp_context_world_size(const fsdp_context *context);
FSDP_API int fsdp_context_local_rank(const fsdp_context *context);
FSDP_API int fsdp_context_local_world_size(const fsdp_context *context);
/* Return the index of this rank's machine and the number of machines in the world: 0 and 1 if all ranks share one. */
FSDP_API int fsdp_context_machine(const fsdp_context *context);
FSDP_API int fsdp_context_machines(const fsdp_context *context);
FSDP_API int fsdp_context_threads(const fsdp_context *context);

/* Sets the log level and sink. Lines above `level` are dropped (default: INFO). A NULL sink restores the default
 * one. */
FSDP_API void fsdp_context_set_log(fsdp_context *context, fsdp_log_level level, fsdp_log_sink sink, void *arg);

/* Logs one line, prefixed with "[rank N] " if the world has more than one rank. [thread-safe] */
FSDP_API void fsdp_log(fsdp_context *context, fsdp_log_level level, const char *format, ...) FSDP_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif
