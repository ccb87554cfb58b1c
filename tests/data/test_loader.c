/* Which tokens are in which batch. Token i of the test streams is i, so a window tells where it came from. */
#include "fsdp/data.h"
#include "support/dice.h"
#include "support/test.h"

typedef struct stream {
    char *directory, *path;
    fsdp_tokens *tokens;
} stream;

static stream stream_create(int64_t count)
{
    stream s = {.directory = test_directory()};
    uint32_t *tokens = calloc((size_t)count, sizeof *tokens);

    for (int64_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)i;
    s.path = test_path(s.directory, "tokens.u32");
    test_write_file(s.path, tokens, (size_t)count * sizeof *tokens);
    free(tokens);
    CHECK_OK(fsdp_tokens_open((const char *const *)&s.path, 1, FSDP_TOKENS_AUTO, &s.tokens));
    return s;
}

static void stream_free(stream *s)
{
    fsdp_tokens_close(s->tokens);
    test_directory_free(s->directory);
}

/* Window that sequence `b` of the batch is, after checking that it is one, with its targets. */
static int64_t window_of(const fsdp_batch *batch, int64_t b, int64_t length)
{
    const int32_t *inputs = batch->inputs + b * length, *targets = batch->targets + b * length;

    CHECK_EQ(inputs[0] % length, 0);
    for (int64_t i = 0; i < length; i++) {
        CHECK_EQ(inputs[i], inputs[0] + i);
        CHECK_EQ(targets[i], inputs[0] + i + 1);
    }
    return inputs[0] / length;
}

/* Windows of `steps` steps of all ranks, at their global number. */
static void collect(const stream *s, fsdp_loader_options options, int64_t steps, int64_t *windows)
{
    int64_t per = options.local_batch, world = options.world_size;

    for (int rank = 0; rank < world; rank++) {
        fsdp_loader *loader = NULL;

        options.rank = rank;
        CHECK_OK(fsdp_loader_create(s->tokens, &options, &loader));
        for (int64_t m = 0; m < steps * options.microbatches; m++) {
            fsdp_batch batch;

            CHECK_OK(fsdp_loader_next(loader, &batch));
            CHECK_EQ(batch.microbatch, m);
            CHECK_EQ(batch.epoch, ((m + 1) * world * per - 1) / ((fsdp_tokens_count(s->tokens) - 1) / options.seq_len));
            for (int64_t b = 0; b < per; b++)
                windows[(m * world + rank) * per + b] = window_of(&batch, b, options.seq_len);
        }
        fsdp_loader_free(loader);
    }
}

TEST(sequential_order_is_the_formula_whatever_the_split)
{
    /* (A, W, B) with A W B = 12 or not */
    static const int splits[][3] = {{1, 1, 12}, {1, 2, 6}, {3, 2, 2}, {4, 3, 1}, {2, 4, 3}, {1, 7, 1}};
    stream s = stream_create(5 * 500 + 1);

    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        int64_t steps = 5, total = steps * splits[i][0] * splits[i][1] * splits[i][2];
        int64_t *windows = calloc((size_t)total, sizeof *windows);
        fsdp_loader_options options = {.seq_len = 5,
                                       .microbatches = splits[i][0],
                                       .world_size = splits[i][1],
                                       .local_batch = splits[i][2],
                                       .workers = (int)i % 3};

        collect(&s, options, steps, windows);
        for (int64_t g = 0; g < total; g++)
            CHECK_EQ(windows[g], g);
        free(windows);
    }
    stream_free(&s);
}

TEST(past_the_end_it_starts_again)
{
    /* 13 windows: the last tokens make no whole one. */
    stream s = stream_create(13 * 4 + 3);
    int64_t windows[4 * 3 * 2 * 2];
    fsdp_loader_options options = {.seq_len = 4, .microbatches = 2, .world_size = 3, .local_batch = 2, .workers = 1};

    collect(&s, options, 4, windows);
    for (int g = 0; g < 48; g++)
        CHECK_EQ(windows[g], g % 13);
    stream_free(&s);
}

