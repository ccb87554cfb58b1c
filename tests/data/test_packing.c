/* Rows in windows: which row is where, what a window holds, and what becomes of rows that are too long. */
#include <jansson.h>

#include "data/packing.h"
#include "data/row_fixture.h"
#include "support/dice.h"
#include "support/test.h"

enum {
    LENGTH = 16
};

/* Windows of the rows whose lengths are given, as "0 1 | 2": numbers of rows. */
static void check_windows(const int64_t *lengths, int count, fsdp_packing packing, const char *expected)
{
    row_file f;
    char text[256];
    size_t used = 0;

    row_file_of_lengths(&f, lengths, count);
    row_file_pack(&f, &(fsdp__packing_options){.seq_len = LENGTH, .packing = packing});
    for (int64_t w = 0; w < f.packed->windows; w++)
        for (int64_t i = f.packed->begins[w]; i < f.packed->begins[w + 1]; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld",
                                     i > f.packed->begins[w] ? " "
                                     : w                     ? " | "
                                                             : "",
                                     (long long)f.packed->parts[i].row);
    CHECK_STRING(text, expected);
    row_file_close(&f);
}

TEST(rows_go_where_they_fit)
{
    static const int64_t lengths[] = {7, 9, 1, 10, 6, 15, 2, 16, 1, 5};

    check_windows(lengths, 10, FSDP_PACKING_PAD, "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9");
    check_windows(lengths, 10, FSDP_PACKING_NEXT_FIT, "0 1 | 2 3 | 4 | 5 | 6 | 7 | 8 9");
    check_windows(lengths, 10, FSDP_PACKING_BEST_FIT, "0 1 | 2 5 | 3 4 | 6 8 9 | 7");
    check_windows((const int64_t[]){16}, 1, FSDP_PACKING_BEST_FIT, "0");
    check_windows((const int64_t[]){1, 1, 1}, 3, FSDP_PACKING_NEXT_FIT, "0 1 2");
}

TEST(pairs_have_windows_of_their_own)
{
    static const int64_t lengths[] = {7, 9, 1, 10, 6, 11, 2, 2};
    fsdp__packing_options options = {.seq_len = LENGTH, .packing = FSDP_PACKING_PAIRS, .long_row = FSDP_LONG_ROW_SKIP};
    int32_t inputs[LENGTH], targets[LENGTH], positions[LENGTH];
    fsdp__packed *packed;
    row_file f;

    check_windows(lengths, 4, FSDP_PACKING_PAIRS, "0 1 | 2 3");
    row_file_of_lengths(&f, lengths, 8);
    row_file_pack(&f, &options);
    CHECK_EQ(f.packed->windows, 3);
    CHECK_EQ(f.packed->long_rows, 2);
    CHECK_EQ(f.packed->left_out, 17);
    CHECK_OK(fsdp__packed_read(f.packed, 0, 1, inputs, targets, positions));
    CHECK_EQ(positions[0], 0);
    CHECK_EQ(positions[1], 0); /* the first row has one token */
    CHECK_EQ(positions[10], 9);
    options.row_most = 9;
    row_file_pack(&f, &options);
    CHECK_EQ(f.packed->windows, 2);
    options.long_row = FSDP_LONG_ROW_ERROR;
    CHECK_ERROR(fsdp__pack(f.rows, &options, &packed), FSDP_INVALID,
                "has 1 and 10 tokens, and the model has 9 positions");
    options.row_most = 0;
    CHECK_ERROR(fsdp__pack(f.rows, &options, &packed), FSDP_INVALID,
                "has 6 and 11 tokens, which do not fit training.seq_len (--seq-len) 16 together");
    row_file_close(&f);
}

