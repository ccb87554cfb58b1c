/* Samplers give PyTorch's items (tests/numbers/sampler.py); loaders batches of them, the same for any number of
 * workers, and failures where they belong. */
#include "fsdp/dataset.h"
#include "support/limits.h"
#include "support/numbers.h"

/* ---- samplers ---- */

/* A row of sampler.npy. */
typedef struct sampler_number {
    int64_t length, world, rank, shuffle, drop_last, seed, epoch, count;
    int64_t indices[32];
} sampler_number;

static fsdp_sampler_options options_of(const sampler_number *n)
{
    return (fsdp_sampler_options){.length = n->length,
                                  .rank = (int)n->rank,
                                  .world_size = (int)n->world,
                                  .shuffle = n->shuffle,
                                  .drop_last = n->drop_last,
                                  .seed = (uint64_t)n->seed};
}

TEST(samplers_give_pytorchs_items)
{
    int64_t numbers;
    sampler_number *rows = number_array("sampler", FSDP_I64, &numbers);

    CHECK_EQ((size_t)numbers * sizeof(int64_t) % sizeof *rows, 0);
    CHECK(numbers > 0);
    for (const sampler_number *n = rows; n < rows + (size_t)numbers * sizeof(int64_t) / sizeof *rows; n++) {
        const fsdp_sampler_options options = options_of(n);
        fsdp_distributed_sampler *sampler;

        CHECK_OK(fsdp_distributed_sampler_create(&options, &sampler));
        CHECK_EQ(fsdp_distributed_sampler_length(sampler), n->count);
        CHECK_OK(fsdp_distributed_sampler_set_epoch(sampler, n->epoch + 3));
        CHECK_OK(fsdp_distributed_sampler_set_epoch(sampler, n->epoch));
        CHECK_BYTES(fsdp_distributed_sampler_indices(sampler), n->indices, (size_t)n->count * sizeof *n->indices);
        fsdp_distributed_sampler_free(sampler);
    }
    free(rows);
}

TEST(samplers_of_nothing_and_of_one_rank)
{
    fsdp_distributed_sampler *sampler;

    CHECK_OK(fsdp_distributed_sampler_create(&(fsdp_sampler_options){.rank = 1, .world_size = 3, .shuffle = true},
                                             &sampler));
    CHECK_EQ(fsdp_distributed_sampler_length(sampler), 0);
    fsdp_distributed_sampler_free(sampler);
    CHECK_OK(fsdp_distributed_sampler_create(&(fsdp_sampler_options){.length = 3}, &sampler));
    CHECK_EQ(fsdp_distributed_sampler_indices(sampler)[2], 2);
    CHECK_ERROR(fsdp_distributed_sampler_set_epoch(sampler, -1), FSDP_INVALID, "epoch -1");
    fsdp_distributed_sampler_free(sampler);
    fsdp_distributed_sampler_free(NULL);
    CHECK_ERROR(fsdp_distributed_sampler_create(NULL, &sampler), FSDP_INVALID, "options are required");
    CHECK_ERROR(fsdp_distributed_sampler_create(&(fsdp_sampler_options){.length = -1}, &sampler), FSDP_INVALID,
                "a sampler of -1 items");
    CHECK_ERROR(
        fsdp_distributed_sampler_create(&(fsdp_sampler_options){.length = 4, .rank = 2, .world_size = 2}, &sampler),
        FSDP_INVALID, "no rank 2 in a world of 2");
    CHECK_NULL(sampler);
}

/* ---- a data set: item i is the square of i, and (i, i + 1, i + 2) ---- */

typedef struct squares {
    int64_t length, bad; /* an item that cannot be read */
    bool silent;
} squares;

static const fsdp_data_field square_fields[] = {{"square", FSDP_I64, 0, {0}}, {"next", FSDP_I32, 1, {3}}};

static int64_t squares_length(void *arg)
{
    return ((const squares *)arg)->length;
}

static fsdp_status squares_item(void *arg, int64_t index, void *const *fields)
{
    const squares *s = arg;

    if (index == s->bad)
        return s->silent ? FSDP_IO : FSDP_FAIL(FSDP_IO, "a scratch on the disk");
    *(int64_t *)fields[0] = index * index;
    for (int i = 0; i < 3; i++)
        ((int32_t *)fields[1])[i] = (int32_t)index + i;
    return FSDP_OK;
}