TEST(a_shuffled_epoch_visits_every_window_once)
{
    static const int64_t sizes[] = {4, 5, 6, 7, 16, 17, 63, 100, 1023};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t n = sizes[i], fixed = 0, same = 0;
        stream s = stream_create(n * 3 + 1);
        int64_t *windows = calloc((size_t)n * 4, sizeof *windows);
        fsdp_loader_options options = {.seq_len = 3, .microbatches = 1, .world_size = 2, .local_batch = 2};

        options.shuffle = true;
        options.seed = 7 + i;
        collect(&s, options, n, windows);
        for (int epoch = 0; epoch < 4; epoch++) {
            char *seen = calloc((size_t)n, 1);

            for (int64_t g = 0; g < n; g++)
                seen[windows[epoch * n + g]]++;
            for (int64_t w = 0; w < n; w++)
                CHECK_EQ(seen[w], 1);
            free(seen);
        }
        for (int64_t g = 0; g < n; g++) {
            fixed += windows[g] == g;
            same += windows[g] == windows[n + g];
        }
        if (n >= 16) { /* one of each is expected */
            CHECK(fixed < 8);
            CHECK(same < 8);
        }
        free(windows);
        stream_free(&s);
    }
}

TEST(the_shuffle_depends_on_the_seed_alone)
{
    enum {
        N = 101,
        TOTAL = 240
    };
    stream s = stream_create(N * 4 + 1);
    fsdp_loader_options options = {.seq_len = 4, .shuffle = true, .seed = 3};
    static const int splits[][3] = {{1, 1, 12}, {3, 2, 2}, {4, 3, 1}, {1, 4, 3}};
    int64_t first[TOTAL], other[TOTAL];

    for (int i = 0; i < 4; i++) {
        options.microbatches = splits[i][0];
        options.world_size = splits[i][1];
        options.local_batch = splits[i][2];
        options.workers = i;
        collect(&s, options, TOTAL / 12, i == 0 ? first : other);
        if (i > 0)
            CHECK_BYTES(other, first, sizeof first);
    }
    options.seed = 4;
    collect(&s, options, TOTAL / 12, other);
    CHECK(memcmp(other, first, sizeof first) != 0);
    stream_free(&s);
}

TEST(it_resumes_in_the_middle)
{
    stream s = stream_create(4 * 37 + 1);

    for (int shuffle = 0; shuffle < 2; shuffle++)
        for (int workers = 0; workers < 3; workers++)
            for (int64_t start = 0; start < 30; start += 7) {
                fsdp_loader_options options = {.seq_len = 4,
                                               .microbatches = 3,
                                               .world_size = 2,
                                               .rank = 1,
                                               .local_batch = 2,
                                               .shuffle = shuffle,
                                               .seed = 1};
                fsdp_loader *whole = NULL, *resumed = NULL;
                fsdp_batch a, b;

                CHECK_OK(fsdp_loader_create(s.tokens, &options, &whole));
                options.start_window = start * 2 * 2;
                options.workers = workers;
                CHECK_OK(fsdp_loader_create(s.tokens, &options, &resumed));
                for (int64_t m = 0; m < 40; m++) {
                    CHECK_OK(fsdp_loader_next(whole, &a));
                    if (m < start)
                        continue;
                    CHECK_EQ(fsdp_loader_position(resumed), m * 4);
                    CHECK_OK(fsdp_loader_next(resumed, &b));
                    CHECK_EQ(b.microbatch, m - start);
                    CHECK_EQ(b.epoch, a.epoch);
                    CHECK_BYTES(b.inputs, a.inputs, 8 * sizeof(int32_t));
                    CHECK_BYTES(b.targets, a.targets, 8 * sizeof(int32_t));
                }
                fsdp_loader_free(whole);
                fsdp_loader_free(resumed);
            }
    stream_free(&s);
}

/* Windows that all ranks take in `calls` calls, from *position on, which moves on. */
static void take(const stream *s, fsdp_loader_options options, int calls, int64_t *position, int64_t *windows,
                 int64_t *count)
{
    int64_t began = *position, together = options.local_batch * options.world_size;

    options.start_window = began;
    for (int rank = 0; rank < options.world_size; rank++) {
        fsdp_loader *loader = NULL;
        fsdp_batch batch;

        options.rank = rank;
        CHECK_OK(fsdp_loader_create(s->tokens, &options, &loader));
        for (int call = 0; call < calls; call++) {
            CHECK_OK(fsdp_loader_next(loader, &batch));
            for (int64_t b = 0; b < options.local_batch; b++)
                windows[began + call * together + rank * options.local_batch + b] =
                    window_of(&batch, b, options.seq_len);
        }
        *position = fsdp_loader_position(loader);
        fsdp_loader_free(loader);
    }
    *count += calls * together;
    CHECK_EQ(*position, *count);
}

