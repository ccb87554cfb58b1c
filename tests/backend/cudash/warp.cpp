/* warp.cpp - what the lanes of a warp do together, and the copies of a thread. */
#include "cudash/block.h"

static void together(collective run, void *data, unsigned mask, const char *file, int line)
{
    fiber *f = this_fiber();

    f->run = run;
    f->data = data;
    f->mask = mask;
    fiber_wait(TOGETHER, file, line);
}

/* ---- shuffles and votes ---- */

struct shuffle {
    uint64_t gives, gets;
    int from;
};

static void exchange(void *const *lanes)
{
    for (int i = 0; i < WARP; i++)
        if (lanes[i]) {
            shuffle *s = (shuffle *)lanes[i];
            const shuffle *from = (const shuffle *)lanes[s->from % WARP];
            s->gets = from ? from->gives : UINT64_MAX;
        }
}

uint64_t cudash_exchange(uint64_t value, int from, unsigned mask, const char *file, int line)
{
    shuffle s = {value, 0, from};

    together(exchange, &s, mask, file, line);
    return s.gets;
}

struct vote {
    bool value;
    unsigned all;
};

static void count(void *const *lanes)
{
    unsigned all = 0;

    for (int i = 0; i < WARP; i++)
        all |= (unsigned)(lanes[i] && ((vote *)lanes[i])->value) << i;
    for (int i = 0; i < WARP; i++)
        if (lanes[i])
            ((vote *)lanes[i])->all = all;
}

unsigned cudash_ballot(bool value, unsigned mask, const char *file, int line)
{
    vote v = {value, 0};

    together(count, &v, mask, file, line);
    return v.all;
}

static void meet(void *const *)
{
}

void cudash_sync_warp(const char *file, int line, unsigned mask)
{
    static char nothing;

    together(meet, &nothing, mask, file, line);
}

/* ---- products ---- */

struct product {
    float *d;
    const uint32_t *a, *b;
    float (*value)(uint16_t);
};

/* Element (row, k) of a, or (k, row) of b: of lane 4 (row % 8) + k % 8 / 2. */
static float element(void *const *lanes, int row, int k, bool of_b)
{
    const product *p = (const product *)lanes[row % 8 * 4 + k % 8 / 2];
    uint32_t two = of_b ? p->b[k / 8] : p->a[k / 8 * 2 + row / 8];

    return p->value((uint16_t)(two >> 16 * (k % 2)));
}

static void multiply(void *const *lanes)
{
    float a[16][16], b[8][16];

    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++) {
            a[row][k] = element(lanes, row, k, false);
            if (row < 8)
                b[row][k] = element(lanes, row, k, true);
        }
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += a[lane / 4 + i / 2 * 8][k] * b[lane % 4 * 2 + i % 2][k];
            ((product *)lanes[lane])->d[i] += sum;
        }
}

void cudash_multiply_add(float *d, const uint32_t *a, const uint32_t *b, float (*value)(uint16_t), const char *file,
                         int line)
{
    product p = {d, a, b, value};

    together(multiply, &p, 0xffffffffu, file, line);
}

struct matrices {
    uint16_t row[8];
    uint32_t *x;
    int count;
    bool transposed;
};

static void distribute(void *const *lanes)
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
        tell_read_16(row);
        memcpy(mine.row, row, sizeof mine.row);
    }
    together(distribute, &mine, 0xffffffffu, file, line);
}

/* ---- copies ---- */

/* The copy comes at the last moment, but its target is lost at once. */
void cudash_copy_16(void *shared, const void *global, int bytes, const char *file, int line)
{
    fiber *f = this_fiber();

    need_aligned(shared, "where a copy goes", file, line);
    need_aligned(global, "what a copy reads", file, line);
    if (f->copies_count == MOST_COPIES) {
        fprintf(stderr, "cudash: %s:%d: more than %d copies of a thread\n", file, line, MOST_COPIES);
        abort();
    }
    tell_write_16(shared);
    if (bytes > 0)
        tell_read_16(global);
    memset(shared, 0xff, 16);
    f->copies[f->copies_count++] = {(unsigned char *)shared, (const unsigned char *)global, bytes, f->groups};
}

void cudash_copies_commit(void)
{
    this_fiber()->groups++;
}

void cudash_copies_wait(int left)
{
    fiber *f = this_fiber();
    int kept = 0;

    for (int i = 0; i < f->copies_count; i++) {
        const copy *c = &f->copies[i];
        unsigned char bytes[16] = {};
        if (c->group >= f->groups - left) {
            f->copies[kept++] = *c;
            continue;
        }
        for (int b = 0; b < c->bytes; b++)
            bytes[b] = c->from[b];
        tell_write_16(c->to);
        memcpy(c->to, bytes, sizeof bytes);
    }
    f->copies_count = kept;
}

/* ---- the lanes of a warp ---- */

/* Whether all lanes of f's mask that the block has are where f is; else `other` is one that is not. */
static bool all_there(const fiber *f, int first, int end, const fiber **other)
{
    for (int i = first; i < end; i++) {
        const fiber *lane = &running->fibers[i];
        bool there = lane->state == TOGETHER && lane->run == f->run && lane->mask == f->mask && lane->line == f->line &&
                     (lane->file == f->file || strcmp(lane->file, f->file) == 0);
        if ((f->mask >> (i - first) & 1) && !there) {
            *other = lane;
            return false;
        }
    }
    return true;
}

/* The lanes of f's mask are there: they do what they came for, and go on. */
static void run_together(const fiber *f, int first, int end)
{
    unsigned mask = f->mask;
    collective run = f->run;
    void *lanes[WARP] = {};

    for (int i = first; i < end; i++)
        if (mask >> (i - first) & 1) {
            lanes[i - first] = running->fibers[i].data;
            running->fibers[i].state = MEETS;
        }
    run(lanes);
    if (run == meet)
        fibers_meet(first, end, MEETS, &running->order[1 + first / WARP]);
    for (int i = first; i < end; i++)
        if (mask >> (i - first) & 1)
            running->fibers[i].state = RUNS;
}

bool warp_go_on(int first, int end)
{
    const fiber *waits = NULL, *other = NULL;
    bool some = false;

    for (int i = first; i < end; i++) {
        const fiber *f = &running->fibers[i];
        if (f->state != TOGETHER)
            continue;
        if (!(f->mask >> (i - first) & 1))
            cudash_fail("a lane is not of the mask that it gives", f, f);
        if ((f->run == multiply || f->run == distribute) && end - first != WARP)
            cudash_fail("tensor cores need 32 threads", f, f);
        if (all_there(f, first, end, &other)) {
            run_together(f, first, end);
            some = true;
        } else {
            waits = f;
        }
    }
    if (waits && !some)
        cudash_fail("a warp is not together", waits, other);
    return some;
}
