/* array_file.c - what all formats have in common: besides its header the file holds its elements and nothing else. */
#include "data/array_file.h"

#include "base/compiler.h"
#include "data/content.h"

static fsdp_status check_bytes(const char *path, size_t bytes, const fsdp__array_header *header)
{
    int64_t expected = (int64_t)fsdp_dtype_size(header->dtype);
    int64_t most = expected; /* the size if no dimension were 0: strides have to fit too */

    if (header->ndim < 1)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it holds one number, and not items", path);
    for (int d = 0; d < header->ndim; d++) {
        if (__builtin_mul_overflow(most, FSDP__MAX(header->shape[d], 1), &most))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its sizes are too large", path);
        expected *= header->shape[d];
    }
    if ((uint64_t)expected != bytes - header->offset)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its header promises %lld bytes of elements, but it has %zu",
                         path, (long long)expected, bytes - header->offset);
    return FSDP_OK;
}

fsdp_status fsdp__array_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__array_header *out)
{
    if (fsdp__is_npy(data, bytes)) {
        FSDP_TRY(fsdp__npy_parse(path, data, bytes, out));
    } else {
        FSDP_TRY(fsdp__content_refuse(path, NULL, data, bytes, false));
        if (bytes < 4 || data[0] != 0 || data[1] != 0)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it begins neither as a .npy nor as an IDX file", path);
        FSDP_TRY(fsdp__idx_parse(path, data, bytes, out));
    }
    return check_bytes(path, bytes, out);
}
