/* Where the blocks of training steps lie: steps that ask for the same get places without holes between, and whatever
 * differs gets memory that nobody else has. */
#include "device/step_places.h"

#include <string.h>

#include "support/dice.h"
#include "support/growing.h"

enum {
    LAYERS = 12,
    MOST = 20 * LAYERS,
    WARM = 5,            /* steps until all has its place, also what comes before a forward */
    ENDS = 2 * (2 << 20) /* two segments end in less than 2 MiB each behind what is needed */
};

typedef struct held {
    unsigned char *data;
    size_t bytes;
} held;

/* A model's step on an allocator. */
typedef struct model {
    fsdp__allocator *allocator;
    size_t saved, other, gradient, logits; /* in KiB; moments have twice a gradient's */
    held held[MOST];
    int count;
    bool unnoted; /* the allocator is not told of steps */
    bool late;    /* the loop gives the output back after the step */
    bool scarce;  /* there is so little memory that a request may find none: it takes nothing */
    held output;
    fsdp_status status;
} model;

static unsigned char stamp_of(size_t bytes)
{
    return (unsigned char)(bytes / 64 * 31 + 7);
}

/* Takes a block and writes to both of its ends. The first failure stays, and nothing is taken after it, unless memory
 * is scarce. */
static held take(model *m, size_t bytes, fsdp_memory_kind kind)
{
    void *data = NULL;

    if (m->status == FSDP_OK)
        m->status = fsdp__allocator_take(m->allocator, bytes, kind, &data);
    if (m->scarce && m->status == FSDP_NO_MEMORY) {
        m->status = FSDP_OK;
        return (held){NULL, 0};
    }
    if (m->status != FSDP_OK)
        return (held){NULL, 0};
    memset(data, stamp_of(bytes), 64);
    memset((unsigned char *)data + bytes - 64, stamp_of(bytes), 64);
    return (held){data, bytes};
}

/* Gives a block back, to which nobody else has written. */
static void give(model *m, held *h)
{
    if (!h->data)
        return;
    CHECK_EQ(h->data[0], stamp_of(h->bytes));
    CHECK_EQ(h->data[h->bytes - 1], stamp_of(h->bytes));
    CHECK(fsdp__allocator_give(m->allocator, h->data));
    *h = (held){NULL, 0};
}

/* Takes a step: forwards keep two blocks a layer, the loss needs logits and their gradient, and backwards leave
 * gradients, of which the first step makes moments. `more` KiB are asked for between, if any. */
static fsdp_status step(model *m, size_t more)
{
    held saved[LAYERS][2], gradients[LAYERS], logits[2], odd = {NULL, 0};
    bool first = m->count == 0;

    m->status = m->unnoted ? FSDP_OK : fsdp__allocator_note_forward(m->allocator);
    for (int l = 0; l < LAYERS; l++) {
        held other = take(m, m->other << 10, FSDP_MEMORY_ACTIVATION);

        saved[l][0] = take(m, m->saved << 10, FSDP_MEMORY_ACTIVATION);
        saved[l][1] = take(m, (m->saved / 3) << 10, FSDP_MEMORY_ACTIVATION);
        give(m, &other);
    }
    if (more > 0)
        odd = take(m, more << 10, FSDP_MEMORY_ACTIVATION);
    for (int i = 0; i < 2; i++)
        logits[i] = take(m, m->logits << 10, FSDP_MEMORY_WORKSPACE);
    give(m, &logits[0]);
    if (m->late)
        m->output = logits[1];
    else
        give(m, &logits[1]);
    for (int l = LAYERS - 1; l >= 0; l--) {
        held other = take(m, m->other << 10, FSDP_MEMORY_ACTIVATION);

        gradients[l] = take(m, m->gradient << 10, FSDP_MEMORY_GRADIENT);
        give(m, &saved[l][0]);
        give(m, &saved[l][1]);
        give(m, &other);
    }
    give(m, &odd);
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; first && i < 2; i++)
            m->held[m->count++] = take(m, m->gradient << 10, FSDP_MEMORY_OPTIMIZER_STATE);
        give(m, &gradients[l]);
    }
    if (!m->unnoted)
        fsdp__allocator_end_step(m->allocator);
    return m->status;
}

