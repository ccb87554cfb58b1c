/* bench_gpus.c - measures the collectives between GPUs, by one carrier.
 *
 *     fsdp run -n RANKS -- bench_gpus CARRIER SUMS [MB [KB [CALLS]]]      or under mpirun, srun or torchrun
 *
 * CARRIER is peer, nccl or staged, SUMS exact or nccl (comm.carrier and comm.reduce of fsdp train), or, by nccl, copies
 * or plain (exact sums with comm.nccl_buffers: copy_engines or plain). MB and KB are the largest and smallest size
 * (256, 64), CALLS how many of a kind follow each other at most (200). Rank 0 prints a line for each collective, dtype
 * and size:
 *
 *     CARRIER SUMS RANKS MACHINES COLLECTIVE DTYPE BYTES US ALGBW BUSBW
 *
 * Bytes and bandwidths are those of nccl-tests, so that the lines can be laid beside its tables: bytes are those of the
 * larger buffer, algbw is bytes over time in GB/s, and busbw is what each link would have to carry in each direction:
 * algbw times (n-1)/n, 2 (n-1)/n for all_reduce, 1 for broadcast. US is the time of a call among many that follow each
 * other, on the slowest rank. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "check.h"
#include "device/device.h"
#include "device/kernels.h"
#include "fsdp/launch.h"

enum {
    LEAST_CALLS = 3
};

typedef struct bench {
    const char *carrier, *sums;
    fsdp_context *context;
    fsdp_process_group *world;
    fsdp_stream *stream;
    int ranks, most_calls;
    void *whole, *part, *other; /* `other` is as large as `whole` */
    fsdp_dtype dtype;
    int64_t count; /* elements of a part */
} bench;

/* ---- the collectives ---- */

static fsdp_sharded_buffer buffer_of(const bench *b)
{
    return (fsdp_sharded_buffer){.unsharded = b->whole,
                                 .shard = b->part,
                                 .numel = b->count * b->ranks,
                                 .chunk = b->count,
                                 .unsharded_dtype = b->dtype,
                                 .shard_dtype = b->dtype};
}

static void all_gather(const bench *b)
{
    CHECK(fsdp_all_gather(b->world, b->part, b->whole, b->count, b->dtype, b->stream));
}

static void reduce_scatter(const bench *b)
{
    CHECK(fsdp_reduce_scatter(b->world, b->whole, b->part, b->count, b->dtype, FSDP_SUM, b->stream));
}

static void all_reduce(const bench *b)
{
    CHECK(fsdp_all_reduce(b->world, b->whole, b->other, b->count * b->ranks, b->dtype, FSDP_SUM, b->stream));
}

static void broadcast(const bench *b)
{
    CHECK(fsdp_broadcast(b->world, b->whole, b->count * b->ranks, b->dtype, 0, b->stream));
}

static void all_to_all(const bench *b)
{
    CHECK(fsdp_all_to_all(b->world, b->whole, b->other, b->count, b->dtype, b->stream));
}

/* As the engine gathers parameters and reduces gradients. */
static void gather_buffers(const bench *b)
{
    fsdp_sharded_buffer buffer = buffer_of(b);

    CHECK(fsdp_all_gather_coalesced(b->world, &buffer, 1, b->stream));
}

static void reduce_buffers(const bench *b)
{
    const fsdp_reduce_options options = {.op = FSDP_AVG};
    fsdp_sharded_buffer buffer = buffer_of(b);

    CHECK(fsdp_reduce_scatter_coalesced(b->world, &buffer, 1, &options, b->stream));
}

/* `links`: busbw is algbw times this and (n-1)/n; 0: it is algbw. */
static const struct {
    const char *name;
    void (*run)(const bench *b);
    int links;
} collectives[] = {{"all_gather", all_gather, 1},         {"gather_buffers", gather_buffers, 1},
                   {"reduce_scatter", reduce_scatter, 1}, {"reduce_buffers", reduce_buffers, 1},
                   {"all_reduce", all_reduce, 2},         {"broadcast", broadcast, 0},
                   {"all_to_all", all_to_all, 1}};

/* ---- time ---- */

