/* Token files of every format as one stream. */
#include <unistd.h>

#include "base/compiler.h"
#include "data/digest.h"
#include "data/tokens.h"
#include "support/calls.h"
#include "support/test.h"

enum {
    HEADER_WORDS = 256
};

static char *write_u16(const char *directory, const char *name, int count, int first)
{
    char *path = test_path(directory, name);
    uint16_t *tokens = calloc((size_t)count + 1, sizeof *tokens);

    for (int i = 0; i < count; i++)
        tokens[i] = (uint16_t)(first + i);
    test_write_file(path, tokens, (size_t)count * sizeof *tokens);
    free(tokens);
    return path;
}

/* A file with a header that promises `count` tokens and holds `held` of `width` bytes, counting from 0. */
static char *write_headed(const char *directory, const char *name, const int32_t header[3], int held, int width)
{
    char *path = test_path(directory, name);
    size_t bytes = HEADER_WORDS * sizeof(int32_t) + (size_t)held * (size_t)width;
    unsigned char *data = calloc(1, bytes);

    memcpy(data, header, 3 * sizeof *header);
    for (int i = 0; i < held; i++)
        data[HEADER_WORDS * sizeof(int32_t) + (size_t)(i * width)] = (unsigned char)i;
    test_write_file(path, data, bytes);
    free(data);
    return path;
}

static void check_counting(const fsdp_tokens *tokens, int64_t count, int first)
{
    CHECK_EQ(fsdp_tokens_count(tokens), count);
    for (int64_t i = 0; i < count; i++) {
        int32_t token = -1;

        CHECK_OK(fsdp_tokens_read(tokens, i, 1, &token));
        CHECK_EQ(token, first + i);
    }
}

static void check_open_fails(const char *path, fsdp_token_format format, fsdp_status status, const char *part)
{
    fsdp_tokens *tokens = (fsdp_tokens *)1;

    CHECK_ERROR(fsdp_tokens_open(&path, 1, format, &tokens), status, part);
    CHECK_CONTAINS(fsdp_last_error(), path);
    CHECK_NULL(tokens);
}

static void check_opens_counting(const char *path, fsdp_token_format format, int64_t count, int first)
{
    fsdp_tokens *tokens = NULL;

    CHECK_OK(fsdp_tokens_open(&path, 1, format, &tokens));
    check_counting(tokens, count, first);
    fsdp_tokens_close(tokens);
}

TEST(text_is_its_bytes)
{
    static const char text[] = "h\xc3\xa9llo\n";
    char *directory = test_directory();
    static const char *const names[] = {"a.txt", "b", "README.md"};

    for (size_t i = 0; i < 3; i++) {
        char *path = test_path(directory, names[i]);
        fsdp_tokens *tokens = NULL;
        int32_t read[7];

        test_write_file(path, text, sizeof text - 1);
        CHECK_OK(fsdp_tokens_open((const char *const *)&path, 1, FSDP_TOKENS_AUTO, &tokens));
        CHECK_EQ(fsdp_tokens_count(tokens), 7);
        CHECK_OK(fsdp_tokens_read(tokens, 0, 7, read));
        for (int t = 0; t < 7; t++)
            CHECK_EQ(read[t], (unsigned char)text[t]);
        fsdp_tokens_close(tokens);
    }
}

TEST(the_name_tells_the_width)
{
    char *directory = test_directory();
    char *bin = write_u16(directory, "a.bin", 9, 60000), *u16 = write_u16(directory, "a.U16", 9, 7);
    char *u32 = test_path(directory, "x.y.u32");
    static const uint32_t wide[] = {70000, 70001, 70002};

    test_write_file(u32, wide, sizeof wide);
    check_opens_counting(bin, FSDP_TOKENS_AUTO, 9, 60000);
    check_opens_counting(u16, FSDP_TOKENS_AUTO, 9, 7);
    check_opens_counting(u32, FSDP_TOKENS_AUTO, 3, 70000);
    check_opens_counting(u32, FSDP_TOKENS_UINT32, 3, 70000);
    check_open_fails(bin, FSDP_TOKENS_UINT32, FSDP_FORMAT, "2 left at offset 16");
}

