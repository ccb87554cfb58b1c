/* fail.c - prints what went wrong, with a command line or later. */
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

bool fsdp__take_line(fsdp__args *args, const char *command, void (*usage)(void), int argc, char **argv, int *out_status)
{
    bool right = fsdp__args_parse(args, command, argc, argv) == FSDP_OK;

    *out_status = right ? 0 : fsdp__usage_error("%s", fsdp_last_error());
    if (right && args->help)
        usage();
    return right && !args->help;
}