static fsdp_dataset dataset_of(squares *s)
{
    return (fsdp_dataset){
        .length = squares_length, .item = squares_item, .arg = s, .fields = square_fields, .field_count = 2};
}

/* The next batch holds these items. */
static void check_batch(fsdp_data_loader *loader, int64_t number, const int64_t *indices, int64_t size)
{
    fsdp_data_batch batch;
    bool more;

    CHECK_OK(fsdp_data_loader_next(loader, &batch, &more));
    CHECK(more);
    CHECK_EQ(batch.number, number);
    CHECK_EQ(batch.size, size);
    CHECK_EQ(batch.field_count, 2);
    CHECK_EQ(batch.fields[0].ndim, 1);
    CHECK_EQ(batch.fields[1].ndim, 2);
    CHECK_EQ(batch.fields[1].shape[0], size);
    CHECK_EQ(batch.fields[1].shape[1], 3);
    CHECK_STRING(batch.fields[1].name, "next");
    for (int64_t i = 0; i < size; i++) {
        CHECK_EQ(((const int64_t *)batch.data[0])[i], indices[i] * indices[i]);
        for (int k = 0; k < 3; k++)
            CHECK_EQ(((int32_t *)batch.data[1])[3 * i + k], indices[i] + k);
        ((int32_t *)batch.data[1])[3 * i] = -1; /* the caller's */
    }
    for (int f = 0; f < 2; f++)
        CHECK_EQ((uintptr_t)batch.data[f] % 64, 0);
}

static void check_end(fsdp_data_loader *loader)
{
    fsdp_data_batch batch;
    bool more = true;

    CHECK_OK(fsdp_data_loader_next(loader, &batch, &more));
    CHECK(!more);
    CHECK_EQ(batch.size, 0);
}

static void check_epoch(fsdp_data_loader *loader, const int64_t *indices, int64_t count, int64_t batch_size,
                        bool drop_last)
{
    int64_t number = 0;

    for (int64_t at = 0; at < count; at += batch_size) {
        int64_t size = count - at < batch_size ? count - at : batch_size;

        if (size == batch_size || !drop_last)
            check_batch(loader, number++, indices + at, size);
    }
    CHECK_EQ(fsdp_data_loader_length(loader), number);
    check_end(loader);
}

TEST(batches_are_the_same_for_any_number_of_workers)
{
    squares s = {.length = 23, .bad = -1};
    const fsdp_dataset data = dataset_of(&s);

    for (int i = 0; i < 4 * 2 * 3; i++) {
        int64_t batch_size = (const int64_t[]){1, 4, 40}[i % 3];
        fsdp_data_loader_options options = {.batch_size = batch_size, .workers = i / 6, .drop_last = i / 3 % 2};
        fsdp_sampler_options order = {.length = 23, .rank = 1, .world_size = 2, .shuffle = true, .seed = 3};
        fsdp_data_loader *loader;

        CHECK_OK(fsdp_distributed_sampler_create(&order, &options.sampler));
        CHECK_OK(fsdp_data_loader_create(&data, &options, &loader));
        for (int epoch = 0; epoch < 3; epoch++) {
            CHECK_OK(fsdp_distributed_sampler_set_epoch(options.sampler, epoch));
            check_epoch(loader, fsdp_distributed_sampler_indices(options.sampler),
                        fsdp_distributed_sampler_length(options.sampler), batch_size, options.drop_last);
        }
        fsdp_data_loader_free(loader);
        fsdp_distributed_sampler_free(options.sampler);
    }
}

TEST(an_epoch_keeps_its_order_until_it_ends_or_is_left)
{
    squares s = {.length = 10, .bad = -1};
    const fsdp_dataset data = dataset_of(&s);

    for (int workers = 0; workers < 3; workers++) {
        fsdp_data_loader_options options = {.batch_size = 2, .workers = workers};
        fsdp_sampler_options order = {.length = 10, .shuffle = true};
        fsdp_data_loader *loader;
        int64_t first[10];

        CHECK_OK(fsdp_distributed_sampler_create(&order, &options.sampler));
        memcpy(first, fsdp_distributed_sampler_indices(options.sampler), sizeof first);
        CHECK_OK(fsdp_data_loader_create(&data, &options, &loader));
        check_batch(loader, 0, first, 2);
        CHECK_OK(fsdp_distributed_sampler_set_epoch(options.sampler, 1));
        check_batch(loader, 1, first + 2, 2);
        fsdp_data_loader_reset(loader);
        fsdp_data_loader_reset(loader);
        check_epoch(loader, fsdp_distributed_sampler_indices(options.sampler), 10, 2, false);
        check_batch(loader, 0, fsdp_distributed_sampler_indices(options.sampler), 2);
        fsdp_data_loader_free(loader); /* in the middle */
        fsdp_distributed_sampler_free(options.sampler);
    }
}

