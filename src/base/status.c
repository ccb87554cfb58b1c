/* status.c - the last error of each thread: code, message, and the source lines it went through. */
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

enum {
    MESSAGE_BYTES = 1024,
    TRACE_HOPS = 8,
    HOP_BYTES = 80
};

/* Holds the only thread-local state of the library. */
static _Thread_local struct {
    fsdp_status status;
    int hops;
    int held;
    uint64_t count;
    char message[MESSAGE_BYTES];
    char trace[TRACE_HOPS * HOP_BYTES];
} last;

const char *fsdp_status_text(fsdp_status status)
{
    switch (status) {
#define STATUS_CASE(name, code, text) \
    case FSDP_##name:                 \
        return text;
        FSDP_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

fsdp_status fsdp_last_status(void)
{
    return last.status;
}

const char *fsdp_last_error(void)
{
    return last.message;
}

const char *fsdp_last_error_trace(void)
{
    return last.trace;
}

uint64_t fsdp__errors(void)
{
    return last.count;
}

void fsdp_clear_error(void)
{
    if (last.held)
        return;
    last.status = FSDP_OK;
    last.hops = 0;
    last.message[0] = '\0';
    last.trace[0] = '\0';
}

static void add_hop(const char *file, int line)
{
    size_t used = strlen(last.trace);

    if (!file || last.hops >= TRACE_HOPS)
        return;
    /* The end of a long path tells the most. */
    if (strlen(file) > HOP_BYTES - 20)
        file += strlen(file) - (HOP_BYTES - 20);
    snprintf(last.trace + used, sizeof last.trace - used, "%s%s:%d", last.hops ? " < " : "", file, line);
    last.hops++;
}

fsdp_status fsdp_fail(fsdp_status status, const char *file, int line, const char *format, ...)
{
    char message[MESSAGE_BYTES];
    int saved_errno = errno;
    va_list arguments;

    if (last.held)
        return status;
    /* The arguments may point into the last message, and come from files and command lines. */
    va_start(arguments, format);
    fsdp__shown_message(message, sizeof message, format, arguments);
    va_end(arguments);
    last.count++;
    last.status = status;
    last.hops = 0;
    last.trace[0] = '\0';
    memcpy(last.message, message, strlen(message) + 1);
    add_hop(file, line);
    errno = saved_errno;
    return status;
}

fsdp_status fsdp_fail_hop(fsdp_status status, const char *file, int line)
{
    if (last.held)
        return status;
    if (last.status != status) /* somebody returned a code without setting a message: do not show an old one for it */
        return fsdp_fail(status, file, line, "%s", fsdp_status_text(status));
    add_hop(file, line);
    return status;
}

fsdp_status fsdp_fail_prefix(fsdp_status status, const char *format, ...)
{
    char prefix[MESSAGE_BYTES], message[2 * MESSAGE_BYTES + 2];
    const char *what;
    va_list arguments;

    if (status == FSDP_OK || last.held)
        return status;
    if (last.status != status)
        fsdp_fail(status, __FILE__, __LINE__, "%s", fsdp_status_text(status));
    va_start(arguments, format);
    fsdp__shown_message(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    what = fsdp__text_behind_rank(last.message, &(int){0}); /* the rank stays in front, and is named once */
    snprintf(message, sizeof message, "%.*s%s: %s", (int)(what - last.message), last.message, prefix, what);
    fsdp__shown(message, last.message, sizeof last.message);
    return status;
}

fsdp_status fsdp__fail_null(const char *file, int line, const char *format, ...)
{
    static const char before[] = "; the last error before that: ";
    fsdp_status status = last.status == FSDP_OK ? FSDP_INVALID : last.status;
    char front[MESSAGE_BYTES];
    va_list arguments;

    if (strstr(last.message, before)) /* it has gone on as NULL from call to call */
        return fsdp_fail_hop(status, file, line);
    va_start(arguments, format);
    fsdp__shown_message(front, sizeof front, format, arguments);
    va_end(arguments);
    return fsdp_fail(status, file, line, "%s%s%s", front, last.status == FSDP_OK ? "" : before,
                     last.status == FSDP_OK ? "" : last.message);
}

void fsdp__write_error(char *out, size_t out_bytes, const char *format, ...)
{
    char front[MESSAGE_BYTES], whole[2 * MESSAGE_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(front, sizeof front, format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof whole, "%s%s", front, last.message);
    fsdp__shown(whole, out, out_bytes);
}

void fsdp__cut_error(size_t bytes)
{
    char rest[MESSAGE_BYTES];
    size_t left = strlen(last.message + bytes) + 1;

    if (last.held || bytes == 0)
        return;
    /* This goes by way of a copy, because glibc's memmove and memcpy are one function, which valgrind takes for
     * memcpy. */
    memcpy(rest, last.message + bytes, left);
    memcpy(last.message, rest, left);
}

void fsdp__put_error_aside(fsdp__error_aside *aside)
{
    _Static_assert(sizeof last <= sizeof aside->bytes, "an error has room there");
    memcpy(aside->bytes, &last, sizeof last);
    last.held = 0;
    fsdp_clear_error();
}

void fsdp__put_error_back(const fsdp__error_aside *aside)
{
    memcpy(&last, aside->bytes, sizeof last);
}

bool fsdp_hold_error(bool hold)
{
    last.held += hold;
    return hold;
}

void fsdp_release_error(bool held)
{
    last.held -= held;
}