/* Returns the microseconds of a call, on the slowest rank. */
static double measure(const bench *b, void (*run)(const bench *b), size_t bytes)
{
    int calls = (int)fmin(b->most_calls, fmax(LEAST_CALLS, 4e9 / (double)(bytes + 1000000)));
    void **all = NULL;
    size_t *sizes = NULL;
    double us = 0, most = 0;

    for (int turn = 0; turn < 2; turn++) { /* the first warms up */
        int64_t began;

        CHECK(fsdp_stream_synchronize(b->stream));
        CHECK(fsdp_barrier(b->world));
        began = fsdp__clock_ns();
        for (int i = 0; i < (turn == 0 ? LEAST_CALLS : calls); i++)
            run(b);
        CHECK(fsdp_stream_synchronize(b->stream));
        us = (double)(fsdp__clock_ns() - began) / 1e3 / calls;
    }
    CHECK(fsdp_gather_objects(b->world, &us, sizeof us, &all, &sizes));
    for (int r = 0; r < b->ranks; r++)
        most = fmax(most, *(const double *)all[r]);
    fsdp_objects_free(b->world, all, sizes);
    return most;
}

static void measure_size(bench *b, size_t bytes)
{
    size_t size = fsdp_dtype_size(b->dtype);
    double n = b->ranks;

    b->count = (int64_t)(bytes / size) / b->ranks;
    bytes = (size_t)(b->count * b->ranks) * size;
    for (size_t i = 0; i < FSDP__COUNT_OF(collectives); i++) {
        double us = measure(b, collectives[i].run, bytes), algorithm = (double)bytes / us / 1e3,
               bus = collectives[i].links ? algorithm * collectives[i].links * (n - 1) / n : algorithm;

        if (fsdp_context_rank(b->context) == 0)
            printf("%s %s %d %d %s %s %zu %.1f %.2f %.2f\n", b->carrier, b->sums, b->ranks,
                   fsdp_context_machines(b->context), collectives[i].name, fsdp_dtype_name(b->dtype), bytes, us,
                   algorithm, bus);
        fflush(stdout);
    }
}

/* ---- the ranks ---- */

static void choose(const bench *b)
{
    int carrier = 0;

    while (carrier < FSDP_CARRIERS && strcmp(fsdp_carrier_name((fsdp_carrier)carrier), b->carrier) != 0)
        carrier++;
    CHECK(fsdp_context_set_carrier(b->context, (fsdp_carrier)carrier));
    CHECK(fsdp_context_set_nccl_sums(b->context, strcmp(b->sums, "nccl") == 0));
    CHECK(fsdp_context_set_nccl_buffers(b->context, strcmp(b->sums, "copies") == 0  ? FSDP_NCCL_COPY_ENGINES
                                                    : strcmp(b->sums, "plain") == 0 ? FSDP_NCCL_PLAIN
                                                                                    : FSDP_NCCL_REGISTERED));
}

static void *take(fsdp_device *device, const bench *b, size_t bytes)
{
    void *memory = NULL;

    CHECK(fsdp__device_alloc(device, bytes, FSDP_MEMORY_WORKSPACE, &memory));
    CHECK(fsdp__launch_fill_run(b->stream, memory, FSDP_U8, (int64_t)bytes, 0));
    return memory;
}

static void run(bench *b, size_t smallest, size_t largest)
{
    static const fsdp_dtype dtypes[] = {FSDP_BF16, FSDP_F32};
    fsdp_device *device = fsdp_device_open(b->context, "cuda");

    CHECK(device ? FSDP_OK : fsdp_last_status());
    CHECK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &b->stream));
    b->whole = take(device, b, largest);
    b->other = take(device, b, largest);
    b->part = take(device, b, largest);
    for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
        for (size_t bytes = smallest; bytes <= largest; bytes *= 8) {
            b->dtype = dtypes[d];
            measure_size(b, bytes);
        }
    fsdp__device_free(device, b->whole, largest, FSDP_MEMORY_WORKSPACE);
    fsdp__device_free(device, b->other, largest, FSDP_MEMORY_WORKSPACE);
    fsdp__device_free(device, b->part, largest, FSDP_MEMORY_WORKSPACE);
    fsdp_stream_free(b->stream);
}

int main(int argc, char **argv)
{
    bench b = {.carrier = argc > 1 ? argv[1] : "", .sums = argc > 2 ? argv[2] : ""};
    size_t largest = (size_t)(argc > 3 ? atol(argv[3]) : 256) << 20, smallest = (size_t)(argc > 4 ? atol(argv[4]) : 64)
                                                                                << 10;

    b.most_calls = argc > 5 ? atoi(argv[5]) : 200;
    if (argc < 3 || largest == 0 || smallest == 0) {
        fprintf(stderr, "fsdp run -n RANKS -- bench_gpus CARRIER SUMS [MB [KB [CALLS]]]\n");
        return 2;
    }
    CHECK(fsdp_context_from_env(&b.context));
    b.world = fsdp_world(b.context);
    b.ranks = fsdp_process_group_size(b.world);
    choose(&b);
    run(&b, smallest, largest);
    fsdp_context_free(b.context);
    return 0;
}