TEST(headers_of_llm_c_are_known)
{
    char *directory = test_directory();
    char *gpt2 = write_headed(directory, "a.bin", (const int32_t[]){20240520, 1, 5}, 5, 2);
    char *llama3 = write_headed(directory, "b", (const int32_t[]){20240801, 7, 6}, 6, 4);
    char *none = write_headed(directory, "c.bin", (const int32_t[]){20240520, 1, 0}, 0, 2);

    check_opens_counting(gpt2, FSDP_TOKENS_AUTO, 5, 0);
    check_opens_counting(gpt2, FSDP_TOKENS_UINT16, 5, 0);
    check_opens_counting(gpt2, FSDP_TOKENS_BINARY, 5, 0);
    check_opens_counting(llama3, FSDP_TOKENS_AUTO, 6, 0);
    check_opens_counting(none, FSDP_TOKENS_AUTO, 0, 0);
}

/* Written as llm.c writes them, by tests/numbers/llm_c.py. */
TEST(files_of_llm_c_itself_are_read)
{
    static const int32_t gpt2[] = {50256, 15496, 11, 995, 0, 65535, 1}, llama3[] = {128000, 9906, 11, 1917, 0, 128255};
    const char *paths[] = {TEST_SOURCE_DIR "/tests/numbers/llm_c_gpt2.bin",
                           TEST_SOURCE_DIR "/tests/numbers/llm_c_llama3.bin"};
    fsdp_tokens *tokens = NULL;
    int32_t read[13];

    CHECK_OK(fsdp_tokens_open(paths, 2, FSDP_TOKENS_AUTO, &tokens));
    CHECK_EQ(fsdp_tokens_count(tokens), 13);
    CHECK_OK(fsdp_tokens_read(tokens, 0, 13, read));
    CHECK_BYTES(read, gpt2, sizeof gpt2);
    CHECK_BYTES(read + 7, llama3, sizeof llama3);
    CHECK_NULL(fsdp_tokens_warning(tokens));
    CHECK(!fsdp_tokens_have_text(tokens));
    fsdp_tokens_close(tokens);
}

TEST(a_header_and_a_width_that_differ_are_an_error)
{
    char *directory = test_directory(), *cut = test_path(directory, "cut.bin");
    int32_t header[2] = {20240520, 1};

    check_open_fails(TEST_SOURCE_DIR "/tests/numbers/llm_c_gpt2.bin", FSDP_TOKENS_UINT32, FSDP_FORMAT,
                     "as uint32: its header (magic 20240520 at offset 0) says uint16");
    check_open_fails(TEST_SOURCE_DIR "/tests/numbers/llm_c_llama3.bin", FSDP_TOKENS_UINT16, FSDP_FORMAT,
                     "as uint16: its header (magic 20240801 at offset 0) says uint32");
    test_write_file(cut, header, sizeof header);
    check_open_fails(cut, FSDP_TOKENS_AUTO, FSDP_FORMAT, "its 8 bytes are less than the header's 1024");
}

/* The name decides only where nothing was asked for. */
TEST(a_width_that_is_asked_for_wins_over_the_name)
{
    char *directory = test_directory(), *u32 = test_path(directory, "a.u32"), *text = test_path(directory, "a.txt");
    char *bin = test_path(directory, "a.bin");
    static const uint32_t wide[] = {70000, 70001, 70002};
    static const uint16_t narrow[] = {500, 501, 502};

    test_write_file(u32, narrow, sizeof narrow);
    test_write_file(text, narrow, sizeof narrow);
    test_write_file(bin, wide, sizeof wide);
    check_opens_counting(u32, FSDP_TOKENS_UINT16, 3, 500);
    check_opens_counting(text, FSDP_TOKENS_UINT16, 3, 500);
    check_opens_counting(text, FSDP_TOKENS_BINARY, 3, 500);
    check_opens_counting(bin, FSDP_TOKENS_UINT32, 3, 70000);
    test_write_file(u32, wide, sizeof wide);
    check_opens_counting(u32, FSDP_TOKENS_BINARY, 3, 70000);
}

