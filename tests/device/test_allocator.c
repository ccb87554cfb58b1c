/* The ledger against a shadow: random programs of allocations and frees. */
#include "device/allocator.h"

#include <string.h>
#include <sys/mman.h>

#include "device/device.h"
#include "support/growing.h"

enum {
    SLOTS = 300,
    STEPS = 6000
};

typedef struct shadow {
    unsigned char *data;
    size_t bytes;
    fsdp_memory_kind kind;
} shadow;

/* Segments larger than this are refused, so that a test can run out of memory at no cost. */
#define SYSTEM_LIMIT (600 * MIB)

static fsdp_status segment_alloc(void *arg, size_t bytes, void **out)
{
    void *data;

    (void)arg;
    if (bytes > SYSTEM_LIMIT)
        return FSDP_FAIL(FSDP_NO_MEMORY, "the test system has no %zu bytes", bytes);
    data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(data != MAP_FAILED);
    *out = data;
    return FSDP_OK;
}

static void segment_free(void *arg, void *segment, size_t bytes)
{
    (void)arg;
    CHECK_EQ(munmap(segment, bytes), 0);
}

static const fsdp__segment_source source = {
    .name = "test", .has_bytes = true, .alloc = segment_alloc, .free = segment_free};

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Mostly small, some large, few huge; never a round number. */
static size_t draw_bytes(uint64_t *seed)
{
    uint32_t shape = draw(seed) % 100;

    if (shape < 70)
        return 1 + draw(seed) % 5000;
    if (shape < 97)
        return 1 + draw(seed) % (3 << 20);
    return 1 + draw(seed) % (40u << 20);
}

static void check_against(fsdp__allocator *allocator, const shadow *slots)
{
    fsdp_memory_stats stats;
    size_t live[FSDP_MEMORY_KINDS] = {0}, total = 0;

    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].data) {
            live[slots[i].kind] += (slots[i].bytes + 63) / 64 * 64;
            total += (slots[i].bytes + 63) / 64 * 64;
        }
    }
    fsdp__allocator_stats(allocator, &stats);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        CHECK_EQ(stats.live_bytes[kind], live[kind]);
        CHECK(stats.peak_bytes[kind] >= live[kind]);
    }
    CHECK_EQ(stats.live_total_bytes, total);
    CHECK(stats.peak_total_bytes >= total);
    CHECK(stats.reserved_bytes >= total);
}

static void check_apart(const shadow *slots, const shadow *fresh)
{
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].data && &slots[i] != fresh)
            CHECK(slots[i].data + slots[i].bytes <= fresh->data || fresh->data + fresh->bytes <= slots[i].data);
}

static void give(fsdp__allocator *allocator, shadow *slot)
{
    unsigned char stamp = (unsigned char)(slot->bytes * 31);

    CHECK_EQ(slot->data[0], stamp); /* nobody wrote over it */
    CHECK_EQ(slot->data[slot->bytes - 1], stamp);
    CHECK(fsdp__allocator_give(allocator, slot->data));
    *slot = (shadow){0};
}

/* One program of allocations and frees. */
static void run_program(fsdp__allocator *allocator, uint64_t seed)
{
    shadow slots[SLOTS] = {{0}};

    for (int step = 0; step < STEPS; step++) {
        shadow *slot = &slots[draw(&seed) % SLOTS];
        void *data = NULL;

        if (slot->data) {
            give(allocator, slot);
        } else {
            slot->bytes = draw_bytes(&seed);
            slot->kind = (fsdp_memory_kind)(draw(&seed) % FSDP_MEMORY_KINDS);
            CHECK_OK(fsdp__allocator_take(allocator, slot->bytes, slot->kind, &data));
            slot->data = data;
            CHECK_EQ((uintptr_t)data % 64, 0);
            memset(slot->data, (unsigned char)(slot->bytes * 31), 1);
            slot->data[slot->bytes - 1] = (unsigned char)(slot->bytes * 31);
            check_apart(slots, slot);
        }
        if (step % 97 == 0)
            check_against(allocator, slots);
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].data)
            give(allocator, &slots[i]);
    check_against(allocator, slots);
}

