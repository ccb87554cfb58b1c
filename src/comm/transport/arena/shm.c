/* shm.c - ranks as processes of one machine. */
#include "comm/transport/arena/shm.h"

#include <unistd.h>

#include "comm/health/process.h"
#include "comm/transport/arena/arena_transport.h"

static const fsdp__comm_ops shm_ops = {.name = "shm", FSDP__ARENA_OPS};

fsdp_status fsdp__shm_create(int world_size, fsdp__arena **out)
{
    fsdp__arena *arena = NULL;

    FSDP_TRY(fsdp__arena_create(world_size, world_size, true, &arena));
    atomic_store(&arena->board->pids, fsdp__process_namespace());
    /* Set the start time before the pid, which switches the watching on. */
    atomic_store(&arena->board->keeper_ticks, fsdp__process_start_ticks(getpid()));
    atomic_store(&arena->board->keeper, getpid());
    *out = arena;
    return FSDP_OK;
}

/* Checks that this process counts pids in the arena's namespace: in another one a pid says nothing, or something
 * false. */
static fsdp_status check_namespace(fsdp__arena *arena, int local_rank)
{
    uint64_t own = fsdp__process_namespace(), known = 0;

    if (atomic_compare_exchange_strong(&arena->board->pids, &known, own) || known == own)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "rank %d is in another PID namespace than other ranks of its machine%s, so they could not tell "
                     "whether it lives: start all ranks of a machine in one container, or let the containers share "
                     "their PIDs",
                     fsdp__board_global(arena->board, local_rank), own == UINT64_MAX ? ", or without /proc" : "");
}

fsdp_status fsdp__shm_take_place(fsdp__arena *arena, int local_rank)
{
    fsdp__row *shared = fsdp__row_at(arena->board, local_rank);
    int none = 0;

    FSDP_TRY(check_namespace(arena, local_rank));
    if (!atomic_compare_exchange_strong(&shared->pid, &none, getpid()))
        return FSDP_FAIL(FSDP_STATE, "rank %d has joined before, as process %d",
                         fsdp__board_global(arena->board, local_rank), none);
    atomic_store(&shared->start_ticks, fsdp__process_start_ticks(getpid()));
    fsdp__build_own(shared->build);
    return FSDP_OK;
}

static fsdp_status take_place(fsdp__arena *arena, const fsdp_context_options *options)
{
    if (arena->board->world != options->world_size)
        return FSDP_FAIL(FSDP_INVALID, "the shared memory is of a world of %d ranks, this is rank %d of %d",
                         arena->board->world, options->rank, options->world_size);
    return fsdp__shm_take_place(arena, options->rank);
}

/* Reports that this rank cannot join. It has no context to report by, so its peers and the launcher learn of it
 * here. */
static void report(int fd, fsdp__arena *arena, int rank)
{
    fsdp__arena *control = NULL;
    fsdp_status status = fsdp_last_status();
    bool held = fsdp_hold_error(true);

    if (arena || fsdp__arena_map_control(fd, &control) == FSDP_OK)
        fsdp__board_fail((arena ? arena : control)->board, status, rank, fsdp_last_error());
    fsdp__arena_unref(control);
    fsdp_release_error(held);
}

fsdp_status fsdp__shm_join(int fd, bool counted, const fsdp_context_options *options, fsdp_context **out)
{
    fsdp__arena *arena = NULL;
    fsdp_context *context = NULL;
    fsdp_status status = FSDP_OK;
    bool refused = false;

    FSDP_TRY_GOTO(status, fsdp__arena_map(fd, &arena), out);
    FSDP_TRY_GOTO(status, fsdp_context_create(options, &context), out);
    status = take_place(arena, options);
    refused = !counted && (status == FSDP_INVALID || status == FSDP_STATE);
    FSDP_TRY_GOTO(status, status, out);
    FSDP_TRY_GOTO(status, fsdp__arena_attach(context, &shm_ops, arena, options->rank, false, true), out);
    *out = context;
    context = NULL;
out:
    if (status != FSDP_OK && !refused) /* a process that has no place there is not missed */
        report(fd, arena, options->rank);
    fsdp_context_free(context);
    fsdp__arena_unref(arena);
    return status;
}