/* The warning about a file of these bytes; "" when there is none. */
static void check_warning(const char *name, fsdp_token_format format, const void *data, size_t bytes, const char *part)
{
    char *directory = test_directory(), *path = test_path(directory, name);
    fsdp_tokens *tokens = NULL;

    test_write_file(path, data, bytes);
    CHECK_OK(fsdp_tokens_open((const char *const *)&path, 1, format, &tokens));
    if (!part) {
        if (fsdp_tokens_warning(tokens))
            TEST_FAIL("warned: %s", fsdp_tokens_warning(tokens));
    } else {
        CHECK_CONTAINS(CHECK_PTR(fsdp_tokens_warning(tokens)), path);
        CHECK_CONTAINS(fsdp_tokens_warning(tokens), part);
    }
    fsdp_tokens_close(tokens);
    test_directory_free(directory);
}

TEST(what_does_not_look_as_it_is_read_is_doubted)
{
    static const char accents[] = "\xc3\x89t\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xf0\x9f\x98\x80\r\n\ttext\f";
    static const char latin1[] = "\xc9t\xe9 \xe0 Orl\xe9"
                                 "ans, \xe7"
                                 "a va";
    uint32_t ids[1024];
    uint16_t narrow[1024];

    for (int i = 0; i < 1024; i++) {
        ids[i] = (uint32_t)(i * 37 % 50257);
        narrow[i] = (uint16_t)(i * 37 % 50257);
    }
    check_warning("a.txt", FSDP_TOKENS_AUTO, accents, sizeof accents - 1, NULL);
    check_warning("a.txt", FSDP_TOKENS_AUTO, latin1, sizeof latin1 - 1, NULL);
    check_warning("a.bin", FSDP_TOKENS_AUTO, narrow, sizeof narrow, NULL);
    check_warning("a.u32", FSDP_TOKENS_AUTO, ids, sizeof ids, NULL);
    check_warning("a.u32", FSDP_TOKENS_UINT16, ids, sizeof ids,
                  "every second one of its first 2048 is 0, as if they were uint32");
}

static void check_refused(const char *name, fsdp_token_format format, const void *data, size_t bytes, const char *part)
{
    char *directory = test_directory(), *path = test_path(directory, name);

    test_write_file(path, data, bytes);
    check_open_fails(path, format, FSDP_FORMAT, part);
    test_directory_free(directory);
}

