/* context.h - what layers hang on a context. A layer attaches its own state to its slot; the context frees the slots in
 * reverse order. */
#pragma once

#include <stdatomic.h>

#include "base/compiler.h"
#include "base/probe.h"

typedef enum fsdp__slot {
    FSDP__SLOT_HEART,    /* comm/: what holds the memory of the heart. Freed last: workers of devices beat it */
    FSDP__SLOT_ORIGINS,  /* tensor/: whether a recomputed function runs. Freed after all that has storages */
    FSDP__SLOT_WATCHER,  /* who listens to the probes of this context: free to subscribers (probe.h) */
    FSDP__SLOT_TRACE,    /* watch/: what records a trace. Freed after all that may be at a point of a probe */
    FSDP__SLOT_FLIGHT,   /* watch/: the flight recorder, which hears of calls until the devices are gone */
    FSDP__SLOT_DEVICES,  /* device/: the devices that were opened */
    FSDP__SLOT_AUTOGRAD, /* autograd/: grad mode, running backward */
    FSDP__SLOT_MODULES,  /* nn/: the modules there are, and which one is being called */
    FSDP__SLOT_COMM,     /* comm/: the default process group and what it needs */
    FSDP__SLOT_SHARD,    /* shard/: the default mesh, and counters for all roots */
    FSDP__SLOT_WRAP,     /* shard/: the scope of fsdp_wrap */
    FSDP__SLOT_GLOBAL,   /* ops/: the rules for distributed tensors */
    FSDP__SLOT_SCOPE,    /* tensor/: the stack of scopes. Freed first: its tensors may hold any of the above */
    FSDP__SLOTS
} fsdp__slot;

/* Sets the number of compute threads. Call it before anything computes. */
void fsdp__context_set_threads(fsdp_context *context, int threads);
void *fsdp__context_get(const fsdp_context *context, fsdp__slot slot); /* NULL when nothing is attached */
/* Returns what is attached to the slot. If nothing is, attaches `bytes` of zeros with `free_state` and returns them.
 * NULL when out of memory. */
void *fsdp__context_get_or_make(fsdp_context *context, fsdp__slot slot, size_t bytes, void (*free_state)(void *));
/* Says who is at work on the context's own thread. The ledger notes it beside the memory that it hands out then. */
typedef struct fsdp__taker {
    const void *owner; /* stands for a module, also when that is gone; NULL: none. It is no address to be followed */
    const char *op;    /* the operation; NULL: none. The name lives as long as the context */
    bool backward;     /* it is undone */
} fsdp__taker;
/* Return who is at work, nobody on any other thread, and set it. */
fsdp__taker fsdp__context_taker(const fsdp_context *context);
void fsdp__context_set_taker(fsdp_context *context, fsdp__taker taker);
/* Lets another owner work, in no operation yet; returns who was at work before, to be set again. */
fsdp__taker fsdp__context_enter(fsdp_context *context, const void *owner);
/* Sets how owners are named: `name` writes the name of an owner that is still there, or returns false. */
typedef bool (*fsdp__owner_namer)(const fsdp_context *context, const void *owner, char *text, size_t bytes);
void fsdp__context_set_namer(fsdp_context *context, fsdp__owner_namer name);
/* Writes the name of an owner, "" where it is not known, and on any other thread than the context's own. Returns
 * `text`. */
const char *fsdp__context_owner_name(const fsdp_context *context, const void *owner, char *text, size_t bytes);

/* Says what the rank is busy with between its collectives. */
typedef enum fsdp__activity {
    FSDP__COMPUTING,
    FSDP__READING, /* files */
    FSDP__WRITING
} fsdp__activity;

/* The signs of life of a rank, for peers that wait for it. */
typedef struct fsdp__heart {
    _Atomic uint64_t beats; /* counts all that the rank gets done: kernels, collectives. Any thread */
    _Atomic uint32_t activity;
} fsdp__heart;

void fsdp__context_beat(fsdp_context *context);

/* Notes that the context's world has ended, for a reason that each later call of it tells; says whether that was noted.
 * What fails afterwards, on any stream, need not be told once more. Any thread. */
void fsdp__context_note_end(fsdp_context *context);
bool fsdp__context_has_ended(const fsdp_context *context);

/* Sets the activity until it is set again; returns the previous one. */
fsdp__activity fsdp__context_set_activity(fsdp_context *context, fsdp__activity activity);
/* Sets where the heart beats from now on: in memory that peers see, and that must live as long as the context. */
void fsdp__context_set_heart(fsdp_context *context, fsdp__heart *heart);
/* Attaches `state`, which the context owns from now on. The slot must be empty. */
void fsdp__context_attach(fsdp_context *context, fsdp__slot slot, void *state, void (*free_state)(void *));
/* Logs a warning in a process that has no context yet; it goes where the log goes by default. */
void fsdp__warn(const char *format, ...) FSDP_PRINTF(1, 2);

FSDP__SCOPED_POINTER(fsdp_context, fsdp_context_free)
