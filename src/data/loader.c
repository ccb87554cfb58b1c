/* loader.c - makes batches in order, in the caller or ahead in worker threads.
 *
 * Workers fill a ring: batch m goes to slot m modulo the number of slots, and may be begun once the batch that used the
 * slot before has been given back. Which worker reads which batch does not matter, so the batches are the same for any
 * number of workers, and a failure comes out at the batch it belongs to. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "data/order.h"
#include "data/window.h"
#include "fsdp/data.h"

typedef struct slot {
    int32_t *inputs, *targets; /* (local_batch, seq_len) */
    bool full;
    fsdp_status status;
    char message[512];
} slot;

struct fsdp_loader {
    const fsdp_tokens *tokens;
    fsdp_loader_options options;
    fsdp__order order; /* a template: each thread has its own copy */
    int64_t last;      /* microbatch after which positions would overflow */
    int64_t next;      /* microbatch that the next call returns */
    bool lent;         /* the caller holds slot (next - 1) modulo slots */
    slot *slots;
    int slot_count;
    int32_t *memory;

    /* Used only with workers. The lock then guards `next`, `lent`, `begun` and the slots' `full`. */
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    bool lock_init, filled_init, freed_init;
    pthread_t *threads;
    int thread_count; /* started */
    int64_t begun;    /* microbatch that the next idle worker takes */
    bool stop;
};

/* Returns how many windows of the order come before those of a microbatch, which are those of all ranks. */
static int64_t position_of(const fsdp_loader *loader, int64_t microbatch)
{
    const fsdp_loader_options *options = &loader->options;

    return options->start_window + microbatch * options->world_size * options->local_batch;
}

/* Reads batch `microbatch` of this rank; `order` belongs to the calling thread. */
static fsdp_status fill(const fsdp_loader *loader, fsdp__order *order, int64_t microbatch, slot *into)
{
    const fsdp_loader_options *options = &loader->options;
    int64_t length = options->seq_len;

    for (int64_t b = 0; b < options->local_batch; b++) {
        int64_t number = position_of(loader, microbatch) + options->rank * options->local_batch + b;
        int64_t start = fsdp__order_at(order, number) * length;

        FSDP_TRY(fsdp__window_read(loader->tokens, options->vocab_size, start, length, into->inputs + b * length,
                                   into->targets + b * length));
    }
    return FSDP_OK;
}

/* Returns the limit below which microbatches may be read: their slots are neither lent nor waiting to be fetched. */
static int64_t read_limit(const fsdp_loader *loader)
{
    return FSDP__MIN(loader->next - (loader->lent ? 1 : 0) + loader->slot_count, loader->last);
}

static void *worker(void *arg)
{
    fsdp_loader *loader = arg;
    fsdp__order order = loader->order;

    pthread_mutex_lock(&loader->lock);
    while (!loader->stop) {
        int64_t microbatch = loader->begun;
        slot *mine = &loader->slots[microbatch % loader->slot_count];

        if (microbatch >= read_limit(loader)) {
            pthread_cond_wait(&loader->freed, &loader->lock);
            continue;
        }
        loader->begun++;
        /* This runs without the lock: nobody else looks at the slot until it is full. */
        pthread_mutex_unlock(&loader->lock);
        mine->status = fill(loader, &order, microbatch, mine);
        if (mine->status != FSDP_OK) /* this thread's last error is not the caller's */
            fsdp__shown(fsdp_last_error(), mine->message, sizeof mine->message);
        pthread_mutex_lock(&loader->lock);
        mine->full = true;
        pthread_cond_signal(&loader->filled);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
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
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: no %lld tokens in a stream of %lld",
                         (long long)options->token_count, (long long)all);
    if (count >= needed)
        return FSDP_OK;
    first = fsdp_tokens_locate(tokens, 0, &in_file);
    several = first != fsdp_tokens_locate(tokens, FSDP__MAX(count - 1, 0), &in_file);
    if (count < all)
        snprintf(part, sizeof part, " to read, of %lld", (long long)all);
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot make a loader: '%s'%s has %lld tokens%s, but one window of %lld for each of %lld "
                     "sequence%s (%d rank%s x %lld) needs %lld",
                     first, several ? " with the files after it" : "", (long long)count, part,
                     (long long)options->seq_len, (long long)windows, windows == 1 ? "" : "s", options->world_size,
                     options->world_size == 1 ? "" : "s", (long long)options->local_batch, (long long)needed);
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
                         "negative, and 1024 workers are the most",
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

static fsdp_status make_slots(fsdp_loader *loader)
{
    const fsdp_loader_options *options = &loader->options;
    size_t numel = (size_t)options->local_batch * (size_t)options->seq_len;

    /* One slot is lent to the caller, each worker reads one, and one more for each worker lets it run ahead. */
    loader->slot_count = 1 + 2 * options->workers;
    loader->slots = fsdp__calloc((size_t)loader->slot_count, sizeof *loader->slots);
    loader->memory = fsdp__calloc((size_t)loader->slot_count * 2, numel * sizeof *loader->memory);
    if (!loader->slots || !loader->memory)
        return FSDP_NO_MEMORY;
    for (int i = 0; i < loader->slot_count; i++) {
        loader->slots[i].inputs = loader->memory + (size_t)i * 2 * numel;
        loader->slots[i].targets = loader->slots[i].inputs + numel;
    }
    return FSDP_OK;
}

