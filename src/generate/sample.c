/* sample.c - chooses a token by its logits. */
#include <math.h>

#include "base/compiler.h"
#include "generate/generate.h"

/* The tokens to draw from. A choice takes them from the top of a heap, the most likely first, so that only few tokens
 * of a large vocabulary are looked at. */
typedef struct candidates {
    fsdp__candidate *items;
    int64_t count;
    double best, temperature;
} candidates;

/* Returns the weight of a candidate relative to that of the most likely one. */
static double weight(const candidates *c, int64_t i)
{
    return exp(((double)c->items[i].logit - c->best) / c->temperature);
}

static double total_weight(const candidates *c)
{
    double total = 0;

    for (int64_t i = 0; i < c->count; i++)
        total += weight(c, i);
    return total;
}

/* ---- the most likely first ---- */

/* Returns whether `a` is more likely; of equals, the lowest id comes first. */
static bool before(const fsdp__candidate *a, const fsdp__candidate *b)
{
    return a->logit != b->logit ? a->logit > b->logit : a->token < b->token;
}

static void swap(fsdp__candidate *a, fsdp__candidate *b)
{
    fsdp__candidate kept = *a;

    *a = *b;
    *b = kept;
}

static void sift_down(fsdp__candidate *heap, int64_t at, int64_t count)
{
    for (;;) {
        int64_t child = 2 * at + 1;

        if (child + 1 < count && before(&heap[child + 1], &heap[child]))
            child++;
        if (child >= count || before(&heap[at], &heap[child]))
            return;
        swap(&heap[at], &heap[child]);
        at = child;
    }
}

/* Moves the `most` most likely to the front, in their order, or fewer if these weigh `enough` together; the others are
 * dropped. */
static void choose(candidates *c, int64_t most, double enough)
{
    fsdp__candidate *items = c->items;
    int64_t left = c->count, chosen = 0;
    double sum = 0;

    for (int64_t i = left / 2 - 1; i >= 0; i--)
        sift_down(items, i, left);
    /* The top of the heap goes to its end. */
    while (chosen < most && sum < enough) {
        swap(&items[0], &items[left - 1]);
        sum += weight(c, --left);
        chosen++;
        sift_down(items, 0, left);
    }
    for (int64_t i = c->count - 1, j = left; j < i; i--, j++)
        swap(&items[i], &items[j]);
    for (int64_t i = 0; i < chosen && left > 0; i++)
        items[i] = items[left + i];
    c->count = chosen;
}

/* ---- the draw ---- */

/* Returns the first candidate at which the running sum of probabilities passes `draw`. */
static int32_t draw_one(const candidates *c, float draw)
{
    double total = total_weight(c), sum = 0;

    for (int64_t i = 0; i < c->count; i++) {
        sum += weight(c, i);
        if (sum > (double)draw * total)
            return c->items[i].token;
    }
    return c->items[c->count - 1].token;
}

static int32_t most_likely(const float *logits, int64_t vocab_size)
{
    int64_t best = 0;

    for (int64_t i = 1; i < vocab_size; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static fsdp_status check(const float *logits, int64_t vocab_size)
{
    for (int64_t i = 0; i < vocab_size; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return FSDP_FAIL(FSDP_NOT_FINITE, "cannot generate: the model's logit of token %lld is %g", (long long)i,
                             isnan(logits[i]) ? (double)NAN : (double)logits[i]);
    return FSDP_OK;
}

fsdp_status fsdp__sample(const float *logits, int64_t vocab_size, const fsdp_generate_options *options, float draw,
                         fsdp__candidate *scratch, int32_t *out)
{
    candidates c = {.items = scratch, .count = vocab_size, .temperature = (double)options->temperature};
    int64_t most = options->top_k > 0 ? FSDP__MIN(options->top_k, vocab_size) : vocab_size;

    FSDP_TRY(check(logits, vocab_size));
    *out = most_likely(logits, vocab_size);
    if (options->temperature == 0 || logits[*out] == -INFINITY)
        return FSDP_OK;
    c.best = (double)logits[*out];
    for (int64_t i = 0; i < vocab_size; i++)
        scratch[i] = (fsdp__candidate){.logit = logits[i], .token = (int32_t)i};
    if (most < vocab_size)
        choose(&c, most, INFINITY);
    if (options->top_p > 0 && options->top_p < 1)
        choose(&c, c.count, (double)options->top_p * total_weight(&c));
    *out = draw_one(&c, draw);
    return FSDP_OK;
}
