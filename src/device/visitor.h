/* visitor.h - functions by which kernel_buffers.c says that a field of a kernel's arguments is read or written, and how
 * many bytes. */
#ifndef DEVICE_VISITOR_H
#define DEVICE_VISITOR_H

#include "device/kernels.h"

/* The visiting function. The functions below put its answers into the arguments. */
typedef struct visitor {
    fsdp__buffer_visit visit;
    void *arg;
} visitor;

static inline void *visit(const visitor *v, const char *name, const void *pointer, size_t bytes, fsdp__access access)
{
    const fsdp__buffer buffer = {name, pointer, bytes, access};

    return pointer && bytes > 0 ? v->visit(v->arg, &buffer) : (void *)(uintptr_t)pointer;
}

#define READS(field, bytes) a->field = visit(v, #field, a->field, (bytes), FSDP__READS)
#define WRITES(field, bytes) a->field = visit(v, #field, a->field, (bytes), FSDP__WRITES)
#define CHANGES(field, bytes) a->field = visit(v, #field, a->field, (bytes), FSDP__READS_AND_WRITES)
/* For a field that is added to (`adds`) or replaced. */
#define ADDS(field, bytes, adds) \
    a->field = visit(v, #field, a->field, (bytes), (adds) ? FSDP__READS_AND_WRITES : FSDP__WRITES)

/* ---- sizes ---- */

static inline size_t elements(fsdp_dtype dtype, int64_t numel)
{
    return numel > 0 ? (size_t)numel * fsdp_dtype_size(dtype) : 0;
}

/* One dimension. The function below counts from the first to the last element of several, with their strides. */
typedef struct extent {
    int64_t size, stride;
} extent;

static inline size_t strided(fsdp_dtype dtype, const extent *dims, int count)
{
    int64_t last = 0;

    for (int d = 0; d < count; d++) {
        if (dims[d].size <= 0)
            return 0;
        last += (dims[d].size - 1) * dims[d].stride;
    }
    return elements(dtype, last + 1);
}

#define STRIDED(dtype, ...) \
    strided((dtype), (const extent[]){__VA_ARGS__}, (int)(sizeof((const extent[]){__VA_ARGS__}) / sizeof(extent)))

#endif
