/* cudash.cpp - blocks and their warps, in an order that is drawn. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "cudash/block.h"

enum {
    MOST_SHARED = 163 << 10, /* of a block, on compute capability 8.0 */
    MOST_BLOCKS = 65535,     /* along y and z */
    WARPS = MOST_THREADS / WARP
};

fsdp_status cudash_check_launch(const char *name, dim3 grid, unsigned block, size_t shared_bytes)
{
    if (block == 0 || block > MOST_THREADS)
        return FSDP_FAIL(FSDP_INVALID, "%s: %u threads of a block; CUDA has 1 to %d", name, block, MOST_THREADS);
    if (grid.x > INT32_MAX || grid.y > MOST_BLOCKS || grid.z > MOST_BLOCKS)
        return FSDP_FAIL(FSDP_INVALID, "%s: a grid of %u x %u x %u; CUDA has %d x %d x %d", name, grid.x, grid.y,
                         grid.z, INT32_MAX, MOST_BLOCKS, MOST_BLOCKS);
    if (shared_bytes > MOST_SHARED)
        return FSDP_FAIL(FSDP_INVALID, "%s: %zu bytes of shared memory; a block has %d", name, shared_bytes,
                         MOST_SHARED);
    return FSDP_OK;
}

static void say_where(const fiber *f)
{
    fprintf(stderr, " thread %u of block %u, %u, %u", f->index.x, blockIdx.x, blockIdx.y, blockIdx.z);
    if (f->state == ENDED)
        fprintf(stderr, " at its end");
    else
        fprintf(stderr, " at %s:%d", f->file, f->line);
}

void cudash_fail(const char *what, const fiber *a, const fiber *b)
{
    fprintf(stderr, "cudash: %s:", what);
    say_where(a);
    if (b != a) {
        fprintf(stderr, ",");
        say_where(b);
    }
    fprintf(stderr, "\n");
    abort();
}

/* ---- one block ---- */

/* 0 to count - 1. */
static unsigned draw(uint64_t *state, unsigned count)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (unsigned)((uint64_t)(uint32_t)(x ^ x >> 31) * count >> 32);
}

/* Runs a warp's lanes, from a drawn one on, until each waits or ends; then those that are together may go on. */
static bool run_warp(int warp)
{
    int first = warp * WARP, count = running->count - first < WARP ? running->count - first : WARP;
    int from = (int)draw(&running->draws, (unsigned)count);

    for (int i = 0; i < count; i++) {
        int at = first + (from + i) % count;
        if (running->fibers[at].state == RUNS)
            fiber_resume(at);
    }
    return warp_go_on(first, first + count);
}

/* Runs warps, a drawn one each time, until all are at a barrier or their end. */
static void run_warps(void)
{
    int warps[WARPS], left = (running->count + WARP - 1) / WARP;

    for (int i = 0; i < left; i++)
        warps[i] = i;
    while (left > 0) {
        unsigned at = draw(&running->draws, (unsigned)left);
        if (!run_warp(warps[at]))
            warps[at] = warps[--left];
    }
}

/* Returns whether all were at a barrier, and go on. */
static bool pass_barrier(void)
{
    const fiber *one = NULL;

    for (int i = 0; i < running->count && !one; i++)
        if (running->fibers[i].state == AT_BARRIER)
            one = &running->fibers[i];
    if (!one)
        return false;
    for (int i = 0; i < running->count; i++) {
        const fiber *f = &running->fibers[i];
        if (f->state != AT_BARRIER || f->line != one->line || strcmp(f->file, one->file) != 0)
            cudash_fail("a barrier that not all threads reach", one, f);
    }
    fibers_meet(0, running->count, AT_BARRIER, &running->order[0]);
    for (int i = 0; i < running->count; i++)
        running->fibers[i].state = RUNS;
    return true;
}

void cudash_barrier(const char *file, int line)
{
    fiber_wait(AT_BARRIER, file, line);
}

static void run_block(void)
{
    shared_reset();
    for (int i = 0; i < running->count; i++)
        fiber_start(i);
    fibers_begin();
    do
        run_warps();
    while (pass_barrier());
    fibers_end();
}

/* ---- a grid ---- */

/* Blocks from `from` to `to` - 1 of an order that is drawn: block i is (first + i * step) % count. */
struct part {
    dim3 grid;
    uint64_t first, step, count, from, to;
    block *own;
};

