/* token_loader.c - makes batches of a token stream in order, in the caller or ahead in worker threads. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "data/ring.h"
#include "data/token_window.h"
#include "data/tokens.h"
#include "data/window_order.h"
#include "fsdp/data.h"

FSDP__SCOPED_POINTER(fsdp_loader, fsdp_loader_free)

struct fsdp_loader {
    const fsdp_tokens *tokens;
    fsdp_loader_options options;
    int64_t last;        /* microbatch after which positions would overflow */
    fsdp__order *orders; /* one for each thread */
    int32_t *memory;     /* of the slots: inputs and targets, each (local_batch, seq_len) */
    int64_t batch_numel; /* of either */
    fsdp__ring *ring;
};

/* Returns how many windows of the order come before those of a microbatch, which are those of all ranks. */
static int64_t position_of(const fsdp_loader *loader, int64_t microbatch)
{
    const fsdp_loader_options *options = &loader->options;

    return options->start_window + microbatch * options->world_size * options->local_batch;
}

static int32_t *inputs_of(const fsdp_loader *loader, int slot)
{
    return loader->memory + 2 * slot * loader->batch_numel;
}

static int32_t *targets_of(const fsdp_loader *loader, int slot)
{
    return inputs_of(loader, slot) + loader->batch_numel;
}

/* Reads batch `microbatch` of this rank. */
static fsdp_status read_batch(void *arg, int64_t microbatch, int slot, int thread)
{
    const fsdp_loader *loader = arg;
    const fsdp_loader_options *options = &loader->options;
    int64_t length = options->seq_len;

    for (int64_t b = 0; b < options->local_batch; b++) {
        int64_t number = position_of(loader, microbatch) + options->rank * options->local_batch + b;
        int64_t start = fsdp__order_at(&loader->orders[thread], number) * length;

        FSDP_TRY(fsdp__window_read(loader->tokens, options->vocab_size, start, length,
                                   inputs_of(loader, slot) + b * length, targets_of(loader, slot) + b * length));
    }
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
    char part[40] = "";
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
        snprintf(part, sizeof part, " to read, of %lld", (long long)all);
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot make a loader: '%s'%s has %lld tokens%s, but one window of %lld for each of %lld "
                     "sequence%s (%d rank%s x %lld) needs %lld: take more data, or a smaller %straining.seq_len",
                     first, several ? " with the files after it" : "", (long long)count, part,
                     (long long)options->seq_len, (long long)windows, windows == 1 ? "" : "s", options->world_size,
                     options->world_size == 1 ? "" : "s", (long long)options->local_batch, (long long)needed,
                     options->local_batch > 1 ? "training.local_batch_size or " : "");
}

static fsdp_status check_options(const fsdp_tokens *tokens, const fsdp_loader_options *options)
{
    int64_t windows, needed;

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
    if (__builtin_mul_overflow(options->local_batch, (int64_t)options->world_size, &windows) ||
        __builtin_mul_overflow(windows, options->seq_len, &needed) || needed >= INT64_MAX / 64)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: %lld sequences of %lld tokens on %d ranks are too many",
                         (long long)options->local_batch, (long long)options->seq_len, options->world_size);
    FSDP_TRY(check_length(tokens, options, windows, needed + 1));
    if (options->start_window > INT64_MAX - 2 * windows)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: window %lld is too far",
                         (long long)options->start_window);
    return FSDP_OK;
}

/* Makes the slots' memory, the threads' orders and the ring. */
static fsdp_status make_ring(fsdp_loader *loader)
{
    const fsdp_loader_options *options = &loader->options;
    int threads = FSDP__MAX(options->workers, 1);

    loader->memory = fsdp__calloc((size_t)fsdp__ring_slots(options->workers) * 2,
                                  (size_t)loader->batch_numel * sizeof *loader->memory);
    loader->orders = fsdp__calloc((size_t)threads, sizeof *loader->orders);
    FSDP__TRY_NEW(loader->memory && loader->orders);
    for (int i = 0; i < threads; i++)
        fsdp__order_init(&loader->orders[i], (token_count(loader->tokens, options) - 1) / options->seq_len,
                         options->shuffle, options->seed);
    FSDP_TRY(fsdp__ring_create(options->context, "loader", options->workers, read_batch, loader, &loader->ring));
    fsdp__ring_begin(loader->ring, loader->last);
    return FSDP_OK;
}

fsdp_status fsdp_loader_create(const fsdp_tokens *tokens, const fsdp_loader_options *options, fsdp_loader **out)
{
    FSDP__SCOPED(fsdp_loader_free_at) fsdp_loader *loader = NULL;

    *out = NULL;
    if (!tokens || !options)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: tokens and options are required");
    FSDP_TRY(check_options(tokens, options));
    FSDP__TRY_NEW(loader = fsdp__calloc(1, sizeof *loader));
    loader->tokens = tokens;
    loader->options = *options;
    loader->last = (INT64_MAX - options->start_window) / (options->local_batch * options->world_size) - 1;
    loader->batch_numel = options->local_batch * options->seq_len;
    FSDP_TRY(make_ring(loader));
    *out = fsdp__take(&loader);
    return FSDP_OK;
}

void fsdp_loader_free(fsdp_loader *loader)
{
    if (!loader)
        return;
    fsdp__ring_free(loader->ring);
    fsdp__free(loader->orders);
    fsdp__free(loader->memory);
    fsdp__free(loader);
}

fsdp_status fsdp_loader_next(fsdp_loader *loader, fsdp_batch *out)
{
    int64_t microbatch = fsdp__ring_taken(loader->ring);
    int slot;

    if (microbatch >= loader->last)
        return FSDP_FAIL(FSDP_INVALID, "cannot read microbatch %lld: it is too far", (long long)microbatch);
    FSDP_TRY(fsdp__ring_next(loader->ring, &slot));
    *out = (fsdp_batch){
        .inputs = inputs_of(loader, slot),
        .targets = targets_of(loader, slot),
        .microbatch = microbatch,
        .epoch = position_of(loader, microbatch) / loader->orders[0].windows,
    };
    return FSDP_OK;
}

int64_t fsdp_loader_position(const fsdp_loader *loader)
{
    return position_of(loader, fsdp__ring_taken(loader->ring));
}