TEST(what_is_not_what_it_is_read_as_is_refused)
{
    static const char prose[] = "It is a truth universally acknowledged, that a single man in possession of a fort";
    static const char accents[] = "\xc3\x89t\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xe6\x97";
    static const char lines[] = "{\"text\": \"a\"}\n", array[] = "\xef\xbb\xbf\n [{\"text\": \"a\"}]\n";
    char *program, wide[128] = "", latin1[64];
    uint16_t narrow[1024];
    size_t bytes;

    for (int i = 0; i < 1024; i++)
        narrow[i] = (uint16_t)(i * 37 % 50257);
    for (size_t i = 0; i < sizeof wide / 2; i++)
        wide[2 * i] = prose[i];
    check_refused("a.txt", FSDP_TOKENS_AUTO, wide, sizeof wide, "it is UTF-16: convert it with 'iconv -f UTF-16LE");
    check_refused("a.bin", FSDP_TOKENS_TEXT, narrow, sizeof narrow, "it is not text: a NUL byte at offset ");
    program = test_read_file(TEST_SOURCE_DIR "/tests/numbers/llm_c_gpt2.bin", &bytes);
    check_refused("a.bin", FSDP_TOKENS_TEXT, program, bytes, "as text: it begins with llm.c's header of token files");
    check_refused("a.bin", FSDP_TOKENS_AUTO, prose, 80, "as uint16 tokens: its first 80 bytes are text");
    check_refused("a.txt", FSDP_TOKENS_UINT32, prose, 80, "as uint32 tokens: its first 80 bytes are text");
    check_refused("a.bin", FSDP_TOKENS_BINARY, accents, 18, "as uint16 tokens: its first 18 bytes are text");
    memset(latin1, 'e', sizeof latin1);
    for (size_t i = 3; i < sizeof latin1; i += 7)
        latin1[i] = '\xe9';
    check_refused("a.bin", FSDP_TOKENS_AUTO, latin1, sizeof latin1, "as uint16 tokens: its first 64 bytes are text");
    check_refused("a.jsonl", FSDP_TOKENS_AUTO, lines, sizeof lines - 1, "as text: it is JSON lines, and braces and");
    check_refused("a.ndjson", FSDP_TOKENS_TEXT, lines, sizeof lines - 1, "as text: it is JSON lines");
    check_refused("a.json", FSDP_TOKENS_TEXT, lines, sizeof lines - 1, "as text: it is JSON lines");
    check_refused("a.json", FSDP_TOKENS_AUTO, array, sizeof array - 1, "as text: it is a JSON array, and brackets and");
    CHECK_CONTAINS(fsdp_last_error(), "make JSON lines of it with jq -c '.[]', which a tokenizer reads");
    check_refused("a.jsonl.gz", FSDP_TOKENS_AUTO, "\x1f\x8b\x08", 3, "as text: it is JSON lines");
    check_refused("a.txt.gz", FSDP_TOKENS_AUTO, prose, 80,
                  "its name ends in .gz, but no such file has its first bytes");
}

TEST(a_width_that_nothing_says_fits_the_vocabulary)
{
    static const struct {
        const char *name;
        fsdp_token_format format;
        int64_t vocab_size;
        bool good;
    } cases[] = {{"a.bin", FSDP_TOKENS_AUTO, 65536, true},    {"a.bin", FSDP_TOKENS_AUTO, 65537, false},
                 {"a.ids", FSDP_TOKENS_BINARY, 70000, false}, {"a.bin", FSDP_TOKENS_UINT16, 70000, true},
                 {"a.bin", FSDP_TOKENS_UINT32, 70000, true},  {"a.U16", FSDP_TOKENS_AUTO, 70000, true},
                 {"a.u32", FSDP_TOKENS_BINARY, 70000, true},  {"a.txt", FSDP_TOKENS_AUTO, 70000, true}};
    char *directory = test_directory();

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        char *path = test_path(directory, cases[i].name);
        fsdp_tokens *tokens = NULL;

        test_write_file(path, "text", 4);
        CHECK_OK(fsdp_tokens_open((const char *const *)&path, 1, cases[i].format, &tokens));
        if (cases[i].good)
            CHECK_OK(fsdp__tokens_check_width(tokens, cases[i].vocab_size));
        else
            CHECK_ERROR(fsdp__tokens_check_width(tokens, cases[i].vocab_size), FSDP_FORMAT,
                        "name it .u32 or .u16, or set data.dtype");
        fsdp_tokens_close(tokens);
    }
}

TEST(doubtful_files_are_counted)
{
    char *directory = test_directory(), *paths[4], name[16];
    fsdp_tokens *tokens = NULL;

    for (int i = 0; i < 4; i++) {
        const uint32_t tokens_of[8] = {1, 2, 3, 4, 5, 6, 7, i == 1 || i == 3 ? 8 : 80000};

        snprintf(name, sizeof name, "%d.bin", i);
        paths[i] = test_path(directory, name);
        test_write_file(paths[i], tokens_of, sizeof tokens_of);
    }
    CHECK_OK(fsdp_tokens_open((const char *const *)paths, 4, FSDP_TOKENS_AUTO, &tokens));
    CHECK_CONTAINS(fsdp_tokens_warning(tokens), "1.bin' is read as uint16 tokens, but every second");
    CHECK_CONTAINS(fsdp_tokens_warning(tokens), "2 of 4 files are doubtful");
    fsdp_tokens_close(tokens);
}