TEST(blocks_never_overlap_and_every_byte_is_counted)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        fsdp__allocator *allocator = NULL;

        CHECK_OK(fsdp__allocator_create(&source, &allocator));
        run_program(allocator, seed);
        fsdp__allocator_free(allocator);
    }
}

TEST(a_second_equal_round_asks_the_system_for_nothing)
{
    fsdp__allocator *allocator = NULL;
    fsdp_memory_stats first, second;

    CHECK_OK(fsdp__allocator_create(&source, &allocator));
    run_program(allocator, 7);
    fsdp__allocator_stats(allocator, &first);
    for (int round = 0; round < 3; round++)
        run_program(allocator, 7);
    fsdp__allocator_stats(allocator, &second);
    CHECK(first.system_allocations > 0);
    CHECK_EQ(second.system_allocations, first.system_allocations);
    CHECK_EQ(second.reserved_bytes, first.reserved_bytes);
    CHECK_EQ(second.peak_total_bytes, first.peak_total_bytes);
    fsdp__allocator_free(allocator);
}

/* Places are compared where they are comparable: within the first block's segment. */
TEST(the_same_program_gets_the_same_places)
{
    size_t places[2][200];
    fsdp__allocator *others[2] = {NULL, NULL};

    for (int run = 0; run < 2; run++) {
        unsigned char *blocks[200] = {NULL}, *base = NULL;
        uint64_t seed = 11;

        CHECK_OK(fsdp__allocator_create(&source, &others[run]));
        for (int i = 0; i < 200; i++) {
            void *data = NULL;
            int old = i >= 20 ? (int)(draw(&seed) % (unsigned)i) : i;

            if (blocks[old]) {
                CHECK(fsdp__allocator_give(others[run], blocks[old]));
                blocks[old] = NULL;
            }
            CHECK_OK(fsdp__allocator_take(others[run], 1 + draw(&seed) % 9000, FSDP_MEMORY_ACTIVATION, &data));
            blocks[i] = data;
            base = base ? base : data;
            places[run][i] = (size_t)(blocks[i] - base);
        }
    }
    CHECK_BYTES(places[0], places[1], sizeof places[0]);
    fsdp__allocator_free(others[0]);
    fsdp__allocator_free(others[1]);
}

TEST(neighbours_become_one_block_again)
{
    fsdp__allocator *allocator = NULL;
    void *parts[8], *whole = NULL;
    fsdp_memory_stats stats;

    CHECK_OK(fsdp__allocator_create(&source, &allocator));
    for (int i = 0; i < 8; i++)
        CHECK_OK(fsdp__allocator_take(allocator, 4 * MIB, FSDP_MEMORY_GRADIENT, &parts[i]));
    for (int i = 0; i < 8; i += 2)
        CHECK(fsdp__allocator_give(allocator, parts[i]));
    for (int i = 7; i > 0; i -= 2)
        CHECK(fsdp__allocator_give(allocator, parts[i]));
    CHECK_OK(fsdp__allocator_take(allocator, 32 * MIB, FSDP_MEMORY_GRADIENT, &whole));
    CHECK(whole == parts[0]);
    fsdp__allocator_stats(allocator, &stats);
    CHECK_EQ(stats.system_allocations, 1);
    CHECK(fsdp__allocator_give(allocator, whole));
    fsdp__allocator_free(allocator);
}

TEST(small_requests_do_not_cut_large_segments)
{
    fsdp__allocator *allocator = NULL;
    void *large = NULL, *small = NULL, *again = NULL;

    CHECK_OK(fsdp__allocator_create(&source, &allocator));
    CHECK_OK(fsdp__allocator_take(allocator, 32 * MIB, FSDP_MEMORY_ACTIVATION, &large));
    CHECK(fsdp__allocator_give(allocator, large));
    CHECK_OK(fsdp__allocator_take(allocator, 1000, FSDP_MEMORY_ACTIVATION, &small));
    CHECK_OK(fsdp__allocator_take(allocator, 32 * MIB, FSDP_MEMORY_ACTIVATION, &again));
    CHECK(again == large);
    CHECK(fsdp__allocator_give(allocator, small));
    CHECK(fsdp__allocator_give(allocator, again));
    fsdp__allocator_free(allocator);
}

