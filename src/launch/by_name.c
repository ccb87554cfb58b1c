/* by_name.c - the memory of ranks that were started without it.
 *
 * The name is made of what the ranks of one run share and two runs do not: the user, the process that started them,
 * when that process began, and the variables that tell one of its runs, and one restart, from the next. So a leftover
 * rank meets nobody. */
#include "launch/by_name.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/status.h"
#include "comm/health/process.h"
#include "comm/transport/arena/handoff.h"
#include "comm/transport/arena/shm.h"
#include "launch/variables.h"

/* When this rank reports that it waits, how often it checks those that were started beside it, and when it gives up on
 * one of them that is missing; the first and the last are at most half of the time to join. */
#define WARN_NS INT64_C(5000000000)
#define LOOK_NS INT64_C(200000000)
#define MISSING_NS INT64_C(10000000000)

static uint64_t hash_variable(uint64_t hash, const char *name)
{
    const char *value = getenv(name);

    if (!value)
        value = "";
    return fsdp__hash_bytes(fsdp__hash_bytes(hash, name, strlen(name) + 1), value, strlen(value) + 1);
}

static void make_name(const fsdp__starter *s, char *name, size_t bytes)
{
    static const char *const variables[] = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                                            "TORCHELASTIC_RESTART_COUNT"};
    uint64_t hash = FSDP__HASH_OF_NOTHING;

    for (size_t i = 0; i < FSDP__COUNT_OF(variables); i++)
        hash = hash_variable(hash, variables[i]);
    snprintf(name, bytes, "%lu-%ld-%llu-%d-%016llx", (unsigned long)getuid(), (long)getppid(),
             (unsigned long long)fsdp__process_start_ticks(getppid()), s->size, (unsigned long long)hash);
}

/* Makes the arena watch the parent. torchrun's ranks end with their parent, which watches them; a shell may be gone
 * long before. */
static void watch_parent(fsdp__arena *arena)
{
    if (!getenv("TORCHELASTIC_RUN_ID"))
        return;
    /* Set the start time before the pid, which switches the watching on. */
    atomic_store(&arena->board->keeper_ticks, fsdp__process_start_ticks(getppid()));
    atomic_store(&arena->board->keeper, getppid());
}

typedef struct waiting {
    const fsdp__starter *starter;
    pid_t parent;
    int seconds; /* for which this rank waits */
    int64_t began_ns, looked_ns, missing_ns;
    bool warned;
    const fsdp__arena *arena; /* the arena that this rank gives, and in which others may already have failed; or NULL */
} waiting;

static int64_t half_ns(const waiting *w)
{
    return (int64_t)w->seconds * 500000000;
}

/* Warns that it takes long: variables that are left over in a shell look like those of a rank. */
static void warn(const waiting *w)
{
    const fsdp__starter *s = w->starter;

    fsdp__warn(
        "rank %d of %d waits for the others, for %d s (" FSDP__JOIN_VARIABLE
        "): it is a rank because the environment has %s=%d and %s=%d; if nobody starts the others, unset %s and %s",
        s->rank, s->size, w->seconds, s->rank_variable, s->rank, s->size_variable, s->size, s->rank_variable,
        s->size_variable);
}

/* Returns whether one of torchrun's processes is missing. torchrun waits for all of them, too, and one that has ended
 * with success is no failure to it. A shell starts its ranks one after the other, so there none counts as missing. */
static bool is_one_missing(waiting *w, int64_t now)
{
    int living;

    if (!getenv("TORCHELASTIC_RUN_ID") || now - w->looked_ns < LOOK_NS)
        return false;
    living = fsdp__process_children(w->parent);
    w->missing_ns = living >= 0 && living < w->starter->size ? w->missing_ns + now - w->looked_ns : 0;
    w->looked_ns = now;
    return w->missing_ns >= FSDP__MIN(MISSING_NS, half_ns(w));
}

static const char *look(void *argument)
{
    waiting *w = argument;
    int64_t now = fsdp__clock_ns();

    if (getppid() != w->parent)
        return "the parent process of all ranks has ended";
    if (w->arena && fsdp__board_aborted(w->arena->board))
        return "a rank has failed";
    if (is_one_missing(w, now))
        return "a rank that was started beside this one has ended without joining the others";
    if (!w->warned && now - w->began_ns > FSDP__MIN(WARN_NS, half_ns(w))) {
        w->warned = true;
        warn(w);
    }
    return NULL;
}

static fsdp_status give(const fsdp__starter *s, const fsdp__handoff *handoff, waiting *w, int *out)
{
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__arena_create(s->size, s->size, true, &arena));
    watch_parent(arena);
    arena->control->join_seconds = w->seconds;
    w->arena = arena;
    status = fsdp__handoff_give(handoff, arena->fd, s->size - 1);
    w->arena = NULL;
    if (fsdp__board_aborted(arena->board))
        status = fsdp__board_failure(arena->board);
    if (status == FSDP_STATE)
        status = fsdp_fail_prefix(status, "there is another rank 0: each process needs a RANK of its own");
    *out = status == FSDP_OK ? fcntl(arena->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
    if (status == FSDP_OK && *out < 0)
        status = FSDP_FAIL(FSDP_IO, "cannot keep the ranks' shared memory open: %s%s", strerror(errno),
                           fsdp__limit_behind(errno));
    if (status != FSDP_OK) /* those that have taken it wait for the others */
        fsdp__board_fail(arena->board, status, 0, fsdp_last_error());
    return status;
}

fsdp_status fsdp__join_by_name(const fsdp__starter *s, const fsdp_context_options *options, fsdp_context **out)
{
    char name[FSDP__HANDOFF_NAME];
    int64_t now = fsdp__clock_ns();
    waiting w = {.starter = s, .parent = getppid(), .began_ns = now, .looked_ns = now};
    fsdp__handoff handoff = {.name = name, .stopped = look, .argument = &w};
    fsdp_status status;
    FSDP__CLOSED int fd = -1;

    FSDP_TRY(fsdp__read_join_seconds(&w.seconds));
    handoff.timeout_ns = (int64_t)w.seconds * 1000000000;
    make_name(s, name, sizeof name);
    status = s->rank == 0 ? give(s, &handoff, &w, &fd) : fsdp__handoff_take(&handoff, &fd);
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status,
                                "rank %d of %d of %s does not find the others (all must have the same parent process, "
                                "so a script around the program must start it with 'exec'; " FSDP__JOIN_VARIABLE
                                " is %d s)",
                                s->rank, s->size, s->name, w.seconds);
    return fsdp__shm_join(fd, true, options, out);
}

void fsdp__refuse_by_name(const fsdp__starter *s, const char *why)
{
    char name[FSDP__HANDOFF_NAME];
    const fsdp__handoff handoff = {.name = name, .timeout_ns = 2000000000};
    bool held = fsdp_hold_error(true);
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;
    FSDP__CLOSED int fd = -1;

    make_name(s, name, sizeof name);
    if (s->rank == 0 ? fsdp__arena_create(s->size, s->size, true, &arena) == FSDP_OK
                     : fsdp__handoff_take(&handoff, &fd) == FSDP_OK && fsdp__arena_map_control(fd, &arena) == FSDP_OK)
        fsdp__board_fail(arena->board, FSDP_COMM, s->rank, why);
    if (s->rank == 0 && arena)
        (void)fsdp__handoff_give(&handoff, arena->fd, s->size - 1);
    fsdp_release_error(held);
}
