/* mixture.c - takes the sources one after the other: each gets its share of the windows that are left, evenly spread.
 */
#include "data/mixture.h"

#include <math.h>

#include "base/alloc.h"
#include "base/compiler.h"

enum {
    SHARE_BITS = 32
};

#define WHOLE ((uint64_t)1 << SHARE_BITS)

fsdp_status fsdp__mixture_init(fsdp__mixture *mixture, const double *weights, int count)
{
    double left = 0;

    *mixture = (fsdp__mixture){.count = count};
    FSDP__TRY_NEW(mixture->shares = fsdp__calloc((size_t)count, sizeof *mixture->shares));
    for (int i = count - 1; i >= 0; i--) {
        double share;

        left += weights[i];
        share = round(weights[i] / left * (double)WHOLE);
        mixture->shares[i] = i == count - 1 ? WHOLE : FSDP__MAX((uint64_t)share, (uint64_t)1);
    }
    return FSDP_OK;
}

void fsdp__mixture_release(fsdp__mixture *mixture)
{
    fsdp__free(mixture->shares);
    *mixture = (fsdp__mixture){0};
}

/* Returns how many of `count` windows belong to a source of this share. */
static int64_t part_of(int64_t count, uint64_t share)
{
    return (int64_t)((unsigned __int128)count * share >> SHARE_BITS);
}

int fsdp__mixture_at(const fsdp__mixture *mixture, int64_t position, int64_t *index)
{
    for (int i = 0; i < mixture->count - 1; i++) {
        *index = part_of(position, mixture->shares[i]);
        if (part_of(position + 1, mixture->shares[i]) > *index)
            return i;
        position -= *index;
    }
    *index = position;
    return mixture->count - 1;
}

int64_t fsdp__mixture_count(const fsdp__mixture *mixture, int source, int64_t count)
{
    for (int i = 0; i < source; i++)
        count -= part_of(count, mixture->shares[i]);
    return part_of(count, mixture->shares[source]);
}