static void set_up(model *m, growing *g)
{
    *g = (growing){.limit = 4000 * MIB};
    m->allocator = CHECK_PTR(growing_allocator(g));
    m->count = 0;
}

static void tear_down(model *m)
{
    for (int i = 0; i < m->count; i++)
        give(m, &m->held[i]);
    fsdp__allocator_free(m->allocator);
}

/* Returns how much more is reserved than was live at the peak; after a step without holes it may be less. */
static int64_t lost(const model *m, const growing *g)
{
    fsdp_memory_stats stats;

    fsdp__allocator_stats(m->allocator, &stats);
    CHECK_EQ(stats.reserved_bytes, g->used);
    return (int64_t)(stats.reserved_bytes - stats.peak_total_bytes);
}

/* Much of a GPT-2's memory are logits, of a Llama's what is saved. All is odd on purpose. */
static const model gpt2 = {.saved = 3333, .other = 5001, .gradient = 2903, .logits = 19777};
static const model llama = {.saved = 9001, .other = 6007, .gradient = 4111, .logits = 7001};

TEST(from_the_second_step_on_no_more_is_reserved_than_the_peak)
{
    const model models[] = {gpt2, llama};

    for (size_t i = 0; i < FSDP__COUNT_OF(models); i++) {
        model with = models[i], without = models[i];
        growing g, h;
        uint64_t calls;
        fsdp_memory_stats stats;

        set_up(&with, &g);
        set_up(&without, &h);
        without.unnoted = true;
        for (int n = 0; n < 3; n++) {
            CHECK_OK(step(&with, 0));
            CHECK_OK(step(&without, 0));
        }
        CHECK(lost(&with, &g) < ENDS);
        CHECK(lost(&without, &h) > ENDS);
        fsdp__allocator_stats(with.allocator, &stats);
        calls = stats.system_allocations;
        CHECK_OK(step(&with, 0));
        fsdp__allocator_stats(with.allocator, &stats);
        CHECK_EQ(stats.system_allocations, calls);
        tear_down(&with);
        tear_down(&without);
    }
}

/* A step that asks for more gets it, and the next ones have their places again. */
TEST(a_step_that_differs_is_served_and_costs_those_after_it_nothing)
{
    model m = gpt2;
    growing g;

    set_up(&m, &g);
    for (int n = 0; n < 3; n++)
        CHECK_OK(step(&m, 0));
    for (int n = 0; n < 20; n++)
        CHECK_OK(step(&m, n % 3 == 0 ? 700 + 1000 * (size_t)n : 0));
    for (int n = 0; n < 40; n++) /* until places are chosen anew */
        CHECK_OK(step(&m, 0));
    CHECK(lost(&m, &g) < ENDS);
    tear_down(&m);
}

/* An epoch's last batch is shorter. */
TEST(a_step_that_differs_once_does_not_take_the_places_of_the_others)
{
    for (size_t ninths = 3; ninths < 9; ninths++) {
        model m = gpt2;
        growing g;
        size_t logits = m.logits, saved = m.saved;

        set_up(&m, &g);
        for (int n = 0; n < 3; n++)
            CHECK_OK(step(&m, 0));
        m.logits = logits / 9 * ninths;
        m.saved = saved / 9 * ninths;
        CHECK_OK(step(&m, 0));
        m.logits = logits;
        m.saved = saved;
        for (int n = 0; n < 3; n++)
            CHECK_OK(step(&m, 0));
        CHECK(lost(&m, &g) < ENDS);
        tear_down(&m);
    }
}

/* What lies where a step has a place stays, and goes elsewhere. */
TEST(a_place_that_is_not_free_is_not_given)
{
    model m = llama;
    growing g;
    held guests[8];

    set_up(&m, &g);
    for (int n = 0; n < 3; n++)
        CHECK_OK(step(&m, 0));
    for (int i = 0; i < 8; i++)
        guests[i] = take(&m, (size_t)(300 + 999 * i) << 10, FSDP_MEMORY_ACTIVATION);
    for (int n = 0; n < 5; n++)
        CHECK_OK(step(&m, 0));
    for (int i = 0; i < 8; i++)
        give(&m, &guests[i]);
    CHECK_OK(step(&m, 0));
    tear_down(&m);
}

