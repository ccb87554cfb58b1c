/* Files of text to a file of tokens. */
#include "fsdp/tokenize.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/compiler.h"
#include "data/encode_piece.h"
#include "data/token_header.h"
#include "data/token_writer.h"
#include "fsdp/data.h"
#include "tokenizer/small.h"
#include "tokenizer/word.h"

#define ADDED "[{\"content\": \"<|endoftext|>\", \"id\": 270, \"special\": true}]"
enum {
    EOS = 270
};

/* A folder with a tokenizer in it, which is open. */
typedef struct fixture {
    char *directory, *out;
    fsdp_tokenizer *tokenizer;
} fixture;

static void write_file(const fixture *f, const char *name, const void *data, size_t bytes)
{
    char *path = test_path(f->directory, name);

    test_write_file(path, data, bytes);
    free(path);
}

static fixture make_fixture(void)
{
    fixture f = {.directory = test_directory()};
    char *json = small_json(&(small_parts){.added_tokens = ADDED}), *path = test_path(f.directory, "tokenizer.json");

    f.out = test_path(f.directory, "out.bin");
    test_write_file(path, json, strlen(json));
    CHECK_OK(fsdp_tokenizer_open(f.directory, &f.tokenizer));
    free(json);
    free(path);
    return f;
}

static void free_fixture(fixture *f)
{
    fsdp_tokenizer_close(f->tokenizer);
    test_directory_free(f->directory);
    free(f->out);
}

static fsdp_status tokenize(const fixture *f, const char *name, const fsdp_tokenize_options *options,
                            fsdp_tokenize_summary *summary)
{
    char *path = test_path(f->directory, name);
    fsdp_status status = fsdp_tokenize_files(f->tokenizer, (const char *const *)&path, 1, f->out, options, summary);

    free(path);
    return status;
}

static void check_refused(const fixture *f, const char *name, const fsdp_tokenize_options *options, const char *part)
{
    fsdp_tokenize_summary summary;

    CHECK(tokenize(f, name, options, &summary) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), part);
}

/* The list ends with -1. */
static void check_tokens(const fixture *f, const int32_t *expected)
{
    fsdp_tokens *tokens = NULL;
    int64_t count = 0;

    CHECK_OK(fsdp_tokens_open((const char *const *)&f->out, 1, FSDP_TOKENS_AUTO, &tokens));
    while (expected[count] >= 0) {
        int32_t id = -1;

        CHECK_OK(fsdp_tokens_read(tokens, count, 1, &id));
        CHECK_EQ(id, expected[count++]);
    }
    CHECK_EQ(fsdp_tokens_count(tokens), count);
    fsdp_tokens_close(tokens);
}
#define CHECK_TOKENS(...) check_tokens(&f, (const int32_t[]){__VA_ARGS__, -1})

/* ---- documents ---- */

static void a_file_is_a_document(void **state)
{
    fixture f = make_fixture();
    fsdp_tokenize_summary summary;

    (void)state;
    write_file(&f, "a.txt", "12 the\n", 7);
    CHECK_OK(tokenize(&f, "a.txt", NULL, &summary));
    CHECK_TOKENS(266, 258, '\n', EOS);
    CHECK_EQ(summary.tokens, 4);
    CHECK_EQ(summary.documents, 1);
    CHECK_EQ(summary.text_bytes, 7);
    CHECK_EQ(summary.width, 2);
    CHECK_OK(tokenize(&f, "a.txt", &(fsdp_tokenize_options){.no_eos = true}, &summary)); /* in place of its own */
    CHECK_TOKENS(266, 258, '\n');
    free_fixture(&f);
}

