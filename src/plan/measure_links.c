/* measure_links.c - times collectives, small and large, and notes what a call and a byte of it take. */
#include <math.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "plan/measure.h"

enum {
    FEW = 64,       /* elements of a small call, for each rank */
    MANY = 1 << 20, /* of a large one, all ranks together */
    SMALL_CALLS = 50,
    LARGE_CALLS = 12,
    MOST_RANKS = 8
};

/* Holds a rank's buffers: of all ranks, and its own part. */
typedef struct exchange {
    fsdp_context *context;
    float *all, *part;
    int ranks;
} exchange;

static fsdp_status call(const exchange *x, fsdp_collective kind, int64_t count)
{
    fsdp_process_group *world = fsdp_world(x->context);
    fsdp_stream *stream = fsdp__process_group_host_stream(world);
    fsdp_status status;

    if (!stream)
        return fsdp_last_status();
    status = kind == FSDP_ALL_GATHER ? fsdp_all_gather(world, x->part, x->all, count, FSDP_F32, stream)
                                     : fsdp_reduce_scatter(world, x->all, x->part, count, FSDP_F32, FSDP_SUM, stream);
    return status == FSDP_OK ? fsdp_stream_synchronize(stream) : status;
}

/* Times calls of `count` elements for each rank, after one that does not count: *seconds is what one takes. */
static fsdp_status time_calls(const exchange *x, fsdp_collective kind, int64_t count, int calls, double *seconds)
{
    int64_t start = 0;

    for (int i = 0; i <= calls; i++) {
        FSDP_TRY(call(x, kind, count));
        if (i == 0)
            start = fsdp__clock_ns();
    }
    *seconds = (double)(fsdp__clock_ns() - start) * 1e-9 / calls;
    return FSDP_OK;
}

static fsdp_status with_buffers(fsdp_context *context, fsdp_status (*body)(const exchange *x, void *arg), void *arg)
{
    exchange x = {.context = context, .ranks = fsdp_context_world_size(context)};
    FSDP__FREED float *all = fsdp__calloc(MANY + (size_t)x.ranks * FEW, sizeof *all);
    FSDP__FREED float *part = fsdp__calloc(MANY + FEW, sizeof *part);

    if (!all || !part)
        return FSDP_NO_MEMORY;
    x.all = all;
    x.part = part;
    return body(&x, arg);
}

/* ---- inside a machine ---- */

/* What a reduce-scatter moves in memory, as fsdp__price_collective counts it: each rank reads all that is for it, and
 * writes its part. */
static fsdp_status reduce(const exchange *x, void *arg)
{
    double few, many, moved = (double)x->ranks * (1 + 1.0 / x->ranks) * (MANY / x->ranks * x->ranks) * sizeof(float);
    fsdp__price_link *link = arg;

    FSDP_TRY(time_calls(x, FSDP_REDUCE_SCATTER, FEW, SMALL_CALLS, &few));
    FSDP_TRY(time_calls(x, FSDP_REDUCE_SCATTER, MANY / x->ranks, LARGE_CALLS, &many));
    if (fsdp_context_rank(x->context) == 0)
        *link = (fsdp__price_link){few, moved / fmax(many - few, 1e-9)};
    return FSDP_OK;
}

static fsdp_status reduce_on_rank(fsdp_context *context, void *arg)
{
    return with_buffers(context, reduce, arg);
}

fsdp_status fsdp__measure_machine(int threads, fsdp__prices *out)
{
    const fsdp_context_options options = {.threads = 1};

    for (int ranks = 2; ranks <= FSDP__MIN(2 * threads, MOST_RANKS) && out->world_count < FSDP__PRICE_WORLDS;
         ranks *= 2) {
        fsdp__price_world *world = &out->worlds[out->world_count++];

        world->ranks = ranks;
        FSDP_TRY(fsdp_run_threads(ranks, &options, reduce_on_rank, &world->link));
    }
    if (out->world_count > 0)
        out->machine = out->worlds[0].link;
    return FSDP_OK;
}

/* ---- between machines ---- */

/* Returns what this rank has sent to other machines so far, or received, whichever is more. */
static double crossed(const fsdp_context *context)
{
    fsdp_comm_stats stats;
    double sent = 0, received = 0;

    fsdp_context_comm_stats(context, &stats);
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        sent += (double)stats.network_sent[kind];
        received += (double)stats.network_received[kind];
    }
    return fmax(sent, received);
}

static fsdp_status gather(const exchange *x, void *arg)
{
    double few, many, before, bytes;
    fsdp__price_link *link = arg;

    FSDP_TRY(time_calls(x, FSDP_ALL_GATHER, FEW, SMALL_CALLS, &few));
    before = crossed(x->context);
    FSDP_TRY(time_calls(x, FSDP_ALL_GATHER, MANY / x->ranks, LARGE_CALLS, &many));
    bytes = (crossed(x->context) - before) / (LARGE_CALLS + 1);
    *link = (fsdp__price_link){few, bytes / fmax(many - few, 1e-9)};
    return FSDP_OK;
}

fsdp_status fsdp__measure_network(fsdp_context *context, fsdp__prices *prices)
{
    int machines = fsdp_context_machines(context);

    if (machines == 1)
        return FSDP_OK;
    FSDP_TRY(with_buffers(context, gather, &prices->network));
    prices->network.per_second *= fsdp_context_world_size(context) / machines; /* ranks of a machine share it */
    return FSDP_OK;
}
