/* threads.c - ranks as threads of one process. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "comm/transport/arena/arena_transport.h"

static const fsdp__comm_ops threads_ops = {.name = "threads", FSDP__ARENA_OPS};

static fsdp_status create_all(fsdp__arena *arena, int world_size, const fsdp_context_options *given,
                              fsdp_context **contexts)
{
    for (int r = 0; r < world_size; r++) {
        fsdp_context_options options = {.rank = r, .world_size = world_size, .threads = given ? given->threads : 0};

        FSDP_TRY(fsdp_context_create(&options, &contexts[r]));
        /* One thread makes all ranks, so none can wait for the next: all have joined when this returns. */
        FSDP_TRY(fsdp__arena_attach(contexts[r], &threads_ops, arena, r, true, false));
    }
    return FSDP_OK;
}

/* Makes the contexts; `contexts` holds NULLs. The caller also gets a reference to the arena. */
static fsdp_status create_world(int world_size, const fsdp_context_options *options, fsdp_context **contexts,
                                fsdp__arena **out)
{
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__arena_create(world_size, world_size, false, &arena));
    status = create_all(arena, world_size, options, contexts);
    if (status == FSDP_OK) {
        *out = fsdp__take(&arena);
        return FSDP_OK;
    }
    for (int r = 0; r < world_size; r++)
        fsdp_context_free(fsdp__take(&contexts[r]));
    return fsdp_fail_prefix(status, "cannot make a world of %d threads", world_size);
}

fsdp_status fsdp_context_create_threads(int world_size, const fsdp_context_options *options, fsdp_context **contexts)
{
    fsdp__arena *arena = NULL;

    if (world_size < 1 || !contexts)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a world of %d threads", world_size);
    memset(contexts, 0, (size_t)world_size * sizeof *contexts);
    FSDP_TRY(create_world(world_size, options, contexts, &arena));
    fsdp__arena_unref(arena); /* the contexts hold it */
    return FSDP_OK;
}

/* ---- with the threads ---- */

typedef struct rank_thread {
    pthread_t thread;
    bool started;
    fsdp_context *context;
    fsdp_rank_body body;
    void *arg;
    fsdp_status status;
    char message[1024];
} rank_thread;

static void *rank_main(void *argument)
{
    rank_thread *rank = argument;

    fsdp_clear_error();
    rank->status = rank->body(rank->context, rank->arg);
    if (rank->status != FSDP_OK) {
        snprintf(rank->message, sizeof rank->message, "%s",
                 fsdp_last_status() == rank->status ? fsdp_last_error() : fsdp_status_text(rank->status));
        fsdp_abort(rank->context, rank->message);
    }
    fsdp_context_free(rank->context);
    return NULL;
}

/* Returns the rank's failure; who it was matters only where there are others. */
static fsdp_status failure_of(const rank_thread *ranks, int rank, int world_size)
{
    return world_size == 1 ? FSDP_FAIL(ranks[rank].status, "%s", ranks[rank].message)
                           : FSDP_FAIL(ranks[rank].status, "rank %d: %s", rank, ranks[rank].message);
}

/* Returns, of several failures, the one that ended the world: that of the rank that the abort record blames. */
static fsdp_status first_failure(const fsdp__arena *arena, const rank_thread *ranks, int world_size)
{
    /* The others failed because it did. */
    int blamed = arena->board->abort_rank;

    if (blamed >= 0 && ranks[blamed].status != FSDP_OK)
        return failure_of(ranks, blamed, world_size);
    for (int r = 0; r < world_size; r++)
        if (ranks[r].status != FSDP_OK)
            return failure_of(ranks, r, world_size);
    return FSDP_OK;
}

static void start_all(rank_thread *ranks, int world_size)
{
    for (int r = 0; r < world_size; r++) {
        int error = pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]);

        ranks[r].started = error == 0;
        if (error == 0)
            continue;
        ranks[r].status = FSDP_NO_MEMORY;
        snprintf(ranks[r].message, sizeof ranks[r].message, "cannot start its thread: %s%s", strerror(error),
                 fsdp__limit_behind(error));
        fsdp_abort(ranks[r].context, ranks[r].message);
        fsdp_context_free(ranks[r].context);
    }
}

fsdp_status fsdp_run_threads(int world_size, const fsdp_context_options *options, fsdp_rank_body body, void *arg)
{
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;
    FSDP__FREED fsdp_context **contexts = NULL;
    FSDP__FREED rank_thread *ranks = NULL;

    if (world_size < 1 || !body)
        return FSDP_FAIL(FSDP_INVALID, "cannot run a world of %d threads", world_size);
    contexts = fsdp__calloc((size_t)world_size, sizeof *contexts);
    ranks = fsdp__calloc((size_t)world_size, sizeof *ranks);
    FSDP__TRY_NEW(contexts && ranks);
    FSDP_TRY(create_world(world_size, options, contexts, &arena));
    for (int r = 0; r < world_size; r++) {
        ranks[r].context = contexts[r];
        ranks[r].body = body;
        ranks[r].arg = arg;
    }
    start_all(ranks, world_size);
    for (int r = 0; r < world_size; r++)
        if (ranks[r].started)
            pthread_join(ranks[r].thread, NULL);
    return first_failure(arena, ranks, world_size);
}
