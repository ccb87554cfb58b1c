/* Files of text to a file of tokens. */
#include "fsdp/tokenize.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/compiler.h"
#include "data/encode_piece.h"
#include "data/text_fixture.h"
#include "data/token_header.h"
#include "data/token_writer.h"
#include "support/limits.h"
#include "tokenizer/bpe.h"

/* ---- documents ---- */

TEST(a_file_is_a_document)
{
    text_fixture f = text_fixture_make();
    fsdp_tokenize_summary summary;

    text_write(&f, "a.txt", "12 the\n", 7);
    CHECK_OK(text_tokenize(&f, "a.txt", NULL, &summary));
    CHECK_TOKENS(266, 258, '\n', EOS);
    CHECK_EQ(summary.tokens, 4);
    CHECK_EQ(summary.documents, 1);
    CHECK_EQ(summary.text_bytes, 7);
    CHECK_EQ(summary.width, 2);
    CHECK_OK(text_tokenize(&f, "a.txt", &(fsdp_tokenize_options){.no_eos = true}, &summary)); /* in place of its own */
    CHECK_TOKENS(266, 258, '\n');
    text_fixture_free(&f);
}

TEST(separators_stand_between_documents)
{
    text_fixture f = text_fixture_make();
    fsdp_tokenize_options options = {.separator = "\n%%\n"};
    fsdp_tokenize_summary summary;

    text_write(&f, "a.txt", "\n%%\nhe\n%%\n\n%%\nin\n%\n%%\n", 22);
    CHECK_OK(text_tokenize(&f, "a.txt", &options, &summary));
    CHECK_TOKENS(257, EOS, 259, '\n', '%', EOS);
    CHECK_EQ(summary.documents, 2);
    text_fixture_free(&f);
}

