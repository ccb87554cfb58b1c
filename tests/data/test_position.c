/* A run goes on in its data where another stopped: with as many ranks the same batches come, with others the same
 * items, each once. */
#include "fsdp/dataset.h"
#include "support/dice.h"
#include "support/test.h"

enum {
    LENGTH = 23,
    MOST = 200
};

static const fsdp_data_field number_field = {"number", FSDP_I64, 0, {0}};

static int64_t numbers_length(void *arg)
{
    return *(const int64_t *)arg;
}

static fsdp_status numbers_item(void *arg, int64_t index, void *const *fields)
{
    (void)arg;
    *(int64_t *)fields[0] = index;
    return FSDP_OK;
}

/* A rank's loader over the numbers up to `length`. */
typedef struct rank_data {
    int64_t length;
    fsdp_distributed_sampler *sampler;
    fsdp_data_loader *loader;
} rank_data;

static void open_rank(rank_data *r, int rank, int world, bool shuffle, bool drop_last, int64_t batch_size)
{
    const fsdp_sampler_options order = {
        .length = r->length, .rank = rank, .world_size = world, .shuffle = shuffle, .drop_last = drop_last, .seed = 5};
    const fsdp_dataset data = {
        .length = numbers_length, .item = numbers_item, .arg = &r->length, .fields = &number_field, .field_count = 1};
    fsdp_data_loader_options options = {.batch_size = batch_size, .workers = rank % 2};

    CHECK_OK(fsdp_distributed_sampler_create(&order, &r->sampler));
    options.sampler = r->sampler;
    CHECK_OK(fsdp_data_loader_create(&data, &options, &r->loader));
}

static void close_rank(rank_data *r)
{
    fsdp_data_loader_free(r->loader);
    fsdp_distributed_sampler_free(r->sampler);
}

/* The items of up to `batches` batches; returns how many, and whether the epoch ended. */
static int take(fsdp_data_loader *loader, int batches, int64_t *items, bool *ended)
{
    fsdp_data_batch batch;
    int count = 0;
    bool more = true;

    while (batches-- > 0) {
        CHECK_OK(fsdp_data_loader_next(loader, &batch, &more));
        if (!more)
            break;
        CHECK(count + batch.size <= MOST);
        memcpy(items + count, batch.data[0], (size_t)batch.size * sizeof *items);
        count += (int)batch.size;
    }
    *ended = !more;
    return count;
}

/* Each of a world's ranks takes `batches` batches of epoch 3 from `from` on; seen[i] counts item i, `*to` is where they
 * stand then, all in the same place. Returns how many items there were. */
static int take_all(int world, int64_t batch_size, bool shuffle, bool drop_last, int batches,
                    const fsdp_data_position *from, fsdp_data_position *to, int *seen)
{
    int all = 0;

    for (int rank = 0; rank < world; rank++) {
        rank_data r = {.length = LENGTH};
        int64_t items[MOST];
        fsdp_data_position position;
        bool ended;
        int count;

        open_rank(&r, rank, world, shuffle, drop_last, batch_size);
        if (from)
            CHECK_OK(fsdp_data_loader_set_position(r.loader, from));
        CHECK_OK(fsdp_distributed_sampler_set_epoch(r.sampler, 3));
        count = take(r.loader, batches, items, &ended);
        for (int i = 0; i < count; i++)
            seen[items[i]]++;
        all += count;
        position = fsdp_data_loader_position(r.loader);
        if (rank > 0) {
            CHECK_EQ(position.epoch, to->epoch);
            CHECK_EQ(position.items, to->items);
        }
        *to = position;
        close_rank(&r);
    }
    CHECK_EQ(to->epoch, 3);
    return all;
}

