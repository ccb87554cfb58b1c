/* segment_source.h - where the ledger's allocator has its memory from. */
#pragma once

#include "device/moment.h"
#include "device/owners.h"

/* Says where segments come from: a backend, or memory that ranks share. */
typedef struct fsdp__segment_source {
    const char *name;
    bool has_bytes; /* false: the addresses are never followed */
    fsdp_status (*alloc)(void *arg, size_t bytes, void **out);
    void (*free)(void *arg, void *segment, size_t bytes);
    void *arg;
    /* Optional, all three. `grow` maps `more` bytes of a segment from `bytes` on: behind its end, which makes it
     * longer, or in a part that was cut out of it. `fit` narrows a part, [*from, *end), to what can be given back
     * alone, which may be nothing. `cut` gives that back: nobody may touch it any more, and it still counts among the
     * segment's bytes. */
    fsdp_status (*grow)(void *arg, void *segment, size_t bytes, size_t more);
    void (*fit)(void *arg, void *segment, size_t *from, size_t *end);
    void (*cut)(void *arg, void *segment, size_t from, size_t end);
    /* Optional, all three, for memory that work which runs behind uses (fsdp__allocator_runs_behind). `queued` gives
     * the number of the last work that was queued, which may still use what is given back now; `done`, the number up to
     * which all has been done, so that memory can be returned; `settle` waits for what was queued before. The allocator
     * can be used meanwhile. [blocks] */
    uint64_t (*queued)(void *arg);
    uint64_t (*done)(void *arg);
    void (*settle)(void *arg);
    /* Optional, beside those three, where `done` only says that work was issued to a device. Gives a moment of the
     * device behind all that was issued by now, which the caller owns. It waits for nothing. */
    fsdp_status (*issued)(void *arg, fsdp__device_moment **out);
    /* Optional. Returns whether `settle` brings memory back that is in no segment. */
    bool (*owed)(void *arg);
    fsdp__taker (*taker)(void *arg); /* optional: who takes memory now */
} fsdp__segment_source;
