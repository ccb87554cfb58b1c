/* loader.c - makes batches of windows in order, in the caller or ahead in worker threads. */
#include "data/loader.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/text.h"
#include "data/mixture.h"
#include "data/ring.h"
#include "data/tokens.h"

/* ---- the order of windows ---- */

/* Describes the order in which windows are visited. A shuffled epoch is a keyed permutation of [0, windows) that is
 * computed, not stored: an unbalanced Feistel network over Z_a x Z_b with a * b just over the number of windows. The
 * few values outside are skipped by walking along the cycle. Any window of any epoch costs the same few calls of
 * Philox, wherever a run resumes. */
typedef struct window_order {
    int64_t windows; /* per epoch, at least 1 */
    bool shuffle;
    uint64_t seed;
    /* Filled by order_at. */
    int64_t epoch; /* the epoch that `key` belongs to; -1: none yet */
    uint64_t key;
    uint64_t left, right; /* left * right >= windows */
} window_order;

enum {
    ROUNDS = 8 /* even: both halves are mixed equally often */
};

static void init_order(window_order *order, int64_t windows, bool shuffle, uint64_t seed)
{
    uint64_t left = 1;

    while (left * left < (uint64_t)windows) /* near the square root both halves are mixed equally well */
        left++;
    *order = (window_order){.windows = windows, .shuffle = shuffle, .seed = seed, .epoch = -1, .left = left};
    order->right = ((uint64_t)windows + left - 1) / left;
}

static uint64_t mix(uint64_t key, int round, uint64_t value)
{
    uint32_t words[4];

    fsdp__philox(key, value * ROUNDS + (uint64_t)round, words);
    return (uint64_t)words[1] << 32 | words[0];
}

/* Applies a bijection of [0, left * right). Each round adds to one half a function of the other half. */
static uint64_t permute(const window_order *order, uint64_t value)
{
    uint64_t low = value % order->left, high = value / order->left;

    for (int round = 0; round < ROUNDS; round += 2) {
        low = (low + mix(order->key, round, high) % order->left) % order->left;
        high = (high + mix(order->key, round + 1, low) % order->right) % order->right;
    }
    return high * order->left + low;
}

/* Returns the window at `position` (from 0), counted over all epochs. It stores the epoch's key in `order`, so each
 * thread needs an object of its own. */
static int64_t order_at(window_order *order, int64_t position)
{
    int64_t epoch = position / order->windows;
    uint64_t window = (uint64_t)(position % order->windows);

    if (!order->shuffle)
        return (int64_t)window;
    if (order->epoch != epoch) {
        char name[48];

        snprintf(name, sizeof name, "shuffle %lld", (long long)epoch);
        order->key = fsdp__rng_key(order->seed, name);
        order->epoch = epoch;
    }
    /* The grid may have a few more places than there are windows. Walking on from those keeps the mapping a
     * bijection. */
    do
        window = permute(order, window);
    while (window >= (uint64_t)order->windows);
    return (int64_t)window;
}

/* ---- batches ---- */

FSDP__SCOPED_POINTER(fsdp_loader, fsdp_loader_free)

struct fsdp_loader {
    fsdp__loader_source *sources;
    int source_count;
    fsdp__mixture mixture;
    fsdp_loader_options options;
    int64_t last;         /* microbatch after which positions would overflow */
    window_order *orders; /* of each source, for each thread and for the caller */
    int32_t *memory;      /* of the slots: inputs, targets and positions, each (local_batch, seq_len) */
    fsdp__load *loads;    /* of the batches in the slots */
    int64_t batch_numel;  /* of each of these */
    bool has_positions;
    fsdp__ring *ring;
};

enum {
    ARRAYS = 3 /* of a slot */
};

/* Returns how many windows of the order come before those of a microbatch, which are those of all ranks. */
static int64_t position_of(const fsdp_loader *loader, int64_t microbatch)
{
    const fsdp_loader_options *options = &loader->options;

    return options->start_window + microbatch * options->world_size * options->local_batch;
}

/* Returns array number `array` of a slot: inputs, targets, positions. */
static int32_t *array_of(const fsdp_loader *loader, int slot, int array)
{
    return loader->memory + (slot * ARRAYS + array) * loader->batch_numel;
}

