/* host_functions.c - the functions of the library under their usual names, for this plug-in: they go through the table
 * that the library has given it (device/plugin.h). */
#include "backend/cuda/host_functions.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/probe.h"
#include "base/text.h"

enum {
    TEXT = 4096
};

static const fsdp__plugin_host *host; /* set once, before anything else is called */

/* Every point asks the library, which knows who listens. */
_Atomic uint64_t fsdp__probed = UINT64_MAX;

void fsdp__cuda_join(const fsdp__plugin_host *functions)
{
    host = functions;
}

#define FORWARD(type, name, parameters, arguments) \
    type name parameters                           \
    {                                              \
        return host->name arguments;               \
    }
FSDP__PLUGIN_FUNCTIONS(FORWARD)
#undef FORWARD

#define FORMAT(text, format)                            \
    do {                                                \
        va_list list_;                                  \
        va_start(list_, format);                        \
        vsnprintf((text), sizeof(text), format, list_); \
        va_end(list_);                                  \
    } while (0)

fsdp_status fsdp_fail(fsdp_status status, const char *file, int line, const char *format, ...)
{
    char text[TEXT];

    FORMAT(text, format);
    return host->fail(status, file, line, text);
}

fsdp_status fsdp_fail_prefix(fsdp_status status, const char *format, ...)
{
    char text[TEXT];

    FORMAT(text, format);
    return host->fail_prefix(status, text);
}

void fsdp_log(fsdp_context *context, fsdp_log_level level, const char *format, ...)
{
    char text[TEXT];

    FORMAT(text, format);
    host->log(context, level, text);
}
