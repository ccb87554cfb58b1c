/* loader.c - batches in order, read by the caller or ahead by worker threads.
 *
 * Workers fill a ring: batch m goes to slot m modulo the slots, and may be begun once the batch that used the slot
 * before has been given back. Which worker reads which batch does not matter, so the batches are the same for any
 * number of them, and a failure comes out at the batch it belongs to. */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "data/order.h"
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
    int64_t next;      /* microbatch of the next call */
    bool lent;         /* the caller holds slot (next - 1) modulo slots */
    slot *slots;
    int slot_count;
    int32_t *memory;

    /* Only with workers; `next`, `lent`, `begun` and the slots' `full` are guarded by the lock then. */
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    bool lock_init, filled_init, freed_init;
    pthread_t *threads;
    int thread_count; /* started */
    int64_t begun;    /* microbatch that the next idle worker takes */
    bool stop;
};

static fsdp_status check_vocabulary(const fsdp_loader *loader, const int32_t *tokens, int64_t position, int64_t count)
{
    int64_t vocabulary = loader->options.vocab_size, in_file = 0;
    int32_t largest = 0;
    const char *path;

    if (vocabulary == 0)
        return FSDP_OK;
    for (int64_t i = 0; i < count; i++)
        largest = FSDP__MAX(largest, tokens[i]);
    if (largest < vocabulary)
        return FSDP_OK;
    while (*tokens < vocabulary) {
        tokens++;
        position++;
    }
    path = fsdp_tokens_locate(loader->tokens, position, &in_file);
    return FSDP_FAIL(FSDP_FORMAT, "token %d at position %lld of '%s' is beyond the vocabulary of %lld", (int)*tokens,
                     (long long)in_file, path, (long long)vocabulary);
}

/* Reads batch `microbatch` of this rank; `order` belongs to the calling thread. */
static fsdp_status fill(const fsdp_loader *loader, fsdp__order *order, int64_t microbatch, slot *into)
{
    const fsdp_loader_options *options = &loader->options;
    int64_t length = options->seq_len;

    for (int64_t b = 0; b < options->local_batch; b++) {
        int64_t number = (microbatch * options->world_size + options->rank) * options->local_batch + b;
        int64_t start = fsdp__order_at(order, number) * length;
        int32_t *inputs = into->inputs + b * length, *targets = into->targets + b * length;

        FSDP_TRY(fsdp_tokens_read(loader->tokens, start, length, inputs));
        FSDP_TRY(check_vocabulary(loader, inputs, start, length));
        /* The target of the last token is the one behind the window. */
        memcpy(targets, inputs + 1, (size_t)(length - 1) * sizeof *targets);
        FSDP_TRY(fsdp_tokens_read(loader->tokens, start + length, 1, targets + length - 1));
        FSDP_TRY(check_vocabulary(loader, targets + length - 1, start + length, 1));
    }
    return FSDP_OK;
}

/* Microbatches below this may be read: their slots are not lent and not waiting to be fetched. */
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
        /* Without the lock: nobody else looks at the slot until it is full. */
        pthread_mutex_unlock(&loader->lock);
        mine->status = fill(loader, &order, microbatch, mine);
        if (mine->status != FSDP_OK) /* this thread's last error is not the caller's */
            strncpy(mine->message, fsdp_last_error(), sizeof mine->message - 1);
        pthread_mutex_lock(&loader->lock);
        mine->full = true;
        pthread_cond_signal(&loader->filled);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
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
    if (options->workers < 0 || options->workers > 1024 || options->start_microbatch < 0 || options->vocab_size < 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot make a loader: %d workers, start at microbatch %lld, vocabulary of %lld: none may be "
                         "negative, and 1024 workers are the most",
                         options->workers, (long long)options->start_microbatch, (long long)options->vocab_size);
    if (__builtin_mul_overflow(options->local_batch, (int64_t)options->world_size, &windows) ||
        __builtin_mul_overflow(windows, options->seq_len, &needed) || needed >= INT64_MAX / 64)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: %lld sequences of %lld tokens on %d ranks are too many",
                         (long long)options->local_batch, (long long)options->seq_len, options->world_size);
    if (fsdp_tokens_count(tokens) < needed + 1) {
        int64_t count = fsdp_tokens_count(tokens), in_file;
        const char *first = fsdp_tokens_locate(tokens, 0, &in_file);
        bool several = first != fsdp_tokens_locate(tokens, FSDP__MAX(count - 1, 0), &in_file);

        return FSDP_FAIL(FSDP_INVALID,
                         "cannot make a loader: '%s'%s has %lld tokens, but one window of %lld for each of %lld "
                         "sequence%s (%d rank%s x %lld) needs %lld",
                         first, several ? " with the files after it" : "", (long long)count,
                         (long long)options->seq_len, (long long)windows, windows == 1 ? "" : "s", options->world_size,
                         options->world_size == 1 ? "" : "s", (long long)options->local_batch, (long long)(needed + 1));
    }
    if (options->start_microbatch >= INT64_MAX / windows - 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: microbatch %lld is too far",
                         (long long)options->start_microbatch);
    return FSDP_OK;
}

static fsdp_status make_slots(fsdp_loader *loader)
{
    const fsdp_loader_options *options = &loader->options;
    size_t numel = (size_t)options->local_batch * (size_t)options->seq_len;

    /* One lent to the caller, one being read by each worker, one more each to be ahead. */
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
    loader->next = loader->begun = options->start_microbatch;
    loader->last = INT64_MAX / (options->local_batch * options->world_size) - 1;
    fsdp__order_init(&loader->order, (fsdp_tokens_count(tokens) - 1) / options->seq_len, options->shuffle,
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

/* The slot with the next batch, once a worker has filled it; the one lent before is given back. */
static slot *fetch(fsdp_loader *loader)
{
    slot *mine = &loader->slots[loader->next % loader->slot_count];

    pthread_mutex_lock(&loader->lock);
    if (loader->lent) {
        loader->slots[(loader->next - 1) % loader->slot_count].full = false;
        loader->lent = false;
        /* One slot is free, so one worker has something to do. */
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
        .epoch = microbatch * options->world_size * options->local_batch / loader->order.windows,
    };
    return FSDP_OK;
}