/* Gets an input ready, takes a step, and drops what it returns; before that it evaluates, with other sizes. */
static void loop(model *m, int evaluations)
{
    held input;

    for (int i = 0; i < evaluations; i++) {
        held other = take(m, (size_t)(801 + 99 * (i % 7)) << 10, FSDP_MEMORY_ACTIVATION);
        held result = take(m, (size_t)7777 << 10, FSDP_MEMORY_ACTIVATION);

        give(m, &other);
        give(m, &result);
    }
    input = take(m, (size_t)11003 << 10, FSDP_MEMORY_ACTIVATION);
    CHECK_OK(step(m, 0));
    give(m, &m->output);
    give(m, &input);
}

/* 9,000 evaluations ask for more than is noted. */
TEST(what_a_loop_has_before_and_after_its_step_has_places_and_evaluations_take_none)
{
    const int evaluations[] = {0, 1, 0, 5, 9000, 0, 1, 1};

    for (int ends = 0; ends < 2; ends++) { /* a loop may end a step before the first one, and twice */
        model m = gpt2;
        growing g;
        fsdp_memory_stats stats;
        uint64_t calls = 0;

        set_up(&m, &g);
        m.late = true;
        for (size_t n = 0; n < WARM + FSDP__COUNT_OF(evaluations); n++) {
            if (ends)
                fsdp__allocator_end_step(m.allocator);
            loop(&m, n < WARM ? 0 : evaluations[n - WARM]);
            if (n < WARM)
                continue;
            CHECK(lost(&m, &g) < ENDS);
            fsdp__allocator_stats(m.allocator, &stats);
            calls = n == WARM ? stats.system_allocations : calls;
            CHECK_EQ(stats.system_allocations, calls);
        }
        tear_down(&m);
    }
}

/* A system that has just the peak: holes are cut out in the first step, and mapped again where steps have places. */
TEST(steps_fit_where_there_is_little_more_than_their_peak)
{
    model m = gpt2;
    growing g;
    fsdp_memory_stats stats;
    size_t peak;

    set_up(&m, &g);
    for (int n = 0; n < 2; n++)
        CHECK_OK(step(&m, 0));
    fsdp__allocator_stats(m.allocator, &stats);
    peak = stats.peak_total_bytes;
    tear_down(&m);
    set_up(&m, &g);
    g.limit = peak + ENDS;
    fsdp__allocator_runs_behind(m.allocator);
    for (int n = 0; n < 6; n++)
        CHECK_OK(step(&m, 0));
    CHECK(lost(&m, &g) < ENDS);
    tear_down(&m);
}

/* Takes a step whose gradients are in buckets, each of as many layers. */
static fsdp_status step_in_buckets(model *m, int layers, bool tells)
{
    held saved[LAYERS], gradients[LAYERS];
    bool first = m->count == 0;

    m->status = fsdp__allocator_note_forward(m->allocator);
    if (m->status == FSDP_OK && tells)
        m->status = fsdp__allocator_renew(m->allocator, NULL, FSDP_MEMORY_GRADIENT);
    for (int l = 0; l < LAYERS; l++)
        saved[l] = take(m, m->saved << 10, FSDP_MEMORY_ACTIVATION);
    for (int l = LAYERS - 1; l >= 0; l--) {
        held other = take(m, m->other << 10, FSDP_MEMORY_ACTIVATION);

        gradients[l] = (held){NULL, 0};
        if (l % layers == layers - 1)
            gradients[l] = take(m, ((size_t)layers * m->gradient) << 10, FSDP_MEMORY_GRADIENT);
        give(m, &saved[l]);
        give(m, &other);
    }
    for (int i = 0; first && i < 2 * LAYERS; i++)
        m->held[m->count++] = take(m, m->gradient << 10, FSDP_MEMORY_OPTIMIZER_STATE);
    for (int l = 0; l < LAYERS; l++)
        give(m, &gradients[l]);
    fsdp__allocator_end_step(m->allocator);
    return m->status;
}

