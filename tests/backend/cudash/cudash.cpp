/* cudash.cpp - runs the threads of a block as fibers. */
#include "cudash/cudash.h"

#include <stdio.h>
#include <sys/mman.h>

enum {
    STACK = 64 << 10,
    MOST_THREADS = 1024,
    MOST_COPIES = 256,
    WARP = 32
};

enum where {
    RUNS,
    AT_BARRIER,
    IN_EXCHANGE,
    ENDED
};

/* A copy into shared memory that runs beside the kernel, of a group of its thread's. */
struct copy {
    unsigned char *to;
    const unsigned char *from;
    int bytes, group;
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
    /* What a collective of the warp gives each lane's data to, once all are there. */
    void (*collective)(void *const *lanes);
    void *data;
    copy copies[MOST_COPIES]; /* started and not done, the oldest first */
    int copies_count;
    int groups; /* committed */
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
    f->collective = NULL;
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

static void together(void (*collective)(void *const *), void *data, const char *file, int line)
{
    fiber *f = &running->fibers[running->current];

    f->collective = collective;
    f->data = data;
    f->from = -1;
    f->mask = 0xffffffffu;
    wait_as(IN_EXCHANGE, file, line);
}

struct product {
    float *d;
    const uint32_t *a, *b;
    float (*value)(uint16_t);
};

/* Element (row, k) of a, or (k, column) of b as its (column, k): of lane 4 (row % 8) + k % 8 / 2. */
static float element(void *const *lanes, int row, int k, bool of_b)
{
    const product *p = (const product *)lanes[row % 8 * 4 + k % 8 / 2];
    uint32_t two = of_b ? p->b[k / 8] : p->a[k / 8 * 2 + row / 8];

    return p->value((uint16_t)(two >> 16 * (k % 2)));
}

static void multiply(void *const *lanes)
{
    float a[16][16], b[8][16];

    for (int i = 0; i < 16 * 16; i++)
        a[i / 16][i % 16] = element(lanes, i / 16, i % 16, false);
    for (int i = 0; i < 8 * 16; i++)
        b[i / 16][i % 16] = element(lanes, i / 16, i % 16, true);
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[column][k];
            ((product *)lanes[lane])->d[i] += sum;
        }
}

void cudash_multiply_add(float *d, const uint32_t *a, const uint32_t *b, float (*value)(uint16_t), const char *file,
                         int line)
{
    product p = {d, a, b, value};

    together(multiply, &p, file, line);
}

struct matrices {
    uint16_t row[8];
    uint32_t *x;
    int count;
    bool transposed;
};

static void load(void *const *lanes)
{
    for (int lane = 0; lane < WARP; lane++) {
        const matrices *mine = (const matrices *)lanes[lane];
        for (int m = 0; m < mine->count; m++) {
            uint32_t two = 0;
            for (int i = 0; i < 2; i++) {
                int row = mine->transposed ? lane % 4 * 2 + i : lane / 4;
                int column = mine->transposed ? lane / 4 : lane % 4 * 2 + i;
                two |= (uint32_t)((const matrices *)lanes[m * 8 + row])->row[column] << 16 * i;
            }
            mine->x[m] = two;
        }
    }
}

static void need_aligned(const void *p, const char *what, const char *file, int line)
{
    if ((uintptr_t)p % 16 != 0) {
        fprintf(stderr, "cudash: %s:%d: %s is not aligned to 16 bytes\n", file, line, what);
        abort();
    }
}

void cudash_load_matrices(uint32_t *x, const void *row, int count, bool transposed, const char *file, int line)
{
    matrices mine = {{}, x, count, transposed};

    if (running->current % WARP < 8 * count) {
        need_aligned(row, "a row of a matrix", file, line);
        memcpy(mine.row, row, sizeof mine.row);
    }
    together(load, &mine, file, line);
}

/* Copies at the last moment: what is read before is neither the old nor the new. */
void cudash_copy_16(void *shared, const void *global, int bytes, const char *file, int line)
{
    fiber *f = &running->fibers[running->current];

    need_aligned(shared, "where a copy goes", file, line);
    need_aligned(global, "what a copy reads", file, line);
    if (f->copies_count == MOST_COPIES) {
        fprintf(stderr, "cudash: %s:%d: more than %d copies of a thread\n", file, line, MOST_COPIES);
        abort();
    }
    memset(shared, 0xff, 16);
    f->copies[f->copies_count++] = {(unsigned char *)shared, (const unsigned char *)global, bytes, f->groups};
}

void cudash_copies_commit(void)
{
    running->fibers[running->current].groups++;
}

void cudash_copies_wait(int left)
{
    fiber *f = &running->fibers[running->current];
    int kept = 0;

    for (int i = 0; i < f->copies_count; i++) {
        const copy *c = &f->copies[i];
        if (c->group >= f->groups - left) {
            f->copies[kept++] = *c;
            continue;
        }
        memcpy(c->to, c->from, (size_t)c->bytes);
        memset(c->to + c->bytes, 0, (size_t)(16 - c->bytes));
    }
    f->copies_count = kept;
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
    if (one->collective) {
        void *lanes[WARP];
        if (end - first != WARP)
            fail("a warp of less than 32 threads", one, one);
        for (int i = 0; i < WARP; i++)
            lanes[i] = running->fibers[first + i].data;
        one->collective(lanes);
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