/* Every row is in one window, none is over-full, and the best fit is no worse than the next. */
TEST(no_row_is_lost)
{
    uint64_t dice = 9;

    for (int round = 0; round < 30; round++) {
        int64_t lengths[200], windows[3], tokens = 0;
        int count = 1 + dice_below(&dice, 200);
        row_file f;

        for (int i = 0; i < count; i++)
            tokens += lengths[i] = 1 + dice_below(&dice, dice_chance(&dice, 50) ? LENGTH : 4);
        row_file_of_lengths(&f, lengths, count);
        for (int packing = FSDP_PACKING_PAD; packing <= FSDP_PACKING_BEST_FIT; packing++) {
            bool seen[200] = {false};

            row_file_pack(&f, &(fsdp__packing_options){.seq_len = LENGTH, .packing = (fsdp_packing)packing});
            windows[packing] = f.packed->windows;
            CHECK_EQ(f.packed->tokens, tokens);
            CHECK_EQ(f.packed->row_count, count);
            for (int64_t w = 0; w < f.packed->windows; w++)
                CHECK(fsdp__packed_tokens(f.packed, w) >= 1 && fsdp__packed_tokens(f.packed, w) <= LENGTH);
            for (int64_t i = 0; i < f.packed->begins[f.packed->windows]; i++) {
                CHECK(!seen[f.packed->parts[i].row]);
                CHECK_EQ(f.packed->parts[i].count, lengths[f.packed->parts[i].row]);
                seen[f.packed->parts[i].row] = true;
            }
        }
        CHECK_EQ(windows[FSDP_PACKING_PAD], count);
        CHECK(windows[FSDP_PACKING_BEST_FIT] <= windows[FSDP_PACKING_NEXT_FIT] &&
              windows[FSDP_PACKING_NEXT_FIT] <= count);
        row_file_close(&f);
    }
}

/* A window of two rows and padding, token by token. Tokens count up from 100 per row; every third is learned. */
TEST(a_window_holds_rows_and_padding)
{
    static const int32_t inputs[] = {100, 101, 102, 103, 104, 200, 201, 202, 203, 0},
                         targets[] = {-100, -100, 103, -100, -100, -100, -100, 203, -100, -100},
                         all[] = {101, 102, 103, 104, -100, 201, 202, 203, -100, -100},
                         positions[] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 0};
    int32_t got[3][10];
    int64_t answers;
    row_file f;

    row_file_of_lengths(&f, (const int64_t[]){5, 4}, 2);
    for (int trains_all = 0; trains_all < 2; trains_all++) {
        row_file_pack(&f, &(fsdp__packing_options){.seq_len = 10, .packing = FSDP_PACKING_NEXT_FIT, .all = trains_all});
        CHECK_EQ(f.packed->windows, 1);
        CHECK_OK(fsdp__packed_read(f.packed, 300, 0, got[0], got[1], got[2]));
        CHECK_BYTES(got[0], inputs, sizeof inputs);
        CHECK_BYTES(got[1], trains_all ? all : targets, sizeof targets);
        CHECK_BYTES(got[2], positions, sizeof positions);
        CHECK_OK(fsdp__packed_answers(f.packed, 0, &answers));
        CHECK_EQ(answers, trains_all ? 7 : 2);
        CHECK_OK(fsdp__packed_read(f.packed, 0, 0, got[0], got[1], NULL));
    }
    CHECK_ERROR(fsdp__packed_read(f.packed, 203, 0, got[0], got[1], NULL), FSDP_FORMAT, "token 203 of row 2 of");
    row_file_close(&f);
}