typedef struct reader {
    fsdp_loader *loader; /* NULL: closed */
    fsdp_loader_options options;
    int64_t calls, saved; /* since it was opened; a position to go on from */
} reader;

/* At the position that was saved, as one rank of another world, now and then of another stream of the same file. */
static void reopen(reader *r, const stream *s, uint64_t *dice)
{
    fsdp_loader_free(r->loader);
    r->options.world_size = 1 + dice_below(dice, 4);
    r->options.rank = dice_below(dice, r->options.world_size);
    r->options.local_batch = 1 + dice_below(dice, 3);
    r->options.workers = dice_below(dice, 3);
    r->options.start_window = r->saved;
    r->calls = 0;
    CHECK_OK(fsdp_loader_create(s->tokens, &r->options, &r->loader));
}

static void check_next(reader *r, const int64_t *order)
{
    int64_t per = r->options.local_batch, together = per * r->options.world_size;
    int64_t first = r->options.start_window + r->calls * together;
    fsdp_batch batch;

    CHECK_EQ(fsdp_loader_position(r->loader), first);
    CHECK_OK(fsdp_loader_next(r->loader, &batch));
    CHECK_EQ(batch.microbatch, r->calls);
    for (int64_t b = 0; b < per; b++)
        CHECK_EQ(window_of(&batch, b, r->options.seq_len), order[first + r->options.rank * per + b]);
    r->calls++;
}

/* Readers of one stream, of which one evaluates in order, are saved, go on elsewhere and are closed in any order. */
TEST(positions_are_kept_in_any_order_of_calls)
{
    enum {
        READERS = 3,
        CALLS = 150,
        MOST = CALLS * 12 + 12
    };
    stream s = stream_create(4 * 37 + 1);
    int64_t *orders[2];

    for (int shuffle = 0; shuffle < 2; shuffle++) {
        fsdp_loader_options options = {
            .seq_len = 4, .microbatches = 1, .world_size = 1, .local_batch = 1, .shuffle = shuffle, .seed = 7};

        orders[shuffle] = calloc(MOST, sizeof *orders[shuffle]);
        collect(&s, options, MOST, orders[shuffle]);
    }
    for (uint64_t seed = 1; seed < 4; seed++) {
        uint64_t dice = seed;
        reader readers[READERS] = {0};

        for (int i = 0; i < READERS; i++)
            readers[i].options = (fsdp_loader_options){.seq_len = 4, .microbatches = 1, .shuffle = i > 0, .seed = 7};
        for (int call = 0; call < CALLS; call++) {
            int which = dice_below(&dice, READERS), what = dice_below(&dice, 8);
            reader *r = &readers[which];

            if (!r->loader || what == 0) {
                reopen(r, &s, &dice);
            } else if (what == 1) {
                r->saved = fsdp_loader_position(r->loader);
            } else if (what == 2) {
                fsdp_loader_free(r->loader);
                r->loader = NULL;
            } else {
                check_next(r, orders[which > 0]);
            }
        }
        for (int i = 0; i < READERS; i++)
            fsdp_loader_free(readers[(i + (int)seed) % READERS].loader);
    }
    free(orders[0]);
    free(orders[1]);
    stream_free(&s);
}

/* The order is one, in however many parts, and by however many ranks, it is taken. */
TEST(no_window_is_lost_or_comes_twice_when_ranks_and_batches_change)
{
    enum {
        WINDOWS = 41
    };
    static const int parts[][3] = {{1, 3, 4}, {3, 2, 2}, {2, 1, 5}, {4, 3, 1}, {8, 1, 3}, {1, 1, 7}, {2, 5, 2}};
    stream s = stream_create(4 * WINDOWS + 1);

    for (int shuffle = 0; shuffle < 2; shuffle++) {
        int64_t windows[400], alone[400], position = 0, count = 0, all;
        fsdp_loader_options options = {.seq_len = 4, .microbatches = 1, .shuffle = shuffle, .seed = 7};

        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            options.world_size = parts[i][0];
            options.local_batch = parts[i][1];
            options.workers = (int)i % 2;
            take(&s, options, parts[i][2], &position, windows, &count);
        }
        all = count;
        CHECK(all > 2 * WINDOWS); /* epochs end in between */
        position = count = 0;
        options.world_size = options.local_batch = 1;
        take(&s, options, (int)all, &position, alone, &count);
        CHECK_BYTES(windows, alone, (size_t)all * sizeof *windows);
    }
    stream_free(&s);
}