static const int64_t in_order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

TEST(a_failure_comes_at_its_batch_and_stays)
{
    for (int i = 0; i < 2 * 4; i++) {
        squares s = {.length = 12, .bad = 7, .silent = i % 2};
        const fsdp_dataset data = dataset_of(&s);
        fsdp_data_loader *loader;
        fsdp_data_batch batch;
        bool more;

        CHECK_OK(
            fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = 2, .workers = i / 2}, &loader));
        for (int b = 0; b < 3; b++)
            check_batch(loader, b, in_order + 2 * b, 2);
        for (int again = 0; again < 3; again++) {
            CHECK_ERROR(fsdp_data_loader_next(loader, &batch, &more), FSDP_IO,
                        s.silent ? "item 7 of the data set: input or output failed"
                                 : "item 7 of the data set: a scratch on the disk");
            CHECK(!more);
        }
        fsdp_data_loader_reset(loader);
        s.bad = -1;
        check_epoch(loader, in_order, 12, 2, false);
        fsdp_data_loader_free(loader);
    }
}

/* ---- collation ---- */

/* The sum of the squares so far, in f32; fails where it is told to. */
static fsdp_status sum_up(void *arg, int64_t size, void *const *items, void *const *out)
{
    float sum = 0;

    if (arg && size == *(const int64_t *)arg)
        return FSDP_FAIL(FSDP_FORMAT, "no batches of %lld", (long long)size);
    for (int64_t i = 0; i < size; i++) {
        sum += (float)((const int64_t *)items[0])[i];
        ((float *)out[0])[2 * i] = sum;
        ((float *)out[0])[2 * i + 1] = (float)((const int32_t *)items[1])[3 * i];
    }
    return FSDP_OK;
}

TEST(a_collation_makes_its_own_fields)
{
    static const fsdp_data_field made[] = {{"sum", FSDP_F32, 1, {2}}};
    squares s = {.length = 5, .bad = -1};
    const fsdp_dataset data = dataset_of(&s);
    int64_t refused = 1;

    for (int workers = 0; workers < 3; workers++) {
        fsdp_data_loader_options options = {
            .batch_size = 2, .workers = workers, .collate = sum_up, .fields = made, .field_count = 1};
        fsdp_data_loader *loader;
        fsdp_data_batch batch;
        bool more;

        options.collate_arg = &refused;
        CHECK_OK(fsdp_data_loader_create(&data, &options, &loader));
        for (int b = 0; b < 2; b++) {
            CHECK_OK(fsdp_data_loader_next(loader, &batch, &more));
            CHECK_EQ(batch.field_count, 1);
            CHECK_EQ(batch.fields[0].ndim, 2);
            CHECK_EQ(batch.fields[0].shape[0], 2);
            CHECK_BYTES(batch.data[0], (b ? (const float[]){4, 2, 13, 3} : (const float[]){0, 0, 1, 1}), 16);
        }
        CHECK_ERROR(fsdp_data_loader_next(loader, &batch, &more), FSDP_FORMAT, "collating batch 2: no batches of 1");
        fsdp_data_loader_free(loader);
    }
}

/* ---- the edges ---- */