TEST(rows_that_are_too_long)
{
    static const int64_t lengths[] = {3, 40, 2, 17};
    fsdp__packing_options o = {.seq_len = LENGTH, .packing = FSDP_PACKING_NEXT_FIT, .all = true};
    int32_t inputs[LENGTH], targets[LENGTH];
    int64_t answers = 0, counted;
    fsdp__packed *none;
    row_file f;

    row_file_of_lengths(&f, lengths, 4);
    CHECK_ERROR(fsdp__pack(f.rows, &o, &none), FSDP_INVALID, "row 2 of '");
    CHECK_CONTAINS(fsdp_last_error(),
                   "has 40 tokens, which is more than training.seq_len (--seq-len) 16 (2 such rows)");
    o.long_row = FSDP_LONG_ROW_TRUNCATE;
    row_file_pack(&f, &o);
    CHECK_EQ(f.packed->windows, 4);
    CHECK_EQ(f.packed->long_rows, 2);
    CHECK_EQ(f.packed->left_out, 24 + 1);
    CHECK_OK(fsdp__packed_read(f.packed, 0, 1, inputs, targets, NULL));
    CHECK_EQ(inputs[15], 215);
    CHECK_EQ(targets[15], FSDP__NO_TARGET);
    o.long_row = FSDP_LONG_ROW_SKIP;
    row_file_pack(&f, &o);
    CHECK_EQ(f.packed->windows, 1);
    CHECK_EQ(f.packed->left_out, 57);
    CHECK_EQ(f.packed->row_count, 2);
    /* Nothing that a token predicts is lost where a row is split. */
    o.long_row = FSDP_LONG_ROW_SPLIT;
    row_file_pack(&f, &o);
    CHECK_EQ(f.packed->tokens, 62);
    for (int64_t w = 0; w < f.packed->windows; w++) {
        CHECK_OK(fsdp__packed_answers(f.packed, w, &counted));
        answers += counted;
    }
    CHECK_EQ(answers, 2 + 39 + 1 + 16);
    CHECK_OK(fsdp__packed_read(f.packed, 0, 1, inputs, targets, NULL));
    CHECK_EQ(inputs[0], 200);
    CHECK_EQ(targets[15], 216);
    row_file_close(&f);
    row_file_of_lengths(&f, (const int64_t[]){30, 40}, 2);
    o.long_row = FSDP_LONG_ROW_SKIP;
    CHECK_ERROR(fsdp__pack(f.rows, &o, &none), FSDP_INVALID, "all 2 rows of");
    row_file_close(&f);
}

TEST(some_of_the_rows_are_packed)
{
    row_file f;

    row_file_of_lengths(&f, (const int64_t[]){9, 9, 9, 9, 9}, 5);
    row_file_pack(&f, &(fsdp__packing_options){.seq_len = LENGTH, .first_row = 3, .row_count = 2});
    CHECK_EQ(f.packed->windows, 2);
    CHECK_EQ(f.packed->parts[0].row, 3);
    row_file_pack(&f, &(fsdp__packing_options){.seq_len = LENGTH, .row_count = 3});
    CHECK_EQ(f.packed->windows, 3);
    row_file_close(&f);
}

/* tests/reference/finetune: the windows that its packed runs are trained on. */
TEST(next_fit_is_that_of_the_reference)
{
    json_t *reference = json_load_file(TEST_SOURCE_DIR "/tests/reference/finetune/sft-tokens.json", 0, NULL), *window;
    json_t *windows = json_object_get(reference, "windows");
    size_t w, i;
    row_file f;

    row_file_of_reference(&f);
    row_file_pack(&f, &(fsdp__packing_options){.seq_len = 128, .packing = FSDP_PACKING_NEXT_FIT});
    CHECK_EQ(f.packed->windows, json_array_size(windows));
    json_array_foreach(windows, w, window)
    {
        json_t *rows = json_object_get(window, "conversations"), *ends = json_object_get(window, "boundaries");
        int64_t at = 0;

        CHECK_EQ(f.packed->begins[w + 1] - f.packed->begins[w], json_array_size(rows));
        for (i = 0; i < json_array_size(rows); i++) {
            const fsdp__packed_row *part = &f.packed->parts[f.packed->begins[w] + (int64_t)i];

            CHECK_EQ(part->row, json_integer_value(json_array_get(rows, i)));
            at += part->count;
            CHECK_EQ(at, json_integer_value(json_array_get(ends, i + 1)));
        }
    }
    json_decref(reference);
    row_file_close(&f);
}

TEST(every_allocation_of_packing_may_fail)
{
    fsdp__packing_options o = {.seq_len = LENGTH};
    row_file f;

    row_file_of_lengths(&f, (const int64_t[]){9, 9, 3, 9, 9}, 5);
    for (int packing = FSDP_PACKING_PAD; packing <= FSDP_PACKING_BEST_FIT; packing++) {
        o.packing = (fsdp_packing)packing;
        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
            fsdp__packed *packed = NULL;

            CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__pack(f.rows, &o, &packed));
            fsdp__packed_free(packed);
        }
    }
    row_file_close(&f);
}
