/* rope_frequencies.c - frequencies of Llama's rotary positions. */
#include <math.h>

#include "models/models.h"

/* Scales as llama3 does: a wave that turns less than rope_low_freq_factor times in the original context is stretched by
 * rope_factor, one that turns more than rope_high_freq_factor times is kept, and those between are blended. */
static double stretch(const fsdp_model_config *config, double frequency)
{
    double turns = (double)config->rope_original_max_seq_len * frequency / (2 * M_PI); /* in the original context */
    double low = (double)config->rope_low_freq_factor, high = (double)config->rope_high_freq_factor;
    double kept = (turns - low) / (high - low);

    if (turns < low)
        return frequency / (double)config->rope_factor;
    if (turns > high)
        return frequency;
    return (1 - kept) * frequency / (double)config->rope_factor + kept * frequency;
}

static double scale(const fsdp_model_config *config, double frequency)
{
    if (config->rope_type == FSDP_ROPE_LLAMA3)
        return stretch(config, frequency);
    return config->rope_type == FSDP_ROPE_LINEAR ? frequency / (double)config->rope_factor : frequency;
}

void fsdp__rope_frequencies(const fsdp_model_config *config, float *out)
{
    for (int64_t i = 0; i < config->head_dim / 2; i++) {
        double exponent = (double)(2 * i) / (double)config->head_dim;

        out[i] = (float)scale(config, 1 / pow((double)config->rope_theta, exponent));
    }
}
