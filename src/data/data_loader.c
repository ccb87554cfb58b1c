/* data_loader.c - makes batches of a data set in a sampler's order, in the caller or ahead in worker threads.
 *
 * Workers fill a ring: batch n of the epoch goes to slot n modulo the number of slots, and may be begun once the batch
 * that used the slot before has been given back. Which worker makes which batch does not matter, so the batches are the
 * same for any number of workers, and a failure comes out at the batch it belongs to. Between two epochs there are no
 * batches to begin, and nobody holds a slot. */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "data/batch_maker.h"
#include "data/fields.h"
#include "data/sampler.h"

struct fsdp_data_loader {
    fsdp__batch_maker maker;
    fsdp_data_field *fields; /* of a batch: the batch size is their first dimension */
    int field_count;
    int64_t length;  /* batches of a whole epoch */
    int64_t batches; /* of the epoch */
    int64_t next;    /* batch that the next call returns */
    bool running;    /* an epoch has begun */
    bool ended;      /* an epoch has ended, and none has begun since */
    /* Of the epoch that began last; before the first epoch, or after a position was set, of the epoch to begin. */
    fsdp_data_position position; /* at the beginning of that epoch */

    /* Used only with workers. The lock then guards what follows, `next`, `running` and the slots' `full`. */
    pthread_mutex_t lock;
    pthread_cond_t filled, freed, idle;
    bool lock_init, filled_init, freed_init, idle_init;
    pthread_t *threads;
    int thread_count; /* started */
    int busy;         /* workers that are making a batch */
    bool lent;        /* the caller holds slot (next - 1) modulo slots */
    int64_t begun;    /* batch that the next idle worker takes */
    int64_t limit;    /* batches that may be begun in this epoch */
    bool stop;
};

/* ---- workers ---- */

typedef struct crew_member {
    fsdp_data_loader *loader;
    int number;
} crew_member;

/* Returns the limit below which batches may be begun: their slots are neither lent nor waiting to be fetched. */
static int64_t begin_limit(const fsdp_data_loader *loader)
{
    return FSDP__MIN(loader->next - (loader->lent ? 1 : 0) + loader->maker.slot_count, loader->limit);
}

