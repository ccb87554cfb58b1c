/* clocks.c - compares the clocks of a world's machines by barriers. */
#include "watch/clocks.h"

#include <string.h>

#include "base/clock.h"
#include "base/compiler.h"

/* Returns when the first rank of a machine left a round, and when the last one entered it. */
static fsdp__clock_round extremes(const fsdp__clock_rounds *const *ranks, int count, int machine, int round)
{
    fsdp__clock_round out = {INT64_MIN, INT64_MAX};

    for (int r = 0; r < count; r++)
        if (ranks[r]->machine == machine) {
            out.entered = FSDP__MAX(out.entered, ranks[r]->rounds[round].entered);
            out.left = FSDP__MIN(out.left, ranks[r]->rounds[round].left);
        }
    return out;
}

fsdp__clock_offset fsdp__clock_offset_of(const fsdp__clock_rounds *const *ranks, int count, int machine)
{
    int64_t low = INT64_MIN, high = INT64_MAX;

    if (machine == ranks[0]->machine)
        return (fsdp__clock_offset){0, 0};
    for (int i = 0; i < ranks[0]->count; i++) {
        fsdp__clock_round here = extremes(ranks, count, ranks[0]->machine, i),
                          there = extremes(ranks, count, machine, i);

        low = FSDP__MAX(low, there.entered - here.left);
        high = FSDP__MIN(high, there.left - here.entered);
    }
    return (fsdp__clock_offset){low + (high - low) / 2, (high - low + 1) / 2};
}

static fsdp_status run_rounds(fsdp_process_group *world, fsdp__clock_rounds *mine)
{
    for (; mine->count < FSDP__CLOCK_ROUNDS; mine->count++) {
        fsdp__clock_round *r = &mine->rounds[mine->count];

        r->entered = fsdp__clock_ns();
        FSDP_TRY(fsdp_barrier(world));
        r->left = fsdp__clock_ns();
    }
    return FSDP_OK;
}

fsdp_status fsdp__clocks_compare(fsdp_context *context, fsdp__clock_offset *out)
{
    int ranks = fsdp_context_world_size(context);
    fsdp_process_group *world = fsdp_world(context);
    fsdp__clock_rounds mine = {.machine = fsdp_context_machine(context)};
    void **all = NULL;
    size_t *bytes = NULL;

    memset(out, 0, (size_t)ranks * sizeof *out);
    if (fsdp_context_machines(context) == 1)
        return FSDP_OK;
    if (!world)
        return fsdp_last_status();
    FSDP_TRY(run_rounds(world, &mine));
    FSDP_TRY(fsdp_gather_objects(world, &mine, sizeof mine, &all, &bytes));
    for (int r = 0; r < ranks; r++) {
        const fsdp__clock_rounds *const *seen = (const fsdp__clock_rounds *const *)all;

        out[r] = r > 0 && seen[r]->machine == seen[r - 1]->machine
                     ? out[r - 1]
                     : fsdp__clock_offset_of(seen, ranks, seen[r]->machine);
    }
    fsdp_objects_free(world, all, bytes);
    return FSDP_OK;
}