/* Worlds and batches follow each other through an epoch. */
TEST(no_item_is_lost_or_comes_twice_at_another_number_of_ranks)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (size_t a = 0; a < sizeof worlds / sizeof *worlds; a++)
        for (size_t b = 0; b < sizeof worlds / sizeof *worlds; b++)
            for (int kind = 0; kind < 4; kind++) {
                bool shuffle = kind % 2, drop_last = kind / 2;
                fsdp_data_position middle, end;
                int seen[LENGTH] = {0}, count, more, fill_up = 0;

                count = take_all(worlds[a], 2, shuffle, drop_last, 1, NULL, &middle, seen);
                CHECK_EQ(count, 2 * worlds[a]);
                CHECK_EQ(middle.items, count);
                more = take_all(worlds[b], 3, shuffle, drop_last, 100, &middle, &end, seen);
                CHECK_EQ(end.items, LENGTH);
                /* Ranks have equally many: the end of the epoch is filled up, or cut. */
                for (int i = 0; i < LENGTH; i++) {
                    CHECK(seen[i] <= 2 && seen[i] >= !drop_last);
                    fill_up += seen[i] - 1;
                }
                CHECK_EQ(fill_up, count + more - LENGTH);
                CHECK(drop_last ? fill_up <= 0 && fill_up > -worlds[b] : fill_up >= 0 && fill_up < worlds[b]);
            }
}

TEST(with_as_many_ranks_the_same_batches_come)
{
    for (int shuffle = 0; shuffle < 2; shuffle++)
        for (int taken = 0; taken <= 5; taken++)
            for (int rank = 0; rank < 2; rank++) {
                rank_data whole = {.length = LENGTH}, resumed = {.length = LENGTH};
                int64_t rest[MOST], again[MOST], skipped[MOST];
                fsdp_data_position position;
                bool ended;
                int count;

                open_rank(&whole, rank, 2, shuffle, false, 3);
                open_rank(&resumed, rank, 2, shuffle, false, 3);
                for (int epoch = 0; epoch < 2; epoch++) {
                    CHECK_OK(fsdp_distributed_sampler_set_epoch(whole.sampler, epoch));
                    take(whole.loader, epoch == 0 ? 100 : taken, skipped, &ended);
                }
                position = fsdp_data_loader_position(whole.loader);
                CHECK_OK(fsdp_data_loader_set_position(resumed.loader, &position));
                for (int64_t epoch = position.epoch; epoch < 4; epoch++) {
                    CHECK_OK(fsdp_distributed_sampler_set_epoch(resumed.sampler, epoch));
                    if (epoch > 1 || taken == 0 || ended)
                        CHECK_OK(fsdp_distributed_sampler_set_epoch(whole.sampler, epoch));
                    count = ended && epoch == 1 ? 0 : take(whole.loader, 100, rest, &(bool){false});
                    CHECK_EQ(take(resumed.loader, 100, again, &(bool){false}), count);
                    CHECK_BYTES(again, rest, (size_t)count * sizeof *rest);
                }
                close_rank(&whole);
                close_rank(&resumed);
            }
}

TEST(a_loader_without_a_sampler_has_a_position_too)
{
    int64_t length = 7, items[MOST];
    const fsdp_dataset data = {
        .length = numbers_length, .item = numbers_item, .arg = &length, .fields = &number_field, .field_count = 1};
    const fsdp_data_loader_options options = {.batch_size = 2, .workers = 1};
    fsdp_data_loader *loader, *resumed;
    fsdp_data_position position;
    bool ended;

    CHECK_OK(fsdp_data_loader_create(&data, &options, &loader));
    CHECK_OK(fsdp_data_loader_create(&data, &options, &resumed));
    CHECK_EQ(take(loader, 100, items, &ended), 7);
    position = fsdp_data_loader_position(loader);
    CHECK(position.epoch == 0 && position.items == 7);
    CHECK_EQ(take(loader, 2, items, &ended), 4);
    position = fsdp_data_loader_position(loader);
    CHECK(position.epoch == 1 && position.items == 4);
    CHECK_EQ(take(resumed, 1, items, &ended), 2); /* in the middle of something else */
    CHECK_OK(fsdp_data_loader_set_position(resumed, &position));
    CHECK_EQ(fsdp_data_loader_position(resumed).items, 4);
    CHECK_EQ(take(resumed, 100, items, &ended), 3);
    CHECK(items[0] == 4 && items[2] == 6);
    CHECK_EQ(take(resumed, 100, items, &ended), 7);
    CHECK_EQ(fsdp_data_loader_position(resumed).epoch, 2);
    CHECK_EQ(fsdp_data_loader_length(resumed), 4);
    fsdp_data_loader_free(loader);
    fsdp_data_loader_free(resumed);
}