/* Finds the window at a position of the order. Each thread has orders of its own. */
static const fsdp__windows *window_at(const fsdp_loader *loader, int thread, int64_t position, int64_t *window)
{
    int64_t index;
    int source = fsdp__mixture_at(&loader->mixture, position, &index);

    *window = order_at(&loader->orders[thread * loader->source_count + source], index);
    return &loader->sources[source].windows;
}

/* Reads one sequence of a batch. */
static fsdp_status read_sequence(const fsdp_loader *loader, int64_t position, int slot, int64_t b, int thread)
{
    int64_t window, length = loader->options.seq_len;
    const fsdp__windows *windows = window_at(loader, thread, position, &window);
    int32_t *targets = array_of(loader, slot, 1) + b * length;
    fsdp__load *load = &loader->loads[slot];

    FSDP_TRY(fsdp__windows_read(windows, loader->options.vocab_size, window, array_of(loader, slot, 0) + b * length,
                                targets, loader->has_positions ? array_of(loader, slot, 2) + b * length : NULL));
    for (int64_t i = 0; i < length; i++)
        load->answers += targets[i] != FSDP__NO_TARGET;
    load->tokens += fsdp__windows_tokens(windows, window);
    return FSDP_OK;
}

/* Reads batch `microbatch` of this rank. */
static fsdp_status read_batch(void *arg, int64_t microbatch, int slot, int thread)
{
    const fsdp_loader *loader = arg;
    const fsdp_loader_options *options = &loader->options;
    int64_t first = position_of(loader, microbatch) + options->rank * options->local_batch;

    loader->loads[slot] = (fsdp__load){0};
    for (int64_t b = 0; b < options->local_batch; b++)
        FSDP_TRY(read_sequence(loader, first + b, slot, b, thread));
    return FSDP_OK;
}

/* Returns how many tokens of the stream are read. */
static int64_t token_count(const fsdp_tokens *tokens, const fsdp_loader_options *options)
{
    return options->token_count > 0 ? options->token_count : fsdp_tokens_count(tokens);
}

/* Checks that there are enough tokens: `windows`, of all ranks together, take `needed` tokens. */
static fsdp_status check_length(const fsdp_tokens *tokens, const fsdp_loader_options *options, int64_t windows,
                                int64_t needed)
{
    int64_t all = fsdp_tokens_count(tokens), count = token_count(tokens, options), in_file;
    char of_all[40] = "";
    const char *first;
    bool several;

    if (options->token_count < 0 || count > all)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: there are no %lld tokens in a stream of %lld",
                         (long long)options->token_count, (long long)all);
    if (count >= needed)
        return FSDP_OK;
    first = fsdp_tokens_locate(tokens, 0, &in_file);
    several = first != fsdp_tokens_locate(tokens, FSDP__MAX(count - 1, 0), &in_file);
    if (tokens->text) {
        first = tokens->text;
        several = tokens->more_text;
    }
    if (count < all)
        snprintf(of_all, sizeof of_all, " to read, of %lld", (long long)all);
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot make a loader: '%s'%s has %lld tokens%s, but one window of %lld for each of %lld "
                     "sequence%s (%d rank%s x %lld) needs %lld: take more data, or a smaller %straining.seq_len",
                     first, several ? " with the files after it" : "", (long long)count, of_all,
                     (long long)options->seq_len, (long long)windows, fsdp__plural(windows), options->world_size,
                     fsdp__plural(options->world_size), (long long)options->local_batch, (long long)needed,
                     options->local_batch > 1 ? "training.local_batch_size or " : "");
}

