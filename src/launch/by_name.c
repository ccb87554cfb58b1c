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
#include "comm/health/process.h"
#include "comm/transport/arena/handoff.h"
#include "comm/transport/arena/shm.h"
#include "launch/variables.h"
#include "launch/waiting_ranks.h"

/* When this rank reports that it waits, how often it checks those that were started beside it, and when it gives up on
 * one of them that is missing; the first and the last are at most half of the time to join. */
#define WARN_NS INT64_C(5000000000)
#define LOOK_NS INT64_C(200000000)
#define MISSING_NS INT64_C(10000000000)
/* Says for how long those that have yet to come are told that a rank has failed. */
#define TELL_NS INT64_C(10000000000)
/* Says how long a rank that waits for one that will never come stays to be seen when all are there, and how long it
 * sees such a one that may be of another run before it warns. */
#define SEEN_NS INT64_C(1000000000)
/* Says for how long a process that does not join tries to say so. */
#define REFUSE_NS INT64_C(2000000000)

static uint64_t hash_variable(uint64_t hash, const char *name)
{
    const char *value = getenv(name);

    if (!value)
        value = "";
    return fsdp__hash_bytes(fsdp__hash_bytes(hash, name, strlen(name) + 1), value, strlen(value) + 1);
}

/* Returns a hash of this process's command line; that of nothing where there is no /proc. */
static uint64_t hash_command(void)
{
    FSDP__CLOSED int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    uint64_t hash = FSDP__HASH_OF_NOTHING;
    ssize_t bytes;
    char text[4096];

    while (fd >= 0 && (bytes = read(fd, text, sizeof text)) > 0)
        hash = fsdp__hash_bytes(hash, text, (size_t)bytes);
    return hash;
}

static fsdp__waiting_rank this_rank(const fsdp__starter *s)
{
    static const char *const variables[] = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                                            "TORCHELASTIC_RESTART_COUNT"};
    fsdp__waiting_rank self = {.rank = s->rank,
                               .size = s->size,
                               .pid = getpid(),
                               .parent = getppid(),
                               .parent_ticks = fsdp__process_start_ticks(getppid()),
                               .run = FSDP__HASH_OF_NOTHING,
                               .command = hash_command()};

    for (size_t i = 0; i < FSDP__COUNT_OF(variables); i++)
        self.run = hash_variable(self.run, variables[i]);
    return self;
}

