/* batch_maker.c - makes items and batches, in memory that is laid out once. */
#include "data/batch_maker.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "data/fields.h"
#include "data/ring.h"
#include "data/sampler.h"

enum {
    ALIGNMENT = 64,
    MOST_WORKERS = 1024
};

/* ---- one batch ---- */

int64_t fsdp__batch_size(const fsdp__batch_maker *maker, int64_t number)
{
    int64_t left = maker->items - number * maker->options.batch_size;

    return FSDP__MIN(left, maker->options.batch_size);
}

fsdp_status fsdp__item_make(const fsdp_dataset *data, int64_t index, void *const *places)
{
    fsdp_status status;

    fsdp_clear_error();
    status = data->item(data->arg, index, places);
    if (status == FSDP_OK)
        return FSDP_OK;
    if (fsdp_last_status() != status)
        return FSDP_FAIL(status, "item %lld of the data set: %s", (long long)index, fsdp_status_text(status));
    return fsdp_fail_prefix(status, "item %lld of the data set", (long long)index);
}

static fsdp_status make_item(const fsdp__batch_maker *maker, int64_t at, const fsdp__batch_slot *into, void **places)
{
    const fsdp_dataset *data = &maker->dataset;
    int64_t first = at / maker->options.batch_size * maker->options.batch_size;

    for (int f = 0; f < data->field_count; f++)
        places[f] = (unsigned char *)into->items[f] + (size_t)(at - first) * fsdp__field_bytes(&data->fields[f]);
    return fsdp__item_make(data, maker->order ? maker->order[at] : maker->begin + at, places);
}

fsdp_status fsdp__batch_make(const fsdp__batch_maker *maker, int64_t number, int slot, int thread)
{
    const fsdp_data_loader_options *o = &maker->options;
    const fsdp__batch_slot *into = &maker->slots[slot];
    void **places = maker->places + (size_t)thread * (size_t)maker->dataset.field_count;
    int64_t size = fsdp__batch_size(maker, number);
    fsdp_status status;

    for (int64_t i = 0; i < size; i++)
        FSDP_TRY(make_item(maker, number * o->batch_size + i, into, places));
    if (!o->collate)
        return FSDP_OK;
    fsdp_clear_error();
    status = o->collate(o->collate_arg, size, into->items, into->out);
    if (status == FSDP_OK)
        return FSDP_OK;
    if (fsdp_last_status() != status)
        return FSDP_FAIL(status, "collating batch %lld: %s", (long long)number, fsdp_status_text(status));
    return fsdp_fail_prefix(status, "collating batch %lld", (long long)number);
}

/* ---- life ---- */

static fsdp_status check_options(const fsdp_dataset *dataset, const fsdp_data_loader_options *options)
{
    int64_t length;

    if (!dataset || !options || !dataset->length || !dataset->item)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a data loader: a data set with two functions, and options, are "
                                       "required");
    FSDP_TRY(fsdp__fields_check(dataset->fields, dataset->field_count));
    if (options->batch_size < 1 || options->batch_size > INT64_MAX / 8 || options->workers < 0 ||
        options->workers > MOST_WORKERS)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot make a data loader: batches of %lld items, %d workers: a batch has 1 to %lld items, "
                         "and there may be at most %d workers",
                         (long long)options->batch_size, options->workers, (long long)INT64_MAX / 8, MOST_WORKERS);
    if (options->collate)
        FSDP_TRY(fsdp__fields_check(options->fields, options->field_count));
    else if (options->fields || options->field_count)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a data loader: fields of its own need a collation");
    length = dataset->length(dataset->arg);
    if (length < 0 || length > INT64_MAX / 64)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a data loader: the data set has %lld items", (long long)length);
    if (options->sampler && fsdp__sampler_items(options->sampler) != length)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot make a data loader: its sampler is made for %lld items, and the data set has %lld",
                         (long long)fsdp__sampler_items(options->sampler), (long long)length);
    return FSDP_OK;
}

/* Returns the bytes of a batch's field, rounded up so that the next one can begin there; 0: too many. */
static size_t room_of(const fsdp__batch_maker *maker, const fsdp_data_field *field)
{
    size_t bytes;

    if (__builtin_mul_overflow(fsdp__field_bytes(field), (size_t)maker->options.batch_size, &bytes) ||
        bytes > SIZE_MAX / 8)
        return 0;
    return (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
}

static size_t lay_out(fsdp__batch_maker *maker, const fsdp_data_field *fields, int count, size_t at, void **places)
{
    for (int f = 0; f < count && at != SIZE_MAX; f++) {
        size_t room = room_of(maker, &fields[f]);

        if (places)
            places[f] = maker->first + at;
        if (room == 0 || __builtin_add_overflow(at, room, &at))
            at = SIZE_MAX;
    }
    return at;
}

/* Returns where the memory of a slot that begins at `at` ends. With `into`, sets up that slot. */
static size_t lay_out_slot(fsdp__batch_maker *maker, size_t at, fsdp__batch_slot *into)
{
    at = lay_out(maker, maker->dataset.fields, maker->dataset.field_count, at, into ? into->items : NULL);
    if (!maker->options.collate)
        return at;
    return lay_out(maker, maker->options.fields, maker->options.field_count, at, into ? into->out : NULL);
}

static fsdp_status make_slots(fsdp__batch_maker *maker)
{
    size_t items = (size_t)maker->dataset.field_count, out = (size_t)maker->options.field_count, bytes, all, at;
    size_t crew = (size_t)FSDP__MAX(maker->options.workers, 1);
    void **place;

    maker->slot_count = fsdp__ring_slots(maker->options.workers);
    bytes = lay_out_slot(maker, 0, NULL);
    if (bytes == SIZE_MAX || __builtin_mul_overflow(bytes, (size_t)maker->slot_count, &all) || all > SIZE_MAX / 2)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a data loader: batches of %lld items do not fit into memory",
                         (long long)maker->options.batch_size);
    maker->slots = fsdp__calloc((size_t)maker->slot_count, sizeof *maker->slots);
    maker->memory = fsdp__calloc(1, all + ALIGNMENT);
    maker->places = fsdp__calloc(crew * items + (size_t)maker->slot_count * (items + out), sizeof *maker->places);
    FSDP__TRY_NEW(maker->slots && maker->memory && maker->places);
    maker->first = maker->memory + (ALIGNMENT - (uintptr_t)maker->memory % ALIGNMENT) % ALIGNMENT;
    place = maker->places + crew * items;
    at = 0;
    for (int i = 0; i < maker->slot_count; i++) {
        fsdp__batch_slot *s = &maker->slots[i];

        s->items = place;
        s->out = maker->options.collate ? place + items : place;
        place += items + out;
        at = lay_out_slot(maker, at, s);
    }
    return FSDP_OK;
}

fsdp_status fsdp__batch_maker_init(fsdp__batch_maker *maker, const fsdp_dataset *dataset,
                                   const fsdp_data_loader_options *options)
{
    FSDP_TRY(check_options(dataset, options));
    maker->dataset = *dataset;
    maker->options = *options;
    maker->items = options->sampler ? fsdp__sampler_most(options->sampler) : dataset->length(dataset->arg);
    if (options->sampler)
        FSDP__TRY_NEW(maker->order = fsdp__malloc((size_t)(maker->items + 1) * sizeof *maker->order));
    return make_slots(maker);
}

void fsdp__batch_maker_release(fsdp__batch_maker *maker)
{
    FSDP__FREE_ALL(maker->slots, maker->places, maker->memory, maker->order);
}