TEST(json_lines_have_a_text_each)
{
    static const char lines[] =
        "{\"text\": \"he\", \"x\": 1}\n\n  \r\n{\"text\": \"\"}\n{\"text\": \"in\\n\\u0000<|endoftext|>\"}";
    text_fixture f = text_fixture_make();
    fsdp_tokenize_options options = {.field = "x", .plain_specials = true};

    text_write(&f, "a.jsonl", lines, sizeof lines - 1);
    CHECK_OK(text_tokenize(&f, "a.jsonl", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, '\n', 0, EOS, EOS);
    CHECK_ERROR(text_tokenize(&f, "a.jsonl", &options, NULL), FSDP_FORMAT,
                "a.jsonl': line 1: field 'x' is not a string");
    text_write(&f, "b.ndjson", "{\"x\": \"<|endoftext|>\"}\n", 23);
    CHECK_OK(text_tokenize(&f, "b.ndjson", &options, NULL));
    CHECK_TOKENS('<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>', EOS);
    text_fixture_free(&f);
}

TEST(folders_give_their_texts_in_order)
{
    text_fixture f = text_fixture_make();

    text_write(&f, "b.txt", "b", 1);
    text_write(&f, "a.jsonl", "{\"text\": \"a\"}", 13);
    text_write(&f, "c.md", "c", 1);
    CHECK_OK(text_tokenize(&f, ".", NULL, NULL));
    CHECK_TOKENS('a', EOS, 'b', EOS);
    text_write(&f, "c4.json.gz", "\x1f\x8b\x08\0", 4);
    CHECK_ERROR(text_tokenize(&f, ".", NULL, NULL), FSDP_FORMAT, "/c4.json.gz', because its name does not say what is");
    text_write(&f, "c4.json.gz", "PAR1\x15\x04\x15", 7);
    CHECK_ERROR(text_tokenize(&f, ".", NULL, NULL), FSDP_FORMAT, "/c4.json.gz': it is a Parquet file");
    CHECK_TOKENS('a', EOS, 'b', EOS);
    text_fixture_free(&f);
}

/* ---- pieces ---- */

static void encode_in_pieces(const text_fixture *f, const char *path, size_t piece_bytes, const char *separator,
                             fsdp_token_list *out)
{
    fsdp_tokenize_options options = {.separator = separator};
    fsdp_encoder *encoder = NULL;
    fsdp__data_files files = {.paths = (char *[]){(char *)(uintptr_t)path}, .count = 1};
    fsdp__documents documents;
    fsdp__encoded encoded = {0};
    fsdp__piece piece = {0};
    bool any;

    CHECK_OK(fsdp_encoder_create(f->tokenizer, &encoder));
    fsdp__documents_open(&documents, f->tokenizer, &files, NULL, separator);
    documents.piece_bytes = piece_bytes;
    for (;;) {
        CHECK_OK(fsdp__documents_next(&documents, &piece, &any));
        if (!any)
            break;
        CHECK_OK(fsdp__encode_piece(encoder, &options, EOS, &piece, &encoded));
        for (int64_t i = 0; i < encoded.ids.count; i++)
            CHECK_OK(fsdp__token_list_add(out, encoded.ids.ids[i]));
    }
    fsdp_token_list_release(&encoded.ids);
    fsdp__piece_release(&piece);
    fsdp__documents_close(&documents);
    fsdp_encoder_free(encoder);
}

static void check_pieces(const text_fixture *f, const char *name, const char *separator)
{
    char *path = test_path(f->directory, name);
    fsdp_token_list whole = {0}, pieces = {0};

    encode_in_pieces(f, path, 1 << 20, separator, &whole);
    CHECK(whole.count > 20);
    for (size_t bytes = 1; bytes < 160; bytes += 1 + bytes / 8) {
        pieces.count = 0;
        encode_in_pieces(f, path, bytes, separator, &pieces);
        CHECK_EQ(pieces.count, whole.count);
        CHECK_BYTES(pieces.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids);
    }
    fsdp_token_list_release(&whole);
    fsdp_token_list_release(&pieces);
}

TEST(pieces_of_any_size_give_the_same_ids)
{
    static const char text[] =
        "the other thing\nis in  here\n\n12 a b\nthe <|endoftext|> he\n%%\nin the\n%%\n\n%%\n, \u4f60\u597d\n\u4f60 "
        "a thing\nher in <|endoftext|> x y\n";
    static const char lines[] =
        "{\"text\": \"the other\"}\n{\"text\": \"in  here\"}\n\n{\"text\": \"a b c d e f g\"}\n";
    text_fixture f = text_fixture_make();

    text_write(&f, "a.txt", text, sizeof text - 1);
    text_write(&f, "a.jsonl", lines, sizeof lines - 1);
    check_pieces(&f, "a.txt", NULL);
    check_pieces(&f, "a.txt", "\n%%\n");
    check_pieces(&f, "a.jsonl", NULL);
    text_fixture_free(&f);
}

TEST(threads_that_cannot_start_are_told)
{
    text_fixture f = text_fixture_make();
    const fsdp_tokenize_options options = {.threads = 3};

    text_write(&f, "a.txt", "12 the\n", 7);
    test_refuse_threads(true);
    text_refused(&f, "a.txt", &options,
                 "cannot start thread 1 of 3: Resource temporarily unavailable; 'ulimit -u', or pids.max");
    test_refuse_threads(false);
    CHECK_OK(text_tokenize(&f, "a.txt", &options, NULL));
    text_fixture_free(&f);
}

TEST(any_number_of_threads_writes_the_same_bytes)
{
    text_fixture f = text_fixture_make();
    char *first = NULL, *bytes;
    size_t first_count = 0, count;

    for (int i = 0; i < 20; i++) {
        char name[16], text[64];

        snprintf(name, sizeof name, "%02d.txt", i);
        snprintf(text, sizeof text, "the %d in %d thing", i, 7 * i);
        text_write(&f, name, text, strlen(text));
    }
    for (int threads = 1; threads <= 4; threads++) {
        CHECK_OK(text_tokenize(&f, ".", &(fsdp_tokenize_options){.threads = threads}, NULL));
        bytes = test_read_file(f.out, &count);
        if (threads > 1) {
            CHECK_EQ(count, first_count);
            CHECK_BYTES(bytes, first, count);
        } else {
            first = bytes;
            first_count = count;
        }
    }
    text_fixture_free(&f);
}

/* ---- what is refused ---- */

TEST(bytes_that_are_no_utf8_are_errors_or_replaced)
{
    text_fixture f = text_fixture_make();
    fsdp_tokenize_options replace = {.replace_invalid = true};

    text_write(&f, "a.txt", "he\nin\xff\xe4\xbd", 8);
    text_refused(&f, "a.txt", NULL, "a.txt': it is not UTF-8 at offset 5 of its text (byte 0xff)");
    CHECK_OK(text_tokenize(&f, "a.txt", &replace, NULL));
    CHECK_TOKENS(257, '\n', 259, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, EOS);
    text_write(&f, "a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", 28);
    text_refused(&f, "a.jsonl", NULL, "a.jsonl': line 2: ");
    CHECK_OK(text_tokenize(&f, "a.jsonl", &replace, NULL));
    CHECK_TOKENS('a', EOS, 0xef, 0xbf, 0xbd, EOS);
    text_fixture_free(&f);
}

/* Where a quarter of the text would be U+FFFD it is something else; a NUL byte is in no text. */
TEST(what_is_hardly_text_is_not_replaced)
{
    text_fixture f = text_fixture_make();
    fsdp_tokenize_options replace = {.replace_invalid = true};
    unsigned char noise[4096], latin1[4096];
    uint32_t random = 1;

    for (size_t i = 0; i < sizeof noise; i++) {
        random = random * 1664525 + 1013904223;
        noise[i] = (unsigned char)(1 + (random >> 8) % 255);
        latin1[i] = i % 8 ? 'a' : 0xe9;
    }
    text_write(&f, "a.txt", noise, sizeof noise);
    text_refused(&f, "a.txt", &replace, "a.txt': it is not text: ");
    memset(noise, 0xd6, 300); /* another encoding */
    text_write(&f, "a.txt", noise, 300);
    text_refused(&f, "a.txt", &replace, "300 of 300 bytes from offset 0 on are not UTF-8: it is in another encoding");
    memcpy(noise, "{\"text\": \"", 10);
    memcpy(noise + 290, "\"}", 2);
    text_write(&f, "a.jsonl", noise, 292);
    text_refused(&f, "a.jsonl", &replace, "280 of 292 bytes from offset 0 on are not UTF-8");
    text_write(&f, "a.txt", latin1, sizeof latin1);
    CHECK_OK(text_tokenize(&f, "a.txt", &replace, NULL));
    text_write(&f, "a.txt", "the\0thing", 9);
    text_refused(&f, "a.txt", NULL, "a.txt': it is not text: a NUL byte at offset 3, in what is ");
    text_refused(&f, "a.txt", &replace, "a NUL byte at offset 3, in what is ");
    text_fixture_free(&f);
}

/* As Python's json module has them, in fields that nobody asks for; and .json, which many files of lines are named. */
TEST(other_fields_may_hold_what_python_writes)
{
    static const char lines[] =
        "{\"text\": \"he\", \"x\": NaN}\n{\"x\": [Infinity, -Infinity, 1e400], \"text\": \"in\"}\n"
        "{\"x\": 12345678901234567890123456789012345678901234567890, \"text\": \"a\"}\n"
        "{\"x\": \"\\ud83d\", \"\\udc00\": 0, \"y\\u0000\": 1, \"text\": \"x\", \"text\": \"b\"}\n"
        "{\"text\": \"c\", \"x\": [[[[[[[[{}]]]]]]]]}\n";
    text_fixture f = text_fixture_make();
    char *deep = malloc(200100);
    size_t used = 0;

    text_write(&f, "a.jsonl", lines, sizeof lines - 1);
    CHECK_OK(text_tokenize(&f, "a.jsonl", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, EOS, 'a', EOS, 'b', EOS, 'c', EOS);
    used += (size_t)sprintf(deep, "{\"x\": ");
    memset(deep + used, '[', 100000);
    memset(deep + used + 100000, ']', 100000);
    used += 200000;
    used += (size_t)sprintf(deep + used, ", \"text\": \"he\"}");
    text_write(&f, "b.json", deep, used);
    CHECK_OK(text_tokenize(&f, "b.json", NULL, NULL));
    CHECK_TOKENS(257, EOS);
    free(deep);
    text_fixture_free(&f);
}

TEST(half_a_pair_in_the_field_is_no_character)
{
    static const char lines[] = "{\"text\": \"a\"}\n{\"text\": \"b\\ud83dc\"}\n";
    text_fixture f = text_fixture_make();

    text_write(&f, "a.jsonl", lines, sizeof lines - 1);
    text_refused(&f, "a.jsonl", NULL, "a.jsonl': line 2: field 'text' has half a surrogate pair");
    CHECK_OK(text_tokenize(&f, "a.jsonl", &(fsdp_tokenize_options){.replace_invalid = true}, NULL));
    CHECK_TOKENS('a', EOS, 'b', 0xef, 0xbf, 0xbd, 'c', EOS);
    text_fixture_free(&f);
}

TEST(bad_lines_are_left_out_where_that_is_asked_for)
{
    static const char lines[] = "{\"text\": \"he\"}\n\n{\"text\": 1}\n{\"tex\": \"a\"}\n{\"text\": \"b\"\n[1]\n"
                                "{\"text\": \"\xff\"}\n{\"text\": \"\\udc00\"}\n{\"text\": \"\"}\n{\"text\": \"in\"}";
    static const fsdp_tokenize_options skip = {.skip_bad_lines = true},
                                       threads = {.skip_bad_lines = true, .threads = 3};
    text_fixture f = text_fixture_make();
    fsdp_tokenize_summary summary;
    char text[FSDP__LEFT_OUT_TEXT], *more = malloc(64 * 40000);
    size_t used = 0;

    text_write(&f, "a.jsonl", lines, sizeof lines - 1);
    CHECK_OK(text_tokenize(&f, "a.jsonl", &skip, &summary));
    CHECK_TOKENS(257, EOS, 259, EOS);
    CHECK_EQ(summary.lines, 9);
    CHECK_EQ(summary.left_out_lines, 6);
    CHECK_EQ(summary.documents, 2);
    CHECK_EQ(summary.text_bytes, 4);
    CHECK_CONTAINS(summary.first_left_out, "a.jsonl:3: field 'text' is not a string");
    CHECK_CONTAINS(fsdp__left_out_text(&summary, text), "6 of 9 lines left out: first at ");
    for (int i = 0; i < 40000; i++) /* several pieces; the first bad line is the first one of the file */
        used += (size_t)sprintf(more + used, "{\"text\": \"%s\"%s\n", "the other thing in the thing",
                                i % 10000 == 77 ? "" : "}");
    text_write(&f, "b.jsonl", more, used);
    CHECK_OK(text_tokenize(&f, "b.jsonl", &threads, &summary));
    CHECK_EQ(summary.lines, 40000);
    CHECK_EQ(summary.left_out_lines, 4);
    CHECK_CONTAINS(summary.first_left_out, "b.jsonl:78: no comma or '}' after a member at column ");
    text_write(&f, "c.jsonl", "{\n{\n", 4);
    text_refused(&f, "c.jsonl", &skip, "there is no text: 2 of 2 lines left out: first at ");
    free(more);
    text_fixture_free(&f);
}

TEST(what_cannot_be_read_is_named)
{
    static const char *const arrays[] = {"[\n {\"text\": \"a\"},\n {\"text\": \"b\"}\n]\n", "\xef\xbb\xbf[]",
                                         "  [{\"text\": \"a\"}, {\"text\": \"b\"}]"};
    text_fixture f = text_fixture_make();

    text_refused(&f, "none.txt", NULL, "none.txt': No such file");
    text_write(&f, "a.txt", "", 0);
    text_refused(&f, "a.txt", NULL, "there is no text in");
    text_write(&f, "a.jsonl", "{\"text\": \"a\"}\n{\"text\"}\n", 23);
    text_refused(&f, "a.jsonl", NULL, "a.jsonl': line 2: ");
    text_write(&f, "b.jsonl", "\n[1]\n", 5);
    text_refused(&f, "b.jsonl", NULL, "b.jsonl': line 2: not a JSON object");
    for (size_t i = 0; i < FSDP__COUNT_OF(arrays); i++) {
        text_write(&f, "c.json", arrays[i], strlen(arrays[i]));
        text_refused(&f, "c.json", NULL,
                     "c.json': line 1: not a JSON object but an array: if the file is one, make JSON lines of it with "
                     "jq -c '.[]'");
    }
    text_refused(&f, "c.json", &(fsdp_tokenize_options){.skip_bad_lines = true}, "c.json:1: not a JSON object but an");
    text_refused(&f, "b.jsonl", &(fsdp_tokenize_options){.threads = -1}, "-1 threads");
    text_refused(&f, "b.jsonl", &(fsdp_tokenize_options){.separator = ""}, "separator");
    CHECK(access(f.out, F_OK) != 0);
    text_fixture_free(&f);
}

TEST(files_of_others_are_not_replaced)
{
    text_fixture f = text_fixture_make();
    size_t count;

    text_write(&f, "a.txt", "he", 2);
    text_write(&f, "out.bin", "mine", 4);
    text_refused(&f, "a.txt", NULL, "out.bin' exists and is not a token file that fsdp made");
    test_read_file(f.out, &count);
    CHECK_EQ(count, 4);
    unlink(f.out);
    CHECK_EQ(symlink("a.txt", f.out), 0);
    text_refused(&f, "a.txt", NULL, "out.bin' is one of the files that are read");
    unlink(f.out);
    text_fixture_free(&f);
}

/* Each write fails in turn; what was there stays, and nothing beside it. */
TEST(a_full_disk_leaves_what_was_there)
{
    text_fixture f = text_fixture_make();
    char *before, *after;
    size_t before_count, after_count;

    text_write(&f, "a.txt", "the", 3);
    CHECK_OK(text_tokenize(&f, "a.txt", NULL, NULL));
    before = test_read_file(f.out, &before_count);
    text_write(&f, "a.txt", "things", 6);
    for (long n = 0; test_next_fault(FSDP__FAULT_WRITE, &n);) {
        fsdp_status status = text_tokenize(&f, "a.txt", NULL, NULL);
        char temporary[512];

        CHECK_FAULT(FSDP__FAULT_WRITE, status);
        snprintf(temporary, sizeof temporary, "%s.tmp-%ld-0", f.out, (long)getpid());
        CHECK(access(temporary, F_OK) != 0);
        if (status == FSDP_OK)
            break;
        after = test_read_file(f.out, &after_count);
        if (after_count == before_count) /* else the last sync failed, and the new name is there */
            CHECK_BYTES(after, before, before_count);
    }
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    CHECK_TOKENS(262, 260, 's', EOS);
    text_fixture_free(&f);
}

/* By the name that was given, not by one beside it. */
TEST(what_cannot_be_written_is_named)
{
    text_fixture f = text_fixture_make();
    char *none = test_path(f.directory, "none/out.bin"), *in_file = test_path(f.directory, "a.txt/out.bin");
    fsdp__token_writer writer;

    text_write(&f, "a.txt", "the", 3);
    CHECK_ERROR(fsdp__token_writer_open(&writer, none, 2, false), FSDP_NOT_FOUND,
                "none/out.bin': No such file or directory");
    fsdp__token_writer_close(&writer);
    CHECK_ERROR(fsdp__token_writer_open(&writer, in_file, 2, false), FSDP_IO, "a.txt' is a file, not a folder");
    fsdp__token_writer_close(&writer);
    text_fixture_free(&f);
}

/* However its process ends, nothing is left of a file that is not finished. */
TEST(what_is_not_finished_has_no_name)
{
    text_fixture f = text_fixture_make();
    int fd = open(f.directory, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
    fsdp__token_writer writer;
    char temporary[512];

    if (fd < 0) /* the file system has no such files */
        skip();
    close(fd);
    snprintf(temporary, sizeof temporary, "%s.tmp-%ld-0", f.out, (long)getpid());
    CHECK_OK(fsdp__token_writer_open(&writer, f.out, 2, false));
    CHECK_OK(fsdp__token_writer_add(&writer, (const int32_t[]){7, 8}, 2));
    CHECK(access(temporary, F_OK) != 0);
    CHECK(access(f.out, F_OK) != 0);
    CHECK_OK(fsdp__token_writer_finish(&writer, ""));
    CHECK(access(temporary, F_OK) != 0);
    CHECK_TOKENS(7, 8);
    fsdp__token_writer_close(&writer);
    text_fixture_free(&f);
}

TEST(a_lack_of_memory_is_an_error)
{
    text_fixture f = text_fixture_make();

    text_write(&f, "a.jsonl", "{\"text\": \"the\"}\n", 16);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = text_tokenize(&f, "a.jsonl", &(fsdp_tokenize_options){.threads = 2}, NULL);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
    text_fixture_free(&f);
}

/* ---- a text that changes meanwhile ---- */

static void append(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens)
{
    const char *path = arg;
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);

    (void)bytes;
    (void)all_bytes;
    (void)tokens;
    CHECK_EQ(write(fd, "s", 1), 1);
    close(fd);
}

/* Half of it may be of before, and half of after. */
TEST(a_text_that_changes_meanwhile_is_refused)
{
    enum {
        BYTES = 4 << 20 /* more than is read before the first tokens are written */
    };
    text_fixture f = text_fixture_make();
    char *text = malloc(BYTES), *path = test_path(f.directory, "b.txt");
    fsdp_tokenize_options options = {.threads = 1, .progress = append, .progress_arg = path};

    for (int i = 0; i < BYTES; i++)
        text[i] = "the thing\n"[i % 10];
    text_write(&f, "a.txt", text, BYTES);
    text_write(&f, "b.txt", "the thing", 9);
    CHECK_OK(text_tokenize(&f, "a.txt", &options, NULL)); /* another one changes */
    text_write(&f, "b.txt", text, BYTES);
    text_refused(&f, "b.txt", &options, "b.txt' changed while it was tokenized: start again when nothing writes to it");
    options.progress = NULL;
    CHECK_OK(text_tokenize(&f, "b.txt", &options, NULL));
    free(text);
    text_fixture_free(&f);
}

/* ---- the header ---- */

TEST(a_count_beyond_int32_stands_behind_llm_cs)
{
    unsigned char bytes[FSDP__TOKEN_HEADER_BYTES];
    int64_t many = (int64_t)3 << 31;
    fsdp__token_header header;

    fsdp__token_header_write(bytes, 4, many);
    header = fsdp__token_header_read(bytes, sizeof bytes);
    CHECK_EQ(header.width, 4);
    CHECK_EQ(header.count, many);
    CHECK(fsdp__token_header_is_ours(bytes));
    fsdp__token_header_write(bytes, 2, INT32_MAX);
    header = fsdp__token_header_read(bytes, sizeof bytes);
    CHECK_EQ(header.width, 2);
    CHECK_EQ(header.count, INT32_MAX);
    CHECK_EQ(header.version, header.expected_version);
}
