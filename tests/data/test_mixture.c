/* Loaders of rows, and of mixtures: shares, epochs, and going on with other ranks. */
#include "data/loader.h"
#include "data/mixture.h"
#include "data/row_fixture.h"
#include "support/test.h"

enum {
    LENGTH = 8,
    TOKENS = 8 * 13 + 1,
    MOST = 400
};

/* A stream of 13 windows whose first tokens are 1000 + 8 w, and 7 rows, mixed 1 to 3. */
typedef struct mixed {
    char *folder, *path;
    fsdp_tokens *tokens;
    row_file rows;
    fsdp__loader_source sources[2];
} mixed;

static void open_mixed(mixed *m)
{
    uint16_t tokens[TOKENS];

    m->folder = test_directory();
    m->path = test_path(m->folder, "a.u16");
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (uint16_t)(1000 + i);
    test_write_file(m->path, tokens, sizeof tokens);
    CHECK_OK(fsdp_tokens_open((const char *const *)&m->path, 1, FSDP_TOKENS_AUTO, &m->tokens));
    row_file_of_lengths(&m->rows, (const int64_t[]){5, 8, 3, 4, 7, 2, 6}, 7);
    row_file_pack(&m->rows, &(fsdp__packing_options){.seq_len = LENGTH, .packing = FSDP_PACKING_NEXT_FIT});
    m->sources[0] = (fsdp__loader_source){fsdp__windows_of_tokens(m->tokens, TOKENS, LENGTH), 1};
    m->sources[1] = (fsdp__loader_source){fsdp__windows_of_packed(m->rows.packed), 3};
}

static void close_mixed(mixed *m)
{
    fsdp_tokens_close(m->tokens);
    row_file_close(&m->rows);
    test_directory_free(m->folder);
}

static fsdp_loader_options options_of(int rank, int world, int64_t batch, int64_t start)
{
    return (fsdp_loader_options){.seq_len = LENGTH,
                                 .local_batch = batch,
                                 .microbatches = 1,
                                 .rank = rank,
                                 .world_size = world,
                                 .shuffle = true,
                                 .seed = 3,
                                 .vocab_size = 2000,
                                 .workers = rank % 3,
                                 .start_window = start};
}

/* Notes what `batches` batches of all ranks begin with, in the order of the windows; returns where they end. */
static int64_t take(const mixed *m, int world, int64_t batch, int64_t start, int batches, int32_t *firsts)
{
    int64_t end = 0;

    for (int rank = 0; rank < world; rank++) {
        fsdp_loader_options options = options_of(rank, world, batch, start);
        fsdp_loader *loader = NULL;
        fsdp_batch got;

        CHECK_OK(fsdp__loader_create_of(m->sources, 2, &options, &loader));
        for (int i = 0; i < batches; i++) {
            int64_t answers = 0;

            CHECK_OK(fsdp_loader_next(loader, &got));
            for (int64_t t = 0; t < batch * LENGTH; t++)
                answers += got.targets[t] != -100;
            CHECK_EQ(got.answers, answers);
            for (int64_t b = 0; b < batch; b++) {
                CHECK_EQ(got.positions[b * LENGTH], 0);
                firsts[(i * world + rank) * batch + b] = got.inputs[b * LENGTH];
            }
        }
        end = fsdp_loader_position(loader);
        fsdp_loader_free(loader);
    }
    return end;
}

/* Whatever the ranks and batches, the windows are the same, also from the middle on. */
TEST(a_mixture_goes_on_with_other_ranks)
{
    int32_t one[MOST], other[MOST];
    mixed m;

    open_mixed(&m);
    CHECK_EQ(take(&m, 1, 1, 0, 96, one), 96);
    for (int world = 1; world <= 4; world++)
        for (int64_t batch = 1; batch <= 2; batch++) {
            int64_t first = 36 / (world * batch) * world * batch, rest = (96 - first) / world / batch;

            CHECK_EQ(take(&m, world, batch, 0, (int)(first / world / batch), other), first);
            (void)take(&m, 5 - world, 1, first, (int)rest * world * (int)batch / (5 - world), other + first);
            CHECK_BYTES(other, one, (size_t)(first + rest * world * batch / (5 - world) * (5 - world)) * sizeof *one);
        }
    close_mixed(&m);
}

