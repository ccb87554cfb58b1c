/* Files of rows: what is written is read, and what is damaged is refused. */
#include <unistd.h>

#include "data/rows.h"
#include "support/dice.h"
#include "support/test.h"

enum {
    ROWS = 400, /* enough that tokens, bits and ends take several blocks together */
    MOST = 3000
};

typedef struct row {
    int32_t ids[MOST];
    bool learned[MOST];
    int64_t count;
} row;

/* Draws row `number` of a file of `width` bytes a token. */
static void draw(row *r, int number, int width)
{
    uint64_t dice = 77 + (uint64_t)number;

    r->count = 1 + dice_below(&dice, number % 7 ? 40 : MOST);
    for (int64_t i = 0; i < r->count; i++) {
        r->ids[i] = dice_below(&dice, width == 2 ? UINT16_MAX + 1 : INT32_MAX);
        r->learned[i] = dice_chance(&dice, 40);
    }
}

static fsdp_status write_rows(const char *path, int width, int rows)
{
    static row r;
    fsdp__rows_writer writer;
    fsdp_status status;

    FSDP_TRY_GOTO(status, fsdp__rows_writer_open(&writer, path, width), out);
    for (int i = 0; i < rows; i++) {
        draw(&r, i, width);
        FSDP_TRY_GOTO(status, fsdp__rows_writer_add(&writer, r.ids, i % 5 ? r.learned : NULL, r.count), out);
    }
    status = fsdp__rows_writer_finish(&writer, "3 of 9 lines left out");
out:
    fsdp__rows_writer_close(&writer);
    return status;
}

/* Reads all rows, and compares those that it can read with what was written; `checks`: all must be as written. */
static fsdp_status read_rows(const char *path, int width, bool checks)
{
    static row r, got;
    fsdp__rows *rows = NULL;
    fsdp_status status = fsdp__rows_open(path, &rows);
    int64_t tokens = 0, learned = 0;

    for (int64_t i = 0; status == FSDP_OK && i < fsdp__rows_count(rows); i++) {
        int64_t count = fsdp__rows_length(rows, i), bits = 0, of_row = 0;

        draw(&r, (int)i, width);
        CHECK_EQ(count, r.count); /* the ends have been compared when the file was opened */
        status = fsdp__rows_get(rows, i, 0, count, got.ids, got.learned);
        if (status == FSDP_OK)
            status = fsdp__rows_learned(rows, i, 0, count, &bits);
        if (status != FSDP_OK)
            break;
        for (int64_t t = 0; t < count; t++) {
            CHECK_EQ(got.ids[t], r.ids[t]);
            CHECK_EQ(got.learned[t], t > 0 && (i % 5 == 0 || r.learned[t]));
            of_row += got.learned[t];
        }
        CHECK_EQ(bits, of_row);
        tokens += count;
        learned += bits;
    }
    if (checks) {
        CHECK_OK(status);
        CHECK_EQ(rows->tokens, tokens);
        CHECK_EQ(rows->learned, learned);
        CHECK_STRING(fsdp__rows_note(rows), "3 of 9 lines left out");
        CHECK_OK(fsdp__rows_check(rows));
    }
    fsdp__rows_close(rows);
    return status;
}

TEST(what_is_written_is_read)
{
    char *directory = test_directory();

    for (int width = 2; width <= 4; width += 2)
        for (int rows = 1; rows <= ROWS; rows = rows * 3 + 1) {
            char *path = test_path(directory, width == 2 ? "a.rows" : "b.rows");

            CHECK_OK(write_rows(path, width, rows)); /* and replaces the one before */
            CHECK_OK(read_rows(path, width, true));
        }
}

TEST(parts_of_rows_are_read)
{
    char *directory = test_directory(), *path = test_path(directory, "a.rows");
    fsdp__rows *rows = NULL;
    int64_t bits = 0;
    bool learned[3];
    int32_t ids[3];
    static row r;

    CHECK_OK(write_rows(path, 4, 20));
    CHECK_OK(fsdp__rows_open(path, &rows));
    draw(&r, 7, 4);
    CHECK_OK(fsdp__rows_get(rows, 7, r.count - 3, 3, ids, learned));
    CHECK_BYTES(ids, r.ids + r.count - 3, sizeof ids);
    CHECK_BYTES(learned, r.learned + r.count - 3, sizeof learned);
    CHECK_OK(fsdp__rows_learned(rows, 7, r.count - 3, 3, &bits));
    CHECK_EQ(bits, learned[0] + learned[1] + learned[2]);
    CHECK_OK(fsdp__rows_get(rows, 7, 0, 0, NULL, NULL));
    CHECK_ERROR(fsdp__rows_get(rows, 7, r.count - 3, 4, ids, NULL), FSDP_INVALID, "of row 7 of");
    CHECK_ERROR(fsdp__rows_get(rows, 20, 0, 1, ids, NULL), FSDP_INVALID, "cannot read row 20 of");
    CHECK_ERROR(fsdp__rows_learned(rows, -1, 0, 0, &r.count), FSDP_INVALID, "cannot read row -1 of");
    fsdp__rows_close(rows);
}

