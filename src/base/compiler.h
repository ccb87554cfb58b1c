/* compiler.h - the only place that depends on one compiler or one kind of CPU. */
#pragma once

#define FSDP__UNUSED __attribute__((unused))
#define FSDP__COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define FSDP__MIN(a, b) ((a) < (b) ? (a) : (b))
#define FSDP__MAX(a, b) ((a) > (b) ? (a) : (b))
/* Gives the smallest multiple of `unit` from `n` on. */
#define FSDP__ROUND_UP(n, unit) (((n) + (unit)-1) / (unit) * (unit))

/* Calls `release` with the address of the variable that is declared behind it, when the variable's scope is left, in
 * whichever way: a function that owns something can return anywhere. Nothing else needs to use the variable. */
#define FSDP__SCOPED(release) __attribute__((cleanup(release), unused))
/* Defines release_at, which FSDP__SCOPED needs for a pointer whose object is given back by `release`. */
#define FSDP__SCOPED_POINTER(type, release)               \
    FSDP__UNUSED static void release##_at(type **pointer) \
    {                                                     \
        release(*pointer);                                \
    }

/* Tell whether AddressSanitizer and ThreadSanitizer are on; gcc and clang say so in different ways. */
#if defined(__has_feature)
#define FSDP__ASAN __has_feature(address_sanitizer)
#define FSDP__TSAN __has_feature(thread_sanitizer)
#else
#if defined(__SANITIZE_ADDRESS__)
#define FSDP__ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define FSDP__TSAN 1
#endif
#endif
