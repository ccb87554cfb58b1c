/* test_random_calls.c - groups that come and go between plain calls, with a rank that is late, and in half of
 * the programs one that gives up: naive results until then, and memory that is gone right after. FSDP_CALLS_SEED=n
 * repeats one. */
#include <malloc.h>
#include <unistd.h>

#include "support/dice.h"
#include "support/ranks.h"

enum {
    MOST_RANKS = 8,
    SLOTS = 4, /* for groups, the first of which is the world */
    CALLS = 30,
    IN_FLIGHT = 3,
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
    int slot, late;
    int ranks[MOST_RANKS], size; /* of the group */
    int root;
    int64_t count;
} call;

typedef struct program {
    uint64_t seed;
    int world;
    bool worker;
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
    static const int64_t counts[] = {0, 1, 7, 300, 1023, 1500, 4100, 20011};
    uint64_t dice = seed * 100 + (uint64_t)shape;
    call groups[SLOTS] = {{0}};

    *p = (program){.seed = seed, .world = world, .gives_up = -1};
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

typedef struct flight {
    int number;
    float *send, *recv;
} flight;

typedef struct player {
    const program *program;
    fsdp_context *context;
    fsdp_stream *stream;
    fsdp_process_group *groups[SLOTS];
    flight flights[IN_FLIGHT];
    int in_flight;
} player;

static void land(player *p, bool check)
{
    for (int f = 0; f < p->in_flight; f++) {
        const flight *now = &p->flights[f];
        const call *c = &p->program->calls[now->number];
        int64_t count = c->kind == GATHER || c->kind == ALL_TO_ALL ? c->count * c->size : c->count;
        int me = check ? fsdp_process_group_rank(p->groups[c->slot]) : 0;

        for (int64_t i = 0; i < count && check; i++)
            if (now->recv[i] != expected(c, now->number, me, i))
                TEST_FAIL("seed %llu, %d ranks, call %d of kind %d: element %lld is %g, expected %g",
                          (unsigned long long)p->program->seed, p->program->world, now->number, (int)c->kind,
                          (long long)i, (double)now->recv[i], (double)expected(c, now->number, me, i));
        free(now->send);
        free(now->recv);
    }
    p->in_flight = 0;
}

/* `status`: of the last call. */
static fsdp_status settle(player *p, fsdp_status status)
{
    fsdp_status all = fsdp_stream_synchronize(p->stream);

    if (status == FSDP_OK)
        status = all;
    land(p, status == FSDP_OK);
    return status;
}

static fsdp_status collective(player *p, int number)
{
    const call *c = &p->program->calls[number];
    fsdp_process_group *group = p->groups[c->slot];
    int64_t parts = c->kind == SCATTER || c->kind == ALL_TO_ALL ? c->size : 1;
    float *send = malloc((size_t)(c->count * parts + 1) * sizeof *send);
    float *recv = malloc((size_t)(c->count * c->size + 1) * sizeof *recv);

    for (int64_t i = 0; i < c->count * parts; i++)
        send[i] = value(number, fsdp_context_rank(p->context), i);
    if (c->kind == BROADCAST)
        memcpy(recv, send, (size_t)c->count * sizeof *recv);
    p->flights[p->in_flight++] = (flight){number, send, recv};
    switch (c->kind) {
    case GATHER:
        return fsdp_all_gather(group, send, recv, c->count, FSDP_F32, p->stream);
    case SCATTER:
        return fsdp_reduce_scatter(group, send, recv, c->count, FSDP_F32, FSDP_SUM, p->stream);
    case REDUCE:
        return fsdp_all_reduce(group, send, recv, c->count, FSDP_F32, FSDP_SUM, p->stream);
    case BROADCAST:
        return fsdp_broadcast(group, recv, c->count, FSDP_F32, c->root, p->stream);
    default:
        return fsdp_all_to_all(group, send, recv, c->count, FSDP_F32, p->stream);
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
    fsdp_status status = FSDP_OK;
    int rank = fsdp_context_rank(context), number;

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), drawn->worker ? FSDP_STREAM_WORKER : FSDP_STREAM_INLINE, &p.stream));
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
    fsdp_stream_free(p.stream);
}

TEST(every_order_gives_naive_results)
{
    static const struct {
        int machines, ranks;
        bool one_level;
    } shapes[] = {{1, 5, false}, {1, 8, false}, {2, 2, false}, {3, 2, false},
                  {2, 3, false}, {4, 1, true},  {2, 4, true},  {4, 2, true}};
    const char *only = getenv("FSDP_CALLS_SEED");
    uint64_t seeds = test_long() ? 500 : test_brief() ? 3 : 8;
    program p;

    mallopt(M_MMAP_THRESHOLD, 64 << 10); /* freed, it is not there any more; a sanitizer has a malloc of its own */
    for (uint64_t seed = only ? strtoull(only, NULL, 10) : 1; seed <= (only ? strtoull(only, NULL, 10) : seeds); seed++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            draw_program(seed, (int)i, shapes[i].machines * shapes[i].ranks, &p);
            test_run_machines(shapes[i].machines, shapes[i].ranks, shapes[i].one_level, play, &p);
        }
}
