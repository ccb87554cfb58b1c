/* by_name.c - the memory of ranks that were started without it.
 *
 * The name is made of what those who belong together share and two runs do not: the user, the process that started
 * them, when that began, and the variables that tell one run of it, and one restart, from the next. So a rank that is
 * left over meets nobody. */
#include "launch/by_name.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/hash.h"
#include "base/limits.h"
#include "comm/shm/handoff.h"
#include "comm/shm/shm.h"
#include "comm/symmetric/process.h"
#include "comm/symmetric/watch.h"
#include "launch/variables.h"

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

/* The parent of torchrun's ranks watches them, and they end with it; a shell may be gone long before. */
static void watch_parent(fsdp__arena *arena)
{
    if (!getenv("TORCHELASTIC_RUN_ID"))
        return;
    /* The start before the process, whose number switches the watching on. */
    atomic_store(&arena->control->keeper_ticks, fsdp__process_start_ticks(getppid()));
    atomic_store(&arena->control->keeper, getppid());
}

/* The parent that they had in common has gone: nobody comes any more. */
static bool is_orphaned(void *argument)
{
    const pid_t *parent = argument;

    return getppid() != *parent;
}

static void end_others(fsdp__arena *arena, fsdp_status status)
{
    char text[FSDP__ABORT_BYTES];

    snprintf(text, sizeof text, "rank 0 failed: %s", fsdp_last_error());
    fsdp__arena_abort(arena, status, 0, text);
}

static fsdp_status give(const fsdp__starter *s, const fsdp__handoff *handoff, int seconds, int *out)
{
    fsdp__arena *arena = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__arena_create(s->size, 0, true, &arena));
    watch_parent(arena);
    arena->control->join_seconds = seconds;
    status = fsdp__handoff_give(handoff, arena->fd, s->size - 1);
    if (status == FSDP_STATE)
        status = FSDP_FAIL(status, "there is another rank 0: each process needs a RANK of its own");
    *out = status == FSDP_OK ? fcntl(arena->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
    if (status == FSDP_OK && *out < 0)
        status = FSDP_FAIL(FSDP_IO, "cannot keep the ranks' shared memory open: %s%s", strerror(errno),
                           fsdp__limit_behind(errno));
    if (status != FSDP_OK) /* who has taken it waits for the others */
        end_others(arena, status);
    fsdp__arena_unref(arena);
    return status;
}

fsdp_status fsdp__join_by_name(const fsdp__starter *s, const fsdp_context_options *options, fsdp_context **out)
{
    char name[FSDP__HANDOFF_NAME];
    pid_t parent = getppid();
    int seconds = 0, fd = -1;
    fsdp__handoff handoff = {.name = name, .stopped = is_orphaned, .argument = &parent};
    fsdp_status status;

    FSDP_TRY(fsdp__read_join_seconds(&seconds));
    handoff.timeout_ns = (int64_t)seconds * 1000000000;
    make_name(s, name, sizeof name);
    status = s->rank == 0 ? give(s, &handoff, seconds, &fd) : fsdp__handoff_take(&handoff, &fd);
    if (status != FSDP_OK)
        return fsdp_fail_prefix(
            status,
            "rank %d of %d of %s does not find the others (they must have one parent process, and a "
            "script around the program starts it with 'exec'; " FSDP__JOIN_VARIABLE " is %d s)",
            s->rank, s->size, s->name, seconds);
    status = fsdp__shm_join(fd, true, options, out);
    close(fd);
    return status;
}
