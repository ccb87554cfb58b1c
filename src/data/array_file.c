/* array_file.c - what all formats have in common: besides its header the file holds its elements and nothing else. */
#include "data/array_file.h"

#include "base/compiler.h"
#include "data/content.h"

static int64_t big_endian(const unsigned char *bytes)
{
    return (int64_t)bytes[0] << 24 | (int64_t)bytes[1] << 16 | (int64_t)bytes[2] << 8 | bytes[3];
}

/* Parses IDX, the format of MNIST: two zeros, the element type, the number of dimensions, their sizes as big-endian
 * 32-bit numbers, then the elements, also big-endian. */
static fsdp_status parse_idx(const char *path, const unsigned char *data, size_t bytes, fsdp__array_header *out)
{
    *out = (fsdp__array_header){0};
    switch (data[2]) {
    case 0x08:
        out->dtype = FSDP_U8;
        break;
    case 0x0C:
        out->dtype = FSDP_I32;
        break;
    case 0x0D:
        out->dtype = FSDP_F32;
        break;
    default:
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot read '%s': elements of kind 0x%02x at offset 2 are not supported: 0x08 (unsigned "
                         "byte), 0x0c (int) and 0x0d (float) are",
                         path, data[2]);
    }
    out->ndim = data[3];
    if (out->ndim > FSDP_DATA_DIMS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': %d dimensions at offset 3: at most %d are supported",
                         path, out->ndim, FSDP_DATA_DIMS);
    out->offset = 4 + 4 * (size_t)out->ndim;
    if (bytes < out->offset)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it ends in its header", path);
    for (int d = 0; d < out->ndim; d++)
        out->shape[d] = big_endian(data + 4 + 4 * d);
    out->swap = out->dtype != FSDP_U8;
    return FSDP_OK;
}

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
        FSDP_TRY(parse_idx(path, data, bytes, out));
    }
    return check_bytes(path, bytes, out);
}
