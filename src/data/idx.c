/* idx.c - IDX, the format of MNIST: two zeros, the element type, the number of dimensions, their sizes as big-endian
 * 32-bit numbers, then the elements, also big-endian. */
#include "data/array_file.h"

static int64_t big_endian(const unsigned char *bytes)
{
    return (int64_t)bytes[0] << 24 | (int64_t)bytes[1] << 16 | (int64_t)bytes[2] << 8 | bytes[3];
}

fsdp_status fsdp__idx_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__array_header *out)
{
    *out = (fsdp__array_header){0};
    if (bytes < 4 || data[0] != 0 || data[1] != 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is not an IDX file: those begin with two zeros", path);
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
