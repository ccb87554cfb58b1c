/* How clocks of machines are compared. */
#include "support/dice.h"
#include "support/ranks.h"
#include "watch/clocks.h"
#include "watch/trace_text.h"

enum {
    RANKS = 5
};

/* Draws rounds in which every rank enters before any leaves, on machines whose clocks are ahead by `ahead`. */
static void draw_rounds(uint64_t *d, const int64_t *ahead, fsdp__clock_rounds *ranks)
{
    for (int r = 0; r < RANKS; r++)
        ranks[r] = (fsdp__clock_rounds){.machine = r / 2, .count = FSDP__CLOCK_ROUNDS};
    for (int i = 0; i < FSDP__CLOCK_ROUNDS; i++) {
        int64_t met = 1000000000 + i * 1000000;

        for (int r = 0; r < RANKS; r++) {
            int64_t skew = ahead[ranks[r].machine];

            ranks[r].rounds[i].entered = met - dice_below(d, 50000) + skew;
            ranks[r].rounds[i].left = met + dice_below(d, 50000) + skew;
        }
    }
}

TEST(the_clocks_of_machines_differ_by_what_barriers_bound)
{
    for (uint64_t seed = 1; seed < 200; seed++) {
        uint64_t d = seed;
        const int64_t ahead[] = {0, dice_below(&d, 1000000000) - 500000000, dice_below(&d, 1000) - 500};
        fsdp__clock_rounds rounds[RANKS];
        const fsdp__clock_rounds *ranks[RANKS];

        for (int r = 0; r < RANKS; r++)
            ranks[r] = &rounds[r];
        draw_rounds(&d, ahead, rounds);
        for (int machine = 0; machine < 3; machine++) {
            fsdp__clock_offset o = fsdp__clock_offset_of(ranks, RANKS, machine);

            CHECK(o.ns - o.uncertain <= ahead[machine] && ahead[machine] <= o.ns + o.uncertain);
            CHECK(o.uncertain <= 50000); /* a single barrier bounds it by twice that */
        }
    }
}

TEST(a_time_is_that_of_rank_0_and_clocks_may_drift)
{
    const fsdp__trace_clock same = {.start = 100, .begun = 150, .ended = 1150}, drifts = {.start = 100,
                                                                                          .begun = 2000100,
                                                                                          .ended = 3000100,
                                                                                          .begun_offset = 2000000,
                                                                                          .ended_offset = 2000010};

    CHECK_EQ(fsdp__trace_time(&same, 175), 75);
    CHECK_EQ(fsdp__trace_time(&same, 20), 0); /* before it */
    CHECK_EQ(fsdp__trace_time(&drifts, 2000100), 0);
    CHECK_EQ(fsdp__trace_time(&drifts, 2500100), 500000 - 5);
    CHECK_EQ(fsdp__trace_time(&drifts, 3000100), 1000000 - 10);
}

RUN_TEST(machines_compare_their_clocks, test_run_machines, 2, 2, false)
{
    fsdp__clock_offset offsets[4];

    CHECK_OK(fsdp__clocks_compare(context, offsets));
    for (int r = 0; r < 4; r++) { /* these machines have one clock in truth */
        CHECK(offsets[r].ns - offsets[r].uncertain <= 0 && 0 <= offsets[r].ns + offsets[r].uncertain);
        CHECK_EQ(offsets[r].uncertain > 0, r >= 2);
    }
}
