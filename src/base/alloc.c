/* alloc.c - takes memory of the host and gives it back. The library calls malloc nowhere else; MPI's plug-ins, which
 * do not link it, have calls of their own (comm/mpi/plugin). */
#include "base/alloc.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/probe.h"

static void *no_memory(size_t bytes)
{
    FSDP_FAIL(FSDP_NO_MEMORY, "out of memory: %zu bytes of host memory", bytes);
    return NULL;
}

static bool is_refused(size_t bytes)
{
    return FSDP__ASK(ALLOCATION, .bytes = bytes) != FSDP_OK;
}

void *fsdp__malloc(size_t bytes)
{
    void *pointer = is_refused(bytes) ? NULL : malloc(bytes ? bytes : 1);

    return pointer ? pointer : no_memory(bytes);
}

void *fsdp__calloc(size_t count, size_t bytes)
{
    void *pointer;

    if (bytes && count > SIZE_MAX / bytes)
        return no_memory(SIZE_MAX);
    pointer = is_refused(count * bytes) ? NULL : calloc(count ? count : 1, bytes ? bytes : 1);
    return pointer ? pointer : no_memory(count * bytes);
}

void *fsdp__realloc(void *pointer, size_t bytes)
{
    void *moved = is_refused(bytes) ? NULL : realloc(pointer, bytes ? bytes : 1);

    return moved ? moved : no_memory(bytes);
}

char *fsdp__strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = fsdp__malloc(bytes);

    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

char *fsdp__sprintf(const char *format, ...)
{
    char room[256]; /* most texts are formatted once */
    va_list arguments;
    size_t bytes;
    char *text;
    int length;

    va_start(arguments, format);
    length = vsnprintf(room, sizeof room, format, arguments);
    va_end(arguments);
    if (length < 0) {
        FSDP_FAIL(FSDP_INVALID, "cannot format '%s'", format);
        return NULL;
    }
    bytes = (size_t)length + 1;
    text = fsdp__malloc(bytes);
    if (!text)
        return NULL;
    if (bytes <= sizeof room)
        return memcpy(text, room, bytes);
    va_start(arguments, format);
    vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    return text;
}

FILE *fsdp__begin_text(char **text, size_t *bytes)
{
    FILE *out = open_memstream(text, bytes);

    if (out)
        return out;
    *text = NULL;
    *bytes = 0;
    (void)FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for a text");
    return NULL;
}

fsdp_status fsdp__end_text(FILE *out)
{
    bool whole = out && !ferror(out);

    whole = out && fclose(out) == 0 && whole;
    return whole ? FSDP_OK : FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for a text");
}

void fsdp__free(void *pointer)
{
    free(pointer);
}

void *fsdp__take(void *pointer)
{
    void *taken;

    /* `pointer` is a T ** for any T: copy its bytes instead of reading it through another type. */
    memcpy(&taken, pointer, sizeof taken);
    memset(pointer, 0, sizeof taken);
    return taken;
}

void fsdp__free_at(void *pointer)
{
    free(fsdp__take(pointer));
}

void fsdp__keep_heap(void)
{
#if !FSDP__ASAN && !FSDP__TSAN /* whose allocators have no thresholds, and mark each byte of the block */
    /* malloc's thresholds follow what is freed, unless the user has set them (mallopt, MALLOC_TRIM_THRESHOLD_); a
     * mallopt of ours would override the user's. The block is never written to, so it costs no memory. */
    void *volatile block = malloc((size_t)8 << 20);

    free(block);
#endif
}

fsdp_status fsdp__grow(void *items, int64_t count, int64_t *capacity, size_t item_bytes)
{
    int64_t wanted = *capacity < 8 ? 8 : *capacity;
    void *old, *moved;

    if (count < *capacity)
        return FSDP_OK;
    while (wanted <= count)
        wanted += wanted / 2;
    if (item_bytes && (uint64_t)wanted > SIZE_MAX / item_bytes)
        FSDP__TRY_NEW(no_memory(SIZE_MAX));
    memcpy(&old, items, sizeof old); /* as in fsdp__take */
    FSDP__TRY_NEW(moved = fsdp__realloc(old, (size_t)wanted * item_bytes));
    memcpy(items, &moved, sizeof moved);
    *capacity = wanted;
    return FSDP_OK;
}
