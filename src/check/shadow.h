/* shadow.h - what is known of the uses of memory: for every watched byte its last write and the reads since then.
 *
 * Only uses of watched ranges are remembered: memory that devices hand out and that ranks share. Other memory of the
 * host comes and goes by malloc, in an order that nobody reports here. */
#pragma once

#include <stddef.h>

#include "check/vector_clock.h"

typedef struct fsdp__shadow fsdp__shadow;

/* One use: step `step` of `actor`. The texts must live as long as the shadow; NULL: none.
 *
 * [Note: memory given back]
 * The host reports at once that it gives memory back, for the place where the device's stream will be; the shadow
 * checks it when the stream gets there. By then the block may belong to another, whose uses come later and must not be
 * compared: they were queued by a host that knew of it (`known`). Uses from before the block was given back must be
 * ordered in front of it; those that run only after the check, and whose host did not know, never were. */
typedef struct fsdp__use {
    uint64_t step;
    uint64_t known; /* set by the shadow: the steps of the memory's owner that lie before the use */
    int actor;
    bool writes;
    bool frees;               /* the owner gives the memory back */
    const char *what, *field; /* "kernel", "dst" */
    const char *within;       /* the collective that it is a part of, */
    uint64_t number;          /* and the sequence number of that */
} fsdp__use;

/* A use that is not ordered with an earlier one: the bytes that both touch, and the earlier use. */
typedef struct fsdp__conflict {
    uintptr_t start, end;
    fsdp__use earlier;
} fsdp__conflict;

/* Describes a piece of memory: a block as handed out, or a named part of one. */
typedef struct fsdp__owner {
    uintptr_t start, end;
    const char *kind, *name; /* NULL: unknown */
} fsdp__owner;

typedef enum fsdp__shadow_answer {
    FSDP__SHADOW_ORDERED,
    FSDP__SHADOW_CONFLICT,
    FSDP__SHADOW_NO_MEMORY
} fsdp__shadow_answer;

fsdp__shadow *fsdp__shadow_create(void); /* NULL when out of memory */
void fsdp__shadow_free(fsdp__shadow *shadow);

/* Remembers uses of [pointer, pointer + bytes) from now on; if it does so already, the range may have become longer.
 * `owner`: the actor that gives back what lies there; -1: nobody does. Returns false when out of memory. */
bool fsdp__shadow_watch(fsdp__shadow *shadow, const void *pointer, size_t bytes, int owner);
/* Forgets the range that begins at `pointer`: the addresses may come back as someone else's. */
void fsdp__shadow_forget(fsdp__shadow *shadow, const void *pointer);
bool fsdp__shadow_watches(const fsdp__shadow *shadow, const void *pointer);

/* Remembers a use whose actor knows of `clock`. It conflicts with an earlier use that `clock` does not cover; `out`
 * gets the first conflict. Bytes outside the watched ranges are skipped. */
fsdp__shadow_answer fsdp__shadow_use(fsdp__shadow *shadow, const void *pointer, size_t bytes, const fsdp__use *use,
                                     const fsdp__vector_clock *clock, fsdp__conflict *out);

/* Says what a piece of memory is from now on: a block (name NULL), or a part of one. Does nothing where it is not
 * watched. */
bool fsdp__shadow_own(fsdp__shadow *shadow, const void *pointer, size_t bytes, const char *kind, const char *name);
fsdp__owner fsdp__shadow_owner(const fsdp__shadow *shadow, uintptr_t at);
