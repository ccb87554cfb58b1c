/* data_loader.c - makes batches of a data set in a sampler's order, in the caller or ahead in worker threads.
 *
 * Between two epochs the ring has ended: no batch is made, and what the maker reads may change. */
#include <string.h>

#include "base/alloc.h"
#include "data/batch_maker.h"
#include "data/fields.h"
#include "data/ring.h"
#include "data/sampler.h"

struct fsdp_data_loader {
    fsdp__batch_maker maker;
    fsdp__ring *ring;
    fsdp_data_field *fields; /* of a batch: the batch size is their first dimension */
    int field_count;
    int64_t length;  /* batches of a whole epoch */
    int64_t batches; /* of the epoch */
    bool running;    /* an epoch has begun */
    bool ended;      /* an epoch has ended, and none has begun since */
    /* This is the position of the epoch that began last; before the first epoch, or after a position was set, of the
     * epoch to begin. */
    fsdp_data_position position; /* at the beginning of that epoch */
};

static fsdp_status make_batch(void *arg, int64_t number, int slot, int thread)
{
    const fsdp_data_loader *loader = arg;

    return fsdp__batch_make(&loader->maker, number, slot, thread);
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
    return fsdp__ring_create(loader->maker.options.context, "data loader", loader->maker.options.workers, make_batch,
                             loader, &loader->ring);
}

fsdp_status fsdp_data_loader_create(const fsdp_dataset *dataset, const fsdp_data_loader_options *options,
                                    fsdp_data_loader **out)
{
    fsdp_data_loader *loader;
    fsdp_status status;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a loader: there is no place for it");
    *out = NULL;
    FSDP__TRY_NEW(loader = fsdp__calloc(1, sizeof *loader));
    status = set_up(loader, dataset, options);
    if (status == FSDP_OK)
        *out = loader;
    else
        fsdp_data_loader_free(loader);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

void fsdp_data_loader_free(fsdp_data_loader *loader)
{
    if (!loader)
        return;
    fsdp__ring_free(loader->ring);
    fsdp__free(loader->fields);
    fsdp__batch_maker_release(&loader->maker);
    fsdp__free(loader);
}

int64_t fsdp_data_loader_length(const fsdp_data_loader *loader)
{
    return loader ? loader->length : 0;
}

/* ---- an epoch ---- */

/* Chooses the items of the epoch. */
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

static void begin(fsdp_data_loader *loader)
{
    choose_items(loader);
    loader->batches = batches_of(loader);
    loader->running = true;
    loader->ended = false;
    fsdp__ring_begin(loader->ring, loader->batches);
}

void fsdp_data_loader_reset(fsdp_data_loader *loader)
{
    if (!loader)
        return;
    fsdp__ring_end(loader->ring);
    loader->ended = loader->ended || loader->running;
    loader->running = false;
}

fsdp_status fsdp_data_loader_next(fsdp_data_loader *loader, fsdp_data_batch *out, bool *more)
{
    int64_t number;
    int slot;

    if (!loader || !out || !more)
        return FSDP_FAIL(FSDP_INVALID, "cannot take a batch: loader, batch and more are required");
    *out = (fsdp_data_batch){0};
    *more = false;
    if (!loader->running)
        begin(loader);
    number = fsdp__ring_taken(loader->ring);
    if (number == loader->batches) {
        fsdp_data_loader_reset(loader);
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__ring_next(loader->ring, &slot));
    *out = (fsdp_data_batch){.size = fsdp__batch_size(&loader->maker, number),
                             .number = number,
                             .field_count = loader->field_count,
                             .fields = loader->fields,
                             .data = loader->maker.slots[slot].out};
    for (int f = 0; f < out->field_count; f++)
        loader->fields[f].shape[0] = out->size;
    *more = true;
    return FSDP_OK;
}

/* ---- where it stands ---- */

fsdp_data_position fsdp_data_loader_position(const fsdp_data_loader *loader)
{
    const fsdp_distributed_sampler *sampler = loader ? loader->maker.options.sampler : NULL;
    fsdp_data_position position;
    int64_t together, taken;

    if (!loader)
        return (fsdp_data_position){0};
    position = loader->position;
    together = loader->maker.options.batch_size * (sampler ? fsdp__sampler_ranks(sampler) : 1);
    taken = fsdp__ring_taken(loader->ring);
    /* the ends of the ranks' last batches, or the items that pad them, may lie beyond the length */
    if (loader->running)
        position.items =
            taken > (position.length - position.items) / together ? position.length : position.items + taken * together;
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
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot continue in the data: the position was taken in %lld items, and there are %lld",
                         (long long)position->length, (long long)own.length);
    if (position->shuffle != own.shuffle || (own.shuffle && position->seed != own.seed))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot continue in the data: the position was taken in items %s seed %llu, and the sampler's "
                         "are %s seed %llu",
                         position->shuffle ? "shuffled with" : "in their order,", (unsigned long long)position->seed,
                         own.shuffle ? "shuffled with" : "in their order,", (unsigned long long)own.seed);
    if (position->epoch < 0 || position->items < 0 || position->items > position->length)
        return FSDP_FAIL(FSDP_INVALID, "cannot continue in the data: there is no item %lld of %lld in epoch %lld",
                         (long long)position->items, (long long)position->length, (long long)position->epoch);
    return FSDP_OK;
}

fsdp_status fsdp_data_loader_set_position(fsdp_data_loader *loader, const fsdp_data_position *position)
{
    if (!loader || !position)
        return FSDP_FAIL(FSDP_INVALID, "cannot continue in the data: loader and position are required");
    FSDP_TRY(check_position(loader, position));
    fsdp_data_loader_reset(loader);
    loader->ended = false;
    loader->position = *position;
    if (loader->maker.options.sampler)
        fsdp__sampler_set_position(loader->maker.options.sampler, position->epoch, position->items);
    return FSDP_OK;
}
