/* alloc.h - checked host memory for the library's own small things (tensors have memory of their device). Every call is
 * a probe: FSDP__POINT_ALLOCATION. On failure the last error is set and NULL returned. */
#pragma once

#include <stdio.h>

#include "base/compiler.h"
#include "fsdp/status.h"

void *fsdp__malloc(size_t bytes);               /* zero bytes give a valid pointer */
void *fsdp__calloc(size_t count, size_t bytes); /* zeroed, overflow checked */
void *fsdp__realloc(void *pointer, size_t bytes);
char *fsdp__strdup(const char *text);
char *fsdp__sprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fsdp__free(void *pointer); /* of a call above, or of the C library (json_dumps) */

/* Opens a stream that writes `*text`, of `*bytes` bytes and a NUL. Both are there when it is closed; fsdp__free the
 * text, after a failure too. */
FILE *fsdp__begin_text(char **text, size_t *bytes);
/* Closes it. NULL, a stream that could not be opened, or one that is not whole is FSDP_NO_MEMORY. */
fsdp_status fsdp__end_text(FILE *out);

/* Returns FSDP_NO_MEMORY to the caller if what a call has given is NULL: FSDP__TRY_NEW(text = fsdp__strdup(name)); */
#define FSDP__TRY_NEW(pointer)                                 \
    do {                                                       \
        if (!(pointer)) {                                      \
            fsdp_fail_hop(FSDP_NO_MEMORY, __FILE__, __LINE__); \
            return FSDP_NO_MEMORY;                             \
        }                                                      \
    } while (0)

/* Declares a pointer whose memory is freed when the pointer's scope is left: FSDP__FREED char *text = NULL; */
#define FSDP__FREED FSDP__SCOPED(fsdp__free_at)
void fsdp__free_at(void *pointer); /* frees the memory of the pointer at this address */
/* Returns the pointer at this address and leaves NULL there: what it points to has another owner from here on. */
void *fsdp__take(void *pointer);

/* Makes the C library keep freed memory at the end of its heap, up to some MiB. glibc gives memory back to the system
 * beyond twice the largest block that was ever freed, and oneDNN allocates the memory of its products anew each time:
 * without this call it may depend on what else was freed before whether a step has no page faults or thousands. */
void fsdp__keep_heap(void);

/* Grows `*items` (elements of `item_bytes`) so that index `count` is valid; `*capacity` in elements. A failure leaves
 * both unchanged. */
fsdp_status fsdp__grow(void *items, int64_t count, int64_t *capacity, size_t item_bytes);

/* Frees memory of several pointers, in their order. */
#define FSDP__FREE_ALL(...)                                                         \
    do {                                                                            \
        const void *const owned_[] = {__VA_ARGS__};                                 \
        for (size_t owned_at_ = 0; owned_at_ < FSDP__COUNT_OF(owned_); owned_at_++) \
            fsdp__free((void *)(uintptr_t)owned_[owned_at_]);                       \
    } while (0)
