/* complaint.c - says in words why a call of the plug-in failed. */
#include "comm/mpi/plugin/complaint.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>

#include "comm/transport/network/network.h"

bool fsdp__mpi_refuse(char *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, FSDP__NETWORK_TEXT, format, arguments);
    va_end(arguments);
    return false;
}

bool fsdp__mpi_fail(char *text, int code, const char *format, ...)
{
    char what[FSDP__NETWORK_TEXT / 2], why[MPI_MAX_ERROR_STRING + 1] = "";
    int bytes = 0;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (MPI_Error_string(code, why, &bytes) != MPI_SUCCESS)
        snprintf(why, sizeof why, "error %d", code);
    for (char *c = why; *c; c++) /* MPICH's texts have several lines */
        if (*c == '\n')
            *c = ' ';
    snprintf(text, FSDP__NETWORK_TEXT, "%s: MPI says '%.*s'", what, FSDP__NETWORK_TEXT / 2 - 16, why);
    return false;
}