TEST(the_position_of_other_data_is_refused)
{
    rank_data r = {.length = LENGTH};
    fsdp_data_position good, bad;

    open_rank(&r, 0, 2, true, false, 2);
    good = fsdp_data_loader_position(r.loader);
    CHECK(good.length == LENGTH && good.shuffle && good.seed == 5 && good.items == 0);
    CHECK_OK(fsdp_data_loader_set_position(r.loader, &good));
#define REFUSED(change, words)                                                           \
    do {                                                                                 \
        bad = good;                                                                      \
        change;                                                                          \
        CHECK_ERROR(fsdp_data_loader_set_position(r.loader, &bad), FSDP_INVALID, words); \
    } while (0)
    REFUSED(bad.length = 22, "the position was taken in 22 items, and there are 23");
    REFUSED(bad.seed = 6, "shuffled with seed 6, and the sampler's are shuffled with seed 5");
    REFUSED(bad.shuffle = false, "items in their order, seed 5");
    REFUSED(bad.epoch = -1, "item 0 of 23 in epoch -1");
    REFUSED(bad.items = -1, "item -1 of 23");
    REFUSED(bad.items = 24, "item 24 of 23");
    CHECK_ERROR(fsdp_data_loader_set_position(r.loader, NULL), FSDP_INVALID, "are required");
    close_rank(&r);
}

/* ---- any order of calls ---- */

enum {
    MOST_RANKS = 4,
    CALLS = 60
};

/* All ranks of a run, and what the documentation says of where they stand. */
typedef struct run {
    uint64_t dice;
    int world;
    bool shuffle, drop_last;
    int64_t batch_size, order[LENGTH];
    rank_data ranks[MOST_RANKS];
    int64_t epoch, first; /* of the sampler */
    bool begun;
    fsdp_data_position at; /* the epoch that runs or has ended, at its beginning */
    int64_t taken;
    bool running, ended;
} run;

static void open_run(run *r, const fsdp_data_position *from)
{
    r->world = 1 + dice_below(&r->dice, MOST_RANKS);
    r->batch_size = 1 + dice_below(&r->dice, 5);
    r->drop_last = dice_below(&r->dice, 2);
    for (int i = 0; i < r->world; i++) {
        r->ranks[i].length = LENGTH;
        open_rank(&r->ranks[i], i, r->world, r->shuffle, r->drop_last, r->batch_size);
        if (from)
            CHECK_OK(fsdp_data_loader_set_position(r->ranks[i].loader, from));
    }
    r->epoch = from ? from->epoch : 0;
    r->first = from ? from->items : 0;
    r->begun = r->running = r->ended = false;
}

static void close_run(run *r)
{
    for (int i = 0; i < r->world; i++)
        close_rank(&r->ranks[i]);
}

/* As one rank would have them. */
static void order_of(run *r, int64_t epoch)
{
    rank_data one = {.length = LENGTH};

    open_rank(&one, 0, 1, r->shuffle, false, 1);
    CHECK_OK(fsdp_distributed_sampler_set_epoch(one.sampler, epoch));
    memcpy(r->order, fsdp_distributed_sampler_indices(one.sampler), sizeof r->order);
    close_rank(&one);
}

static void begin(run *r)
{
    r->first = r->begun ? 0 : r->first;
    r->begun = r->running = true;
    r->ended = false;
    r->taken = 0;
    r->at = (fsdp_data_position){.epoch = r->epoch, .items = r->first};
    order_of(r, r->epoch);
}

