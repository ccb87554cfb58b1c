/* rope_frequencies.c - frequencies of Llama's rotary positions. */
#include <math.h>

#include "base/compiler.h"
#include "models/models.h"

int64_t fsdp__rotary_dim(const fsdp_model_config *config)
{
    double fraction = config->rotary_fraction > 0 ? (double)config->rotary_fraction : 1;

    return (int64_t)((double)config->head_dim * fraction + 1e-4); /* a float may lie below what was written */
}

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

/* Returns the number, with a fraction, of the frequency that turns so often in the original context. */
static double number_of(const fsdp_model_config *config, float turns)
{
    double wave = (double)config->rope_original_max_seq_len / ((double)turns * 2 * M_PI);

    return (double)fsdp__rotary_dim(config) * log(wave) / (2 * log((double)config->rope_theta));
}

/* Scales frequency `i` as yarn does: the first ones, which turn more than rope_beta_fast times in the original context,
 * are kept, the last ones are divided by rope_factor, and those on the ramp between them are blended. */
static double ramp(const fsdp_model_config *config, int64_t i, double frequency)
{
    double from = number_of(config, config->rope_beta_fast), to = number_of(config, config->rope_beta_slow), divided;

    if (!config->rope_keep_ramp) {
        from = floor(from);
        to = ceil(to);
    }
    from = FSDP__MAX(from, 0);
    to = FSDP__MIN(to, (double)fsdp__rotary_dim(config) - 1);
    to = from == to ? to + 0.001 : to;
    divided = FSDP__MIN(FSDP__MAX(((double)i - from) / (to - from), 0), 1);
    return frequency / (double)config->rope_factor * divided + frequency * (1 - divided);
}

static double scale(const fsdp_model_config *config, int64_t i, int64_t length, double frequency)
{
    if (config->rope_type == FSDP_ROPE_LONGROPE)
        return frequency /
               (double)(fsdp__rope_length(config, length) ? config->rope_long_factors : config->rope_short_factors)[i];
    if (config->rope_type == FSDP_ROPE_LLAMA3)
        return stretch(config, frequency);
    if (config->rope_type == FSDP_ROPE_YARN)
        return ramp(config, i, frequency);
    return config->rope_type == FSDP_ROPE_LINEAR ? frequency / (double)config->rope_factor : frequency;
}

int64_t fsdp__rope_length(const fsdp_model_config *config, int64_t length)
{
    int64_t original = config->rope_original_max_seq_len;

    if (config->rope_type == FSDP_ROPE_LONGROPE)
        return length > original ? original + 1 : 0;
    return config->rope_type == FSDP_ROPE_DYNAMIC && length > config->max_seq_len ? length : 0;
}

/* Returns theta, which grows with the calls that are longer than all positions. */
static double theta_of(const fsdp_model_config *config, int64_t length)
{
    double factor = (double)config->rope_factor, dim = (double)fsdp__rotary_dim(config);
    double theta = (double)config->rope_theta, ratio = (double)length / (double)config->max_seq_len;

    if (config->rope_type != FSDP_ROPE_DYNAMIC || ratio <= 1)
        return theta;
    return theta * pow(factor * ratio - (factor - 1), dim / (dim - 2));
}

void fsdp__rope_frequencies(const fsdp_model_config *config, int64_t length, bool local, float *out)
{
    int64_t dim = fsdp__rotary_dim(config);
    bool own = local && config->local_rope_theta > 0;
    double theta = own ? (double)config->local_rope_theta : theta_of(config, length);

    for (int64_t i = 0; i < dim / 2; i++) {
        double frequency = 1 / pow(theta, (double)(2 * i) / (double)dim);

        out[i] = (float)(own ? frequency : scale(config, i, length, frequency));
    }
}

static double sharper(const fsdp_model_config *config, float by)
{
    return config->rope_factor <= 1 ? 1 : 0.1 * (double)by * log((double)config->rope_factor) + 1;
}

double fsdp__rope_attention_factor(const fsdp_model_config *config)
{
    if (config->rope_type != FSDP_ROPE_YARN && config->rope_type != FSDP_ROPE_LONGROPE)
        return 1;
    if (config->rope_attention_factor > 0)
        return (double)config->rope_attention_factor;
    if (config->rope_type == FSDP_ROPE_LONGROPE)
        return config->rope_factor <= 1
                   ? 1
                   : sqrt(1 + log((double)config->rope_factor) / log((double)config->rope_original_max_seq_len));
    if (config->rope_mscale != 0 && config->rope_mscale_all_dim != 0)
        return sharper(config, config->rope_mscale) / sharper(config, config->rope_mscale_all_dim);
    return sharper(config, 1);
}
