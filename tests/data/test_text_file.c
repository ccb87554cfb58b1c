/* Text as it lies in files: packed, of several parts, with a mark before it. */

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/compiler.h"
#include "data/text_fixture.h"

static void write_gzip(const text_fixture *f, const char *name, const char *const *members, int count)
{
    char *path = test_path(f->directory, name);

    for (int i = 0; i < count; i++) {
        gzFile file = gzopen(path, i == 0 ? "wb" : "ab");

        CHECK_EQ(gzwrite(file, members[i], (unsigned)strlen(members[i])), strlen(members[i]));
        gzclose(file);
    }
}

static void write_zstd(const text_fixture *f, const char *name, const char *const *frames, int count)
{
    char packed[512];
    size_t used = 0;

    for (int i = 0; i < count; i++)
        used += ZSTD_compress(packed + used, sizeof packed - used, frames[i], strlen(frames[i]), 3);
    text_write(f, name, packed, used);
}

TEST(packed_files_are_read_through_all_their_parts)
{
    static const char *const parts[] = {"he", "", "in\n", " the"};
    static const char *const lines[] = {"{\"text\": \"he\"}\n{\"te", "xt\": \"in\"}\n"};
    text_fixture f = text_fixture_make();

    write_gzip(&f, "a.txt.gz", parts, 4);
    CHECK_OK(text_tokenize(&f, "a.txt.gz", NULL, NULL));
    CHECK_TOKENS(257, 259, '\n', 258, EOS);
    write_zstd(&f, "a.zst", parts, 4);
    CHECK_OK(text_tokenize(&f, "a.zst", NULL, NULL));
    CHECK_TOKENS(257, 259, '\n', 258, EOS);
    write_zstd(&f, "a.jsonl.zst", lines, 2);
    CHECK_OK(text_tokenize(&f, "a.jsonl.zst", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, EOS);
    text_fixture_free(&f);
}

TEST(damaged_and_short_files_are_errors)
{
    static const char *const parts[] = {"the other thing is the other thing"};
    static const char *const names[] = {"a.gz", "a.zst"};
    text_fixture f = text_fixture_make();

    write_gzip(&f, "a.gz", parts, 1);
    write_zstd(&f, "a.zst", parts, 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) {
        char *path = test_path(f.directory, names[i]), *data;
        size_t bytes;

        data = test_read_file(path, &bytes);
        for (size_t cut = 5; cut < bytes; cut++) {
            test_write_file(path, data, cut);
            CHECK_STATUS(text_tokenize(&f, names[i], NULL, NULL), FSDP_FORMAT);
            CHECK_CONTAINS(fsdp_last_error(), names[i]);
        }
        data[i == 0 ? 10 : 4] ^= 0x55; /* this zstd has no checksum: its frame's header */
        test_write_file(path, data, bytes);
        CHECK_STATUS(text_tokenize(&f, names[i], NULL, NULL), FSDP_FORMAT);
        CHECK(access(f.out, F_OK) != 0);
    }
    text_fixture_free(&f);
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

TEST(frames_that_are_passed_over_are)
{
    text_fixture f = text_fixture_make();
    unsigned char out[8192];
    size_t bytes = put_bytes(out, 0, skipped, 12);

    bytes = put_zstd(out, bytes, "he", 2);
    bytes = put_bytes(out, bytes, other_skipped, 9);
    bytes = put_bytes(out, bytes, skipped, 12);
    bytes = put_zstd(out, bytes, " the", 4);
    bytes = put_bytes(out, bytes, skipped, 12);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "a.txt" : "a.txt.zst";

        text_write(&f, name, out, bytes);
        CHECK_OK(text_tokenize(&f, name, NULL, NULL));
        CHECK_TOKENS(257, 258, EOS);
    }
    text_write(&f, "a.zst", skipped, 12);
    text_refused(&f, "a.zst", NULL, "there is no text in");
    bytes = put_bytes(out, 0, skipped, 12);
    bytes = put_bytes(out, bytes, "\x04\x22\x4d\x18\x64", 5);
    text_write(&f, "a.zst", out, bytes);
    text_refused(&f, "a.zst", NULL, "a.zst': after its zstd data there are other bytes, from offset 12 on");
    text_fixture_free(&f);
}

TEST(zeros_behind_gzip_are_passed_over)
{
    static const char zeros[700] = "";
    text_fixture f = text_fixture_make();
    unsigned char out[8192];
    size_t bytes = put_gzip(out, 0, "he", 2), member;

    bytes = put_bytes(out, bytes, zeros, sizeof zeros);
    text_write(&f, "a.gz", out, bytes);
    CHECK_OK(text_tokenize(&f, "a.gz", NULL, NULL));
    CHECK_TOKENS(257, EOS);
    member = bytes;
    bytes = put_gzip(out, bytes, " the", 4);
    bytes = put_bytes(out, bytes, zeros, 1);
    text_write(&f, "a.gz", out, bytes);
    CHECK_OK(text_tokenize(&f, "a.gz", NULL, NULL));
    CHECK_TOKENS(257, 258, EOS);
    out[member] = 'x';
    text_write(&f, "a.gz", out, bytes);
    text_refused(&f, "a.gz", NULL, "a.gz': after its gzip data there are other bytes, from offset 722 on");
    CHECK_EQ(member, 722);
    text_fixture_free(&f);
}

/* Also where it is not the first member that holds it. */
TEST(what_is_packed_twice_is_refused)
{
    text_fixture f = text_fixture_make();
    unsigned char inner[4096], out[8192];
    size_t count = put_gzip(inner, 0, "the thing", 9), bytes;

    bytes = put_gzip(out, 0, inner, count);
    text_write(&f, "a.txt.gz", out, bytes);
    text_refused(&f, "a.txt.gz", &(fsdp_tokenize_options){.replace_invalid = true},
                 "a.txt.gz': its gzip data holds gzip data: unpack it with 'gzip -d'");
    bytes = put_zstd(out, 0, "the", 3);
    bytes = put_zstd(out, bytes, "\xfd\x37zXZ\0\0\4", 8);
    text_write(&f, "a.zst", out, bytes);
    text_refused(&f, "a.zst", &(fsdp_tokenize_options){.replace_invalid = true},
                 "a.zst': its zstd data holds xz data: unpack it with 'xz -d'");
    memset(inner, 0, 1024);
    memcpy(inner + 257, "ustar", 6);
    bytes = put_gzip(out, 0, inner, 1024);
    text_write(&f, "a.tgz", out, bytes);
    text_refused(&f, "a.tgz", NULL, "its gzip data holds a tar archive");
    text_write(&f, "a.gz", "the thing", 9);
    text_refused(&f, "a.gz", NULL, "its name ends in .gz, but no such file has its first bytes");
    text_write(&f, "a.gz", "", 0);
    text_refused(&f, "a.gz", NULL, "its name ends in .gz, but it is empty");
    text_write(&f, "a.csv", "question,answer\na,b\n", 20);
    text_refused(&f, "a.csv", NULL,
                 "it is a table by its name, whose rows would be learned with commas and all: write");
    text_fixture_free(&f);
}

TEST(a_byte_order_mark_is_no_text)
{
    text_fixture f = text_fixture_make();

    text_write(&f, "a.txt", "\xef\xbb\xbfhe", 5);
    CHECK_OK(text_tokenize(&f, "a.txt", NULL, NULL));
    CHECK_TOKENS(257, EOS);
    text_write(&f, "a.txt", "he\xef\xbb\xbfin\xff", 8); /* inside it is a character; offsets are the file's */
    text_refused(&f, "a.txt", NULL, "not UTF-8 at offset 7");
    text_write(&f, "a.txt", "\xef\xbb\xbfin\xff", 6);
    text_refused(&f, "a.txt", NULL, "not UTF-8 at offset 5");
    text_write(&f, "a.txt", "he\xef\xbb\xbf", 5);
    CHECK_OK(text_tokenize(&f, "a.txt", NULL, NULL));
    CHECK_TOKENS(257, 0xef, 0xbb, 0xbf, EOS);
    text_write(&f, "a.txt", "\xef\xbb", 2);
    text_refused(&f, "a.txt", NULL, "not UTF-8 at offset 0");
    text_write(&f, "a.jsonl", "\xef\xbb\xbf{\"text\": \"he\"}\r\n\xef\xbb\xbf{\"text\": \"in\"}\n\xef\xbb\xbf\n", 41);
    CHECK_OK(text_tokenize(&f, "a.jsonl", NULL, NULL));
    CHECK_TOKENS(257, EOS, 259, EOS);
    text_fixture_free(&f);
}