TEST(loaders_that_cannot_be_are_refused)
{
    squares s = {.length = 5, .bad = -1};
    const fsdp_data_field nothing = {.name = "nothing", .dtype = FSDP_U8, .ndim = 1};
    fsdp_dataset data = dataset_of(&s), half = data, empty = data;
    fsdp_data_loader_options options = {.batch_size = 2};
    fsdp_data_loader *loader;
    fsdp_data_batch batch;
    bool more;

    half.item = NULL;
    empty.fields = &nothing; /* of no bytes, however many */
    empty.field_count = 1;
    CHECK_ERROR(fsdp_data_loader_create(NULL, &options, &loader), FSDP_INVALID, "a data set with two functions");
    CHECK_ERROR(fsdp_data_loader_create(&data, NULL, &loader), FSDP_INVALID, "options");
    CHECK_ERROR(fsdp_data_loader_create(&half, &options, &loader), FSDP_INVALID, "two functions");
    CHECK_ERROR(fsdp_data_loader_create(&data, &(fsdp_data_loader_options){0}, &loader), FSDP_INVALID, "batches of 0");
    CHECK_ERROR(fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = 1, .workers = 1025}, &loader),
                FSDP_INVALID, "1025 workers");
    CHECK_ERROR(fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = INT64_MAX / 8}, &loader),
                FSDP_INVALID, "do not fit into memory");
    for (int64_t size = INT64_MAX / 8 + 1; size > 0; size = size == INT64_MAX ? 0 : INT64_MAX)
        CHECK_ERROR(fsdp_data_loader_create(&empty, &(fsdp_data_loader_options){.batch_size = size}, &loader),
                    FSDP_INVALID, "a batch has 1 to");
    CHECK_ERROR(fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = 1, .field_count = 1}, &loader),
                FSDP_INVALID, "fields of its own need a collation");
    CHECK_ERROR(
        fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = 1, .collate = sum_up}, &loader),
        FSDP_INVALID, "no fields");
    CHECK_OK(fsdp_distributed_sampler_create(&(fsdp_sampler_options){.length = 6}, &options.sampler));
    CHECK_ERROR(fsdp_data_loader_create(&data, &options, &loader), FSDP_INVALID,
                "made for 6 items, and the data set has 5");
    CHECK_NULL(loader);
    fsdp_distributed_sampler_free(options.sampler);
    s.length = -2;
    CHECK_ERROR(fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = 1}, &loader), FSDP_INVALID,
                "the data set has -2 items");
    CHECK_ERROR(fsdp_data_loader_next(NULL, &batch, &more), FSDP_INVALID, "loader, batch and more");
    s.length = 0;
    CHECK_OK(fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = 3, .workers = 1}, &loader));
    CHECK_EQ(fsdp_data_loader_length(loader), 0);
    check_end(loader);
    check_end(loader);
    fsdp_data_loader_free(loader);
    fsdp_data_loader_free(NULL);
    fsdp_data_loader_reset(NULL);
}

TEST(any_allocation_may_fail)
{
    squares s = {.length = 5, .bad = -1};
    const fsdp_dataset data = dataset_of(&s);

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_data_loader_options options = {.batch_size = 2, .workers = 2};
        fsdp_data_loader *loader = NULL;
        fsdp_status status =
            fsdp_distributed_sampler_create(&(fsdp_sampler_options){.length = 5, .shuffle = true}, &options.sampler);

        if (status == FSDP_OK)
            status = fsdp_data_loader_create(&data, &options, &loader);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_data_loader_free(loader);
        fsdp_distributed_sampler_free(options.sampler);
    }
}

/* Where there is no room for another stack, those that have started end, and the next loader is as good as any. */
TEST(a_worker_that_cannot_start_is_an_error)
{
    squares s = {.length = 5, .bad = -1};
    const fsdp_dataset data = dataset_of(&s);
    fsdp_data_loader *loader = NULL;
    struct rlimit before = test_leave_address_space((size_t)64 << 20);
    fsdp_data_batch batch;
    bool more;

    CHECK_ERROR(fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = 1, .workers = 1000}, &loader),
                FSDP_NO_MEMORY, "of 1000 of the data loader: ");
    CHECK_CONTAINS(fsdp_last_error(), "; 'ulimit -u', or pids.max of a control group, says");
    CHECK_CONTAINS(fsdp_last_error(), "and 'ulimit -v' how much address space a process and its stacks may have");
    CHECK_NULL(loader);
    test_set_address_space(before);
    CHECK_OK(fsdp_data_loader_create(&data, &(fsdp_data_loader_options){.batch_size = 1, .workers = 3}, &loader));
    CHECK_OK(fsdp_data_loader_next(loader, &batch, &more));
    CHECK(more);
    fsdp_data_loader_free(loader);
}