static void separators_stand_between_documents(void **state)
{
    fixture f = make_fixture();
    fsdp_tokenize_options options = {.separator = "\n%%\n"};
    fsdp_tokenize_summary summary;

    (void)state;
    write_file(&f, "a.txt", "\n%%\nhe\n%%\n\n%%\nin\n%\n%%\n", 22);
    CHECK_OK(tokenize(&f, "a.txt", &options, &summary));
    CHECK_TOKENS(257, EOS, 259, '\n', '%', EOS);
    CHECK_EQ(summary.documents, 2);
    free_fixture(&f);
}

static void json_lines_have_a_text_each(void **state)
{
    static const char lines[] =
        "{\"text\": \"he\", \"x\": 1}\n\n  \r\n{\"text\": \"\"}\n{\"text\": \"in\\n\\u0000<|endoftext|>\"}";
    fixture f = make_fixture();
    fsdp_tokenize_options options = {.field = "x", .plain_specials = true};

    (void)state;
    write_file(&f, "a.jsonl", lines, sizeof lines - 1);
    CHECK_OK(tokenize(&f, "a.jsonl", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, '\n', 0, EOS, EOS);
    CHECK_ERROR(tokenize(&f, "a.jsonl", &options, NULL), FSDP_FORMAT, "a.jsonl': line 1: field 'x' is not a string");
    write_file(&f, "b.ndjson", "{\"x\": \"<|endoftext|>\"}\n", 23);
    CHECK_OK(tokenize(&f, "b.ndjson", &options, NULL));
    CHECK_TOKENS('<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>', EOS);
    free_fixture(&f);
}

static void folders_give_their_texts_in_order(void **state)
{
    fixture f = make_fixture();

    (void)state;
    write_file(&f, "b.txt", "b", 1);
    write_file(&f, "a.jsonl", "{\"text\": \"a\"}", 13);
    write_file(&f, "c.md", "c", 1);
    CHECK_OK(tokenize(&f, ".", NULL, NULL));
    CHECK_TOKENS('a', EOS, 'b', EOS);
    free_fixture(&f);
}

/* ---- packed files ---- */

static void write_gzip(const fixture *f, const char *name, const char *const *members, int count)
{
    char *path = test_path(f->directory, name);

    for (int i = 0; i < count; i++) {
        gzFile file = gzopen(path, i == 0 ? "wb" : "ab");

        CHECK_EQ(gzwrite(file, members[i], (unsigned)strlen(members[i])), strlen(members[i]));
        gzclose(file);
    }
    free(path);
}

static void write_zstd(const fixture *f, const char *name, const char *const *frames, int count)
{
    char packed[512];
    size_t used = 0;

    for (int i = 0; i < count; i++)
        used += ZSTD_compress(packed + used, sizeof packed - used, frames[i], strlen(frames[i]), 3);
    write_file(f, name, packed, used);
}

static void packed_files_are_read_through_all_their_parts(void **state)
{
    static const char *const parts[] = {"he", "", "in\n", " the"};
    static const char *const lines[] = {"{\"text\": \"he\"}\n{\"te", "xt\": \"in\"}\n"};
    fixture f = make_fixture();

    (void)state;
    write_gzip(&f, "a.txt.gz", parts, 4);
    CHECK_OK(tokenize(&f, "a.txt.gz", NULL, NULL));
    CHECK_TOKENS(257, 259, '\n', 258, EOS);
    write_zstd(&f, "a.zst", parts, 4);
    CHECK_OK(tokenize(&f, "a.zst", NULL, NULL));
    CHECK_TOKENS(257, 259, '\n', 258, EOS);
    write_zstd(&f, "a.jsonl.zst", lines, 2);
    CHECK_OK(tokenize(&f, "a.jsonl.zst", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, EOS);
    free_fixture(&f);
}

static void damaged_and_short_files_are_errors(void **state)
{
    static const char *const parts[] = {"the other thing is the other thing"};
    static const char *const names[] = {"a.gz", "a.zst"};
    fixture f = make_fixture();

    (void)state;
    write_gzip(&f, "a.gz", parts, 1);
    write_zstd(&f, "a.zst", parts, 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) {
        char *path = test_path(f.directory, names[i]), *data;
        size_t bytes;

        data = test_read_file(path, &bytes);
        for (size_t cut = 5; cut < bytes; cut++) {
            test_write_file(path, data, cut);
            CHECK_STATUS(tokenize(&f, names[i], NULL, NULL), FSDP_FORMAT);
            CHECK_CONTAINS(fsdp_last_error(), names[i]);
        }
        data[i == 0 ? 10 : 4] ^= 0x55; /* this zstd has no checksum: its frame's header */
        test_write_file(path, data, bytes);
        CHECK_STATUS(tokenize(&f, names[i], NULL, NULL), FSDP_FORMAT);
        CHECK(access(f.out, F_OK) != 0);
        free(data);
        free(path);
    }
    free_fixture(&f);
}

/* Puts a packed text behind `used` bytes of `out`; returns how many there are then. */
static size_t put_gzip(unsigned char *out, size_t used, const void *text, size_t bytes)
{
    z_stream z = {
        .next_in = (void *)(uintptr_t)text, .avail_in = (unsigned)bytes, .next_out = out + used, .avail_out = 2048};

    CHECK_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    CHECK_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return used + z.total_out;
}

static size_t put_zstd(unsigned char *out, size_t used, const void *text, size_t bytes)
{
    return used + ZSTD_compress(out + used, 2048, text, bytes, 3);
}

static size_t put_bytes(unsigned char *out, size_t used, const void *data, size_t bytes)
{
    memcpy(out + used, data, bytes);
    return used + bytes;
}

/* As pzstd puts before each frame: how long the frame is. */
static const char skipped[] = "\x50\x2a\x4d\x18\4\0\0\0\x11\0\0\0", other_skipped[] = "\x5f\x2a\x4d\x18\1\0\0\0x";

static void frames_that_are_passed_over_are(void **state)
{
    fixture f = make_fixture();
    unsigned char out[8192];
    size_t bytes = put_bytes(out, 0, skipped, 12);

    (void)state;
    bytes = put_zstd(out, bytes, "he", 2);
    bytes = put_bytes(out, bytes, other_skipped, 9);
    bytes = put_bytes(out, bytes, skipped, 12);
    bytes = put_zstd(out, bytes, " the", 4);
    bytes = put_bytes(out, bytes, skipped, 12);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "a.txt" : "a.txt.zst";

        write_file(&f, name, out, bytes);
        CHECK_OK(tokenize(&f, name, NULL, NULL));
        CHECK_TOKENS(257, 258, EOS);
    }
    write_file(&f, "a.zst", skipped, 12);
    check_refused(&f, "a.zst", NULL, "there is no text in");
    bytes = put_bytes(out, 0, skipped, 12);
    bytes = put_bytes(out, bytes, "\x04\x22\x4d\x18\x64", 5);
    write_file(&f, "a.zst", out, bytes);
    check_refused(&f, "a.zst", NULL, "a.zst': at offset 12, behind its zstd data, stand bytes that are none");
    free_fixture(&f);
}

static void zeros_behind_gzip_are_passed_over(void **state)
{
    static const char zeros[700] = "";
    fixture f = make_fixture();
    unsigned char out[8192];
    size_t bytes = put_gzip(out, 0, "he", 2), member;

    (void)state;
    bytes = put_bytes(out, bytes, zeros, sizeof zeros);
    write_file(&f, "a.gz", out, bytes);
    CHECK_OK(tokenize(&f, "a.gz", NULL, NULL));
    CHECK_TOKENS(257, EOS);
    member = bytes;
    bytes = put_gzip(out, bytes, " the", 4);
    bytes = put_bytes(out, bytes, zeros, 1);
    write_file(&f, "a.gz", out, bytes);
    CHECK_OK(tokenize(&f, "a.gz", NULL, NULL));
    CHECK_TOKENS(257, 258, EOS);
    out[member] = 'x';
    write_file(&f, "a.gz", out, bytes);
    check_refused(&f, "a.gz", NULL, "a.gz': at offset 722, behind its gzip data, stand bytes that are none");
    CHECK_EQ(member, 722);
    free_fixture(&f);
}

/* Also where it is not the first member that holds it. */
static void what_is_packed_twice_is_refused(void **state)
{
    fixture f = make_fixture();
    unsigned char inner[4096], out[8192];
    size_t count = put_gzip(inner, 0, "the thing", 9), bytes;

    (void)state;
    bytes = put_gzip(out, 0, inner, count);
    write_file(&f, "a.txt.gz", out, bytes);
    check_refused(&f, "a.txt.gz", &(fsdp_tokenize_options){.replace_invalid = true},
                  "a.txt.gz': its gzip data holds gzip data: unpack it with 'gzip -d'");
    bytes = put_zstd(out, 0, "the", 3);
    bytes = put_zstd(out, bytes, "\xfd\x37zXZ\0\0\4", 8);
    write_file(&f, "a.zst", out, bytes);
    check_refused(&f, "a.zst", &(fsdp_tokenize_options){.replace_invalid = true},
                  "a.zst': its zstd data holds xz data: unpack it with 'xz -d'");
    memset(inner, 0, 1024);
    memcpy(inner + 257, "ustar", 6);
    bytes = put_gzip(out, 0, inner, 1024);
    write_file(&f, "a.tgz", out, bytes);
    check_refused(&f, "a.tgz", NULL, "its gzip data holds a tar archive");
    write_file(&f, "a.gz", "the thing", 9);
    check_refused(&f, "a.gz", NULL, "its name ends in .gz, but its first bytes are those of no such file");
    write_file(&f, "a.gz", "", 0);
    check_refused(&f, "a.gz", NULL, "its name ends in .gz, but it is empty");
    free_fixture(&f);
}

/* ---- pieces ---- */

static void encode_in_pieces(const fixture *f, const char *path, size_t piece_bytes, const char *separator,
                             fsdp_token_list *out)
{
    fsdp_tokenize_options options = {.separator = separator};
    fsdp_encoder *encoder = NULL;
    fsdp__documents documents;
    fsdp__encoded encoded = {0};
    fsdp__piece piece = {0};
    bool any;

    CHECK_OK(fsdp_encoder_create(f->tokenizer, &encoder));
    CHECK_OK(fsdp__documents_open(&documents, f->tokenizer, &path, 1, separator));
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

static void check_pieces(const fixture *f, const char *name, const char *separator)
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
    free(path);
}

static void pieces_of_any_size_give_the_same_ids(void **state)
{
    static const char text[] =
        "the other thing\nis in  here\n\n12 a b\nthe <|endoftext|> he\n%%\nin the\n%%\n\n%%\n, \u4f60\u597d\n\u4f60 "
        "a thing\nher in <|endoftext|> x y\n";
    static const char lines[] =
        "{\"text\": \"the other\"}\n{\"text\": \"in  here\"}\n\n{\"text\": \"a b c d e f g\"}\n";
    fixture f = make_fixture();

    (void)state;
    write_file(&f, "a.txt", text, sizeof text - 1);
    write_file(&f, "a.jsonl", lines, sizeof lines - 1);
    check_pieces(&f, "a.txt", NULL);
    check_pieces(&f, "a.txt", "\n%%\n");
    check_pieces(&f, "a.jsonl", NULL);
    free_fixture(&f);
}

static void any_number_of_threads_writes_the_same_bytes(void **state)
{
    fixture f = make_fixture();
    char *first = NULL, *bytes;
    size_t first_count = 0, count;

    (void)state;
    for (int i = 0; i < 20; i++) {
        char name[16], text[64];

        snprintf(name, sizeof name, "%02d.txt", i);
        snprintf(text, sizeof text, "the %d in %d thing", i, 7 * i);
        write_file(&f, name, text, strlen(text));
    }
    for (int threads = 1; threads <= 4; threads++) {
        CHECK_OK(tokenize(&f, ".", &(fsdp_tokenize_options){.threads = threads}, NULL));
        bytes = test_read_file(f.out, &count);
        if (threads > 1) {
            CHECK_EQ(count, first_count);
            CHECK_BYTES(bytes, first, count);
            free(bytes);
        } else {
            first = bytes;
            first_count = count;
        }
    }
    free(first);
    free_fixture(&f);
}

/* ---- what is refused ---- */

static void bytes_that_are_no_utf8_are_errors_or_replaced(void **state)
{
    fixture f = make_fixture();
    fsdp_tokenize_options replace = {.replace_invalid = true};

    (void)state;
    write_file(&f, "a.txt", "he\nin\xff\xe4\xbd", 8);
    check_refused(&f, "a.txt", NULL, "a.txt': it is no UTF-8 at offset 5 of its text (byte 0xff)");
    CHECK_OK(tokenize(&f, "a.txt", &replace, NULL));
    CHECK_TOKENS(257, '\n', 259, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, EOS);
    write_file(&f, "a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", 28);
    check_refused(&f, "a.jsonl", NULL, "a.jsonl': line 2: ");
    CHECK_OK(tokenize(&f, "a.jsonl", &replace, NULL));
    CHECK_TOKENS('a', EOS, 0xef, 0xbf, 0xbd, EOS);
    free_fixture(&f);
}

/* Where a quarter of the text would be U+FFFD it is something else; a NUL byte is in no text. */
static void what_is_hardly_text_is_not_replaced(void **state)
{
    fixture f = make_fixture();
    fsdp_tokenize_options replace = {.replace_invalid = true};
    unsigned char noise[4096], latin1[4096];
    uint32_t random = 1;

    (void)state;
    for (size_t i = 0; i < sizeof noise; i++) {
        random = random * 1664525 + 1013904223;
        noise[i] = (unsigned char)(1 + (random >> 8) % 255);
        latin1[i] = i % 8 ? 'a' : 0xe9;
    }
    write_file(&f, "a.txt", noise, sizeof noise);
    check_refused(&f, "a.txt", &replace, "a.txt': it is no text: ");
    memset(noise, 0xd6, 300); /* another encoding */
    write_file(&f, "a.txt", noise, 300);
    check_refused(&f, "a.txt", &replace, "300 of 300 bytes from offset 0 on are no UTF-8: it is in another encoding");
    memcpy(noise, "{\"text\": \"", 10);
    memcpy(noise + 290, "\"}", 2);
    write_file(&f, "a.jsonl", noise, 292);
    check_refused(&f, "a.jsonl", &replace, "280 of 292 bytes from offset 0 on are no UTF-8");
    write_file(&f, "a.txt", latin1, sizeof latin1);
    CHECK_OK(tokenize(&f, "a.txt", &replace, NULL));
    write_file(&f, "a.txt", "the\0thing", 9);
    check_refused(&f, "a.txt", NULL, "a.txt': it is no text: a NUL byte at offset 3 ");
    check_refused(&f, "a.txt", &replace, "a NUL byte at offset 3 ");
    free_fixture(&f);
}

static void a_byte_order_mark_is_no_text(void **state)
{
    fixture f = make_fixture();

    (void)state;
    write_file(&f, "a.txt", "\xef\xbb\xbfhe", 5);
    CHECK_OK(tokenize(&f, "a.txt", NULL, NULL));
    CHECK_TOKENS(257, EOS);
    write_file(&f, "a.txt", "he\xef\xbb\xbfin\xff", 8); /* inside it is a character; offsets are the file's */
    check_refused(&f, "a.txt", NULL, "no UTF-8 at offset 7");
    write_file(&f, "a.txt", "\xef\xbb\xbfin\xff", 6);
    check_refused(&f, "a.txt", NULL, "no UTF-8 at offset 5");
    write_file(&f, "a.txt", "he\xef\xbb\xbf", 5);
    CHECK_OK(tokenize(&f, "a.txt", NULL, NULL));
    CHECK_TOKENS(257, 0xef, 0xbb, 0xbf, EOS);
    write_file(&f, "a.txt", "\xef\xbb", 2);
    check_refused(&f, "a.txt", NULL, "no UTF-8 at offset 0");
    write_file(&f, "a.jsonl", "\xef\xbb\xbf{\"text\": \"he\"}\r\n\xef\xbb\xbf{\"text\": \"in\"}\n\xef\xbb\xbf\n", 41);
    CHECK_OK(tokenize(&f, "a.jsonl", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, EOS);
    free_fixture(&f);
}

/* As Python's json module has them, in fields that nobody asks for; and .json, which many files of lines are named. */
static void other_fields_may_hold_what_python_writes(void **state)
{
    static const char lines[] =
        "{\"text\": \"he\", \"x\": NaN}\n{\"x\": [Infinity, -Infinity, 1e400], \"text\": \"in\"}\n"
        "{\"x\": 12345678901234567890123456789012345678901234567890, \"text\": \"a\"}\n"
        "{\"x\": \"\\ud83d\", \"\\udc00\": 0, \"y\\u0000\": 1, \"text\": \"x\", \"text\": \"b\"}\n"
        "{\"text\": \"c\", \"x\": [[[[[[[[{}]]]]]]]]}\n";
    fixture f = make_fixture();
    char *deep = malloc(200100);
    size_t used = 0;

    (void)state;
    write_file(&f, "a.jsonl", lines, sizeof lines - 1);
    CHECK_OK(tokenize(&f, "a.jsonl", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, EOS, 'a', EOS, 'b', EOS, 'c', EOS);
    used += (size_t)sprintf(deep, "{\"x\": ");
    memset(deep + used, '[', 100000);
    memset(deep + used + 100000, ']', 100000);
    used += 200000;
    used += (size_t)sprintf(deep + used, ", \"text\": \"he\"}");
    write_file(&f, "b.json", deep, used);
    CHECK_OK(tokenize(&f, "b.json", NULL, NULL));
    CHECK_TOKENS(257, EOS);
    free(deep);
    free_fixture(&f);
}

static void half_a_pair_in_the_field_is_no_character(void **state)
{
    static const char lines[] = "{\"text\": \"a\"}\n{\"text\": \"b\\ud83dc\"}\n";
    fixture f = make_fixture();

    (void)state;
    write_file(&f, "a.jsonl", lines, sizeof lines - 1);
    check_refused(&f, "a.jsonl", NULL, "a.jsonl': line 2: field 'text' has half a surrogate pair");
    CHECK_OK(tokenize(&f, "a.jsonl", &(fsdp_tokenize_options){.replace_invalid = true}, NULL));
    CHECK_TOKENS('a', EOS, 'b', 0xef, 0xbf, 0xbd, 'c', EOS);
    free_fixture(&f);
}

static void bad_lines_are_left_out_where_that_is_asked_for(void **state)
{
    static const char lines[] = "{\"text\": \"he\"}\n\n{\"text\": 1}\n{\"tex\": \"a\"}\n{\"text\": \"b\"\n[1]\n"
                                "{\"text\": \"\xff\"}\n{\"text\": \"\\udc00\"}\n{\"text\": \"\"}\n{\"text\": \"in\"}";
    static const fsdp_tokenize_options skip = {.skip_bad_lines = true},
                                       threads = {.skip_bad_lines = true, .threads = 3};
    fixture f = make_fixture();
    fsdp_tokenize_summary summary;
    char text[FSDP__LEFT_OUT_TEXT], *more = malloc(64 * 40000);
    size_t used = 0;

    (void)state;
    write_file(&f, "a.jsonl", lines, sizeof lines - 1);
    CHECK_OK(tokenize(&f, "a.jsonl", &skip, &summary));
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
    write_file(&f, "b.jsonl", more, used);
    CHECK_OK(tokenize(&f, "b.jsonl", &threads, &summary));
    CHECK_EQ(summary.lines, 40000);
    CHECK_EQ(summary.left_out_lines, 4);
    CHECK_CONTAINS(summary.first_left_out, "b.jsonl:78: no comma or '}' behind a member at column ");
    write_file(&f, "c.jsonl", "{\n{\n", 4);
    check_refused(&f, "c.jsonl", &skip, "there is no text: 2 of 2 lines left out: first at ");
    free(more);
    free_fixture(&f);
}

static void what_cannot_be_read_is_named(void **state)
{
    fixture f = make_fixture();

    (void)state;
    check_refused(&f, "none.txt", NULL, "none.txt': No such file");
    write_file(&f, "a.txt", "", 0);
    check_refused(&f, "a.txt", NULL, "there is no text in");
    write_file(&f, "a.jsonl", "{\"text\": \"a\"}\n{\"text\"}\n", 23);
    check_refused(&f, "a.jsonl", NULL, "a.jsonl': line 2: ");
    write_file(&f, "b.jsonl", "\n[1]\n", 5);
    check_refused(&f, "b.jsonl", NULL, "b.jsonl': line 2: not a JSON object");
    check_refused(&f, "b.jsonl", &(fsdp_tokenize_options){.threads = -1}, "-1 threads");
    check_refused(&f, "b.jsonl", &(fsdp_tokenize_options){.separator = ""}, "separator");
    CHECK(access(f.out, F_OK) != 0);
    free_fixture(&f);
}

static void files_of_others_are_not_replaced(void **state)
{
    fixture f = make_fixture();
    char *bytes;
    size_t count;

    (void)state;
    write_file(&f, "a.txt", "he", 2);
    write_file(&f, "out.bin", "mine", 4);
    check_refused(&f, "a.txt", NULL, "out.bin' exists and is no token file that fsdp made");
    bytes = test_read_file(f.out, &count);
    CHECK_EQ(count, 4);
    free(bytes);
    unlink(f.out);
    CHECK_EQ(symlink("a.txt", f.out), 0);
    check_refused(&f, "a.txt", NULL, "out.bin' is one of the files that are read");
    unlink(f.out);
    free_fixture(&f);
}

/* Each write fails in turn; what was there stays, and nothing beside it. */
static void a_full_disk_leaves_what_was_there(void **state)
{
    fixture f = make_fixture();
    char *before, *after;
    size_t before_count, after_count;

    (void)state;
    write_file(&f, "a.txt", "the", 3);
    CHECK_OK(tokenize(&f, "a.txt", NULL, NULL));
    before = test_read_file(f.out, &before_count);
    write_file(&f, "a.txt", "things", 6);
    for (long n = 0; test_next_fault(FSDP__FAULT_WRITE, &n);) {
        fsdp_status status = tokenize(&f, "a.txt", NULL, NULL);
        char temporary[512];

        CHECK_FAULT(FSDP__FAULT_WRITE, status);
        snprintf(temporary, sizeof temporary, "%s.tmp-%ld-0", f.out, (long)getpid());
        CHECK(access(temporary, F_OK) != 0);
        if (status == FSDP_OK)
            break;
        after = test_read_file(f.out, &after_count);
        if (after_count == before_count) /* else the last sync failed, and the new name is there */
            CHECK_BYTES(after, before, before_count);
        free(after);
    }
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    CHECK_TOKENS(262, 260, 's', EOS);
    free(before);
    free_fixture(&f);
}

/* By the name that was given, not by one beside it. */
static void what_cannot_be_written_is_named(void **state)
{
    fixture f = make_fixture();
    char *none = test_path(f.directory, "none/out.bin"), *in_file = test_path(f.directory, "a.txt/out.bin");
    fsdp__token_writer writer;

    (void)state;
    write_file(&f, "a.txt", "the", 3);
    CHECK_ERROR(fsdp__token_writer_open(&writer, none, 2), FSDP_NOT_FOUND, "none/out.bin': No such file or directory");
    fsdp__token_writer_close(&writer);
    CHECK_ERROR(fsdp__token_writer_open(&writer, in_file, 2), FSDP_IO, "a.txt/out.bin': Not a directory");
    fsdp__token_writer_close(&writer);
    free(in_file);
    free(none);
    free_fixture(&f);
}

/* However its process ends, nothing is left of a file that is not finished. */
static void what_is_not_finished_has_no_name(void **state)
{
    fixture f = make_fixture();
    int fd = open(f.directory, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
    fsdp__token_writer writer;
    char temporary[512];

    (void)state;
    if (fd < 0) /* the file system has no such files */
        skip();
    close(fd);
    snprintf(temporary, sizeof temporary, "%s.tmp-%ld-0", f.out, (long)getpid());
    CHECK_OK(fsdp__token_writer_open(&writer, f.out, 2));
    CHECK_OK(fsdp__token_writer_add(&writer, (const int32_t[]){7, 8}, 2));
    CHECK(access(temporary, F_OK) != 0);
    CHECK(access(f.out, F_OK) != 0);
    CHECK_OK(fsdp__token_writer_finish(&writer));
    CHECK(access(temporary, F_OK) != 0);
    CHECK_TOKENS(7, 8);
    fsdp__token_writer_close(&writer);
    free_fixture(&f);
}

static void a_lack_of_memory_is_an_error(void **state)
{
    fixture f = make_fixture();

    (void)state;
    write_file(&f, "a.jsonl", "{\"text\": \"the\"}\n", 16);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = tokenize(&f, "a.jsonl", &(fsdp_tokenize_options){.threads = 2}, NULL);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
    free_fixture(&f);
}

/* ---- the header ---- */

static void a_count_beyond_int32_stands_behind_llm_cs(void **state)
{
    unsigned char bytes[FSDP__TOKEN_HEADER_BYTES];
    int64_t many = (int64_t)3 << 31;
    fsdp__token_header header;

    (void)state;
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

TEST_MAIN(cmocka_unit_test(a_file_is_a_document), cmocka_unit_test(separators_stand_between_documents),
          cmocka_unit_test(json_lines_have_a_text_each), cmocka_unit_test(folders_give_their_texts_in_order),
          cmocka_unit_test(packed_files_are_read_through_all_their_parts),
          cmocka_unit_test(frames_that_are_passed_over_are), cmocka_unit_test(zeros_behind_gzip_are_passed_over),
          cmocka_unit_test(what_is_packed_twice_is_refused), cmocka_unit_test(what_is_hardly_text_is_not_replaced),
          cmocka_unit_test(a_byte_order_mark_is_no_text), cmocka_unit_test(other_fields_may_hold_what_python_writes),
          cmocka_unit_test(half_a_pair_in_the_field_is_no_character),
          cmocka_unit_test(bad_lines_are_left_out_where_that_is_asked_for),
          cmocka_unit_test(damaged_and_short_files_are_errors), cmocka_unit_test(pieces_of_any_size_give_the_same_ids),
          cmocka_unit_test(any_number_of_threads_writes_the_same_bytes),
          cmocka_unit_test(bytes_that_are_no_utf8_are_errors_or_replaced),
          cmocka_unit_test(what_cannot_be_read_is_named), cmocka_unit_test(files_of_others_are_not_replaced),
          cmocka_unit_test(what_cannot_be_written_is_named), cmocka_unit_test(a_full_disk_leaves_what_was_there),
          cmocka_unit_test(what_is_not_finished_has_no_name), cmocka_unit_test(a_lack_of_memory_is_an_error),
          cmocka_unit_test(a_count_beyond_int32_stands_behind_llm_cs))
