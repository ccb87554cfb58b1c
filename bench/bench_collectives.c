/* bench_collectives.c - measures the collectives between processes of one machine, or of several.
 *
 *     bench_collectives [RANKS ...]                 default: 2 4; starts itself on that many ranks
 *     mpirun ... bench_collectives joined [MB [KB]] a rank that somebody else starts; f32 alone, to so many MB (256)
 *                                                   from so many KB (1)
 *
 * It prints one line for each size: n is the whole buffer (what a rank has after the gather, before the reduce-scatter,
 * and in the all-reduce). Times are medians in microseconds, those of the slowest rank. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"
#include "fsdp/launch.h"

enum {
    MAX_ROUNDS = 400,
    JOINED_ROUNDS = 100 /* over a network */
};

typedef struct bench {
    fsdp_context *context;
    fsdp_process_group *world;
    fsdp_stream *stream;
    int most, least; /* rounds */
    fsdp_dtype dtype;
    int64_t numel; /* elements of the whole buffer, the same on all ranks */
    size_t bytes;
    char *plain, *plain_part; /* memory of this rank alone */
    char *symmetric, *shared, *shard;
} bench;

typedef void (*operation)(bench *b);

static double now_us(void)
{
    return (double)fsdp__clock_ns() / 1e3;
}

