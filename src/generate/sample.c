/* sample.c - from logits to a token. */
#include <math.h>
#include <stdlib.h>

#include "generate/generate.h"

/* Highest first; among equals the lowest id. */
static int by_logit(const void *a, const void *b)
{
    const fsdp__candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static int32_t most_likely(const float *logits, int64_t vocab_size)
{
    int64_t best = 0;

    for (int64_t i = 1; i < vocab_size; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* The first candidate at which the running sum of probabilities passes `draw`. */
static int32_t draw_one(const fsdp__candidate *candidates, int64_t count, float best, float temperature, float draw)
{
    double total = 0, sum = 0;

    for (int64_t i = 0; i < count; i++)
        total += exp(((double)candidates[i].logit - (double)best) / (double)temperature);
    for (int64_t i = 0; i < count; i++) {
        sum += exp(((double)candidates[i].logit - (double)best) / (double)temperature);
        if (sum > (double)draw * total)
            return candidates[i].token;
    }
    return candidates[count - 1].token;
}

fsdp_status fsdp__sample(const float *logits, int64_t vocab_size, float temperature, int64_t top_k, float draw,
                         fsdp__candidate *scratch, int32_t *out)
{
    int32_t best;

    for (int64_t i = 0; i < vocab_size; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return FSDP_FAIL(FSDP_STATE, "cannot generate: the model's logit of token %lld is %g", (long long)i,
                             isnan(logits[i]) ? (double)NAN : (double)logits[i]);
    best = most_likely(logits, vocab_size);
    if (temperature == 0) {
        *out = best;
        return FSDP_OK;
    }
    for (int64_t i = 0; i < vocab_size; i++)
        scratch[i] = (fsdp__candidate){.logit = logits[i], .token = (int32_t)i};
    if (top_k > 0 && top_k < vocab_size)
        qsort(scratch, (size_t)vocab_size, sizeof *scratch, by_logit);
    *out = draw_one(scratch, top_k > 0 && top_k < vocab_size ? top_k : vocab_size, logits[best], temperature, draw);
    return FSDP_OK;
}