static void make_name(const fsdp__starter *s, char *name, size_t bytes)
{
    fsdp__waiting_rank self = this_rank(s);

    snprintf(name, bytes, "%lu-%d-%llu-%d-%016llx", (unsigned long)getuid(), self.parent,
             (unsigned long long)self.parent_ticks, self.size, (unsigned long long)self.run);
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
    fsdp__waiting_rank self;
    int seconds; /* for which this rank waits */
    int64_t began_ns, looked_ns, missing_ns;
    int64_t failed_ns; /* when a rank was seen to have failed; 0: none was */
    /* A rank that never comes; its pid is 0: none was seen. When it was seen first, and when all of them first. */
    fsdp__waiting_rank other_size, apart;
    int64_t other_size_ns, apart_ns, all_ns;
    bool warned, warned_apart;
    fsdp__waiting_seen seen;
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

/* Writes what keeps this rank from a rank that waits elsewhere. */
static void describe_apart(const waiting *w, char *out, size_t bytes)
{
    const fsdp__waiting_rank *a = &w->apart;

    if (a->parent != w->self.parent || a->parent_ticks != w->self.parent_ticks)
        snprintf(out, bytes,
                 "rank %d of %d (process %d) waits, too, but its parent is process %d, and that of this rank process "
                 "%d: if both are of one run, start them from one shell, and with 'exec' in a script around the "
                 "program",
                 a->rank, a->size, a->pid, a->parent, w->self.parent);
    else
        snprintf(out, bytes,
                 "rank %d of %d (process %d) waits, too, but MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID or "
                 "TORCHELASTIC_RESTART_COUNT differs: if both are of one run, set them alike",
                 a->rank, a->size, a->pid);
}

/* Looks at the ranks that wait on this machine. One that waits elsewhere may be of another run, so it is only warned
 * of, and not before the others have had the time to come. */
static void look_at_waiting(waiting *w, int64_t now)
{
    const fsdp__waiting_seen *seen = &w->seen;
    char text[400];

    fsdp__waiting_ranks_look(&w->self, &w->seen);
    if (seen->two_runs) {
        w->other_size.pid = 0;
        w->other_size_ns = w->all_ns = 0;
    } else if (seen->other_size.pid != 0 && w->other_size_ns == 0) {
        w->other_size = seen->other_size;
        w->other_size_ns = now;
    }
    if (w->other_size_ns > 0 && w->all_ns == 0 && seen->together >= seen->most)
        w->all_ns = now;
    w->apart_ns = seen->apart.pid == 0 ? 0 : w->apart_ns == 0 || seen->apart.pid != w->apart.pid ? now : w->apart_ns;
    if (seen->apart.pid != 0) /* what was seen last is for the error, too */
        w->apart = seen->apart;
    if (w->apart_ns == 0 || w->warned_apart || now - w->apart_ns < FSDP__MIN(SEEN_NS, half_ns(w)))
        return;
    w->warned_apart = true;
    describe_apart(w, text, sizeof text);
    fsdp__warn("rank %d of %d waits for the others; %s", w->self.rank, w->self.size, text);
}

/* Returns whether one of torchrun's processes is missing. torchrun waits for all of them, too, and one that has ended
 * with success is no failure to it. A shell starts its ranks one after the other, so there none counts as missing.
 * Between two looks this process may have been stopped, or have got no core for long: that time does not count. */
static bool is_one_missing(waiting *w, int64_t now)
{
    int living = getenv("TORCHELASTIC_RUN_ID") ? fsdp__process_children(w->self.parent) : -1;

    w->missing_ns =
        living >= 0 && living < w->starter->size ? w->missing_ns + FSDP__MIN(now - w->looked_ns, 2 * LOOK_NS) : 0;
    return w->missing_ns >= FSDP__MIN(MISSING_NS, half_ns(w));
}

/* Returns whether this rank has stayed to be seen by those who have another number of ranks. */
static bool has_shown_its_size(const waiting *w, int64_t now)
{
    return (w->all_ns > 0 && now - w->all_ns >= SEEN_NS) ||
           (w->other_size_ns > 0 && now - w->other_size_ns >= FSDP__MIN(TELL_NS, half_ns(w)));
}

static const char *look(void *argument)
{
    waiting *w = argument;
    int64_t now = fsdp__clock_ns();

    if (getppid() != w->self.parent)
        return "the parent process of all ranks has ended";
    if (w->arena && w->failed_ns == 0 && fsdp__board_aborted(w->arena->board))
        w->failed_ns = now;
    if (w->failed_ns > 0 && now - w->failed_ns > FSDP__MIN(TELL_NS, half_ns(w)))
        return "a rank has failed";
    if (now - w->looked_ns >= LOOK_NS) {
        bool missing = is_one_missing(w, now);

        w->looked_ns = now;
        look_at_waiting(w, now);
        if (missing)
            return "a rank that was started beside this one has ended without joining the others";
    }
    if (has_shown_its_size(w, now))
        return "a rank has another WORLD_SIZE";
    if (!w->warned && now - w->began_ns > FSDP__MIN(WARN_NS, half_ns(w))) {
        w->warned = true;
        warn(w);
    }
    return NULL;
}

/* Tells ranks that take their memory from another process why this one does not join them. */
static void tell_takers(const fsdp__handoff *handoff, fsdp_status status, int rank, const char *why)
{
    bool held = fsdp_hold_error(true);
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;
    FSDP__CLOSED int fd = -1;

    if (fsdp__handoff_take(handoff, &fd) == FSDP_OK && fsdp__arena_map_control(fd, &arena) == FSDP_OK)
        fsdp__board_fail(arena->board, status, rank, why);
    fsdp_release_error(held);
}

/* Says of a handoff that has failed what this rank has seen of the others. */
static fsdp_status blame(const waiting *w, fsdp_status status)
{
    const fsdp__waiting_rank *o = &w->other_size;
    char text[400];

    if (status != FSDP_OK && o->pid != 0)
        return FSDP_FAIL(FSDP_MISMATCH,
                         "rank %d was started with WORLD_SIZE %d, and rank %d (process %d) with WORLD_SIZE %d: all "
                         "ranks of a run must have the same",
                         w->self.rank, w->self.size, o->rank, o->pid, o->size);
    if (status != FSDP_COMM && status != FSDP_INTERRUPTED)
        return status;
    if (w->apart.pid != 0)
        describe_apart(w, text, sizeof text);
    else
        snprintf(text, sizeof text,
                 "all must have the same parent process, so a script around the program must start it with 'exec'");
    return fsdp_fail_prefix(status,
                            "rank %d of %d of %s does not find the others (%s; " FSDP__JOIN_VARIABLE " is %d s)",
                            w->self.rank, w->self.size, w->starter->name, text, w->seconds);
}

static fsdp_status give(const fsdp__starter *s, const fsdp__handoff *handoff, waiting *w, int *out)
{
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__arena_create(s->size, s->size, true, &arena));
    watch_parent(arena);
    arena->control->join_seconds = w->seconds;
    w->arena = arena;
    status = blame(w, fsdp__handoff_give(handoff, arena->fd, s->size - 1));
    w->arena = NULL;
    if (fsdp__board_aborted(arena->board)) {
        status = fsdp__board_failure(arena->board);
    } else if (status == FSDP_STATE) {
        status = fsdp_fail_prefix(status, "there is another rank 0: each process needs a RANK of its own");
        tell_takers(&(fsdp__handoff){.name = handoff->name, .timeout_ns = REFUSE_NS}, status, 0, fsdp_last_error());
    }
    *out = status == FSDP_OK ? fcntl(arena->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
    if (status == FSDP_OK && *out < 0)
        status = FSDP_FAIL(FSDP_IO, "cannot keep the ranks' shared memory open: %s%s", strerror(errno),
                           fsdp__limit_behind(errno));
    if (status != FSDP_OK) /* those that have taken it wait for the others */
        fsdp__board_fail(arena->board, status, 0, fsdp_last_error());
    return status;
}

/* Gets the arena's memory, and shows this rank to those that wait meanwhile. */
static fsdp_status meet(waiting *w, const fsdp__handoff *handoff, int *out)
{
    FSDP__CLOSED int shown = fsdp__waiting_rank_show(&w->self);

    return w->self.rank == 0 ? give(w->starter, handoff, w, out) : blame(w, fsdp__handoff_take(handoff, out));
}

fsdp_status fsdp__join_by_name(const fsdp__starter *s, const fsdp_context_options *options, fsdp_context **out)
{
    char name[FSDP__HANDOFF_NAME];
    int64_t now = fsdp__clock_ns();
    waiting w = {.starter = s, .self = this_rank(s), .began_ns = now, .looked_ns = now - LOOK_NS};
    fsdp__handoff handoff = {.name = name, .stopped = look, .argument = &w};
    FSDP__CLOSED int fd = -1;

    FSDP_TRY(fsdp__read_join_seconds(&w.seconds));
    handoff.timeout_ns = (int64_t)w.seconds * 1000000000;
    make_name(s, name, sizeof name);
    FSDP_TRY(meet(&w, &handoff, &fd));
    return fsdp__shm_join(fd, true, options, out);
}

void fsdp__refuse_by_name(const fsdp__starter *s, const char *why, bool alone)
{
    char name[FSDP__HANDOFF_NAME];
    fsdp__handoff handoff = {.name = name, .timeout_ns = REFUSE_NS};
    waiting w = {.starter = s};
    bool held = fsdp_hold_error(true);
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;

    make_name(s, name, sizeof name);
    if (alone && s->rank == 0 && fsdp__read_join_seconds(&w.seconds) == FSDP_OK)
        handoff.timeout_ns = FSDP__MAX(REFUSE_NS, FSDP__MIN(TELL_NS, half_ns(&w)));
    if (s->rank > 0)
        tell_takers(&handoff, FSDP_COMM, s->rank, why);
    else if (fsdp__arena_create(s->size, s->size, true, &arena) == FSDP_OK) {
        fsdp__board_fail(arena->board, FSDP_COMM, s->rank, why);
        (void)fsdp__handoff_give(&handoff, arena->fd, s->size - 1);
    }
    fsdp_release_error(held);
}
