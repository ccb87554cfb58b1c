/* fsdp/status.h - error codes and messages.
 *
 * A call that can fail returns an fsdp_status, or NULL if it returns a tensor. The last error is kept per thread: a
 * code, one message that says what failed, where, and what to do, and the source lines that it went through.
 *
 *     if (fsdp_fully_shard(model, NULL) != FSDP_OK)
 *         fprintf(stderr, "%s\n", fsdp_last_error());
 *
 * No call follows a NULL pointer. Where a comment does not say that an argument may be NULL, a call with a status
 * refuses it: with FSDP_INVALID, or, where the NULL comes from a call that failed, with the error of that call. A call
 * without a status then does nothing and returns zeros: false, a count of 0, NULL; what numbers a rank, a step, a
 * dimension or a token is -1. Its outputs are zeros, too; where it has two outputs, either may be NULL.
 *
 * As with free(), no call finds out that an object was freed before, or that another object still uses the one that it
 * frees: to use it again, or to free it twice, is undefined. What is borrowed must outlive what borrows it. A call that
 * is named x_release leaves zeros in the caller's struct, and may be repeated.
 */
#ifndef FSDP_STATUS_H
#define FSDP_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FSDP_API __attribute__((visibility("default")))
#define FSDP_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define FSDP_API
#define FSDP_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Lists the codes with their values and texts. */
#define FSDP_STATUS_MAP(X)                   \
    X(OK, 0, "ok")                           \
    X(INVALID, -1, "invalid argument")       \
    X(NO_MEMORY, -2, "out of memory")        \
    X(IO, -3, "input or output failed")      \
    X(FORMAT, -4, "malformed input")         \
    X(COMM, -5, "communication failed")      \
    X(MISMATCH, -6, "ranks disagree")        \
    X(STATE, -7, "called at the wrong time") \
    X(UNSUPPORTED, -8, "not supported")      \
    X(NOT_FOUND, -9, "not found")            \
    X(INTERRUPTED, -10, "interrupted")       \
    X(NOT_FINITE, -11, "NaN or infinite")

typedef enum fsdp_status {
#define FSDP_STATUS_ENUM(name, code, text) FSDP_##name = code,
    FSDP_STATUS_MAP(FSDP_STATUS_ENUM)
#undef FSDP_STATUS_ENUM
} fsdp_status;

/* Return the code and the message of this thread's last error, or FSDP_OK and "" if there was none. The message stays
 * valid until this thread's next failure. */
FSDP_API fsdp_status fsdp_last_status(void);
FSDP_API const char *fsdp_last_error(void);

/* Returns the failure of `call` to the caller, if it failed. */
#define FSDP_TRY(call)                                           \
    do {                                                         \
        fsdp_status fsdp_try_ = (call);                          \
        if (fsdp_try_ != FSDP_OK)                                \
            return fsdp_fail_hop(fsdp_try_, __FILE__, __LINE__); \
    } while (0)

/* Does the same in a function that owns something: on a failure it jumps to `label`, the function's one exit. */
#define FSDP_TRY_GOTO(status, call, label)               \
    do {                                                 \
        (status) = (call);                               \
        if ((status) != FSDP_OK) {                       \
            fsdp_fail_hop((status), __FILE__, __LINE__); \
            goto label;                                  \
        }                                                \
    } while (0)

/* Records an error with a message as of printf, and returns `status`, for functions of your own:
 *
 *     return FSDP_FAIL(FSDP_INVALID, "cannot read '%s': it is empty", path);
 */
#define FSDP_FAIL(status, ...) fsdp_fail((status), __FILE__, __LINE__, __VA_ARGS__)

/* ======== for experts: most programs need nothing below ======== */

/* Returns the general text of a code, never NULL. [thread-safe] */
FSDP_API const char *fsdp_status_text(fsdp_status status);

/* Returns the source lines that the last error went through, innermost first: "file:line < file:line", at most 8. */
FSDP_API const char *fsdp_last_error_trace(void);
FSDP_API void fsdp_clear_error(void);

/* Records an error and returns `status`. Use FSDP_FAIL, which adds the file and line. */
FSDP_API fsdp_status fsdp_fail(fsdp_status status, const char *file, int line, const char *format, ...)
    FSDP_PRINTF(4, 5);
FSDP_API fsdp_status fsdp_fail_hop(fsdp_status status, const char *file, int line);

/* Puts "<text>: " in front of the last message (behind its "rank 1: "), for callers that know a name, and returns
 * `status`. FSDP_OK is returned as it is. */
FSDP_API fsdp_status fsdp_fail_prefix(fsdp_status status, const char *format, ...) FSDP_PRINTF(2, 3);

/* While errors are held, failures do not replace the last error. Use FSDP_KEEP_FIRST. */
FSDP_API bool fsdp_hold_error(bool hold); /* returns `hold` */
FSDP_API void fsdp_release_error(bool held);

/* Calls a function on a clean-up path, where everything is tried and the first error is kept, its message included. */
#define FSDP_KEEP_FIRST(status, call)                           \
    do {                                                        \
        bool fsdp_held_ = fsdp_hold_error((status) != FSDP_OK); \
        fsdp_status fsdp_keep_ = (call);                        \
        fsdp_release_error(fsdp_held_);                         \
        if ((status) == FSDP_OK)                                \
            (status) = fsdp_keep_;                              \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
