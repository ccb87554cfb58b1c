/* test_random_calls.c - groups that come and go between plain calls, with a rank that is late, and in half of
 * the programs one that gives up: naive results until then, and memory that is gone right after. FSDP_CALLS_SEED=n
 * repeats one. */
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/group_calls.h"
#include "device/device.h"
#include "support/dice.h"
#include "support/ranks.h"

enum {
    MOST_RANKS = 8,
    SLOTS = 4, /* for groups, the first of which is the world */
    STREAMS = 2,
    CALLS = 30,
    IN_FLIGHT = 3,
    OUTBOX = 4096, /* bytes of a half: calls have many pieces */
    LATE_US = 2000
};

typedef enum kind {
    MAKE,
    FREE,
    GATHER,
    SCATTER,
    REDUCE,
    BROADCAST,
    ALL_TO_ALL,
    BARRIER,
    KINDS
} kind;

typedef struct call {
    kind kind;
    int slot, late, stream;
    int ranks[MOST_RANKS], size; /* of the group */
    int root;
    int64_t count;
} call;

typedef struct program {
    uint64_t seed;
    int world;
    bool worker;
    fsdp_carrier carrier;
    int gpus;     /* that ranks take in turn; 0: they compute on the CPU */
    int gives_up; /* before this call the rank that is late there; -1: none does */
    call calls[CALLS];
} program;

/* ---- drawing ---- */

static void draw_members(uint64_t *dice, call *c, int world)
{
    unsigned members = 1 + (unsigned)dice_below(dice, (1 << world) - 1);

    for (int r = 0; r < world; r++)
        if (members >> r & 1)
            c->ranks[c->size++] = r;
}

static void draw_program(uint64_t seed, int shape, int world, program *p)
{
    static const int64_t counts[] = {0, 1, 7, 300, 1023, 1500, 4100, TEST_SANITIZED ? 6007 : 20011};
    uint64_t dice = seed * 100 + (uint64_t)shape;
    call groups[SLOTS] = {{0}};

    p->seed = seed;
    p->world = world;
    p->gives_up = -1;
    p->worker = dice_chance(&dice, 50);
    if (dice_chance(&dice, 50))
        p->gives_up = dice_below(&dice, CALLS);
    for (int r = 0; r < world; r++)
        groups[0].ranks[groups[0].size++] = r;
    for (int i = 0; i < CALLS; i++) {
        int slot = dice_below(&dice, SLOTS), now = dice_below(&dice, KINDS);
        call *c = &p->calls[i];

        if (groups[slot].size == 0) {
            now = MAKE;
            draw_members(&dice, &groups[slot], world);
        } else if (now <= FREE) {
            now = slot == 0 ? BARRIER : FREE;
        }
        *c = groups[slot];
        c->kind = (kind)now;
        c->slot = slot;
        c->late = dice_below(&dice, world);
        c->stream = dice_below(&dice, STREAMS);
        c->root = dice_below(&dice, c->size);
        c->count = counts[dice_below(&dice, sizeof counts / sizeof *counts)];
        if (now == FREE)
            groups[slot].size = 0;
    }
}

/* ---- what is expected: small integers, whose sums are exact ---- */

static float value(int number, int rank, int64_t i)
{
    return (float)((i * 7 + rank * 31 + number * 13) % 17 - 8);
}

static float sum(const call *c, int number, int64_t i)
{
    float result = 0;

    for (int r = 0; r < c->size; r++)
        result += value(number, c->ranks[r], i);
    return result;
}

static float expected(const call *c, int number, int me, int64_t i)
{
    switch (c->kind) {
    case GATHER:
        return value(number, c->ranks[i / c->count], i % c->count);
    case SCATTER:
        return sum(c, number, me * c->count + i);
    case REDUCE:
        return sum(c, number, i);
    case BROADCAST:
        return value(number, c->ranks[c->root], i);
    default:
        return value(number, c->ranks[i / c->count], me * c->count + i % c->count);
    }
}

/* ---- one rank ---- */

/* Of the device, with room for one element more than there are. */
typedef struct flight {
    int number;
    void *send, *recv;
    size_t send_bytes, recv_bytes;
} flight;

typedef struct player {
    const program *program;
    fsdp_context *context;
    fsdp_device *device;
    fsdp_stream *streams[STREAMS];
    fsdp_process_group *groups[SLOTS];
    flight flights[IN_FLIGHT];
    int in_flight;
} player;