TEST(text_among_tokens_is_told)
{
    char *directory = test_directory(), *tokens_path = write_u16(directory, "b.bin", 3, 5);
    char *text_path = test_path(directory, "a.txt");

    test_write_file(text_path, "text", 4);
    for (int order = 0; order < 2; order++) {
        const char *const paths[] = {order ? text_path : tokens_path, order ? tokens_path : text_path};
        fsdp_tokens *tokens = NULL;

        CHECK_OK(fsdp_tokens_open(paths, 2, FSDP_TOKENS_AUTO, &tokens));
        CHECK_CONTAINS(CHECK_PTR(fsdp_tokens_warning(tokens)), "a.txt' is read as text and '");
        CHECK_CONTAINS(fsdp_tokens_warning(tokens), "b.bin' as tokens, in one stream");
        fsdp_tokens_close(tokens);
        CHECK_OK(fsdp_tokens_open(paths, 2, FSDP_TOKENS_UINT16, &tokens));
        fsdp_tokens_close(tokens);
    }
}

TEST(files_are_one_stream_and_positions_are_found_again)
{
    char *directory = test_directory();
    char *paths[4] = {
        write_headed(directory, "a.bin", (const int32_t[]){20240520, 1, 5}, 5, 2),
        write_headed(directory, "none.bin", (const int32_t[]){20240520, 1, 0}, 0, 2),
        write_u16(directory, "b.bin", 3, 5),
        write_u16(directory, "c.bin", 4, 8),
    };
    static const int file_of[] = {0, 0, 0, 0, 0, 2, 2, 2, 3, 3, 3, 3}, at[] = {0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3};
    fsdp_tokens *tokens = NULL;
    int32_t read[12];

    CHECK_OK(fsdp_tokens_open((const char *const *)paths, 4, FSDP_TOKENS_AUTO, &tokens));
    check_counting(tokens, 12, 0);
    for (int64_t start = 0; start <= 12; start++)
        for (int64_t count = 0; count <= 12 - start; count++) {
            CHECK_OK(fsdp_tokens_read(tokens, start, count, read));
            for (int64_t i = 0; i < count; i++)
                CHECK_EQ(read[i], start + i);
        }
    for (int i = 0; i < 12; i++) {
        int64_t position = -1;

        CHECK_STRING(fsdp_tokens_locate(tokens, i, &position), paths[file_of[i]]);
        CHECK_EQ(position, at[i]);
    }
    CHECK_ERROR(fsdp_tokens_read(tokens, 11, 2, read), FSDP_INVALID, "cannot read 2 tokens at 11: the stream has 12");
    CHECK_STATUS(fsdp_tokens_read(tokens, -1, 2, read), FSDP_INVALID);
    CHECK_STATUS(fsdp_tokens_read(tokens, INT64_MAX, 2, read), FSDP_INVALID);
    CHECK_STATUS(fsdp_tokens_read(tokens, 0, INT64_MAX, read), FSDP_INVALID);
    fsdp_tokens_close(tokens);
}

