/* output.c - whether what was printed has arrived. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "cli/process.h"

bool fsdp__output_failed(char *text, size_t text_bytes)
{
    bool failed = ferror(stdout) != 0;

    errno = 0;
    if (fflush(stdout) != 0)
        failed = true;
    else if (failed) /* of the first failure only the fact is left: ask once more for the reason */
        (void)(putchar('\n') == EOF || fflush(stdout) != 0);
    if (!failed)
        return false;
    if (errno)
        snprintf(text, text_bytes, "cannot write to standard output: %s%s", strerror(errno), fsdp__limit_behind(errno));
    else
        snprintf(text, text_bytes, "cannot write to standard output: a part of it is lost");
    return true;
}