/* Returns the time of day, which is the same in all processes; monotonic clocks may differ between them. */
static double wall_us(void)
{
    struct timespec now;

    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int64_t part(const bench *b)
{
    return b->numel / fsdp_process_group_size(b->world);
}

static fsdp_sharded_buffer buffer_of(const bench *b, char *unsharded, char *shard)
{
    return (fsdp_sharded_buffer){.unsharded = unsharded,
                                 .shard = shard,
                                 .numel = b->numel,
                                 .chunk = part(b),
                                 .unsharded_dtype = b->dtype,
                                 .shard_dtype = b->dtype};
}

static void run_memcpy(bench *b)
{
    memcpy(b->plain, b->symmetric, b->bytes);
}

static void run_barrier(bench *b)
{
    CHECK(fsdp_barrier(b->world));
}

static void run_gather(bench *b)
{
    CHECK(fsdp_all_gather(b->world, b->plain_part, b->plain, part(b), b->dtype, b->stream));
}

static void run_gather_coalesced(bench *b, char *unsharded, char *shard)
{
    fsdp_sharded_buffer buffer = buffer_of(b, unsharded, shard);

    CHECK(fsdp_all_gather_coalesced(b->world, &buffer, 1, b->stream));
}

static void run_gather_symmetric(bench *b)
{
    run_gather_coalesced(b, b->symmetric, b->shard);
}

static void run_gather_shared(bench *b)
{
    run_gather_coalesced(b, b->shared, b->shard);
}

static void run_gather_in_place(bench *b)
{
    size_t own = (size_t)(part(b) * fsdp_process_group_rank(b->world)) * fsdp_dtype_size(b->dtype);

    run_gather_coalesced(b, b->shared, b->shared + own);
}

static void run_scatter(bench *b)
{
    CHECK(fsdp_reduce_scatter(b->world, b->plain, b->plain_part, part(b), b->dtype, FSDP_SUM, b->stream));
}

static void run_scatter_symmetric(bench *b)
{
    fsdp_sharded_buffer buffer = buffer_of(b, b->symmetric, b->shard);
    fsdp_reduce_options options = {.op = FSDP_AVG};

    CHECK(fsdp_reduce_scatter_coalesced(b->world, &buffer, 1, &options, b->stream));
}

static void run_reduce(bench *b)
{
    CHECK(fsdp_all_reduce(b->world, b->plain, b->plain, b->numel, b->dtype, FSDP_MAX, b->stream));
}

static void run_reduce_symmetric(bench *b)
{
    CHECK(fsdp_all_reduce(b->world, b->symmetric, b->symmetric, b->numel, b->dtype, FSDP_MAX, b->stream));
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

/* Returns the median over the rounds, of the slowest rank. */
static double measure(bench *b, operation run)
{
    static double times[MAX_ROUNDS];
    int rounds = (int)fmin(b->most, fmax(b->least, 4e8 / (double)(b->bytes + 100000)));
    float median;

    for (int i = -2; i < rounds; i++) {
        double start;

        CHECK(fsdp_barrier(b->world));
        start = now_us();
        run(b);
        if (i >= 0)
            times[i] = now_us() - start;
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    median = (float)times[rounds / 2];
    CHECK(fsdp_all_reduce(b->world, &median, &median, 1, FSDP_F32, FSDP_MAX, b->stream));
    return (double)median;
}

/* Returns whether there is one level only (docs/cluster.md): then ranks share nothing, and all memory is plain. */
static bool is_one_level(void)
{
    const char *text = getenv("FSDP_ONE_LEVEL");

    return text && strcmp(text, "1") == 0;
}

static char *take(const bench *b, fsdp_memory_sharing sharing)
{
    void *memory = NULL;

    if (is_one_level())
        memory = aligned_alloc(64, b->bytes);
    else
        CHECK(fsdp_process_group_alloc(b->world, sharing, b->bytes, &memory));
    return memory;
}

static void give(const bench *b, fsdp_memory_sharing sharing, char *memory)
{
    if (is_one_level())
        free(memory);
    else
        fsdp_process_group_free_memory(b->world, sharing, memory, b->bytes);
}

static void measure_size(bench *b)
{
    static const operation operations[] = {run_memcpy,        run_barrier,         run_gather,  run_gather_symmetric,
                                           run_gather_shared, run_gather_in_place, run_scatter, run_scatter_symmetric,
                                           run_reduce,        run_reduce_symmetric};
    size_t count = sizeof operations / sizeof *operations;
    char *memory = aligned_alloc(64, (2 * b->bytes + 256 + 63) / 64 * 64);

    if (!memory)
        exit(1);
    memset(memory, 0, 2 * b->bytes + 256);
    b->plain = memory + 256; /* not a multiple of 4096 away from the source: some processors stall then */
    b->plain_part = b->plain + b->bytes;
    b->symmetric = take(b, FSDP_MEMORY_SYMMETRIC);
    b->shard = take(b, FSDP_MEMORY_SYMMETRIC);
    b->shared = take(b, FSDP_MEMORY_SHARED);
    memset(b->symmetric, 0, b->bytes);
    memset(b->shard, 0, b->bytes);
    if (fsdp_process_group_rank(b->world) == 0)
        printf("%8zu KB", (b->bytes + 1023) >> 10);
    for (size_t i = 0; i < count; i++) {
        double us = measure(b, operations[i]);
        if (fsdp_process_group_rank(b->world) == 0)
            printf(" %9.1f", us);
    }
    if (fsdp_process_group_rank(b->world) == 0)
        printf("\n");
    fflush(stdout);
    CHECK(fsdp_barrier(b->world));
    give(b, FSDP_MEMORY_SYMMETRIC, b->symmetric);
    give(b, FSDP_MEMORY_SYMMETRIC, b->shard);
    give(b, FSDP_MEMORY_SHARED, b->shared);
    free(memory);
}

/* Keeps the cores busy first: cores that were idle answer each other slowly at first, in a virtual machine for tenths
 * of a second. */
static void warm_up(bench *b)
{
    double end = now_us() + 1e6;
    float over;

    do {
        for (int i = 0; i < 100; i++)
            run_barrier(b);
        over = now_us() > end;
        CHECK(fsdp_all_reduce(b->world, &over, &over, 1, FSDP_F32, FSDP_MAX, b->stream));
    } while (over == 0.0f);
}

static void measure_sizes(bench *b, fsdp_dtype dtype, size_t smallest, size_t largest)
{
    b->dtype = dtype;
    if (fsdp_process_group_rank(b->world) == 0)
        printf("%-11s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", fsdp_dtype_name(b->dtype), "memcpy", "barrier", "AG",
               "AG sym", "AG shared", "AG place", "RS", "RS sym", "AR", "AR sym");
    for (size_t bytes = smallest; bytes <= largest; bytes *= 4) {
        int64_t ranks = fsdp_process_group_size(b->world), part = (int64_t)(bytes / fsdp_dtype_size(b->dtype)) / ranks;

        b->numel = part * ranks; /* the same number for each rank: with 3 ranks a little less than the line says */
        b->bytes = (size_t)b->numel * fsdp_dtype_size(b->dtype);
        measure_size(b);
    }
}

static int rank_main(double started_us)
{
    bench b = {.most = MAX_ROUNDS, .least = 9};
    double joined;

    CHECK(fsdp_context_from_env(&b.context));
    joined = wall_us();
    b.world = fsdp_world(b.context);
    b.stream = fsdp_device_stream(fsdp_cpu(b.context));
    if (fsdp_process_group_rank(b.world) == 0)
        printf("%d ranks, start to joined: %.1f ms\n", fsdp_process_group_size(b.world), (joined - started_us) / 1e3);
    warm_up(&b);
    measure_sizes(&b, FSDP_F32, 1 << 10, (size_t)256 << 20);
    measure_sizes(&b, FSDP_BF16, 1 << 10, (size_t)256 << 20);
    fsdp_context_free(b.context);
    return 0;
}

static int joined_main(size_t smallest, size_t largest)
{
    bench b = {.most = JOINED_ROUNDS, .least = 5};

    CHECK(fsdp_context_from_env(&b.context));
    b.world = fsdp_world(b.context);
    b.stream = fsdp_device_stream(fsdp_cpu(b.context));
    if (fsdp_process_group_rank(b.world) == 0)
        printf("%d ranks on %d machines\n", fsdp_process_group_size(b.world), fsdp_context_machines(b.context));
    warm_up(&b);
    measure_sizes(&b, FSDP_F32, smallest, largest);
    fsdp_context_free(b.context);
    return 0;
}

int main(int argc, char **argv)
{
    const char *fallback[] = {argv[0], "2", "4"};
    const char *const *worlds = argc > 1 ? (const char *const *)(uintptr_t)argv : fallback;
    int count = argc > 1 ? argc : 3;
    char program[4096], started[32];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    if (getenv("FSDP_SHM_FD"))
        return rank_main(atof(argv[1]));
    if (argc > 1 && strcmp(argv[1], "joined") == 0)
        return joined_main((size_t)(argc > 3 ? atol(argv[3]) : 1) << 10, (size_t)(argc > 2 ? atol(argv[2]) : 256)
                                                                             << 20);
    if (length < 0)
        return 1;
    program[length] = '\0';
    for (int i = 1; i < count; i++) {
        const char *rank_argv[] = {program, started, NULL};

        snprintf(started, sizeof started, "%.0f", wall_us());
        if (fsdp_launch(&(fsdp_launch_options){.ranks = atoi(worlds[i]), .argv = rank_argv}, NULL) != FSDP_OK) {
            fprintf(stderr, "%s\n", fsdp_last_error());
            return 1;
        }
    }
    return 0;
}
