/* listing.c - what the listings of weights and of checkpoints have in common. */
#include "cli/listing.h"

#include <string.h>

const char *fsdp__listed_shape(const int64_t *shape, int ndim, char text[FSDP__LISTED_SHAPE])
{
    size_t used = 0;

    for (int d = 0; d < ndim; d++)
        used += (size_t)snprintf(text + used, FSDP__LISTED_SHAPE - used, "%s%lld", d ? ", " : "[", (long long)shape[d]);
    snprintf(text + used, FSDP__LISTED_SHAPE - used, used ? "]" : "[]");
    return text;
}

const char *fsdp__shown_file(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}