TEST(many_workers_make_the_same_batches)
{
    stream s = stream_create(8 * 300 + 5);

    for (int workers = 1; workers <= 9; workers += 2) {
        fsdp_loader_options options = {.seq_len = 8,
                                       .microbatches = 1,
                                       .world_size = 1,
                                       .local_batch = 3,
                                       .shuffle = true,
                                       .vocab_size = 4000,
                                       .workers = workers};
        fsdp_loader *ahead = NULL, *plain = NULL;
        fsdp_batch a, b;

        CHECK_OK(fsdp_loader_create(s.tokens, &options, &ahead));
        options.workers = 0;
        CHECK_OK(fsdp_loader_create(s.tokens, &options, &plain));
        for (int m = 0; m < 500; m++) {
            CHECK_OK(fsdp_loader_next(ahead, &a));
            CHECK_OK(fsdp_loader_next(plain, &b));
            CHECK_BYTES(a.inputs, b.inputs, 24 * sizeof(int32_t));
            CHECK_BYTES(a.targets, b.targets, 24 * sizeof(int32_t));
        }
        fsdp_loader_free(ahead);
        fsdp_loader_free(plain);
    }
    stream_free(&s);
}

TEST(a_token_beyond_the_vocabulary_fails_at_its_batch)
{
    stream s = stream_create(4 * 20 + 1);

    for (int workers = 0; workers < 4; workers++)
        for (int64_t vocabulary = 21; vocabulary < 50; vocabulary++) {
            fsdp_loader_options options = {.seq_len = 4,
                                           .microbatches = 1,
                                           .world_size = 1,
                                           .local_batch = 1,
                                           .vocab_size = vocabulary,
                                           .workers = workers};
            /* Window m reads tokens 4 m to 4 m + 4. */
            int64_t good = (vocabulary - 1) / 4;
            fsdp_loader *loader = NULL;
            fsdp_batch batch;
            char text[64];

            snprintf(text, sizeof text, "token %d at position %d of '", (int)vocabulary, (int)vocabulary);
            CHECK_OK(fsdp_loader_create(s.tokens, &options, &loader));
            for (int64_t m = 0; m < good; m++)
                CHECK_OK(fsdp_loader_next(loader, &batch));
            for (int again = 0; again < 2; again++) {
                CHECK_ERROR(fsdp_loader_next(loader, &batch), FSDP_FORMAT, text);
                CHECK_CONTAINS(fsdp_last_error(), "tokens.u32");
            }
            fsdp_loader_free(loader);
        }
    stream_free(&s);
}

TEST(too_short_data_says_how_much_it_needs)
{
    stream s = stream_create(120);
    fsdp_loader_options options = {.seq_len = 10, .microbatches = 2, .world_size = 3, .local_batch = 4};
    fsdp_loader *loader = (fsdp_loader *)1;
    fsdp_batch batch;

    CHECK_ERROR(fsdp_loader_create(s.tokens, &options, &loader), FSDP_INVALID, "has 120 tokens");
    CHECK_CONTAINS(fsdp_last_error(), "for each of 12 sequences (3 ranks x 4) needs 121: take more data, or a smaller "
                                      "training.local_batch_size or training.seq_len");
    CHECK_CONTAINS(fsdp_last_error(), s.path);
    CHECK_NULL(loader);
    stream_free(&s);
    s = stream_create(10);
    CHECK_ERROR(
        fsdp_loader_create(s.tokens,
                           &(fsdp_loader_options){.seq_len = 10, .microbatches = 1, .world_size = 1, .local_batch = 1},
                           &loader),
        FSDP_INVALID, "for each of 1 sequence (1 rank x 1) needs 11: take more data, or a smaller training.seq_len");
    stream_free(&s);

    s = stream_create(121); /* just enough: every batch wraps */
    CHECK_OK(fsdp_loader_create(s.tokens, &options, &loader));
    for (int m = 0; m < 5; m++) {
        CHECK_OK(fsdp_loader_next(loader, &batch));
        CHECK_EQ(window_of(&batch, 0, 10), 0);
        CHECK_EQ(batch.epoch, m);
    }
    fsdp_loader_free(loader);
    stream_free(&s);
}

