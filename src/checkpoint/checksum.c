/* checksum.c - the only place that knows xxHash. */
#include "checkpoint/checksum.h"

#include <xxhash.h>

uint64_t fsdp__checksum(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}
