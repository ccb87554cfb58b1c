/* environment.c - the variables that tell a process which rank it is: written for the ranks, and read by them. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/probe.h"
#include "comm/mpi/start.h"
#include "comm/world.h"
#include "launch/by_name.h"
#include "launch/launch.h"
#include "launch/placement.h"
#include "launch/transports.h"
#include "launch/variables.h"
#include "watch/flight.h"

enum {
    VARIABLE_BYTES = 48
};

/* ---- writing ---- */

static bool is_set_by_us(const char *variable)
{
    static const char *const names[] = {"RANK=",
                                        "WORLD_SIZE=",
                                        "LOCAL_RANK=",
                                        "NODE_RANK=",
                                        "LOCAL_WORLD_SIZE=",
                                        FSDP__SHM_VARIABLE "=",
                                        "GROUP_RANK=",
                                        FSDP__FLIGHT_VARIABLE "="};

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

char **fsdp__rank_environment(int rank, int ranks, int shm_fd, int flight_fd, int threads)
{
    const struct {
        const char *name;
        int value;
        bool wanted;
    } own[] = {
        {"RANK", rank, true},
        {"WORLD_SIZE", ranks, true},
        {"LOCAL_RANK", rank, true},
        {"LOCAL_WORLD_SIZE", ranks, true},
        {"NODE_RANK", 0, true},
        {FSDP__SHM_VARIABLE, shm_fd, true},
        {FSDP__FLIGHT_VARIABLE, flight_fd, flight_fd >= 0},
        {"OMP_NUM_THREADS", threads, getenv("OMP_NUM_THREADS") == NULL},
        {FSDP__SPIN_VARIABLE, FSDP__SPIN_COUNT, !fsdp__user_says_how_to_wait()},
    };
    size_t count = 0, at = 0, pointers;
    char **variables, *text;

    while (environ[count])
        count++;
    pointers = (count + FSDP__COUNT_OF(own) + 1) * sizeof *variables;
    variables = fsdp__malloc(pointers + FSDP__COUNT_OF(own) * VARIABLE_BYTES);
    if (!variables)
        return NULL;
    text = (char *)variables + pointers;
    for (size_t i = 0; i < FSDP__COUNT_OF(own); i++) {
        if (!own[i].wanted)
            continue;
        snprintf(text, VARIABLE_BYTES, "%s=%d", own[i].name, own[i].value);
        variables[at++] = text;
        text += VARIABLE_BYTES;
    }
    for (size_t i = 0; i < count; i++)
        if (!is_set_by_us(environ[i]))
            variables[at++] = environ[i];
    variables[at] = NULL;
    return variables;
}

/* ---- reading ---- */

fsdp_status fsdp_context_from_env(fsdp_context **out)
{
    int threads = 0;

    if (out)
        *out = NULL;
    FSDP_TRY(fsdp__read_threads(&threads));
    return fsdp__context_from_env(threads, out);
}

/* Places a rank that MPI has started. This is the first call of all, so its ranks still wait as long as they do to
 * join. */
static fsdp_status place_over_mpi(fsdp_context *context, bool user_says_threads)
{
    int seconds = 0;

    FSDP_TRY(fsdp__read_join_seconds(&seconds));
    FSDP_TRY(fsdp_context_set_comm_timeout(context, seconds));
    FSDP_TRY(fsdp__place_rank(context, user_says_threads));
    return fsdp_context_set_comm_timeout(context, FSDP__TIMEOUT_MS / 1000.0);
}

static fsdp_status join(const fsdp__starter *s, const fsdp_context_options *options, fsdp_context **out)
{
    return s->kind == FSDP__BY_NOBODY ? fsdp_context_create(options, out)
                                      : fsdp__transport_of(s->kind)->join(s, options, out);
}

/* Starts to record, if the launcher has memory for it. The programs that this one starts do not get it. */
static fsdp_status record(fsdp_context *context)
{
    int fd = -1;

    FSDP_TRY(fsdp__read_number(FSDP__FLIGHT_VARIABLE, 0, INT_MAX, &fd));
    if (fd < 0)
        return FSDP_OK;
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    fsdp__flight_join(context, fd);
    return FSDP_OK;
}

fsdp_status fsdp__context_from_env(int threads, fsdp_context **out)
{
    fsdp_context_options options = {.threads = threads};
    fsdp__starter starter;
    fsdp_status status;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a context: no place for the result");
    *out = NULL;
    FSDP_TRY(fsdp__starter_read(&starter));
    options.rank = starter.rank;
    options.world_size = starter.size;
    options.local_rank = starter.local_rank < 0 ? 0 : starter.local_rank;
    options.local_world_size = starter.local_size;
    FSDP_TRY(join(&starter, &options, out));
    status = FSDP__ASK(CONTEXT_OPENED, .context = *out);
    if (status == FSDP_OK && starter.kind == FSDP__BY_LAUNCH)
        status = record(*out);
    /* fsdp_launch has bound its ranks already. */
    if (status == FSDP_OK && starter.kind == FSDP__BY_NAME)
        status = fsdp__place_rank(*out, threads > 0);
    if (status == FSDP_OK && starter.kind == FSDP__BY_MPI)
        status = place_over_mpi(*out, threads > 0);
    if (status != FSDP_OK) {
        fsdp_abort(*out, fsdp_last_error());
        fsdp_context_free(*out);
        *out = NULL;
    }
    return status;
}

/* Ends the other ranks: mpirun of Open MPI does so itself, mpiexec of MPICH does not, nor does srun unless it is told
 * to. */
static void refuse_over_mpi(const char *why)
{
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;

    if (fsdp_context_from_env(&context) == FSDP_OK)
        fsdp_abort(context, why);
    else
        fsdp__mpi_end_all();
}

void fsdp__refuse_to_join(const char *why, bool alone)
{
    fsdp__starter starter;

    if (fsdp__starter_read(&starter) != FSDP_OK)
        return;
    if (starter.kind == FSDP__BY_MPI)
        refuse_over_mpi(why);
    else if (starter.kind == FSDP__BY_NAME)
        fsdp__refuse_by_name(&starter, why, alone);
}