TEST(bad_files_are_named)
{
    char *directory = test_directory();
    char *missing = test_path(directory, "missing.bin"), *empty = test_path(directory, "empty.bin");
    char *odd = test_path(directory, "odd.bin"), *binary = test_path(directory, "thing.dat");
    char *surplus = write_headed(directory, "s.bin", (const int32_t[]){20240520, 1, 4}, 5, 2);
    char *shorter = write_headed(directory, "t.bin", (const int32_t[]){20240520, 1, 6}, 5, 2);
    char *version = write_headed(directory, "v.bin", (const int32_t[]){20240520, 3, 5}, 5, 2);
    char *negative = write_headed(directory, "n.bin", (const int32_t[]){20240520, 1, -5}, 5, 2);
    static const uint32_t large[] = {1, 3000000000u, 2};
    char *huge = test_path(directory, "h.u32");
    fsdp_tokens *tokens = NULL;
    int32_t read[3];

    test_write_file(empty, "", 0);
    test_write_file(odd, "abcde", 5);
    test_write_file(binary, "a\0b", 3);
    test_write_file(huge, large, sizeof large);
    check_open_fails(missing, FSDP_TOKENS_AUTO, FSDP_NOT_FOUND, "cannot open");
    check_open_fails(empty, FSDP_TOKENS_AUTO, FSDP_FORMAT, "it is empty");
    check_open_fails(odd, FSDP_TOKENS_AUTO, FSDP_FORMAT, "1 left at offset 4");
    check_open_fails(binary, FSDP_TOKENS_AUTO, FSDP_FORMAT, "it is not text");
    check_open_fails(surplus, FSDP_TOKENS_AUTO, FSDP_FORMAT,
                     "promises 4 tokens of 2 bytes, that is 1032 bytes, but "
                     "the file has 1034");
    check_open_fails(shorter, FSDP_TOKENS_AUTO, FSDP_FORMAT, "offset 8 promises 6 tokens");
    check_open_fails(version, FSDP_TOKENS_UINT16, FSDP_FORMAT, "header version 3 at offset 4");
    check_open_fails(negative, FSDP_TOKENS_AUTO, FSDP_FORMAT, "token count -5 at offset 8");
    CHECK_STATUS(fsdp_tokens_open(NULL, 0, FSDP_TOKENS_AUTO, &tokens), FSDP_INVALID);
    CHECK_ERROR(fsdp_tokens_open((const char *[]){huge, NULL}, 2, FSDP_TOKENS_AUTO, &tokens), FSDP_INVALID,
                "path 2 of 2 is NULL");
    CHECK_STATUS(fsdp_tokens_open((const char *const *)&odd, 1, (fsdp_token_format)9, &tokens), FSDP_INVALID);
    CHECK_OK(fsdp_tokens_open((const char *const *)&huge, 1, FSDP_TOKENS_AUTO, &tokens));
    CHECK_ERROR(fsdp_tokens_read(tokens, 0, 3, read), FSDP_FORMAT, "token 3000000000 at position 1");
    fsdp_tokens_close(tokens);
}

TEST(opening_survives_every_failed_allocation)
{
    char *directory = test_directory();
    char *paths[2] = {write_u16(directory, "a.bin", 5, 0), test_path(directory, "b.bin")};

    test_write_file(paths[1], (const uint32_t[8]){1, 2, 3}, 32); /* which makes a warning */
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_tokens *tokens = (fsdp_tokens *)1;
        fsdp_status status = fsdp_tokens_open((const char *const *)paths, 2, FSDP_TOKENS_AUTO, &tokens);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK((tokens != NULL) == (status == FSDP_OK));
        fsdp_tokens_close(tokens);
    }
}

/* ---- digests ---- */

static void take_digest(const char *const *paths, int count, uint64_t out[2])
{
    fsdp_tokens *tokens = NULL;

    CHECK_OK(fsdp_tokens_open(paths, count, FSDP_TOKENS_AUTO, &tokens));
    CHECK_OK(fsdp_tokens_digest(tokens, out));
    fsdp_tokens_close(tokens);
}