/* Checks what does not depend on what is read; finds the number of windows, and of tokens, of all ranks together. */
static fsdp_status check_options(const fsdp_loader_options *options, int64_t *windows, int64_t *needed)
{
    if (options->seq_len < 1 || options->local_batch < 1 || options->microbatches < 1)
        return FSDP_FAIL(
            FSDP_INVALID, "cannot make a loader: seq_len %lld, local batch %lld and %lld microbatches must be positive",
            (long long)options->seq_len, (long long)options->local_batch, (long long)options->microbatches);
    if (options->world_size < 1 || options->rank < 0 || options->rank >= options->world_size)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: no rank %d in a world of %d", options->rank,
                         options->world_size);
    if (options->workers < 0 || options->workers > 1024 || options->start_window < 0 || options->vocab_size < 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot make a loader: %d workers, start at window %lld, vocabulary of %lld: none may be "
                         "negative, and there may be at most 1024 workers",
                         options->workers, (long long)options->start_window, (long long)options->vocab_size);
    if (__builtin_mul_overflow(options->local_batch, (int64_t)options->world_size, windows) ||
        __builtin_mul_overflow(*windows, options->seq_len, needed) || *needed >= INT64_MAX / 64)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: %lld sequences of %lld tokens on %d ranks are too many",
                         (long long)options->local_batch, (long long)options->seq_len, options->world_size);
    return FSDP_OK;
}

static fsdp_status check_start(const fsdp_loader_options *options, int64_t windows)
{
    if (options->start_window <= INT64_MAX - 2 * windows)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: window %lld is beyond what can be counted",
                     (long long)options->start_window);
}

/* ---- life ---- */

/* Makes the orders of each thread, and of the caller. Parts of one length do not have the same order. */
static fsdp_status make_orders(fsdp_loader *loader)
{
    const fsdp_loader_options *options = &loader->options;
    int users = FSDP__MAX(options->workers, 1) + 1;

    FSDP__TRY_NEW(loader->orders = fsdp__calloc((size_t)users * (size_t)loader->source_count, sizeof *loader->orders));
    for (int i = 0; i < users * loader->source_count; i++) {
        int source = i % loader->source_count;

        init_order(&loader->orders[i], loader->sources[source].windows.count, options->shuffle,
                   options->seed + (uint64_t)source * 0x9e3779b97f4a7c15U);
    }
    return FSDP_OK;
}

static fsdp_status copy_sources(fsdp_loader *loader, const fsdp__loader_source *sources, int count)
{
    FSDP__FREED double *weights = fsdp__calloc((size_t)count, sizeof *weights);

    FSDP__TRY_NEW(weights);
    FSDP__TRY_NEW(loader->sources = fsdp__calloc((size_t)count, sizeof *loader->sources));
    memcpy(loader->sources, sources, (size_t)count * sizeof *sources);
    loader->source_count = count;
    for (int i = 0; i < count; i++) {
        weights[i] = count == 1 ? 1 : sources[i].weight;
        loader->has_positions = loader->has_positions || fsdp__windows_have_documents(&sources[i].windows);
    }
    return fsdp__mixture_init(&loader->mixture, weights, count);
}

/* Makes the slots' memory, the orders and the ring. */
static fsdp_status make_ring(fsdp_loader *loader)
{
    const fsdp_loader_options *options = &loader->options;
    size_t slots = (size_t)fsdp__ring_slots(options->workers);

    FSDP__TRY_NEW(loader->memory = fsdp__calloc(slots * ARRAYS, (size_t)loader->batch_numel * sizeof *loader->memory));
    FSDP__TRY_NEW(loader->loads = fsdp__calloc(slots, sizeof *loader->loads));
    FSDP_TRY(make_orders(loader));
    FSDP_TRY(fsdp__ring_create(options->context, "loader", options->workers, read_batch, loader, &loader->ring));
    fsdp__ring_begin(loader->ring, loader->last);
    return FSDP_OK;
}

/* Makes a loader, once its options have been checked. */
static fsdp_status create(const fsdp__loader_source *sources, int count, const fsdp_loader_options *options,
                          fsdp_loader **out)
{
    FSDP__SCOPED(fsdp_loader_free_at) fsdp_loader *loader = NULL;

    FSDP__TRY_NEW(loader = fsdp__calloc(1, sizeof *loader));
    loader->options = *options;
    loader->last = (INT64_MAX - options->start_window) / (options->local_batch * options->world_size) - 1;
    loader->batch_numel = options->local_batch * options->seq_len;
    FSDP_TRY(copy_sources(loader, sources, count));
    FSDP_TRY(make_ring(loader));
    *out = fsdp__take(&loader);
    return FSDP_OK;
}