/* One bucket of all gradients becomes many. */
TEST(what_is_asked_for_otherwise_takes_no_more_than_its_bytes)
{
    model m = llama;
    growing g;

    set_up(&m, &g);
    CHECK_OK(step_in_buckets(&m, LAYERS, false));
    for (int n = 0; n < WARM; n++) {
        CHECK_OK(step_in_buckets(&m, 1, n == 0));
        CHECK(lost(&m, &g) < ENDS);
    }
    tear_down(&m);
}

TEST(any_host_allocation_may_fail_where_something_is_asked_for_otherwise)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        model m = gpt2;
        growing g = {.limit = 4000 * MIB};
        fsdp_status status;

        m.allocator = growing_allocator(&g);
        status = m.allocator ? FSDP_OK : FSDP_NO_MEMORY;
        for (int i = 0; i < 3 && status == FSDP_OK; i++)
            status = step_in_buckets(&m, i < 2 ? LAYERS : 1, i == 2);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        tear_down(&m);
    }
}

/* Work that may still use it keeps memory from being returned. */
TEST(what_work_still_uses_is_returned_when_a_later_step_ends)
{
    model m = gpt2;
    growing g;
    size_t reserved;

    set_up(&m, &g);
    g.behind = true;
    g.queued = 1;
    CHECK_OK(step(&m, 0));
    CHECK(lost(&m, &g) > ENDS);
    reserved = g.used;
    CHECK_OK(step(&m, 0));
    CHECK(g.used >= reserved);
    g.done = 1;
    CHECK_OK(step(&m, 0));
    CHECK(g.used < reserved);
    CHECK_OK(step(&m, 0));
    CHECK(lost(&m, &g) < ENDS);
    tear_down(&m);
}

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Plays a random step, which depends on the seed alone but for a few draws of `other`. */
static void play(model *m, uint64_t seed, uint64_t other)
{
    held slots[40] = {{NULL, 0}};
    int odd = other ? (int)(draw(&other) % 200) : -1;

    CHECK_OK(fsdp__allocator_note_forward(m->allocator));
    for (int i = 0; i < 200; i++) {
        held *h = &slots[draw(&seed) % 40];
        size_t bytes = 64 * (1 + draw(&seed) % (20u << (draw(&seed) % 12)));
        fsdp_memory_kind kind = (fsdp_memory_kind)(draw(&seed) % FSDP_MEMORY_KINDS);

        if (i == odd)
            bytes += 64 * (draw(&other) % 30000);
        if (i == odd && draw(&other) % 3 == 0)
            CHECK_OK(fsdp__allocator_renew(m->allocator, NULL, kind));
        if (h->data)
            give(m, h);
        else
            *h = take(m, bytes, kind);
        if (i == odd && draw(&other) % 4 == 0 && m->count < MOST) { /* it outlives the step */
            m->held[m->count++] = *h;
            *h = (held){NULL, 0};
        }
    }
    for (int i = 0; i < 40; i++)
        if (draw(&seed) % 50 > 0 || m->count == MOST)
            give(m, &slots[i]);
        else
            m->held[m->count++] = slots[i];
    CHECK_OK(m->status);
    fsdp__allocator_end_step(m->allocator);
}

/* Two blocks that overlap would have each other's stamps, and sums would not be right. With every second seed work is
 * done some steps late. */
TEST(blocks_of_random_steps_never_overlap)
{
    const dice_seeds seeds = dice_seeds_of("PLACES", test_long() ? 200 : 12);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        model m = {.status = FSDP_OK};
        growing g;
        uint64_t other = seed, late = seed;

        set_up(&m, &g);
        g.behind = seed % 2;
        if (g.behind)
            fsdp__allocator_runs_behind(m.allocator);
        for (int n = 0; n < 12; n++) {
            g.done += draw(&late) % (uint32_t)(++g.queued - g.done + 1);
            if (n == 6)
                g.limit = g.used + (seed % 3) * 4 * MIB; /* from here on what is unused is all that there is, */
            if (draw(&other) % 4 == 0)
                for (int i = 0; i < m.count; i++)
                    give(&m, &m.held[i]);
            if (n == 9)
                g.limit = 4000 * MIB; /* to here */
            m.scarce = n >= 6 && n < 9;
            m.count = m.count == MOST ? 0 : m.count;
            play(&m, seed, draw(&other) % 3 == 0 ? draw(&other) : 0);
            (void)lost(&m, &g);
        }
        tear_down(&m);
    }
}