TEST(a_digest_is_of_tokens_however_they_lie)
{
    char *directory = test_directory(), *whole = write_u16(directory, "whole.bin", 30000, 5);
    char *first = write_u16(directory, "first.bin", 10001, 5), *rest = write_u16(directory, "rest.bin", 19999, 10006);
    char *wide = test_path(directory, "wide.u32");
    const char *const parts[] = {first, rest}, *const turned[] = {rest, first};
    uint64_t expected[2], digest[2];
    uint32_t tokens[30000];

    for (uint32_t i = 0; i < 30000; i++)
        tokens[i] = i + 5;
    test_write_file(wide, tokens, sizeof tokens);
    take_digest((const char *const *)&whole, 1, expected);
    take_digest(parts, 2, digest);
    CHECK_BYTES(digest, expected, sizeof digest);
    take_digest((const char *const *)&wide, 1, digest);
    CHECK_BYTES(digest, expected, sizeof digest);
    take_digest(turned, 2, digest);
    CHECK(digest[0] != expected[0] && digest[1] != expected[1]);
    take_digest(parts, 1, digest);
    CHECK(digest[0] != expected[0] && digest[1] != expected[1]);
    test_write_file(wide, tokens, sizeof tokens - 4);
    take_digest((const char *const *)&wide, 1, digest);
    CHECK(digest[0] != expected[0] && digest[1] != expected[1]);
    for (size_t at = 0; at < sizeof tokens; at += 499) { /* one bit, at 241 places */
        ((unsigned char *)tokens)[at] ^= 1;
        test_write_file(wide, tokens, sizeof tokens);
        ((unsigned char *)tokens)[at] ^= 1;
        take_digest((const char *const *)&wide, 1, digest);
        CHECK(digest[0] != expected[0] && digest[1] != expected[1]);
    }
    CHECK_ERROR(fsdp_tokens_digest(NULL, digest), FSDP_INVALID, "cannot hash tokens");
}

TEST(another_machine_knows_the_same_files)
{
    const char *path = TEST_SOURCE_DIR "/LICENSE";
    fsdp_tokens *here = NULL, *there = NULL;
    uint64_t identity;

    CHECK_OK(fsdp_tokens_open(&path, 1, FSDP_TOKENS_TEXT, &here));
    identity = fsdp__tokens_identity(here);
    CHECK(identity != 0);
    test_renumber_devices(true);
    CHECK_EQ(fsdp__tokens_identity(here), 0); /* the calls are these: the file would have moved */
    CHECK_OK(fsdp_tokens_open(&path, 1, FSDP_TOKENS_TEXT, &there));
    CHECK_EQ(fsdp__tokens_identity(there), identity);
    test_renumber_devices(false);
    fsdp_tokens_close(here);
    fsdp_tokens_close(there);
}

/* A file that was changed a moment ago may change again without its times showing it. */
TEST(files_are_known_again_once_they_are_old)
{
    char *directory = test_directory(), *copy = test_path(directory, "copy.txt"), *text;
    const char *const paths[] = {TEST_SOURCE_DIR "/LICENSE", TEST_SOURCE_DIR "/README.md"};
    fsdp_tokens *one = NULL, *again = NULL, *both = NULL, *fresh = NULL;
    size_t bytes;

    text = test_read_file(paths[0], &bytes);
    test_write_file(copy, text, bytes);
    CHECK_OK(fsdp_tokens_open(paths, 1, FSDP_TOKENS_TEXT, &one));
    CHECK_OK(fsdp_tokens_open(paths, 1, FSDP_TOKENS_TEXT, &again));
    CHECK_OK(fsdp_tokens_open(paths, 2, FSDP_TOKENS_TEXT, &both));
    CHECK_OK(fsdp_tokens_open((const char *const *)&copy, 1, FSDP_TOKENS_TEXT, &fresh));
    CHECK(fsdp__tokens_identity(one) != 0);
    CHECK_EQ(fsdp__tokens_identity(one), fsdp__tokens_identity(again));
    CHECK(fsdp__tokens_identity(both) != 0 && fsdp__tokens_identity(both) != fsdp__tokens_identity(one));
    CHECK_EQ(fsdp__tokens_identity(fresh), 0);
    unlink(copy);
    CHECK_EQ(fsdp__tokens_identity(fresh), 0);
    fsdp_tokens_close(one);
    fsdp_tokens_close(again);
    fsdp_tokens_close(both);
    fsdp_tokens_close(fresh);
}
