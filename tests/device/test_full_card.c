/* Steps on a card that has little more memory than they need, or just as much, on time and late, all drawn: a request
 * that fits is served, nobody waits where it is served anyway, what was written stays, and what the device may still
 * use stays mapped.
 *
 * A request fits where its bytes, in whole pages of the card, and one page for where it begins, are left beside the
 * pieces of mapped memory in which something lives: all others go back to the card before a request fails (docs/gpu.md,
 * "Memory"). */
#include <string.h>

#include "device/segments.h"
#include "support/dice.h"
#include "support/growing.h"

enum {
    SLOTS = 28,
    KEPT = 6, /* of them outlive steps */
    REQUESTS = 70,
    STEPS = 14,
    STRIDE = 16 << 10, /* between the words that are written: each piece has many */
    BEHIND = 10,       /* requests that a late device is behind */
    USES = 64          /* of what was given back last */
};

typedef enum lateness {
    ON_TIME,
    LATE,
    NEVER_THERE, /* until it is waited for */
    LATENESSES
} lateness;

typedef struct slot {
    unsigned char *data; /* NULL: there is none */
    size_t bytes;
    uint64_t stamp;
} slot;

/* What work may still use that was queued before it was given back. */
typedef struct use {
    const unsigned char *data;
    size_t bytes;
    uint64_t queued;
} use;

typedef struct card {
    growing system;
    fsdp__allocator *allocator;
    slot slots[SLOTS];
    use uses[USES];
    uint64_t seed, stamps, given;
    lateness how;
    int step, refused;
} card;

/* Fails with what repeats it. */
#define HOLDS(c, condition)                                                                                           \
    do {                                                                                                              \
        if (!(condition))                                                                                             \
            TEST_FAIL("not true: %s, in step %d on a card of %zu bytes; FSDP_CARDS_SEED=%llu repeats it", #condition, \
                      (c)->step, (c)->system.limit, (unsigned long long)(c)->seed);                                   \
    } while (0)

/* ---- what is written ---- */

static uint64_t *word_at(const slot *s, size_t at)
{
    return (uint64_t *)(void *)(s->data + at);
}

static void fill(const slot *s)
{
    for (size_t at = 0; at < s->bytes; at += STRIDE)
        *word_at(s, at) = s->stamp + at;
    *word_at(s, s->bytes - sizeof(uint64_t)) = ~s->stamp;
}

static bool is_whole(const slot *s)
{
    bool whole = *word_at(s, s->bytes - sizeof(uint64_t)) == ~s->stamp;

    for (size_t at = 0; at < s->bytes && whole; at += STRIDE)
        whole = *word_at(s, at) == s->stamp + at;
    return whole;
}

/* ---- what fits ---- */

static size_t whole_pages(size_t bytes)
{
    return (bytes + FSDP__SEGMENT_STEP - 1) / FSDP__SEGMENT_STEP * FSDP__SEGMENT_STEP;
}

static bool lives_in(const card *c, const unsigned char *from, size_t bytes)
{
    bool any = false;

    for (int i = 0; i < SLOTS && !any; i++)
        any = c->slots[i].data && c->slots[i].data < from + bytes && c->slots[i].data + c->slots[i].bytes > from;
    return any;
}

/* Returns the bytes of the pieces, which the system gives back as a whole, in which something lives. */
static size_t pinned(const card *c)
{
    const growing *g = &c->system;
    size_t sum = 0;

    for (int i = 0; i < g->piece_count; i++) {
        const growing_piece *p = &g->pieces[i];
        const unsigned char *segment = g->ends[p->segment].segment;

        sum += lives_in(c, segment + p->offset, p->bytes) ? p->bytes : 0;
    }
    return sum;
}

static bool fits(const card *c, size_t bytes)
{
    return pinned(c) + whole_pages(bytes) + FSDP__SEGMENT_STEP <= c->system.limit;
}

/* ---- requests ---- */

static void check_leaving(void *arg, const void *memory, size_t bytes)
{
    const card *c = arg;
    const unsigned char *from = memory;

    for (int i = 0; i < USES; i++) {
        const use *u = &c->uses[i];
        bool is_used = c->system.behind && u->queued > c->system.done;

        HOLDS(c, !is_used || u->data + u->bytes <= from || from + bytes <= u->data);
    }
    HOLDS(c, !lives_in(c, from, bytes));
}