/* How late a device is: never, by ten requests, or so late that nothing is ever known to have been done. */
typedef enum late {
    ON_TIME,
    LATE,
    NEVER_THERE,
    LATE_WAYS
} late;

/* Returns what may be reserved where so much has lived at once, at most. What a device on time uses no more goes back
 * before far more is mapped. Of the others the worst of 10,000 loops reserves 2.53 times its peak: what they may still
 * use cannot go back, and lies in holes. */
static size_t most_reserved(size_t peak, late how)
{
    return (how == ON_TIME ? peak / 3 * 4 : 3 * peak) + 32 * MIB;
}

/* Takes a step of drawn requests of up to 128 MiB, while so much from elsewhere lives. */
static void play_large(model *m, growing *g, uint64_t *seed, int64_t elsewhere, late how)
{
    held slots[8] = {{NULL, 0}};
    fsdp_memory_stats stats;

    CHECK_OK(fsdp__allocator_note_forward(m->allocator));
    for (int i = 0; i < 40; i++) {
        held *h = &slots[draw(seed) % 8];

        if (h->data)
            give(m, h);
        else
            *h = take(m, 64 * (1 + draw(seed) % (1u << (15 + draw(seed) % 7))), FSDP_MEMORY_ACTIVATION);
        fsdp__allocator_stats(m->allocator, &stats);
        CHECK(stats.reserved_bytes <= most_reserved(stats.peak_total_bytes - (size_t)elsewhere, how));
        g->done = how == LATE && ++g->queued > 10 ? g->queued - 10 : 0;
    }
    for (int i = 0; i < 8; i++)
        give(m, &slots[i]);
    CHECK_OK(m->status);
    fsdp__allocator_end_step(m->allocator);
}

/* Nobody waits for a device that is late. Memory from elsewhere, which every other seed has, gives no room. */
TEST(steps_that_differ_at_random_stay_near_their_peak)
{
    const dice_seeds seeds = dice_seeds_of("PLACES", test_long() ? 400 : 8);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        model m = {.status = FSDP_OK};
        growing g;
        uint64_t dice = seed;
        int64_t elsewhere = (int64_t)(seed % 2) * 1000 * MIB;
        late how = (late)(seed % LATE_WAYS);

        set_up(&m, &g);
        fsdp__allocator_account(m.allocator, NULL, FSDP_MEMORY_PARAMETER_SHARD, elsewhere, false);
        g.behind = how != ON_TIME;
        g.queued = 1;
        if (g.behind)
            fsdp__allocator_runs_behind(m.allocator);
        for (int n = 0; n < 30; n++)
            play_large(&m, &g, &dice, elsewhere, how);
        CHECK_EQ(g.settled, 0);
        fsdp__allocator_account(m.allocator, NULL, FSDP_MEMORY_PARAMETER_SHARD, -elsewhere, false);
        tear_down(&m);
    }
}

TEST(any_host_allocation_may_fail_in_a_step)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        model m = gpt2;
        growing g = {.limit = 4000 * MIB};
        fsdp_status status;

        m.allocator = growing_allocator(&g);
        status = m.allocator ? FSDP_OK : FSDP_NO_MEMORY;
        for (int i = 0; i < 3 && status == FSDP_OK; i++)
            status = step(&m, 0);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        tear_down(&m);
    }
}

/* More requests than are noted: all of them are served, and nothing has a place. */
TEST(a_step_that_is_too_long_has_no_places)
{
    model m = {.status = FSDP_OK};
    growing g;

    set_up(&m, &g);
    for (int n = 0; n < 2; n++) {
        CHECK_OK(fsdp__allocator_note_forward(m.allocator));
        for (int i = 0; i < 17000; i++) {
            held h = take(&m, MIB, FSDP_MEMORY_ACTIVATION);

            give(&m, &h);
        }
        fsdp__allocator_end_step(m.allocator);
    }
    CHECK_EQ(g.used, 2 * MIB);
    tear_down(&m);
}
