/* Parquet files, read by a library that stands in for Arrow GLib (fakearrow/). */

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <unistd.h>

#include "base/compiler.h"
#include "data/text_file.h"
#include "data/text_fixture.h"
#include "fsdp/data.h"

#define FILE_OF(word, lines) "PAR1\x15" word "\n" lines "PAR1"

static const char places[] = "/nowhere:" TEST_BINARY_DIR "/tests/arrow:";

static void write_rows(const text_fixture *f, const char *file)
{
    text_write(f, "a.parquet", file, strlen(file));
    setenv("FSDP_ARROW_LIBRARIES", places, 1);
}

/* ---- what is read ---- */

TEST(rows_of_all_groups_and_batches_become_documents)
{
    text_fixture f = text_fixture_make();
    fsdp_tokenize_summary summary;

    write_rows(&f, FILE_OF("fine", "he\nin\n|\nhe\n-\n-\nin\n"));
    CHECK_OK(text_tokenize(&f, "a.parquet", NULL, &summary));
    CHECK_TOKENS(257, EOS, 259, EOS, 257, EOS, 259, EOS);
    CHECK_EQ(summary.lines, 4);
    text_fixture_free(&f);
}

TEST(a_folder_takes_its_parquet_files)
{
    text_fixture f = text_fixture_make();

    write_rows(&f, FILE_OF("fine", "he\n"));
    text_write(&f, "b.jsonl", "{\"text\": \"in\"}", 14);
    CHECK_OK(text_tokenize(&f, ".", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, EOS);
    text_fixture_free(&f);
}

TEST(text_comes_in_pieces_of_any_length)
{
    static const char expected[] = "{\"text\":\"he\"}\n{\"text\":\"in\"}\n";
    text_fixture f = text_fixture_make();
    char *path = test_path(f.directory, "a.parquet"), all[100];

    write_rows(&f, FILE_OF("fine", "he\n-\nin\n"));
    for (size_t room = 1; room < 40; room += 6) {
        fsdp__text_file *file;
        fsdp__text_hash hash, whole;
        size_t count = 0, got = 1;

        CHECK_OK(fsdp__text_hash_of(path, &whole));
        CHECK_OK(fsdp__text_file_open(path, &file));
        for (; got > 0; count += got)
            CHECK_OK(fsdp__text_file_read(file, all + count, room, &got));
        CHECK_EQ(count, sizeof expected - 1);
        CHECK_BYTES(all, expected, count);
        hash = fsdp__text_file_hash(file);
        CHECK_BYTES(&hash, &whole, sizeof hash);
        CHECK_EQ(fsdp__text_file_position(file), (int64_t)whole.bytes);
        fsdp__text_file_close(file);
    }
    text_fixture_free(&f);
}

TEST(a_file_without_rows_is_empty)
{
    text_fixture f = text_fixture_make();

    write_rows(&f, FILE_OF("fine", ""));
    text_refused(&f, "a.parquet", NULL, "there is no text in '");
    text_fixture_free(&f);
}

TEST(rows_count_as_lines_do)
{
    text_fixture f = text_fixture_make();
    fsdp_tokenize_options options = {.field = "body"}, skip = {.skip_bad_lines = true};
    fsdp_tokenize_summary summary;

    write_rows(&f, FILE_OF("fine", "he\n-\nin\xff\nhe\n"));
    text_refused(&f, "a.parquet", &options, "a.parquet': row 1: field 'body' is missing, and the line has 'text'");
    text_refused(&f, "a.parquet", NULL, "a.parquet': row 2: it is not UTF-8 at column 12 (byte 0xff)");
    CHECK_OK(text_tokenize(&f, "a.parquet", &skip, &summary));
    CHECK_TOKENS(257, EOS, 257, EOS);
    CHECK_CONTAINS(summary.first_left_out, "a.parquet:2: it is not UTF-8");
    text_fixture_free(&f);
}

/* ---- what goes wrong ---- */

TEST(failures_of_arrow_are_told)
{
    static const struct {
        const char *file, *part;
    } cases[] = {
        {FILE_OF("refused", "he\n"), "a.parquet': Arrow cannot open it: Invalid: no footer\\x0aat all"},
        {FILE_OF("nothing", "he\n"), "a.parquet': Arrow cannot open it: Arrow does not say why"},
        {FILE_OF("no-count", "he\n"), "Arrow cannot count its groups of rows: Arrow does not say why"},
        {FILE_OF("bad-group", "he\n-\nin\n"), "Arrow cannot read group 2 of 2 of its rows: IOError: damaged"},
        {FILE_OF("no-batches", "he\n"), "Arrow cannot read group 1 of 1 of its rows: Arrow does not say why"},
        {FILE_OF("no-stream", "he\n"), "Arrow cannot read group 1 of 1 of its rows: NotImplemented"},
        {FILE_OF("no-schema", "he\n"), "Arrow cannot name the columns of rows after row 0: Input/output error"},
        {FILE_OF("bad-batch", "he\n|\nin\n"), "Arrow cannot read rows after row 1: OSError: gone"},
        {FILE_OF("decimal", "he\n"), "a.parquet': column 'text' is of Arrow's type 'd:9,2'"},
    };
    text_fixture f = text_fixture_make();

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        write_rows(&f, cases[i].file);
        text_refused(&f, "a.parquet", NULL, cases[i].part);
    }
    text_fixture_free(&f);
}