TEST(out_of_memory_says_what_is_held)
{
    fsdp__allocator *allocator = NULL;
    void *held = NULL, *none = NULL;
    fsdp_memory_stats stats;

    CHECK_OK(fsdp__allocator_create(&source, &allocator));
    CHECK_OK(fsdp__allocator_take(allocator, 1000, FSDP_MEMORY_OPTIMIZER_STATE, &held));
    CHECK_ERROR(fsdp__allocator_take(allocator, 700 * MIB, FSDP_MEMORY_GRADIENT, &none), FSDP_NO_MEMORY,
                "cannot allocate 700.0MiB of gradient on device 'test' (1.0KiB live, 2.0MiB reserved)");
    CHECK_NULL(none);
    CHECK_ERROR(fsdp__allocator_take(allocator, SIZE_MAX - 100, FSDP_MEMORY_GRADIENT, &none), FSDP_NO_MEMORY,
                "of gradient");
    CHECK_ERROR(fsdp__allocator_take(allocator, SIZE_MAX, FSDP_MEMORY_GRADIENT, &none), FSDP_NO_MEMORY, "of gradient");
    fsdp__allocator_stats(allocator, &stats);
    CHECK_EQ(stats.live_total_bytes, 1024);
    CHECK(fsdp__allocator_give(allocator, held));
    fsdp__allocator_free(allocator);
}

TEST(a_huge_request_that_fails_returns_what_is_unused)
{
    fsdp__allocator *allocator = NULL;
    void *large = NULL, *small = NULL, *none = NULL;
    fsdp_memory_stats stats;

    CHECK_OK(fsdp__allocator_create(&source, &allocator));
    CHECK_OK(fsdp__allocator_take(allocator, 40 * MIB, FSDP_MEMORY_ACTIVATION, &large));
    CHECK_OK(fsdp__allocator_take(allocator, 100, FSDP_MEMORY_ACTIVATION, &small));
    CHECK(fsdp__allocator_give(allocator, large));
    CHECK_STATUS(fsdp__allocator_take(allocator, 700 * MIB, FSDP_MEMORY_ACTIVATION, &none), FSDP_NO_MEMORY);
    fsdp__allocator_stats(allocator, &stats);
    CHECK_EQ(stats.reserved_bytes, 2 * MIB); /* the segment of `small` */
    CHECK_OK(fsdp__allocator_take(allocator, 40 * MIB, FSDP_MEMORY_ACTIVATION, &large));
    CHECK(fsdp__allocator_give(allocator, large));
    CHECK(fsdp__allocator_give(allocator, small));
    fsdp__allocator_free(allocator);
}

TEST(what_is_not_live_is_not_taken_back)
{
    fsdp__allocator *allocator = NULL;
    void *data = NULL;

    CHECK_OK(fsdp__allocator_create(&source, &allocator));
    CHECK(!fsdp__allocator_give(allocator, &allocator));
    CHECK_OK(fsdp__allocator_take(allocator, 64, FSDP_MEMORY_WORKSPACE, &data));
    CHECK(fsdp__allocator_give(allocator, data));
    CHECK(!fsdp__allocator_give(allocator, data));
    fsdp__allocator_free(allocator);
}

TEST(a_block_of_another_kind_is_given_back_as_that)
{
    fsdp__allocator *allocator = NULL;
    fsdp_memory_stats stats;
    fsdp_memory_kind before = FSDP_MEMORY_WORKSPACE;
    void *data = NULL;

    CHECK_OK(fsdp__allocator_create(&source, &allocator));
    CHECK_EQ(fsdp__allocator_recount(allocator, &allocator, FSDP_MEMORY_GRADIENT, &before), 0);
    CHECK_OK(fsdp__allocator_take(allocator, 100, FSDP_MEMORY_ACTIVATION, &data));
    CHECK_EQ(fsdp__allocator_recount(allocator, &allocator, FSDP_MEMORY_GRADIENT, &before), 0); /* no live block */
    CHECK_EQ(fsdp__allocator_recount(allocator, data, FSDP_MEMORY_GRADIENT, &before), 128);
    CHECK_EQ(before, FSDP_MEMORY_ACTIVATION);
    fsdp__allocator_stats(allocator, &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_ACTIVATION], 0);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 128);
    CHECK_EQ(stats.peak_total_bytes, 128);
    CHECK(fsdp__allocator_give(allocator, data));
    fsdp__allocator_stats(allocator, &stats);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        CHECK_EQ(stats.live_bytes[kind], 0);
    fsdp__allocator_free(allocator);
}