static void take_one(run *r)
{
    int64_t left, count, from;
    bool more;

    if (!r->running)
        begin(r);
    left = LENGTH - r->at.items;
    count = (left + (r->drop_last ? 0 : r->world - 1)) / r->world; /* of a rank */
    from = r->taken * r->batch_size;
    for (int i = r->world - 1; i >= 0; i--) {
        fsdp_data_batch batch;

        CHECK_OK(fsdp_data_loader_next(r->ranks[i].loader, &batch, &more));
        CHECK_EQ(more, from < count);
        if (!more)
            continue;
        CHECK_EQ(batch.number, r->taken);
        CHECK_EQ(batch.size, from + r->batch_size < count ? r->batch_size : count - from);
        for (int64_t k = 0; k < batch.size; k++)
            CHECK_EQ(((const int64_t *)batch.data[0])[k], r->order[(r->at.items + (from + k) * r->world + i) % LENGTH]);
    }
    r->running = more;
    r->ended = !more;
    r->taken++;
}

static fsdp_data_position position_of(const run *r)
{
    fsdp_data_position expected = {.epoch = r->epoch, .items = r->begun ? 0 : r->first}, is;
    int64_t after = r->at.items + r->taken * r->batch_size * r->world;

    if (r->running || (r->ended && r->epoch == r->at.epoch)) {
        expected.epoch = r->at.epoch;
        expected.items = r->running && after < LENGTH ? after : LENGTH;
    }
    for (int i = 0; i < r->world; i++) {
        is = fsdp_data_loader_position(r->ranks[i].loader);
        CHECK_EQ(is.epoch, expected.epoch);
        CHECK_EQ(is.items, expected.items);
    }
    return is;
}

/* Not while it stands, unbegun, where a call would put it. */
static void set_epoch(run *r, int64_t epoch)
{
    for (int i = 0; i < r->world; i++)
        CHECK_OK(fsdp_distributed_sampler_set_epoch(r->ranks[i].sampler, epoch));
    if (epoch != r->epoch || r->begun) {
        r->first = 0;
        r->begun = false;
    }
    r->epoch = epoch;
}

/* To an earlier position, in this run or in another one. */
static void go_back(run *r, const fsdp_data_position *to)
{
    if (dice_below(&r->dice, 2)) {
        close_run(r);
        open_run(r, to);
        return;
    }
    for (int i = 0; i < r->world; i++)
        CHECK_OK(fsdp_data_loader_set_position(r->ranks[i].loader, to));
    r->epoch = to->epoch;
    r->first = to->items;
    r->begun = r->running = r->ended = false;
}

static void reset(run *r)
{
    for (int i = 0; i < r->world; i++)
        fsdp_data_loader_reset(r->ranks[i].loader);
    r->ended = r->ended || r->running;
    r->running = false;
}

TEST(calls_in_any_order_leave_ranks_where_the_items_are)
{
    const dice_seeds seeds = dice_seeds_of("POSITION", test_long() ? 2000 : 10);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        run r = {.dice = seed, .shuffle = seed % 2};
        fsdp_data_position saved[3];

        open_run(&r, NULL);
        for (int i = 0; i < 3; i++)
            saved[i] = position_of(&r);
        for (int call = 0; call < CALLS; call++) {
            int what = dice_below(&r.dice, 10);

            if (what < 5)
                take_one(&r);
            else if (what == 5)
                saved[dice_below(&r.dice, 3)] = position_of(&r);
            else if (what < 8)
                go_back(&r, &saved[dice_below(&r.dice, 3)]);
            else if (what == 8)
                set_epoch(&r, r.epoch + dice_below(&r.dice, 3));
            else if (dice_below(&r.dice, 3) == 0)
                reset(&r);
            (void)position_of(&r);
        }
        close_run(&r);
    }
}