TEST(what_cannot_be_written_is_refused)
{
    char *directory = test_directory(), *path = test_path(directory, "a.rows");
    fsdp__rows_writer writer;

    CHECK_OK(fsdp__rows_writer_open(&writer, path, 2));
    CHECK_ERROR(fsdp__rows_writer_add(&writer, (const int32_t[]){1, 65536}, NULL, 2), FSDP_INVALID,
                "token 65536 does not fit uint16");
    CHECK_ERROR(fsdp__rows_writer_add(&writer, (const int32_t[]){-1}, NULL, 1), FSDP_INVALID, "token -1");
    CHECK_ERROR(fsdp__rows_writer_add(&writer, NULL, NULL, 0), FSDP_INVALID, "it has no tokens");
    CHECK_ERROR(fsdp__rows_writer_finish(&writer, ""), FSDP_INVALID, "there are no rows");
    fsdp__rows_writer_close(&writer);
    CHECK(access(path, F_OK) != 0); /* nothing is left of it */
}

/* Whatever byte is changed, and wherever the file is cut: what is read is what was written, or nothing is. */
TEST(damaged_files_are_refused)
{
    char *directory = test_directory(), *path = test_path(directory, "a.rows");
    int rounds = test_long() ? 4000 : TEST_SANITIZED ? 60 : 300;
    uint64_t dice = 4;
    size_t bytes;
    char *whole;

    CHECK_OK(write_rows(path, 2, ROWS));
    whole = test_read_file(path, &bytes);
    CHECK(bytes > (size_t)2 * FSDP__SUM_BLOCK_BYTES);
    for (int i = 0; i < rounds; i++) {
        bool cut = i % 3 == 2;
        size_t at = (size_t)dice_below(&dice, (int)bytes), first = i % 3 == 0 ? at % 1024 : at;
        char was = whole[first];

        whole[first] ^= (char)(1 << dice_below(&dice, 8));
        test_write_file(path, whole, cut ? at : bytes);
        whole[first] = was;
        CHECK_STATUS(read_rows(path, 2, false), FSDP_FORMAT);
        CHECK_CONTAINS(fsdp_last_error(), "a.rows");
    }
}

TEST(files_of_another_name_or_kind_are_refused)
{
    char *directory = test_directory(), *path = test_path(directory, "a.rows"), *other = test_path(directory, "b.rows");
    fsdp__rows *rows = NULL;

    CHECK_OK(write_rows(path, 2, 3));
    CHECK_OK(fsdp__rows_open_own(path, &rows));
    fsdp__rows_close(rows);
    CHECK_EQ(rename(path, other), 0);
    CHECK_ERROR(fsdp__rows_open_own(other, &rows), FSDP_FORMAT, "was not made under this name");
    CHECK_NULL(rows);
    CHECK_OK(fsdp__rows_open(other, &rows)); /* the user's own */
    fsdp__rows_close(rows);
    test_write_file(path, "{\"messages\": []}\n", 17);
    CHECK_ERROR(fsdp__rows_open(path, &rows), FSDP_FORMAT, "does not begin as a file of rows");
    CHECK_ERROR(fsdp__rows_open(directory, &rows), FSDP_IO, directory);
    CHECK(!fsdp__rows_begin("fsdp rows", 9));
}

TEST(a_digest_is_that_of_the_rows)
{
    char *directory = test_directory();
    uint64_t first[2], digest[2];

    for (int i = 0; i < 3; i++) {
        char *path = test_path(directory, i == 1 ? "b.rows" : "a.rows");
        fsdp__rows *rows = NULL;

        CHECK_OK(write_rows(path, 2, i < 2 ? 30 : 31));
        CHECK_OK(fsdp__rows_open(path, &rows));
        fsdp__rows_digest(rows, i == 0 ? first : digest);
        if (i > 0)
            CHECK_EQ(memcmp(first, digest, sizeof first) == 0, i == 1);
        fsdp__rows_close(rows);
    }
}

TEST(every_allocation_may_fail)
{
    char *directory = test_directory(), *path = test_path(directory, "a.rows");

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, write_rows(path, 2, 40));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__rows *rows = NULL;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__rows_open(path, &rows));
        fsdp__rows_close(rows);
    }
}
