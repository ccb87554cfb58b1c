/* variables.c - numbers in the environment. */
#include "launch/variables.h"

#include <errno.h>
#include <stdlib.h>

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

/* OpenMP allows a list, one number per level of nesting; the first is ours. */
int fsdp__read_threads(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    long value = text ? strtol(text, NULL, 10) : 0;

    return value > 0 && value <= 4096 ? (int)value : 0;
}
