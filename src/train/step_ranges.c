/* step_ranges.c - reads which steps a key names: 5, 3-5 or "3-5, 100". */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "train/run_config.h"

/* Reads a step from 1, and moves behind it; 0: there is none. */
static int64_t read_step(const char **text)
{
    char *end;
    long long step;

    *text += strspn(*text, " ");
    if (**text < '0' || **text > '9')
        return 0;
    errno = 0;
    step = strtoll(*text, &end, 10);
    *text = end + strspn(end, " ");
    return errno ? 0 : step;
}

/* Reads "5" or "3-5", and moves to the next range. Returns whether that was one. */
static bool read_range(const char **text, int64_t *first, int64_t *last)
{
    *first = *last = read_step(text);
    if (**text == '-') {
        ++*text;
        *last = read_step(text);
    }
    if (*first < 1 || *last < *first || (**text && **text != ','))
        return false;
    if (**text == ',' && !*++*text)
        return false;
    return true;
}

fsdp_status fsdp__step_ranges_check(const char *name, const char *text)
{
    int64_t first, last;

    for (const char *at = text; *at;)
        if (!read_range(&at, &first, &last))
            return FSDP_FAIL(FSDP_INVALID, "%s is '%s': expected steps, such as 5, 3-5 or '3-5, 100'", name,
                             FSDP__SHOWN_NAME(text));
    return FSDP_OK;
}

bool fsdp__step_ranges_have(const char *text, int64_t step, int64_t *last)
{
    bool has = false;
    int64_t from, to;

    *last = 0;
    while (*text && read_range(&text, &from, &to)) {
        has = has || (step >= from && step <= to);
        *last = FSDP__MAX(*last, to);
    }
    return has;
}
