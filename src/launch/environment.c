/* environment.c - the variables that tell a process which rank it is. The only place that reads the environment. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/device.h"
#include "launch/launch.h"

enum {
    VARIABLE_BYTES = 48
};

/* ---- writing ---- */

static bool is_set_by_us(const char *variable)
{
    static const char *const names[] = {"RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "FSDP_SHM_FD="};

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

char **fsdp__rank_environment(int rank, int ranks, int shm_fd, int threads)
{
    const struct {
        const char *name;
        int value;
        bool wanted;
    } own[] = {
        {"RANK", rank, true},          {"WORLD_SIZE", ranks, true},
        {"LOCAL_RANK", rank, true},    {"LOCAL_WORLD_SIZE", ranks, true},
        {"FSDP_SHM_FD", shm_fd, true}, {"OMP_NUM_THREADS", threads, getenv("OMP_NUM_THREADS") == NULL},
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

/* `*out` stays as it is when the variable is not set. */
static fsdp_status read_number(const char *name, int low, int high, int *out)
{
    const char *text = getenv(name);
    char *end;
    long value;

    if (!text || !*text)
        return FSDP_OK;
    errno = 0;
    value = strtol(text, &end, 10);
    if (errno || *end || value < low || value > high)
        return FSDP_FAIL(FSDP_INVALID, "environment variable %s is '%s', not a number from %d to %d", name, text, low,
                         high);
    *out = (int)value;
    return FSDP_OK;
}

/* OpenMP allows a list, one number per level of nesting; the first is ours. */
static int read_threads(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    long value = text ? strtol(text, NULL, 10) : 0;

    return value > 0 && value <= 4096 ? (int)value : 0;
}

/* For tests of whole programs: the device that front doors are to take. */
static fsdp_status read_test_device(fsdp_context *context)
{
    const char *name = getenv("FSDP_TEST_DEVICE");
    fsdp_device *device;

    if (!name)
        return FSDP_OK;
    device = fsdp__device_open(context, name, 0);
    if (!device)
        return fsdp_last_status();
    fsdp__set_front_device(device);
    return FSDP_OK;
}

static fsdp_status create(int fd, const fsdp_context_options *options, fsdp_context **out)
{
    if (fd < 0) {
        FSDP_TRY(fsdp_context_create(options, out));
        return FSDP_OK;
    }
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* programs that a rank starts have no business there */
    FSDP_TRY(fsdp__shm_join(fd, options, out));
    return FSDP_OK;
}

fsdp_status fsdp_context_from_env(fsdp_context **out)
{
    fsdp_context_options options = {.world_size = 1, .threads = read_threads()};
    fsdp_status st;
    int fd = -1;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a context: no place for the result");
    *out = NULL;
    FSDP_TRY(read_number("WORLD_SIZE", 1, INT_MAX, &options.world_size));
    FSDP_TRY(read_number("RANK", 0, options.world_size - 1, &options.rank));
    options.local_rank = options.rank;
    options.local_world_size = options.world_size;
    FSDP_TRY(read_number("LOCAL_WORLD_SIZE", 1, options.world_size, &options.local_world_size));
    FSDP_TRY(read_number("LOCAL_RANK", 0, options.local_world_size - 1, &options.local_rank));
    FSDP_TRY(read_number("FSDP_SHM_FD", 0, INT_MAX, &fd));
    if (fd < 0 && options.world_size > 1)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "WORLD_SIZE is %d but FSDP_SHM_FD is not set: start the ranks with 'fsdp run -n %d -- ...'",
                         options.world_size, options.world_size);
    FSDP_TRY(create(fd, &options, out));
    st = read_test_device(*out);
    if (st != FSDP_OK) {
        fsdp_context_free(*out);
        *out = NULL;
    }
    return st;
}