/* ---- segments that grow ---- */

static void check_reserved(fsdp__allocator *allocator, const growing *g, size_t bytes)
{
    fsdp_memory_stats stats;

    fsdp__allocator_stats(allocator, &stats);
    CHECK_EQ(stats.reserved_bytes, bytes);
    CHECK_EQ(g->used, bytes);
}

TEST(a_segment_grows_by_what_is_missing)
{
    growing g = {.limit = 1000 * MIB};
    fsdp__allocator *allocator = growing_allocator(&g);
    void *blocks[4] = {NULL};

    CHECK_OK(fsdp__allocator_take(allocator, 10 * MIB, FSDP_MEMORY_ACTIVATION, &blocks[0]));
    check_reserved(allocator, &g, 10 * MIB);
    CHECK_OK(fsdp__allocator_take(allocator, 3 * MIB, FSDP_MEMORY_ACTIVATION, &blocks[1]));
    check_reserved(allocator, &g, 14 * MIB);
    CHECK(fsdp__allocator_give(allocator, blocks[1]));
    CHECK_OK(fsdp__allocator_take(allocator, 9 * MIB, FSDP_MEMORY_ACTIVATION, &blocks[1])); /* 4 of it were there */
    check_reserved(allocator, &g, 20 * MIB);
    CHECK_OK(fsdp__allocator_take(allocator, 5, FSDP_MEMORY_ACTIVATION, &blocks[2])); /* among the small */
    check_reserved(allocator, &g, 22 * MIB);
    CHECK(fsdp__allocator_give(allocator, blocks[0]));
    CHECK(fsdp__allocator_give(allocator, blocks[1]));
    CHECK_OK(fsdp__allocator_take(allocator, 20 * MIB, FSDP_MEMORY_ACTIVATION, &blocks[0]));
    CHECK(fsdp__allocator_covers(allocator, (char *)blocks[0] + 20 * MIB - 1, 1));
    check_reserved(allocator, &g, 22 * MIB);
    fsdp__allocator_free(allocator);
}

/* The blocks of steps: what forwards keep is given back in the other order, among temporary ones and gradients. */
static void take_steps(fsdp__allocator *allocator, int steps)
{
    enum {
        LAYERS = 24
    };
    void *kept[LAYERS][2], *gradients[LAYERS], *temporary;

    for (int i = 0; i < steps; i++) {
        for (int l = 0; l < LAYERS; l++) {
            CHECK_OK(fsdp__allocator_take(allocator, 9 * MIB + 64, FSDP_MEMORY_ACTIVATION, &kept[l][0]));
            CHECK_OK(fsdp__allocator_take(allocator, 30 * MIB, FSDP_MEMORY_WORKSPACE, &temporary));
            CHECK_OK(fsdp__allocator_take(allocator, 3 * MIB, FSDP_MEMORY_ACTIVATION, &kept[l][1]));
            CHECK(fsdp__allocator_give(allocator, temporary));
        }
        for (int l = LAYERS - 1; l >= 0; l--) {
            CHECK_OK(fsdp__allocator_take(allocator, 30 * MIB, FSDP_MEMORY_WORKSPACE, &temporary));
            CHECK(fsdp__allocator_give(allocator, kept[l][1]));
            CHECK_OK(fsdp__allocator_take(allocator, 7 * MIB, FSDP_MEMORY_GRADIENT, &gradients[l]));
            CHECK(fsdp__allocator_give(allocator, kept[l][0]));
            CHECK(fsdp__allocator_give(allocator, temporary));
        }
        for (int l = 0; l < LAYERS; l++)
            CHECK(fsdp__allocator_give(allocator, gradients[l]));
    }
}