static fsdp_status start_workers(fsdp_loader *loader)
{
    int workers = loader->options.workers;

    loader->lock_init = pthread_mutex_init(&loader->lock, NULL) == 0;
    loader->filled_init = pthread_cond_init(&loader->filled, NULL) == 0;
    loader->freed_init = pthread_cond_init(&loader->freed, NULL) == 0;
    if (!loader->lock_init || !loader->filled_init || !loader->freed_init)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot make the loader's lock");
    loader->threads = fsdp__calloc((size_t)workers, sizeof *loader->threads);
    if (!loader->threads)
        return FSDP_NO_MEMORY;
    while (loader->thread_count < workers) {
        int code = pthread_create(&loader->threads[loader->thread_count], NULL, worker, loader);

        if (code != 0)
            return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start worker %d of %d of the loader: %s", loader->thread_count,
                             workers, strerrordesc_np(code));
        loader->thread_count++;
    }
    return FSDP_OK;
}

fsdp_status fsdp_loader_create(const fsdp_tokens *tokens, const fsdp_loader_options *options, fsdp_loader **out)
{
    fsdp_status status = FSDP_OK;
    fsdp_loader *loader;

    *out = NULL;
    if (!tokens || !options)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: tokens and options are required");
    FSDP_TRY(check_options(tokens, options));
    loader = fsdp__calloc(1, sizeof *loader);
    if (!loader)
        return FSDP_NO_MEMORY;
    loader->tokens = tokens;
    loader->options = *options;
    loader->last = (INT64_MAX - options->start_window) / (options->local_batch * options->world_size) - 1;
    fsdp__order_init(&loader->order, (token_count(tokens, options) - 1) / options->seq_len, options->shuffle,
                     options->seed);
    FSDP_TRY_GOTO(status, make_slots(loader), out);
    if (options->workers > 0)
        FSDP_TRY_GOTO(status, start_workers(loader), out);
    *out = loader;
    loader = NULL;
out:
    fsdp_loader_free(loader);
    return status;
}

void fsdp_loader_free(fsdp_loader *loader)
{
    if (!loader)
        return;
    if (loader->thread_count > 0) {
        pthread_mutex_lock(&loader->lock);
        loader->stop = true;
        pthread_cond_broadcast(&loader->freed);
        pthread_mutex_unlock(&loader->lock);
        for (int i = 0; i < loader->thread_count; i++)
            pthread_join(loader->threads[i], NULL);
    }
    if (loader->freed_init)
        pthread_cond_destroy(&loader->freed);
    if (loader->filled_init)
        pthread_cond_destroy(&loader->filled);
    if (loader->lock_init)
        pthread_mutex_destroy(&loader->lock);
    fsdp__free(loader->threads);
    fsdp__free(loader->slots);
    fsdp__free(loader->memory);
    fsdp__free(loader);
}

/* Returns the slot with the next batch, once a worker has filled it. The slot that was lent before is given back. */
static slot *fetch(fsdp_loader *loader)
{
    slot *mine = &loader->slots[loader->next % loader->slot_count];

    pthread_mutex_lock(&loader->lock);
    if (loader->lent) {
        loader->slots[(loader->next - 1) % loader->slot_count].full = false;
        loader->lent = false;
        /* Only one slot is free, so one worker has something to do. */
        pthread_cond_signal(&loader->freed);
    }
    while (!mine->full)
        pthread_cond_wait(&loader->filled, &loader->lock);
    /* A batch that failed stays in its slot: the next call fails in the same way. */
    if (mine->status == FSDP_OK) {
        loader->next++;
        loader->lent = true;
    }
    pthread_mutex_unlock(&loader->lock);
    return mine;
}

fsdp_status fsdp_loader_next(fsdp_loader *loader, fsdp_batch *out)
{
    const fsdp_loader_options *options = &loader->options;
    int64_t microbatch = loader->next;
    slot *mine = &loader->slots[0];

    if (microbatch >= loader->last)
        return FSDP_FAIL(FSDP_INVALID, "cannot read microbatch %lld: it is too far", (long long)microbatch);
    if (options->workers > 0) {
        mine = fetch(loader);
        if (mine->status != FSDP_OK)
            return FSDP_FAIL(mine->status, "%s", mine->message);
    } else {
        FSDP_TRY(fill(loader, &loader->order, microbatch, mine));
        loader->next++;
    }
    *out = (fsdp_batch){
        .inputs = mine->inputs,
        .targets = mine->targets,
        .microbatch = microbatch,
        .epoch = position_of(loader, microbatch) / loader->order.windows,
    };
    return FSDP_OK;
}

int64_t fsdp_loader_position(const fsdp_loader *loader)
{
    return position_of(loader, loader->next);
}
