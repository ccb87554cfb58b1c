/* rewards.c - rewards and loss of pairs, in double and in their order: the same bits on any number of ranks. */
#include "train/rewards.h"

#include <math.h>

/* Returns -log sigmoid(z). */
static double cost_of(double z)
{
    return fmax(-z, 0) + log1p(exp(-fabs(z)));
}

fsdp__rewards fsdp__rewards_of(const float *sums, const float *reference, int64_t pairs, double beta,
                               double label_smoothing)
{
    fsdp__rewards all = {0};
    double count = (double)pairs;

    for (int64_t i = 0; i < pairs; i++) {
        double chosen = beta * ((double)sums[2 * i] - (double)reference[2 * i]);
        double rejected = beta * ((double)sums[2 * i + 1] - (double)reference[2 * i + 1]);
        double z = chosen - rejected;

        all.loss += (1 - label_smoothing) * cost_of(z) + label_smoothing * cost_of(-z);
        all.chosen += chosen;
        all.rejected += rejected;
        all.accuracy += chosen > rejected;
    }
    return (fsdp__rewards){.loss = isnan(all.loss) ? NAN : all.loss / count,
                           .chosen = all.chosen / count,
                           .rejected = all.rejected / count,
                           .margin = (all.chosen - all.rejected) / count,
                           .accuracy = all.accuracy / count};
}