TEST(steps_reserve_less_in_a_segment_that_grows_and_come_to_rest)
{
    growing g = {.limit = 3000 * MIB};
    fsdp__allocator *grown = growing_allocator(&g), *pieces = NULL;
    fsdp_memory_stats first, later, of_pieces;

    CHECK_OK(fsdp__allocator_create(&source, &pieces));
    take_steps(pieces, 3);
    fsdp__allocator_stats(pieces, &of_pieces);
    take_steps(grown, 2);
    fsdp__allocator_stats(grown, &first);
    take_steps(grown, 1);
    fsdp__allocator_stats(grown, &later);
    CHECK_EQ(later.system_allocations, first.system_allocations);
    CHECK_EQ(later.peak_total_bytes, of_pieces.peak_total_bytes);
    CHECK(later.reserved_bytes < of_pieces.reserved_bytes);
    fsdp__allocator_free(grown);
    fsdp__allocator_free(pieces);
}

/* Each block is larger than the hole beside it, so that this is cut out, and the segment's addresses come to their end.
 */
TEST(a_segment_goes_with_the_addresses_of_its_holes)
{
    growing g = {.limit = 100 * MIB, .range = 512 * MIB};
    fsdp__allocator *allocator = growing_allocator(&g);
    const size_t sizes[] = {40, 50, 44, 52};
    void *blocks[2];

    for (int round = 0; round < 80; round++) {
        for (int i = 0; i < 4; i++) {
            if (i >= 2)
                CHECK(fsdp__allocator_give(allocator, blocks[i % 2]));
            CHECK_OK(fsdp__allocator_take(allocator, sizes[i] * MIB, FSDP_MEMORY_ACTIVATION, &blocks[i % 2]));
        }
        CHECK(fsdp__allocator_give(allocator, blocks[0]));
        CHECK(fsdp__allocator_give(allocator, blocks[1]));
    }
    (void)fsdp__allocator_shrink(allocator);
    check_reserved(allocator, &g, 0);
    for (int i = 0; i < GROWING_SEGMENTS; i++)
        CHECK(!g.ends[i].segment);
    fsdp__allocator_free(allocator);
}

TEST(holes_are_given_back_where_nothing_else_is_left)
{
    growing g = {.limit = 82 * MIB};
    fsdp__allocator *allocator = growing_allocator(&g);
    void *first, *hole, *last, *large = NULL, *none = NULL;

    fsdp__allocator_runs_behind(allocator);
    CHECK_OK(fsdp__allocator_take(allocator, 10 * MIB, FSDP_MEMORY_ACTIVATION, &first));
    CHECK_OK(fsdp__allocator_take(allocator, 50 * MIB, FSDP_MEMORY_ACTIVATION, &hole));
    CHECK_OK(fsdp__allocator_take(allocator, 10 * MIB, FSDP_MEMORY_ACTIVATION, &last));
    memset(first, 1, 10 * MIB);
    memset(last, 2, 10 * MIB);
    CHECK(fsdp__allocator_give(allocator, hole));
    check_reserved(allocator, &g, 70 * MIB);
    CHECK_OK(fsdp__allocator_take(allocator, 56 * MIB, FSDP_MEMORY_ACTIVATION, &large));
    check_reserved(allocator, &g, 78 * MIB); /* 12 to 60 MiB are gone */
    CHECK_EQ(g.settled, 1);
    memset(large, 3, 56 * MIB);
    CHECK_EQ(((unsigned char *)first)[10 * MIB - 1], 1);
    CHECK_EQ(((unsigned char *)last)[0], 2);
    CHECK(!fsdp__allocator_covers(allocator, (char *)first + 20 * MIB, 1));
    CHECK_OK(fsdp__allocator_take(allocator, 2 * MIB, FSDP_MEMORY_ACTIVATION, &hole)); /* what is left of the hole */
    CHECK(hole == (char *)first + 10 * MIB);
    CHECK_ERROR(fsdp__allocator_take(allocator, 6 * MIB, FSDP_MEMORY_ACTIVATION, &none), FSDP_NO_MEMORY,
                "(78.0MiB live, 78.0MiB reserved): the test system has no 6291456 bytes");
    CHECK(fsdp__allocator_give(allocator, hole));
    CHECK_STATUS(fsdp__allocator_take(allocator, 7 * MIB, FSDP_MEMORY_ACTIVATION, &none), FSDP_NO_MEMORY);
    CHECK_EQ(g.settled, 1);                        /* there is nothing to return: 2 MiB are no step */
    CHECK(fsdp__allocator_give(allocator, first)); /* no block reaches into what is gone */
    CHECK(fsdp__allocator_give(allocator, last));
    CHECK(fsdp__allocator_give(allocator, large));
    CHECK_OK(fsdp__allocator_take(allocator, 66 * MIB, FSDP_MEMORY_ACTIVATION, &large));
    memset(large, 4, 66 * MIB);
    fsdp__allocator_free(allocator);
}