static void give(card *c, slot *s)
{
    if (!s->data)
        return;
    HOLDS(c, is_whole(s));
    c->uses[c->given++ % USES] = (use){s->data, s->bytes, c->system.queued};
    HOLDS(c, fsdp__allocator_give(c->allocator, s->data));
    s->data = NULL;
}

static void take(card *c, slot *s, size_t bytes, fsdp_memory_kind kind)
{
    size_t left = c->system.limit - c->system.used;
    int settled = c->system.settled;
    void *data = NULL;
    fsdp_status status = fsdp__allocator_take(c->allocator, bytes, kind, &data);

    HOLDS(c, c->system.used <= c->system.limit);
    HOLDS(c, c->system.settled == settled || left < whole_pages(bytes) + FSDP__SEGMENT_STEP);
    HOLDS(c, status == FSDP_OK || (status == FSDP_NO_MEMORY && !fits(c, bytes)));
    c->refused += status != FSDP_OK;
    *s = (slot){.data = status == FSDP_OK ? data : NULL, .bytes = bytes, .stamp = ++c->stamps << 40};
    if (s->data)
        fill(s);
}

/* Returns a number of bytes of any magnitude, up to 16 MiB. */
static size_t draw_bytes(uint64_t *dice)
{
    return (size_t)64 * (size_t)(1 + dice_below(dice, 1 << (9 + dice_below(dice, 10))));
}

/* Takes a step that depends on its dice alone. */
static void play(card *c, uint64_t dice)
{
    HOLDS(c, fsdp__allocator_note_forward(c->allocator) == FSDP_OK);
    for (int i = 0; i < REQUESTS; i++) {
        int number = dice_below(&dice, SLOTS);
        size_t bytes = draw_bytes(&dice);
        slot *s = &c->slots[number];

        if (s->data)
            give(c, s);
        else
            take(c, s, bytes, number < KEPT ? FSDP_MEMORY_OPTIMIZER_STATE : FSDP_MEMORY_ACTIVATION);
        if (++c->system.queued > BEHIND && c->how == LATE)
            c->system.done = FSDP__MAX(c->system.done, c->system.queued - BEHIND);
    }
    for (int i = KEPT; i < SLOTS; i++)
        give(c, &c->slots[i]);
    fsdp__allocator_end_step(c->allocator);
}

/* Takes all steps of a seed: most are alike, so their requests have places, and others are not. Returns the most bytes
 * that lived at once. */
static size_t play_all(card *c, size_t limit)
{
    uint64_t dice = c->seed;
    fsdp_memory_stats stats;

    memset(c->uses, 0, sizeof c->uses);
    c->system = (growing){.limit = limit,
                          .behind = c->how != ON_TIME,
                          .queued = 1,
                          .piece_most = (c->seed % 2 ? 2 : 8) * MIB,
                          .leaves = check_leaving,
                          .leaves_arg = c};
    c->allocator = CHECK_PTR(growing_allocator(&c->system));
    if (c->system.behind)
        fsdp__allocator_runs_behind(c->allocator);
    for (c->step = 0; c->step < STEPS; c->step++)
        play(c, dice_chance(&dice, 30) ? dice : c->seed);
    fsdp__allocator_stats(c->allocator, &stats);
    HOLDS(c, stats.reserved_bytes == c->system.used);
    for (int i = 0; i < SLOTS; i++)
        give(c, &c->slots[i]);
    c->system.done = c->system.queued; /* whoever frees it has waited */
    fsdp__allocator_free(c->allocator);
    return stats.peak_total_bytes;
}

TEST(on_a_nearly_full_card_requests_that_fit_are_served)
{
    const dice_seeds seeds = dice_seeds_of("CARDS", test_long() ? 1000 : 9);
    int refused = 0;

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        card c = {.seed = seed, .how = (lateness)(seed % LATENESSES)};
        uint64_t dice = seed;
        size_t peak = play_all(&c, 4000 * MIB);

        HOLDS(&c, c.refused == 0);
        (void)play_all(&c, peak / 100 * (size_t)(100 + dice_below(&dice, 31)));
        refused += c.refused;
    }
    CHECK(seeds.only || refused > 0); /* some cards are too small: else nothing was tried */
}