/* Memory of the host goes when it is given back (mallopt below), and a late peer must not read it any more. */
static fsdp_status take(const player *p, size_t bytes, void **out)
{
    if (!fsdp__device_host_access(p->device))
        return fsdp__device_alloc(p->device, bytes, FSDP_MEMORY_ACTIVATION, out);
    *out = CHECK_PTR(malloc(bytes));
    return FSDP_OK;
}

static void give(const player *p, void *memory, size_t bytes)
{
    if (fsdp__device_host_access(p->device))
        free(memory);
    else if (memory)
        fsdp__device_free(p->device, memory, bytes, FSDP_MEMORY_ACTIVATION);
}

static fsdp_status read_back(const player *p, const flight *f, float *out)
{
    FSDP_TRY(fsdp__copy_to_host(p->streams[0], out, f->recv, f->recv_bytes));
    return fsdp_stream_synchronize(p->streams[0]);
}

/* Fails where another rank has given up meanwhile. */
static fsdp_status check_flight(const player *p, const flight *f)
{
    const call *c = &p->program->calls[f->number];
    int64_t count = c->kind == GATHER || c->kind == ALL_TO_ALL ? c->count * c->size : c->count;
    int me = fsdp_process_group_rank(p->groups[c->slot]);
    float *got = CHECK_PTR(malloc(f->recv_bytes));
    fsdp_status status = read_back(p, f, got);

    for (int64_t i = 0; i < count && status == FSDP_OK; i++)
        if (got[i] != expected(c, f->number, me, i))
            TEST_FAIL("seed %llu, %d ranks, call %d of kind %d: element %lld is %g, expected %g",
                      (unsigned long long)p->program->seed, p->program->world, f->number, (int)c->kind, (long long)i,
                      (double)got[i], (double)expected(c, f->number, me, i));
    free(got);
    return status;
}

/* `status`: of the last call. */
static fsdp_status settle(player *p, fsdp_status status)
{
    for (int i = 0; i < STREAMS; i++)
        FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(p->streams[i]));
    for (int i = 0; i < p->in_flight; i++) {
        const flight *f = &p->flights[i];

        if (status == FSDP_OK)
            status = check_flight(p, f);
        give(p, f->send, f->send_bytes);
        give(p, f->recv, f->recv_bytes);
    }
    p->in_flight = 0;
    return status;
}

/* Gets memory for a call, with this rank's values, which are there when the call is made. */
static fsdp_status prepare(player *p, int number, flight *f)
{
    const call *c = &p->program->calls[number];
    int64_t count = c->count * (c->kind == SCATTER || c->kind == ALL_TO_ALL ? c->size : 1);
    float *values = CHECK_PTR(malloc((size_t)(count + 1) * sizeof *values));
    fsdp_stream *stream = p->streams[c->stream];
    fsdp_status status;

    *f = (flight){.number = number,
                  .send_bytes = (size_t)(count + 1) * sizeof(float),
                  .recv_bytes = (size_t)(c->count * c->size + 1) * sizeof(float)};
    for (int64_t i = 0; i < count; i++)
        values[i] = value(number, fsdp_context_rank(p->context), i);
    status = take(p, f->send_bytes, &f->send);
    if (status == FSDP_OK)
        status = take(p, f->recv_bytes, &f->recv);
    p->flights[p->in_flight++] = *f;
    if (status == FSDP_OK)
        status = fsdp__copy_to_device(stream, c->kind == BROADCAST ? f->recv : f->send, values,
                                      (size_t)count * sizeof *values);
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream));
    free(values);
    return status;
}

static fsdp_status collective(player *p, int number)
{
    const call *c = &p->program->calls[number];
    fsdp_process_group *group = p->groups[c->slot];
    fsdp_stream *stream = p->streams[c->stream];
    flight f;

    FSDP_TRY(prepare(p, number, &f));
    switch (c->kind) {
    case GATHER:
        return fsdp_all_gather(group, f.send, f.recv, c->count, FSDP_F32, stream);
    case SCATTER:
        return fsdp_reduce_scatter(group, f.send, f.recv, c->count, FSDP_F32, FSDP_SUM, stream);
    case REDUCE:
        return fsdp_all_reduce(group, f.send, f.recv, c->count, FSDP_F32, FSDP_SUM, stream);
    case BROADCAST:
        return fsdp_broadcast(group, f.recv, c->count, FSDP_F32, c->root, stream);
    default:
        return fsdp_all_to_all(group, f.send, f.recv, c->count, FSDP_F32, stream);
    }
}