fsdp_status fsdp_loader_create(const fsdp_tokens *tokens, const fsdp_loader_options *options, fsdp_loader **out)
{
    fsdp__loader_source source = {.weight = 1};
    int64_t windows, needed;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "a loader needs a place for the result");
    *out = NULL;
    if (!tokens || !options)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: tokens and options are required");
    FSDP_TRY(check_options(options, &windows, &needed));
    FSDP_TRY(check_length(tokens, options, windows, needed + 1));
    FSDP_TRY(check_start(options, windows));
    source.windows = fsdp__windows_of_tokens(tokens, token_count(tokens, options), options->seq_len);
    return create(&source, 1, options, out);
}

fsdp_status fsdp__loader_create_of(const fsdp__loader_source *sources, int count, const fsdp_loader_options *options,
                                   fsdp_loader **out)
{
    int64_t windows, needed;

    *out = NULL;
    FSDP_TRY(check_options(options, &windows, &needed));
    FSDP_TRY(check_start(options, windows));
    for (int i = 0; i < count; i++)
        if (sources[i].windows.count < 1)
            return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: there is no whole window of %lld tokens",
                             (long long)options->seq_len);
    return create(sources, count, options, out);
}

void fsdp_loader_free(fsdp_loader *loader)
{
    if (!loader)
        return;
    fsdp__ring_free(loader->ring);
    fsdp__mixture_release(&loader->mixture);
    FSDP__FREE_ALL(loader->orders, loader->sources, loader->loads, loader->memory, loader);
}

/* ---- batches ---- */

/* Returns how often all sources have been gone through before the window at a position. */
static int64_t epoch_of(const fsdp_loader *loader, int64_t position)
{
    int64_t least = INT64_MAX;

    for (int i = 0; i < loader->source_count; i++)
        least = FSDP__MIN(least, fsdp__mixture_count(&loader->mixture, i, position) / loader->sources[i].windows.count);
    return least;
}

fsdp_status fsdp_loader_next(fsdp_loader *loader, fsdp_batch *out)
{
    int64_t microbatch;
    int slot;

    if (!loader || !out)
        return FSDP__FAIL_NULL("cannot read a batch: a loader and a place for the batch are required");
    microbatch = fsdp__ring_taken(loader->ring);
    if (microbatch >= loader->last)
        return FSDP_FAIL(FSDP_INVALID, "cannot read microbatch %lld: it is beyond what can be counted",
                         (long long)microbatch);
    FSDP_TRY(fsdp__ring_next(loader->ring, &slot));
    *out = (fsdp_batch){
        .inputs = array_of(loader, slot, 0),
        .targets = array_of(loader, slot, 1),
        .microbatch = microbatch,
        .epoch = epoch_of(loader, position_of(loader, microbatch + 1) - 1),
        .positions = loader->has_positions ? array_of(loader, slot, 2) : NULL,
        .answers = loader->loads[slot].answers,
        .tokens = loader->loads[slot].tokens,
    };
    return FSDP_OK;
}

int64_t fsdp_loader_position(const fsdp_loader *loader)
{
    return loader ? position_of(loader, fsdp__ring_taken(loader->ring)) : 0;
}

fsdp_status fsdp__loader_look_ahead(fsdp_loader *loader, int64_t windows, fsdp__load *out)
{
    int64_t first = fsdp_loader_position(loader);

    *out = (fsdp__load){0};
    for (int64_t i = 0; i < windows; i++) {
        int64_t window, answers;
        const fsdp__windows *of = window_at(loader, FSDP__MAX(loader->options.workers, 1), first + i, &window);

        FSDP_TRY(fsdp__windows_answers(of, window, &answers));
        out->answers += answers;
        out->tokens += fsdp__windows_tokens(of, window);
    }
    return FSDP_OK;
}

int64_t fsdp__loader_window(const fsdp_loader *loader, int64_t position)
{
    int64_t window;
    const fsdp__windows *of = window_at(loader, FSDP__MAX(loader->options.workers, 1), position, &window);

    for (int source = 0; &loader->sources[source].windows != of; source++)
        window += loader->sources[source].windows.count;
    return window;
}
