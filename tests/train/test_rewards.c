/* Rewards and losses of pairs: by hand, far from zero, equal, smoothed, and not finite. */
#include "train/dpo.h"

#include <math.h>

#include "support/test.h"

TEST(means_are_over_all_pairs)
{
    const float sums[] = {-1, -4, -2, -2, -7, -3}, reference[] = {-2, -3, -2, -2, -5, -4};
    fsdp__rewards r = fsdp__rewards_of(sums, reference, 3, 0.5, 0); /* z: 1, 0, -1.5 */

    CHECK_NEAR(r.chosen, (0.5 + 0 - 1) / 3, 1e-12);
    CHECK_NEAR(r.rejected, (-0.5 + 0 + 0.5) / 3, 1e-12);
    CHECK_NEAR(r.margin, r.chosen - r.rejected, 1e-12);
    CHECK_NEAR(r.accuracy, 1.0 / 3, 1e-12); /* one that is equal loses */
    CHECK_NEAR(r.loss, (log1p(exp(-1)) + log(2) + log1p(exp(1.5))) / 3, 1e-12);
    r = fsdp__rewards_of(sums, reference, 1, 0.5, 0.2);
    CHECK_NEAR(r.loss, 0.8 * log1p(exp(-1)) + 0.2 * log1p(exp(1)), 1e-12);
}

TEST(far_from_zero_the_loss_is_the_distance)
{
    const float near[] = {0, -3000}, reference[] = {-3000, 0};

    CHECK(fsdp__rewards_of(near, reference, 1, 1, 0).loss == 0);
    CHECK_NEAR(fsdp__rewards_of(reference, near, 1, 1, 0).loss, 6000, 1e-9);
}

TEST(what_is_not_finite_stays_so)
{
    const float sums[] = {NAN, 0, -1, -2}, reference[] = {0, 0, 0, 0};
    fsdp__rewards r = fsdp__rewards_of(sums, reference, 2, 1, 0);

    CHECK(isnan(r.loss) && !signbit(r.loss) && isnan(r.margin));
    CHECK(r.accuracy == 0.5);
}
