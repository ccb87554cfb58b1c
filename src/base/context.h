/* context.h - what layers hang on a context. A layer attaches its own state to its slot; the context frees the
 * slots in reverse order. */
#ifndef BASE_CONTEXT_H
#define BASE_CONTEXT_H

#include <stdatomic.h>

#include "fsdp/context.h"

typedef enum fsdp__slot {
    FSDP__SLOT_HEART,    /* comm/: what holds the memory of the heart. Goes last: workers of devices beat it */
    FSDP__SLOT_ORIGINS,  /* tensor/: whether the function of a checkpoint runs. After all that has storages */
    FSDP__SLOT_RACES,    /* device/: what is checked for races */
    FSDP__SLOT_DEVICES,  /* device/: those that were opened */
    FSDP__SLOT_AUTOGRAD, /* autograd/: grad mode, running backward */
    FSDP__SLOT_MODULES,  /* nn/: which there are, and which is called */
    FSDP__SLOT_COMM,     /* comm/: the default process group and what it needs */
    FSDP__SLOT_LAUNCH,   /* launch/ */
    FSDP__SLOT_SHARD,    /* shard/: the default mesh, and what is counted for all roots */
    FSDP__SLOT_WRAP,     /* shard/: the scope of fsdp_wrap */
    FSDP__SLOT_SCOPE,    /* tensor/: the stack of scopes. Goes first: its tensors may hold any of the above */
    FSDP__SLOTS
} fsdp__slot;

/* Before anything computes. */
void fsdp__context_set_threads(fsdp_context *context, int threads);
/* As if the world were spread over so many machines, equal and in the order of ranks. */
void fsdp__context_set_machines(fsdp_context *context, int machines);
void *fsdp__context_get(const fsdp_context *context, fsdp__slot slot); /* NULL when nothing is attached */
/* What is attached; else `bytes` of zeros, which are attached with `free_state`. NULL when out of memory. */
void *fsdp__context_get_or_make(fsdp_context *context, fsdp__slot slot, size_t bytes, void (*free_state)(void *));
/* What the rank is busy with between its calls of other ranks. */
typedef enum fsdp__activity {
    FSDP__COMPUTING,
    FSDP__READING, /* files */
    FSDP__WRITING
} fsdp__activity;

/* The signs of life of a rank, for peers that wait for it. */
typedef struct fsdp__heart {
    _Atomic uint64_t beats; /* steps with all that the rank gets done: kernels, collectives. Any thread */
    _Atomic uint32_t activity;
} fsdp__heart;

void fsdp__context_beat(fsdp_context *context);
/* Until it is set again; the one before is returned. */
fsdp__activity fsdp__context_set_activity(fsdp_context *context, fsdp__activity activity);
/* Where the heart beats from now on: in memory that peers see, which lives as long as the context. */
void fsdp__context_set_heart(fsdp_context *context, fsdp__heart *heart);
/* The context owns `state` from now on. The slot must be empty. */
void fsdp__context_attach(fsdp_context *context, fsdp__slot slot, void *state, void (*free_state)(void *));
/* Whether anybody gets a line of `level`: none is made that nobody reads. On the context's own thread. */
bool fsdp__log_shows(const fsdp_context *context, fsdp_log_level level);
/* Logs a warning in a process that has no context yet, to where the log goes by default. */
void fsdp__warn(const char *format, ...) FSDP_PRINTF(1, 2);

#endif
