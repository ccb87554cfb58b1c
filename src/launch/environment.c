/* environment.c - the variables that tell a process which rank it is: written for the ranks, read by them. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/races.h"
#include "launch/launch.h"
#include "launch/transports.h"
#include "launch/variables.h"

enum {
    VARIABLE_BYTES = 48
};

/* ---- writing ---- */

static bool is_set_by_us(const char *variable)
{
    static const char *const names[] = {"RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE="};

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return fsdp__is_transport_variable(variable);
}

char **fsdp__rank_environment(int rank, int ranks, int shm_fd, int threads)
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
        {FSDP__SHM_VARIABLE, shm_fd, true},
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

/* For tests of whole programs: the device that front doors are to take, and whether its work is checked for races. */
static fsdp_status read_test_device(fsdp_context *context)
{
    const char *name = getenv("FSDP_TEST_DEVICE"), *races = getenv("FSDP_TEST_RACES");
    fsdp_device *device;

    if (races && strcmp(races, "1") == 0)
        FSDP_TRY(fsdp__races_check(context, NULL));
    if (!name || !*name)
        return FSDP_OK;
    device = fsdp__device_open(context, name, 0);
    if (!device)
        return fsdp_last_status();
    fsdp__set_front_device(device);
    return FSDP_OK;
}

fsdp_status fsdp_context_from_env(fsdp_context **out)
{
    int threads = 0;

    if (out)
        *out = NULL;
    FSDP_TRY(fsdp__read_threads(&threads));
    return fsdp__context_from_env(threads, out);
}

fsdp_status fsdp__context_from_env(int threads, fsdp_context **out)
{
    fsdp_context_options options = {.world_size = 1, .threads = threads};
    const fsdp__transport *transport = fsdp__transport_wanted();
    fsdp_status status;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a context: no place for the result");
    *out = NULL;
    FSDP_TRY(fsdp__read_number("WORLD_SIZE", 1, INT_MAX, &options.world_size));
    FSDP_TRY(fsdp__read_number("RANK", 0, options.world_size - 1, &options.rank));
    options.local_rank = options.rank;
    options.local_world_size = options.world_size;
    FSDP_TRY(fsdp__read_number("LOCAL_WORLD_SIZE", 1, options.world_size, &options.local_world_size));
    FSDP_TRY(fsdp__read_number("LOCAL_RANK", 0, options.local_world_size - 1, &options.local_rank));
    if (transport)
        FSDP_TRY(transport->join(&options, out));
    else if (options.world_size == 1)
        FSDP_TRY(fsdp_context_create(&options, out));
    else
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "WORLD_SIZE is %d but " FSDP__SHM_VARIABLE " is not set: start the ranks with 'fsdp run -n %d "
                         "-- ...'",
                         options.world_size, options.world_size);
    status = read_test_device(*out);
    if (status != FSDP_OK) {
        fsdp_abort(*out, fsdp_last_error());
        fsdp_context_free(*out);
        *out = NULL;
    }
    return status;
}