static fsdp_status step(player *p, int number)
{
    const call *c = &p->program->calls[number];
    fsdp_process_group **group = &p->groups[c->slot];

    if (c->kind == MAKE)
        return fsdp_process_group_create(p->context, c->ranks, c->size, "drawn", group);
    if (!*group)
        return FSDP_OK;
    if (c->kind == BARRIER)
        return fsdp_barrier(*group);
    if (c->kind != FREE) {
        fsdp_status status = collective(p, number);

        return status == FSDP_OK && p->in_flight < IN_FLIGHT ? FSDP_OK : settle(p, status);
    }
    FSDP_TRY(settle(p, FSDP_OK));
    fsdp_process_group_free(*group);
    *group = NULL;
    return FSDP_OK;
}

static void play(fsdp_context *context, void *arg)
{
    const program *drawn = arg;
    player p = {.program = drawn, .context = context, .groups = {fsdp_world(context)}};
    fsdp_stream_mode mode = drawn->worker ? FSDP_STREAM_WORKER : FSDP_STREAM_INLINE;
    fsdp_status status = FSDP_OK;
    int rank = fsdp_context_rank(context), number;

    CHECK_OK(fsdp_context_set_carrier(context, drawn->carrier));
    if (drawn->gpus > 0)
        fsdp__context_set_outbox(context, OUTBOX);
    p.device = CHECK_PTR(drawn->gpus > 0 ? fsdp_cuda(context, rank % drawn->gpus) : fsdp_cpu(context));
    for (int i = 0; i < STREAMS; i++)
        CHECK_OK(fsdp_stream_create(p.device, mode, &p.streams[i]));
    for (number = 0; number < CALLS && status == FSDP_OK; number++) {
        bool late = drawn->calls[number].late == rank;

        if (late && number == drawn->gives_up)
            fsdp_abort(context, "drawn so");
        else if (late)
            usleep((useconds_t)(drawn->seed * 131 + (uint64_t)number * 977) % LATE_US);
        status = step(&p, number);
    }
    status = settle(&p, status);
    if (status != FSDP_OK && drawn->gives_up < 0)
        TEST_FAIL("seed %llu, %d ranks, before call %d: %s", (unsigned long long)drawn->seed, drawn->world, number,
                  fsdp_last_error());
    CHECK(status == FSDP_OK || status == FSDP_COMM);
    for (int slot = 1; slot < SLOTS; slot++)
        fsdp_process_group_free(p.groups[slot]);
    for (int i = 0; i < STREAMS; i++)
        fsdp_stream_free(p.streams[i]);
}

typedef struct shape {
    int machines, ranks;
    bool one_level;
} shape;

/* Plays the programs of so many seeds in all shapes. */
static void play_all(const shape *shapes, size_t count, uint64_t usual, program *p)
{
    const dice_seeds seeds = dice_seeds_of("CALLS", usual);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        for (size_t i = 0; i < count; i++) {
            draw_program(seed, (int)i, shapes[i].machines * shapes[i].ranks, p);
            test_run_machines(shapes[i].machines, shapes[i].ranks, shapes[i].one_level, play, p);
        }
}

TEST(every_order_gives_naive_results)
{
    static const shape shapes[] = {{1, 5, false}, {1, 8, false}, {2, 2, false}, {3, 2, false},
                                   {2, 3, false}, {4, 1, true},  {2, 4, true},  {4, 2, true}};
    program p = {.gpus = 0};

    mallopt(M_MMAP_THRESHOLD, 64 << 10); /* freed, it is not there any more; a sanitizer has a malloc of its own */
    play_all(shapes, FSDP__COUNT_OF(shapes), test_long() ? 500 : test_brief() ? 3 : 8, &p);
}

#ifdef FSDP_HAVE_FAKECUDA
/* Ranks that have a fake GPU each, or share some. */
TEST(every_order_gives_them_by_the_memory_of_peers)
{
    static const shape shapes[] = {{1, 2, false}, {1, 3, false}, {1, 5, false}};
    program p = {.carrier = FSDP_CARRIER_PEER};

    setenv("FSDP_FAKECUDA_DEVICES", "8", 1);
    for (p.gpus = 1; p.gpus <= 5; p.gpus += 2)
        play_all(shapes, FSDP__COUNT_OF(shapes), test_long() ? 200 : 1, &p);
}

TEST(every_order_gives_them_by_nccl)
{
    static const shape shapes[] = {{1, 2, false}, {1, 3, false}, {1, 5, false}, {2, 2, false}, {3, 1, false}};
    program p = {.carrier = FSDP_CARRIER_NCCL, .gpus = 8};

    setenv("FSDP_FAKECUDA_DEVICES", "8", 1);
    play_all(shapes, FSDP__COUNT_OF(shapes), test_long() ? 200 : 2, &p);
}
#endif
