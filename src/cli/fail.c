/* fail.c - prints what went wrong. */
#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"
#include "cli/cli.h"

static int say(int status, const char *format, va_list values)
{
    char text[2048]; /* twice the size of the last error */

    fprintf(stderr, "fsdp: %s\n", fsdp__shown_message(text, sizeof text, format, values));
    return status;
}

int fsdp__usage_error(const char *format, ...)
{
    va_list values;
    int status;

    va_start(values, format);
    status = say(FSDP__USAGE, format, values);
    va_end(values);
    return status;
}

int fsdp__failure(const char *format, ...)
{
    va_list values;
    int status;

    va_start(values, format);
    status = say(FSDP__FAILED, format, values);
    va_end(values);
    return status;
}