TEST(files_that_are_cut_or_encrypted_are_refused_by_their_ends)
{
    text_fixture f = text_fixture_make();

    write_rows(&f, "PAR1\x15");
    text_refused(&f, "a.parquet", NULL, "it is a Parquet file that is cut short: it has 5 bytes");
    write_rows(&f, "PAR1\x15 fine\nhe\n");
    text_refused(&f, "a.parquet", NULL, "that is cut short: it does not end with PAR1: fetch it again");
    write_rows(&f, "PAREx\n....PARE");
    text_refused(&f, "a.parquet", NULL, "it is a Parquet file that is encrypted: decrypt it");
    write_rows(&f, "{\"text\": \"he\"}");
    text_refused(&f, "a.parquet", NULL, "its name ends in .parquet, but no such file has its first bytes");
    text_write(&f, "a.jsonl", FILE_OF("fine", "he\n"), 16);
    text_refused(&f, "a.jsonl", NULL, "a.jsonl': it is a Parquet file: write it as JSON lines: python3 -c");
    text_fixture_free(&f);
}

TEST(as_bytes_it_is_refused)
{
    text_fixture f = text_fixture_make();
    char *path = test_path(f.directory, "a.parquet");
    fsdp_tokens *tokens = NULL;

    write_rows(&f, FILE_OF("fine", "he\n"));
    CHECK_ERROR(fsdp_tokens_open((const char *const *)&path, 1, FSDP_TOKENS_AUTO, &tokens), FSDP_FORMAT,
                "it is a Parquet file: write it as JSON lines: python3 -c");
    text_fixture_free(&f);
}

TEST(without_the_library_it_says_what_to_install_and_how_to_do_without)
{
    text_fixture f = text_fixture_make();
    char *library = test_path(f.directory, "libparquet-glib.so");
    Dl_info info;

    write_rows(&f, FILE_OF("refused", "he\n"));
    setenv("FSDP_ARROW_LIBRARIES", "::/nowhere", 1);
    test_skip_if(dlopen("libparquet-glib.so", RTLD_LAZY), "the loader finds libparquet-glib.so");
    text_refused(&f, "a.parquet", NULL, "libparquet-glib.so of Arrow GLib reads, and that was not found: install it");
    CHECK_CONTAINS(fsdp_last_error(), "libparquet-glib-dev");
    CHECK_CONTAINS(fsdp_last_error(), "or write it as JSON lines: python3 -c \"import pandas; pandas.read_parquet(");
    test_write_file(library, "no library", 10);
    setenv("FSDP_ARROW_LIBRARIES", f.directory, 1);
    text_refused(&f, "a.parquet", NULL, "and that cannot be opened: ");
    unlink(library);
    CHECK(dladdr((const void *)&gnu_get_libc_version, &info) != 0);
    CHECK_EQ(symlink(info.dli_fname, library), 0); /* a library, and another one */
    text_refused(&f, "a.parquet", NULL, "libparquet-glib.so has no function gparquet_arrow_file_reader_new_path");
    unsetenv("FSDP_ARROW_LIBRARIES");
    text_fixture_free(&f);
}

TEST(each_failing_allocation_ends_well)
{
    text_fixture f = text_fixture_make();
    char *path = test_path(f.directory, "a.parquet"), all[100];

    write_rows(&f, FILE_OF("fine", "he\n-\nin\n"));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__text_file *file = NULL;
        size_t got = 1;
        fsdp_status status = fsdp__text_file_open(path, &file);

        while (status == FSDP_OK && got > 0)
            status = fsdp__text_file_read(file, all, sizeof all, &got);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__text_file_close(file);
    }
    text_fixture_free(&f);
}
