/* variables.c - reads numbers from the environment. */
#include "launch/variables.h"

#include <errno.h>
#include <stdlib.h>

#include "base/limits.h"

bool fsdp__user_says_how_to_wait(void)
{
    return getenv(FSDP__SPIN_VARIABLE) || getenv("OMP_WAIT_POLICY");
}

fsdp_status fsdp__read_number(const char *name, int low, int high, int *out)
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

fsdp_status fsdp__read_join_seconds(int *out)
{
    enum {
        USUAL = 300,
        MOST = 1000 * 1000
    };

    *out = USUAL;
    return fsdp__read_number(FSDP__JOIN_VARIABLE, 1, MOST, out);
}

/* Reads OMP_NUM_THREADS, which may be a list with one number for each level of nesting; the first is ours. */
fsdp_status fsdp__read_threads(int *out)
{
    const char *text = getenv("OMP_NUM_THREADS");
    char *end;
    long value;

    *out = 0;
    if (!text || !*text)
        return FSDP_OK;
    value = strtol(text, &end, 10);
    if (end == text || (*end && *end != ',') || value < 1 || value > FSDP__THREADS_MOST)
        return FSDP_FAIL(FSDP_INVALID, "environment variable OMP_NUM_THREADS is '%s', not a number from 1 to %d", text,
                         FSDP__THREADS_MOST);
    *out = (int)value;
    return FSDP_OK;
}