static void *worker(void *arg)
{
    fsdp_data_loader *loader = ((crew_member *)arg)->loader;
    int thread = ((crew_member *)arg)->number;

    pthread_mutex_lock(&loader->lock);
    while (!loader->stop) {
        int64_t number = loader->begun;
        fsdp__batch_slot *mine = &loader->maker.slots[number % loader->maker.slot_count];

        if (number >= begin_limit(loader)) {
            pthread_cond_wait(&loader->freed, &loader->lock);
            continue;
        }
        loader->begun++;
        loader->busy++;
        /* This runs without the lock: nobody else looks at the slot until it is full. */
        pthread_mutex_unlock(&loader->lock);
        fsdp__batch_make(&loader->maker, number, mine, thread);
        pthread_mutex_lock(&loader->lock);
        mine->full = true;
        if (mine->status != FSDP_OK) /* no later batch will be asked for */
            loader->limit = FSDP__MIN(loader->limit, number + 1);
        loader->busy--;
        pthread_cond_signal(&loader->filled);
        pthread_cond_signal(&loader->idle);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

static fsdp_status start_workers(fsdp_data_loader *loader)
{
    int workers = loader->maker.options.workers;
    crew_member *crew;

    loader->lock_init = pthread_mutex_init(&loader->lock, NULL) == 0;
    loader->filled_init = pthread_cond_init(&loader->filled, NULL) == 0;
    loader->freed_init = pthread_cond_init(&loader->freed, NULL) == 0;
    loader->idle_init = pthread_cond_init(&loader->idle, NULL) == 0;
    if (!loader->lock_init || !loader->filled_init || !loader->freed_init || !loader->idle_init)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot make the data loader's lock");
    loader->threads = fsdp__calloc((size_t)workers, sizeof *loader->threads + sizeof *crew);
    if (!loader->threads)
        return FSDP_NO_MEMORY;
    crew = (crew_member *)(void *)(loader->threads + workers);
    while (loader->thread_count < workers) {
        int n = loader->thread_count, code;

        crew[n] = (crew_member){loader, n};
        code = pthread_create(&loader->threads[n], NULL, worker, &crew[n]);
        if (code != 0)
            return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start worker %d of %d of the data loader: %s", n, workers,
                             strerrordesc_np(code));
        loader->thread_count++;
    }
    return FSDP_OK;
}

/* ---- life ---- */

static int64_t batches_of(const fsdp_data_loader *loader)
{
    const fsdp_data_loader_options *o = &loader->maker.options;

    return (loader->maker.items + (o->drop_last ? 0 : o->batch_size - 1)) / o->batch_size;
}

static fsdp_status set_up(fsdp_data_loader *loader, const fsdp_dataset *dataset,
                          const fsdp_data_loader_options *options)
{
    const fsdp_data_field *fields = options && options->collate ? options->fields : NULL;

    FSDP_TRY(fsdp__batch_maker_init(&loader->maker, dataset, options));
    loader->field_count = fields ? options->field_count : dataset->field_count;
    FSDP_TRY(fsdp__fields_copy(fields ? fields : dataset->fields, loader->field_count, &loader->fields));
    for (int f = 0; f < loader->field_count; f++) {
        fsdp_data_field *field = &loader->fields[f];

        memmove(field->shape + 1, field->shape, (size_t)field->ndim * sizeof *field->shape);
        field->ndim++;
    }
    loader->length = loader->batches = batches_of(loader);
    loader->position.length = dataset->length(dataset->arg);
    return options->workers > 0 ? start_workers(loader) : FSDP_OK;
}

fsdp_status fsdp_data_loader_create(const fsdp_dataset *dataset, const fsdp_data_loader_options *options,
                                    fsdp_data_loader **out)
{
    fsdp_data_loader *loader;
    fsdp_status status;

    *out = NULL;
    loader = fsdp__calloc(1, sizeof *loader);
    if (!loader)
        return FSDP_NO_MEMORY;
    status = set_up(loader, dataset, options);
    if (status == FSDP_OK)
        *out = loader;
    else
        fsdp_data_loader_free(loader);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

static void stop_workers(fsdp_data_loader *loader)
{
    if (loader->thread_count > 0) {
        pthread_mutex_lock(&loader->lock);
        loader->stop = true;
        pthread_cond_broadcast(&loader->freed);
        pthread_mutex_unlock(&loader->lock);
        for (int i = 0; i < loader->thread_count; i++)
            pthread_join(loader->threads[i], NULL);
    }
    if (loader->idle_init)
        pthread_cond_destroy(&loader->idle);
    if (loader->freed_init)
        pthread_cond_destroy(&loader->freed);
    if (loader->filled_init)
        pthread_cond_destroy(&loader->filled);
    if (loader->lock_init)
        pthread_mutex_destroy(&loader->lock);
}

void fsdp_data_loader_free(fsdp_data_loader *loader)
{
    if (!loader)
        return;
    stop_workers(loader);
    fsdp__free(loader->threads);
    fsdp__free(loader->fields);
    fsdp__batch_maker_release(&loader->maker);
    fsdp__free(loader);
}

int64_t fsdp_data_loader_length(const fsdp_data_loader *loader)
{
    return loader->length;
}

/* ---- an epoch ---- */

/* Chooses the items of the epoch. No worker is busy. */
static void choose_items(fsdp_data_loader *loader)
{
    fsdp_distributed_sampler *sampler = loader->maker.options.sampler;

    if (sampler) {
        loader->position = fsdp__sampler_position(sampler);
        fsdp__sampler_begin(sampler);
        loader->maker.items = fsdp_distributed_sampler_length(sampler);
        memcpy(loader->maker.order, fsdp_distributed_sampler_indices(sampler),
               (size_t)loader->maker.items * sizeof *loader->maker.order);
        return;
    }
    if (loader->ended) {
        loader->position.epoch++;
        loader->position.items = 0;
    }
    loader->maker.begin = loader->position.items;
    loader->maker.items = loader->position.length - loader->position.items;
}

/* Begins an epoch. No worker is busy, and until now no batch may be begun. */
static void begin(fsdp_data_loader *loader)
{
    bool crew = loader->thread_count > 0;

    choose_items(loader);
    loader->batches = batches_of(loader);
    if (crew)
        pthread_mutex_lock(&loader->lock);
    loader->running = true;
    loader->ended = false;
    loader->next = loader->begun = 0;
    loader->limit = loader->batches;
    if (crew) {
        pthread_cond_broadcast(&loader->freed);
        pthread_mutex_unlock(&loader->lock);
    }
}

void fsdp_data_loader_reset(fsdp_data_loader *loader)
{
    bool crew = loader && loader->thread_count > 0;

    if (!loader)
        return;
    if (crew) {
        pthread_mutex_lock(&loader->lock);
        loader->limit = 0;
        while (loader->busy > 0)
            pthread_cond_wait(&loader->idle, &loader->lock);
    }
    for (int i = 0; i < loader->maker.slot_count; i++) {
        loader->maker.slots[i].full = false;
        loader->maker.slots[i].status = FSDP_OK;
    }
    loader->ended = loader->ended || loader->running;
    loader->running = loader->lent = false;
    if (crew)
        pthread_mutex_unlock(&loader->lock);
}

/* Returns the slot with the next batch, once a worker has filled it. The slot that was lent before is given back. */
static fsdp__batch_slot *fetch(fsdp_data_loader *loader)
{
    fsdp__batch_slot *mine = &loader->maker.slots[loader->next % loader->maker.slot_count];

    pthread_mutex_lock(&loader->lock);
    if (loader->lent) {
        loader->maker.slots[(loader->next - 1) % loader->maker.slot_count].full = false;
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

/* Does the same, but makes the batch in this thread. */
static fsdp__batch_slot *make(fsdp_data_loader *loader)
{
    fsdp__batch_slot *mine = &loader->maker.slots[0];

    if (mine->status == FSDP_OK)
        fsdp__batch_make(&loader->maker, loader->next, mine, 0);
    loader->next += mine->status == FSDP_OK;
    return mine;
}

fsdp_status fsdp_data_loader_next(fsdp_data_loader *loader, fsdp_data_batch *out, bool *more)
{
    int64_t number;
    fsdp__batch_slot *mine;

    if (!loader || !out || !more)
        return FSDP_FAIL(FSDP_INVALID, "cannot take a batch: loader, batch and more are required");
    *out = (fsdp_data_batch){0};
    *more = false;
    if (!loader->running)
        begin(loader);
    if (loader->next == loader->batches) {
        fsdp_data_loader_reset(loader);
        return FSDP_OK;
    }
    number = loader->next;
    mine = loader->thread_count > 0 ? fetch(loader) : make(loader);
    if (mine->status != FSDP_OK)
        return FSDP_FAIL(mine->status, "%s", mine->message);
    *out = (fsdp_data_batch){.size = fsdp__batch_size(&loader->maker, number),
                             .number = number,
                             .field_count = loader->field_count,
                             .fields = loader->fields,
                             .data = mine->out};
    for (int f = 0; f < out->field_count; f++)
        loader->fields[f].shape[0] = out->size;
    *more = true;
    return FSDP_OK;
}

/* ---- where it stands ---- */

fsdp_data_position fsdp_data_loader_position(const fsdp_data_loader *loader)
{
    const fsdp_distributed_sampler *sampler = loader->maker.options.sampler;
    int64_t together = loader->maker.options.batch_size * (sampler ? fsdp__sampler_ranks(sampler) : 1);
    fsdp_data_position position = loader->position;

    /* the ends of the ranks' last batches, or the items that pad them, may lie beyond the length */
    if (loader->running)
        position.items = loader->next > (position.length - position.items) / together
                             ? position.length
                             : position.items + loader->next * together;
    else if (sampler && !(loader->ended && fsdp__sampler_position(sampler).epoch == position.epoch))
        position = fsdp__sampler_position(sampler);
    else if (loader->ended)
        position.items = position.length;
    return position;
}

static fsdp_status check_position(const fsdp_data_loader *loader, const fsdp_data_position *position)
{
    const fsdp_distributed_sampler *sampler = loader->maker.options.sampler;
    fsdp_data_position own = sampler ? fsdp__sampler_position(sampler) : loader->position;

    if (position->length != own.length)
        return FSDP_FAIL(FSDP_INVALID, "cannot go on in the data: the position is of %lld items, and there are %lld",
                         (long long)position->length, (long long)own.length);
    if (position->shuffle != own.shuffle || (own.shuffle && position->seed != own.seed))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot go on in the data: the position is of items %s seed %llu, and the sampler's are %s "
                         "seed %llu",
                         position->shuffle ? "shuffled with" : "in their order,", (unsigned long long)position->seed,
                         own.shuffle ? "shuffled with" : "in their order,", (unsigned long long)own.seed);
    if (position->epoch < 0 || position->items < 0 || position->items > position->length)
        return FSDP_FAIL(FSDP_INVALID, "cannot go on in the data: item %lld of %lld in epoch %lld is none",
                         (long long)position->items, (long long)position->length, (long long)position->epoch);
    return FSDP_OK;
}

fsdp_status fsdp_data_loader_set_position(fsdp_data_loader *loader, const fsdp_data_position *position)
{
    if (!loader || !position)
        return FSDP_FAIL(FSDP_INVALID, "cannot go on in the data: loader and position are required");
    FSDP_TRY(check_position(loader, position));
    fsdp_data_loader_reset(loader);
    loader->ended = false;
    loader->position = *position;
    if (loader->maker.options.sampler)
        fsdp__sampler_set_position(loader->maker.options.sampler, position->epoch, position->items);
    return FSDP_OK;
}
