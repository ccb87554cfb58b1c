/* listing.c - what the listings of weights and of checkpoints have in common. */
#include "cli/listing.h"

#include <string.h>

const char *fsdp__listed_shape(const int64_t *shape, int ndim, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");

    for (int d = 0; d < ndim && used < text_bytes; d++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%lld", d ? ", " : "", (long long)shape[d]);
    if (used < text_bytes)
        snprintf(text + used, text_bytes - used, "]");
    return text;
}

const char *fsdp__listed_file(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}