TEST(the_first_tokens_are_a_stream_of_their_own)
{
    stream s = stream_create(100), first = stream_create(33);

    for (int shuffled = 0; shuffled < 2; shuffled++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            fsdp_loader_options options = {.seq_len = 8, .microbatches = 1, .world_size = ranks, .local_batch = 1};
            int64_t windows[2][12];

            options.shuffle = shuffled == 1;
            collect(&first, options, 12 / ranks, windows[0]);
            for (int rank = 0; rank < ranks; rank++) {
                fsdp_loader *loader = NULL;
                fsdp_batch batch;

                options.rank = rank;
                options.token_count = 33;
                CHECK_OK(fsdp_loader_create(s.tokens, &options, &loader));
                for (int64_t m = 0; m < 12 / ranks; m++) {
                    CHECK_OK(fsdp_loader_next(loader, &batch));
                    windows[1][m * ranks + rank] = window_of(&batch, 0, 8);
                    CHECK_EQ(batch.epoch, m * ranks / 4);
                }
                fsdp_loader_free(loader);
                options.token_count = 0;
            }
            CHECK_BYTES(windows[1], windows[0], sizeof windows[0]);
        }
    stream_free(&s);
    stream_free(&first);
}

TEST(bad_options_are_refused)
{
    stream s = stream_create(500);
    const fsdp_loader_options good = {.seq_len = 4, .microbatches = 1, .world_size = 2, .local_batch = 2};
    fsdp_loader_options bad[12];
    fsdp_loader *loader = NULL;

    for (int i = 0; i < 12; i++)
        bad[i] = good;
    bad[0].seq_len = 0;
    bad[1].local_batch = -1;
    bad[2].microbatches = 0;
    bad[3].world_size = 0;
    bad[4].rank = 2;
    bad[5].workers = -1;
    bad[6].start_window = -1;
    bad[7].seq_len = INT64_MAX / 2;
    bad[8].start_window = INT64_MAX - 7;
    bad[9].vocab_size = -1;
    bad[10].token_count = -1;
    bad[11].token_count = 501;
    for (int i = 0; i < 12; i++) {
        CHECK_ERROR(fsdp_loader_create(s.tokens, &bad[i], &loader), FSDP_INVALID, "cannot make a loader");
        CHECK_NULL(loader);
    }
    CHECK_STATUS(fsdp_loader_create(s.tokens, NULL, &loader), FSDP_INVALID);
    fsdp_loader_free(NULL);
    stream_free(&s);
}

TEST(it_can_be_freed_at_any_moment)
{
    stream s = stream_create(64 * 100 + 1);

    for (int taken = 0; taken < 12; taken++) {
        fsdp_loader_options options = {
            .seq_len = 64, .microbatches = 1, .world_size = 1, .local_batch = 8, .workers = 4};
        fsdp_loader *loader = NULL;
        fsdp_batch batch;

        CHECK_OK(fsdp_loader_create(s.tokens, &options, &loader));
        for (int m = 0; m < taken; m++)
            CHECK_OK(fsdp_loader_next(loader, &batch));
        fsdp_loader_free(loader);
    }
    stream_free(&s);
}

TEST(making_one_survives_every_failed_allocation)
{
    stream s = stream_create(500);

    for (int workers = 0; workers < 3; workers += 2)
        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
            fsdp_loader_options options = {
                .seq_len = 4, .microbatches = 1, .world_size = 1, .local_batch = 2, .workers = workers};
            fsdp_loader *loader = (fsdp_loader *)1;
            fsdp_status status = fsdp_loader_create(s.tokens, &options, &loader);

            CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
            CHECK((loader != NULL) == (status == FSDP_OK));
            fsdp_loader_free(loader);
        }
    stream_free(&s);
}

TEST(null_is_refused)
{
    fsdp_loader_options options = {.seq_len = 4, .local_batch = 1, .microbatches = 1, .world_size = 1};
    fsdp_loader *loader = NULL;

    CHECK_ERROR(fsdp_loader_create(NULL, &options, &loader), FSDP_INVALID, "tokens and options are required");
    CHECK_ERROR(fsdp_loader_create(NULL, &options, NULL), FSDP_INVALID, "needs a place");
    fsdp_loader_free(NULL);
}
