/* vector_clock.c - an array of counters that grows. */
#include "check/vector_clock.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"

void fsdp__vector_clock_release(fsdp__vector_clock *clock)
{
    fsdp__free(clock->at);
    *clock = (fsdp__vector_clock){0};
}

uint64_t fsdp__vector_clock_at(const fsdp__vector_clock *clock, int actor)
{
    return actor < clock->count ? clock->at[actor] : 0;
}

static bool reach(fsdp__vector_clock *clock, int64_t count)
{
    if (count <= clock->count)
        return true;
    if (fsdp__grow(&clock->at, count - 1, &clock->capacity, sizeof *clock->at) != 0)
        return false;
    memset(clock->at + clock->count, 0, (size_t)(count - clock->count) * sizeof *clock->at);
    clock->count = count;
    return true;
}

bool fsdp__vector_clock_set(fsdp__vector_clock *clock, int actor, uint64_t step)
{
    if (!reach(clock, actor + 1))
        return false;
    clock->at[actor] = step;
    return true;
}

bool fsdp__vector_clock_join(fsdp__vector_clock *clock, const fsdp__vector_clock *other)
{
    if (!reach(clock, other->count))
        return false;
    for (int64_t i = 0; i < other->count; i++)
        clock->at[i] = FSDP__MAX(clock->at[i], other->at[i]);
    return true;
}

bool fsdp__vector_clock_covers(const fsdp__vector_clock *clock, const fsdp__vector_clock *other)
{
    for (int64_t i = 0; i < other->count; i++)
        if (other->at[i] > fsdp__vector_clock_at(clock, (int)i))
            return false;
    return true;
}