/* Each source has its share of any beginning, and each of its windows once before any comes again. */
TEST(sources_have_their_shares_and_epochs)
{
    int32_t firsts[MOST];
    mixed m;

    open_mixed(&m);
    (void)take(&m, 2, 2, 0, 60, firsts);
    for (int n = 0, rows = 0, tokens = 0, seen[3000] = {0}; n < 240; n++) {
        bool row = firsts[n] < 1000;
        int64_t windows = row ? m.rows.packed->windows : 13;
        int *count = row ? &rows : &tokens;

        CHECK_EQ(seen[firsts[n]], *count / windows); /* as often as all others */
        seen[firsts[n]]++;
        ++*count;
        CHECK(rows * 4 >= (n + 1) * 3 - 4 && rows * 4 <= (n + 1) * 3 + 4);
    }
    close_mixed(&m);
}

TEST(shares_are_those_of_the_weights)
{
    static const double weights[] = {0.5, 2, 1e-3, 7, 1};
    int64_t counts[5] = {0}, index, n = 100000;
    fsdp__mixture mixture;
    double sum = 0;

    CHECK_OK(fsdp__mixture_init(&mixture, weights, 5));
    for (int64_t i = 0; i < n; i++) {
        int source = fsdp__mixture_at(&mixture, i, &index);

        CHECK_EQ(index, counts[source]++);
        for (int p = 0; p < 5 && i % 997 == 0; p++)
            CHECK_EQ(fsdp__mixture_count(&mixture, p, i + 1), counts[p]);
    }
    for (int p = 0; p < 5; p++)
        sum += weights[p];
    for (int p = 0; p < 5; p++)
        CHECK_NEAR(counts[p], (double)n * weights[p] / sum, p + 1);
    (void)fsdp__mixture_at(&mixture, INT64_MAX - 1, &index); /* as far as positions go */
    CHECK(index > INT64_MAX / 100 && index < INT64_MAX);
    fsdp__mixture_release(&mixture);
}

/* Any rank knows how many answers the next step has. */
TEST(answers_of_a_step_are_known_before_it)
{
    mixed m;

    open_mixed(&m);
    for (int world = 1; world <= 3; world++) {
        fsdp_loader *loaders[3];
        fsdp_batch batch;

        for (int r = 0; r < world; r++) {
            fsdp_loader_options options = options_of(r, world, 2, 5);

            CHECK_OK(fsdp__loader_create_of(m.sources, 2, &options, &loaders[r]));
        }
        for (int step = 0; step < 9; step++) {
            fsdp__load expected[3], sum = {0};

            for (int r = 0; r < world; r++)
                CHECK_OK(fsdp__loader_look_ahead(loaders[r], 2 * 2 * world, &expected[r]));
            for (int r = 0; r < world; r++)
                for (int micro = 0; micro < 2; micro++) {
                    CHECK_OK(fsdp_loader_next(loaders[r], &batch));
                    sum.answers += batch.answers;
                    sum.tokens += batch.tokens;
                }
            for (int r = 0; r < world; r++)
                CHECK_BYTES(&expected[r], &sum, sizeof sum);
        }
        for (int r = 0; r < world; r++)
            fsdp_loader_free(loaders[r]);
    }
    close_mixed(&m);
}

TEST(every_allocation_of_a_mixture_may_fail)
{
    fsdp_loader_options options = options_of(0, 2, 2, 0);
    mixed m;

    open_mixed(&m);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_loader *loader = NULL;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__loader_create_of(m.sources, 2, &options, &loader));
        fsdp_loader_free(loader);
    }
    m.sources[0].windows.count = 0;
    CHECK_ERROR(fsdp__loader_create_of(m.sources, 2, &options, &(fsdp_loader *){NULL}), FSDP_INVALID,
                "there is no whole window of 8 tokens");
    close_mixed(&m);
}
