/* Any bytes as a file of a data set: .npy, IDX, or neither. What is accepted holds the elements that it promises. */
#include <stdlib.h>

#include "data/array_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp__array_header header;

    if (fsdp__array_parse("x.npy", data, bytes, &header) == FSDP_OK) {
        uint64_t elements = 1;

        if (header.ndim < 1 || header.ndim > FSDP_DATA_DIMS || header.offset > bytes)
            abort();
        for (int d = 0; d < header.ndim; d++)
            elements *= (uint64_t)header.shape[d];
        if (elements * fsdp_dtype_size(header.dtype) != bytes - header.offset)
            abort();
    }
    return 0;
}