static void run_part(const part *p)
{
    running = p->own;
    gridDim = p->grid;
    blockDim = dim3((unsigned)running->count);
    cudash_shared = running->shared;
    shared_begin();
    host_begins();
    for (uint64_t i = p->from; i < p->to; i++) {
        uint64_t at = (uint64_t)((p->first + (unsigned __int128)i * p->step) % p->count);
        blockIdx = {(unsigned)(at % p->grid.x), (unsigned)(at / p->grid.x % p->grid.y),
                    (unsigned)(at / p->grid.x / p->grid.y)};
        run_block();
    }
    shared_end();
    running = NULL;
}

static block *free_blocks;
static char locked;

static block *take_or_give(block *given)
{
    block *taken = NULL;

    while (__atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE))
        continue;
    if (given) {
        given->next_free = free_blocks;
        free_blocks = given;
    } else if (free_blocks) {
        taken = free_blocks;
        free_blocks = taken->next_free;
    }
    __atomic_store_n(&locked, 0, __ATOMIC_RELEASE);
    return taken;
}

static block *make_block(unsigned threads, size_t shared_bytes, void (*body)(const void *), const void *argument,
                         uint64_t draws)
{
    block *b = take_or_give(NULL);
    void *shared;

    if (!b)
        b = (block *)calloc(1, sizeof *b);
    if (!b || posix_memalign(&shared, 128, shared_bytes) != 0)
        abort();
    b->count = (int)threads;
    b->body = body;
    b->argument = argument;
    b->shared = (unsigned char *)shared;
    b->shared_bytes = shared_bytes;
    b->draws = draws;
    return b;
}

static void give_block(block *b)
{
    host_ends(b);
    free(b->shared);
    take_or_give(b);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* A start and a step without a common divisor. */
static part draw_order(dim3 grid, uint64_t *draws)
{
    part all = {grid, 0, 1, (uint64_t)grid.x * grid.y * grid.z, 0, 0, NULL};

    all.to = all.count;
    all.first = draw(draws, (unsigned)(all.count < UINT32_MAX ? all.count : UINT32_MAX));
    do
        all.step = 1 + draw(draws, (unsigned)(all.count < UINT32_MAX ? all.count : UINT32_MAX));
    while (common_divisor(all.step, all.count) != 1);
    return all;
}

#ifdef CUDASH_TSAN
/* A thread beside each that launches, as long as that one lives: with the launches it is ordered as a new one for each
 * would be, but what kernels have of shared memory (shared.cpp) is made once. */
struct partner {
    pthread_t thread;
    pid_t process; /* that has the thread; 0: none */
    sem_t given, done;
    const part *rest; /* NULL: ends */

    void run(const part *p);
    ~partner();
};
static thread_local partner own_partner;

static void wait_for(sem_t *s)
{
    while (sem_wait(s) != 0)
        if (errno != EINTR)
            abort();
}

static void *run_given(void *argument)
{
    partner *p = (partner *)argument;

    for (wait_for(&p->given); p->rest; wait_for(&p->given)) {
        run_part(p->rest);
        sem_post(&p->done);
    }
    return NULL;
}

void partner::run(const part *p)
{
    if (process != getpid()) {
        process = getpid();
        if (sem_init(&given, 0, 0) != 0 || sem_init(&done, 0, 0) != 0 ||
            pthread_create(&thread, NULL, run_given, this) != 0)
            abort();
    }
    rest = p;
    sem_post(&given);
    wait_for(&done);
}

partner::~partner()
{
    if (process != getpid())
        return;
    rest = NULL;
    sem_post(&given);
    pthread_join(thread, NULL);
}

/* What the thread has left out after half of the blocks another thread does, with fibers and static shared memory of
 * its own: so nothing orders them, for ThreadSanitizer, but the launch. */
static void run_in_two(part all, const block *like, uint64_t *draws)
{
    part rest = all;

    all.to = rest.from = all.count / 2;
    run_part(&all);
    rest.own =
        make_block((unsigned)like->count, like->shared_bytes, like->body, like->argument, draw(draws, UINT32_MAX));
    own_partner.run(&rest);
    give_block(rest.own);
}
#endif

void cudash_run(dim3 grid, unsigned threads, size_t shared_bytes, void (*body)(const void *), const void *argument)
{
    static uint64_t launches;
    const char *seed = getenv("FSDP_SIM_SEED");
    uint64_t draws = (seed ? strtoull(seed, NULL, 10) : 1) + __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED) * 977;
    part all = draw_order(grid, &draws);

    all.own = make_block(threads, shared_bytes, body, argument, draws);
#ifdef CUDASH_TSAN
    if (all.count > 1)
        run_in_two(all, all.own, &draws);
    else
#endif
        run_part(&all);
    give_block(all.own);
}
