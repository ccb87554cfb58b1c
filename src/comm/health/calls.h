/* calls.h - one rank's part in the board: it writes where it is in its calls. Ranks that wait for it need this for
 * messages and decisions. */
#pragma once

#include <pthread.h>

#include "comm/health/board.h"
#include "comm/transport_ops.h"

enum {
    FSDP__TICK_MS = 200,       /* how often a rank that waits for another looks around */
    FSDP__TIMEOUT_MS = 300000, /* unless the user says otherwise */
    FSDP__CALL_BYTES = 240     /* room for the text of a call */
};

/* One rank of this machine, as it sees itself. */
typedef struct fsdp__health {
    fsdp_context *context;
    fsdp__board *board;
    int rank;          /* on this machine */
    pthread_t program; /* the thread that makes the program's calls */
    bool program_known;
    _Atomic int64_t timeout_ms, timeout_ticks, tick_ms; /* see watchdog.h */
    bool joins;            /* not all ranks have come yet: the timeout is the one for joining */
    pthread_mutex_t mutex; /* guards `elsewhere` of its row: calls run on several threads */
} fsdp__health;

/* Says how long to wait for a rank that stands still (0: for ever), and how long a tick is. */
void fsdp__health_set_timeout(fsdp__health *health, int64_t timeout_ms, int64_t tick_ms);

/* Fills in what a rank says of a call. */
void fsdp__doing_set(fsdp__doing *doing, const char *group, int tag, uint64_t sequence, int32_t name,
                     const char *label);
/* Notes a moment of a call in group `index`; -1: it has no desks. */
void fsdp__health_note(fsdp__health *health, int index, const char *group, int tag, const fsdp__call *call,
                       fsdp__moment moment);
/* Notes that the program waits for calls of the group and does nothing else, or no longer does so. `worker` is the
 * stream whose work it waits for, or NULL. */
void fsdp__health_program_waits(fsdp__health *health, int index, const fsdp_stream *worker, bool waits);
/* Notes that a thread of this rank has spent this processor time on looking whether others have come: it is no sign of
 * life. */
void fsdp__health_looked(const fsdp__health *health, int64_t cpu_ns);

/* Returns whether `rank` has issued a call of the group that is not done: it may get there by itself. */
bool fsdp__call_is_on_its_way(const fsdp__board *board, int group, int rank);
/* Gets the call that `rank` began last in the group, or with group -1 in any. Returns false, and a mixture of two
 * calls, if the rank goes on so fast that it cannot be read. */
bool fsdp__call_last(const fsdp__board *board, int group, int rank, fsdp__doing *out);
/* Writes that call: "call 7 of group 'world' (all_gather_coalesced for 'layers.3')". Returns false when there was
 * none. */
bool fsdp__call_text_of(const fsdp__board *board, int group, int rank, char *text, size_t bytes);
/* Writes "in call 7 of group 'a' (barrier)", or "after" it where `in` is 0, or that there was none. */
void fsdp__doing_text(const fsdp__doing *doing, int in, char *text, size_t bytes);