TEST(blocks_of_segments_that_grow_never_overlap)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        growing g = {.limit = 3000 * MIB};
        fsdp__allocator *allocator = growing_allocator(&g);
        fsdp_memory_stats stats;

        run_program(allocator, seed);
        fsdp__allocator_stats(allocator, &stats);
        CHECK_EQ(stats.reserved_bytes, g.used);
        g.limit = stats.peak_total_bytes / 4 * 5; /* from here on there is no more than holes and a little */
        run_program(allocator, seed + 10);
        fsdp__allocator_free(allocator);
    }
}

TEST(bytes_elsewhere_are_counted_and_shared_ones_told_apart)
{
    fsdp__allocator *allocator = NULL;
    fsdp_memory_stats stats;

    CHECK_OK(fsdp__allocator_create(&source, &allocator));
    CHECK_EQ(fsdp__allocator_account(allocator, NULL, FSDP_MEMORY_PARAMETER_SHARD, 100, true), 128);
    CHECK_EQ(fsdp__allocator_account(allocator, NULL, FSDP_MEMORY_GRADIENT, 64, false), 64);
    fsdp__allocator_stats(allocator, &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], 128);
    CHECK_EQ(stats.shared_bytes, 128);
    CHECK_EQ(stats.live_total_bytes, 192);
    CHECK_EQ(stats.reserved_bytes, 0);
    CHECK_EQ(fsdp__allocator_account(allocator, NULL, FSDP_MEMORY_PARAMETER_SHARD, -100, true), -128);
    CHECK_EQ(fsdp__allocator_account(allocator, NULL, FSDP_MEMORY_GRADIENT, -64, false), -64);
    fsdp__allocator_stats(allocator, &stats);
    CHECK_EQ(stats.live_total_bytes, 0);
    CHECK_EQ(stats.shared_bytes, 0);
    CHECK_EQ(stats.peak_total_bytes, 192);
    fsdp__allocator_reset_peak(allocator);
    fsdp__allocator_stats(allocator, &stats);
    CHECK_EQ(stats.peak_total_bytes, 0);
    CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_PARAMETER_SHARD], 0);
    fsdp__allocator_free(allocator);
}

TEST(any_host_allocation_may_fail)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__allocator *allocator = NULL;
        void *blocks[200] = {NULL};
        fsdp_status status = fsdp__allocator_create(&source, &allocator);
        fsdp_memory_stats stats;

        /* Enough for every table of the allocator to grow. */
        for (int i = 0; i < 200 && status == FSDP_OK; i++)
            status = fsdp__allocator_take(allocator, 64 + (size_t)i * 3000, FSDP_MEMORY_ACTIVATION, &blocks[i]);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        for (int i = 0; i < 200; i++)
            CHECK(!blocks[i] || fsdp__allocator_give(allocator, blocks[i]));
        if (allocator) {
            fsdp__allocator_stats(allocator, &stats);
            CHECK_EQ(stats.live_total_bytes, 0);
        }
        fsdp__allocator_free(allocator);
    }
}
