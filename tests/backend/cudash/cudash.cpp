/* cudash.cpp - runs the threads of a block as fibers. */
#include "cudash/cudash.h"

#include <stdio.h>
#include <sys/mman.h>

enum {
    STACK = 64 << 10,
    MOST_THREADS = 1024,
    WARP = 32
};

enum where {
    RUNS,
    AT_BARRIER,
    IN_EXCHANGE,
    ENDED
};

struct fiber {
    void *sp;
    where state;
    uint3 index;
    uint64_t gives, gets;
    int from; /* -1: from nobody */
    unsigned mask;
    const char *file;
    int line;
};

/* What one thread of the host runs. */
struct block {
    fiber fibers[MOST_THREADS];
    int count, current;
    void *host_sp;
    void (*body)(const void *);
    const void *argument;
    unsigned char *stacks;
};

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;
thread_local unsigned char *cudash_shared;
static thread_local block *running;

/* Saves the registers that a call must keep, takes another stack, and restores those saved there. */
extern "C" void cudash_switch(void **save, void *load);
asm(R"(.text
.globl cudash_switch
cudash_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

static void wait_as(where state, const char *file, int line)
{
    fiber *f = &running->fibers[running->current];

    f->state = state;
    f->file = file;
    f->line = line;
    cudash_switch(&f->sp, running->host_sp);
    threadIdx = running->fibers[running->current].index;
}

static void enter(void)
{
    void *nowhere;

    running->body(running->argument);
    running->fibers[running->current].state = ENDED;
    cudash_switch(&nowhere, running->host_sp);
    abort();
}

void cudash_barrier(const char *file, int line)
{
    wait_as(AT_BARRIER, file, line);
}

uint64_t cudash_exchange(uint64_t value, int from, unsigned mask, const char *file, int line)
{
    fiber *f = &running->fibers[running->current];

    f->gives = value;
    f->from = from;
    f->mask = mask;
    wait_as(IN_EXCHANGE, file, line);
    return f->gets;
}

unsigned cudash_ballot(bool value, unsigned mask, const char *file, int line)
{
    unsigned result = 0;

    for (int lane = 0; lane < WARP; lane++)
        if (mask >> lane & 1)
            result |= (unsigned)cudash_exchange(value, lane, mask, file, line) << lane;
    return result;
}

static void fail(const char *what, const fiber *a, const fiber *b)
{
    fprintf(stderr, "cudash: %s: thread %u at %s:%d, thread %u at %s:%d\n", what, a->index.x, a->file, a->line,
            b->index.x, b->state == ENDED ? "its end" : b->file, b->state == ENDED ? 0 : b->line);
    abort();
}

static void resume(int i)
{
    fiber *f = &running->fibers[i];

    running->current = i;
    threadIdx = f->index;
    cudash_switch(&running->host_sp, f->sp);
}

/* Returns whether the warp's fibers have exchanged something, and go on. */
static bool exchange(int first, int end)
{
    const fiber *one = NULL;

    for (int i = first; i < end && !one; i++)
        if (running->fibers[i].state == IN_EXCHANGE)
            one = &running->fibers[i];
    if (!one)
        return false;
    for (int i = first; i < end; i++) {
        fiber *f = &running->fibers[i];
        if ((one->mask >> (i - first) & 1) && (f->state != IN_EXCHANGE || f->line != one->line))
            fail("a warp is not together in a shuffle", one, f);
    }
    for (int i = first; i < end; i++) {
        fiber *f = &running->fibers[i];
        int from = f->from < 0 ? i : first + f->from;
        f->gets = from < end ? running->fibers[from].gives : 0;
    }
    for (int i = first; i < end; i++)
        if (running->fibers[i].state == IN_EXCHANGE)
            running->fibers[i].state = RUNS;
    return true;
}

static void run_warp(int first, int end)
{
    do {
        for (int i = first; i < end; i++)
            if (running->fibers[i].state == RUNS)
                resume(i);
    } while (exchange(first, end));
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
    for (int i = 0; i < running->count; i++)
        if (running->fibers[i].state != AT_BARRIER || running->fibers[i].line != one->line)
            fail("a barrier that not all threads reach", one, &running->fibers[i]);
    for (int i = 0; i < running->count; i++)
        running->fibers[i].state = RUNS;
    return true;
}

static void start(int i)
{
    fiber *f = &running->fibers[i];
    void **sp = (void **)(running->stacks + (size_t)(i + 1) * STACK);

    *f = fiber();
    f->index.x = (unsigned)i;
    *--sp = NULL; /* keeps the stack aligned as after a call */
    *--sp = (void *)enter;
    for (int r = 0; r < 6; r++)
        *--sp = NULL;
    f->sp = sp;
}

static void run_block(void)
{
    for (int i = 0; i < running->count; i++)
        start(i);
    do
        for (int first = 0; first < running->count; first += WARP)
            run_warp(first, first + WARP < running->count ? first + WARP : running->count);
    while (pass_barrier());
}

void cudash_run(dim3 grid, unsigned threads, size_t shared_bytes, void (*body)(const void *), const void *argument)
{
    static thread_local block own;
    unsigned char *shared = (unsigned char *)aligned_alloc(128, (shared_bytes + 128) / 128 * 128);

    running = &own;
    if (!own.stacks)
        own.stacks = (unsigned char *)mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    own.count = (int)threads;
    own.body = body;
    own.argument = argument;
    gridDim = grid;
    blockDim = dim3(threads);
    cudash_shared = shared;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                memset(shared, 0xff, shared_bytes); /* NaNs, where a kernel reads what it has not written */
                run_block();
            }
    free(shared);
}
