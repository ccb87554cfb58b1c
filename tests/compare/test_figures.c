/* What several starts come to: medians, the slowest rank, the largest of a rank, losses to the digit. */
#include <math.h>

#include "compare/figures.h"
#include "support/test.h"

enum {
    RANKS = 2,
    STEPS = 5 /* that count */
};

static fsdp__start_record *records_create(void)
{
    fsdp__start_record *records = calloc(RANKS, sizeof *records);

    for (int rank = 0; rank < RANKS; rank++) {
        records[rank].done = true;
        records[rank].steps = FSDP__WARMUP_STEPS + STEPS;
        records[rank].tokens_per_step = 100;
        records[rank].resident_bytes = 1000;
        records[rank].resident_peak_bytes = (size_t)(rank + 1) * 3000;
        records[rank].memory.peak_bytes[FSDP_MEMORY_GRADIENT] = (size_t)(10 + rank);
        records[rank].memory.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE] = (size_t)(20 - rank);
        for (int i = 0; i < records[rank].steps; i++)
            records[rank].step[i] = (fsdp__step_figures){.loss = 1.0 / (i + 3), .ms = 1e6};
    }
    return records;
}

TEST(steps_come_to_their_median)
{
    static const double ms[STEPS] = {5, 1, 4, 2, 3};
    fsdp__start_record *records = records_create();
    fsdp__figures f = {.has = false};

    for (int i = 0; i < STEPS; i++) {
        records[0].step[FSDP__WARMUP_STEPS + i] = (fsdp__step_figures){.ms = ms[i], .gather_ms = 1, .reduce_ms = 3};
        records[1].step[FSDP__WARMUP_STEPS + i] = (fsdp__step_figures){.ms = 2 * ms[i], .gather_ms = 2, .reduce_ms = 4};
    }
    for (int start = 0; start < 2; start++)
        CHECK_OK(fsdp__figures_add(&f, records, RANKS));
    CHECK(!f.has);
    CHECK_OK(fsdp__figures_finish(&f));
    CHECK(f.has);
    CHECK(f.starts_agree);
    CHECK_EQ(f.starts, 2);
    CHECK_EQ(f.step_count, 2 * STEPS);
    CHECK_NEAR(f.step_ms, 6, 1e-12);   /* of 2 2 4 4 6 6 8 8 10 10 */
    CHECK_NEAR(f.spread_ms, 2, 1e-12); /* from 4 to 8 */
    CHECK_NEAR(f.gather_ms, 1.5, 1e-12);
    CHECK_NEAR(f.reduce_ms, 3.5, 1e-12);
    CHECK_NEAR(f.tokens_per_second, 100 / 6e-3, 1e-6);
    CHECK_EQ(f.memory.peak_bytes[FSDP_MEMORY_GRADIENT], 11);
    CHECK_EQ(f.memory.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE], 20);
    CHECK_EQ(f.resident_bytes, 2000);
    CHECK_EQ(f.resident_peak_bytes, 6000);
    records[1].resident_bytes = 0; /* not known: no start's is taken back */
    records[0].step[3].loss += 1e-9;
    CHECK_OK(fsdp__figures_add(&f, records, RANKS));
    CHECK_EQ(f.resident_bytes, 2000);
    CHECK(!f.starts_agree);
    fsdp__figures_release(&f);
    free(records);
}

static int agree(double a, double b)
{
    fsdp__figures x = {.loss_count = 2, .losses = {1, a}}, y = {.loss_count = 3, .losses = {1, b, 7}};

    CHECK_EQ(fsdp__figures_agree(&x, &y), fsdp__figures_agree(&y, &x));
    return fsdp__figures_agree(&x, &y);
}

TEST(losses_agree_to_a_digit_or_to_the_bit)
{
    CHECK_EQ(agree(5.25, 5.25), FSDP__SAME_BITS);
    CHECK_EQ(agree(NAN, NAN), FSDP__SAME_BITS);
    CHECK_EQ(agree(NAN, 1), 0);
    CHECK_EQ(agree(INFINITY, 1), 0);
    CHECK_EQ(agree(0.0, -0.0), FSDP__SAME_BITS - 1);
    CHECK_EQ(agree(2, -2), 0);
    CHECK_EQ(agree(5.123456, 5.123457), 6);
    CHECK_EQ(agree(5, 6), 0);
    CHECK(agree(1, nextafter(1, 2)) == FSDP__SAME_BITS - 2);
}

TEST(what_has_failed_has_no_figures)
{
    fsdp__start_record *records = records_create();
    fsdp__figures f = {.failure = "rank 1 was killed"};

    CHECK_OK(fsdp__figures_add(&f, records, RANKS));
    CHECK_OK(fsdp__figures_finish(&f));
    CHECK(!f.has);
    fsdp__figures_release(&f);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp__figures_add(&f, records, RANKS);

        if (status == FSDP_OK)
            status = fsdp__figures_finish(&f);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__figures_release(&f);
    }
    free(records);
}
