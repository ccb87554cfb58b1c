/* What is packed or binary is told by its bytes, whichever way it comes in. */
#include "data/content.h"

#include "base/compiler.h"
#include "data/text_file.h"
#include "data/token_file.h"
#include "support/test.h"

#define LITERAL(text) text, sizeof(text) - 1
#define TAR_BYTES 512

static const struct {
    const char *bytes;
    size_t count;
    const char *says;
    bool may_be_tokens;
} strange[] = {
    {LITERAL("\xfd\x37zXZ\0\0\4"), "it is xz data: unpack it with 'xz -d'", false},
    {LITERAL("BZh91AY&SY\1\2"), "it is bzip2 data: unpack it with 'bzip2 -d'", false},
    {LITERAL("BZh9\x17\x72\x45\x38\x50\x90"), "it is bzip2 data", false},
    {LITERAL("\x04\x22\x4d\x18\x64\x40"), "it is lz4 data: unpack it with 'lz4 -d'", false},
    {LITERAL("\x02\x21\x4c\x18\x05\0"), "it is lz4 data", false},
    {LITERAL("\x25\xb5\x2f\xfd\0\0"), "it is zstd data", false}, /* of version 0.5 */
    {LITERAL("LZIP\x01\x0c"), "it is lzip data", false},
    {LITERAL("\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0"), "it is lzma data", false},
    {LITERAL("\x89LZO\0\r\n\x1a\n\x10"), "it is lzop data", false},
    {LITERAL("\xff\x06\0\0sNaPpY"), "it is snappy data", false},
    {LITERAL("\x1f\x9d\x90"
             "a"),
     "it is compress data: unpack it with 'gzip -d'", true},
    {LITERAL("PK\x03\x04\x14\0"), "it is a zip archive, as .npz, .pt and .docx are: unpack it with 'unzip'", false},
    {LITERAL("PK\x05\x06\0\0"), "it is an empty zip archive", false},
    {LITERAL("7z\xbc\xaf\x27\x1c\0\4"), "it is a 7z archive", false},
    {LITERAL("Rar!\x1a\x07\x01\0"), "it is a rar archive", false},
    {LITERAL("!<arch>\nabc"), "it is an ar archive", false},
    {LITERAL("PAR1\x15\x04\x15"),
     "it is a Parquet file: write it as JSON lines: python3 -c \"import pandas; "
     "pandas.read_parquet('IN')",
     false},
    {LITERAL("ARROW1\0\0\xff\xff"), "it is an Arrow file", false},
    {LITERAL("\xff\xff\xff\xff\x70\1\0\0"), "it is an Arrow stream", true},
    {LITERAL("\xff\xff\xff\xff\x70\1\0\0\x10\0\0\0\0\0\x0a\0"), "it is an Arrow stream", false},
    {LITERAL("FEA1\0\0\0\0\1"), "it is a Feather file", false},
    {LITERAL("ORC\x0a\x06\x12\x04\x08\0\x50\0"), "it is an ORC file: write its text as", false},
    {LITERAL("Obj\x01\x04\x14"), "it is an Avro file", false},
    {LITERAL("\x93NUMPY\1\0v\0"), "it is a NumPy array (.npy)", false},
    {LITERAL("\x89HDF\r\n\x1a\n\0"), "it is an HDF5 file", false},
    {LITERAL("SQLite format 3\0\x10"), "it is an SQLite database", false},
    {LITERAL("\x40\0\0\0\0\0\0\0{\"a\":"), "it is a safetensors file", false},
    {LITERAL("\x80\x04\x95\x10\0\0\0\0\0\0\0"), "it is a pickle of Python", false},
    {LITERAL("\x80\x02]q\0."), "it is a pickle of Python", true},
    {LITERAL("%PDF-1.7\n%\xe2\xe3"), "it is a PDF: convert it to text with 'pdftotext'", false},
    {LITERAL("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0"), "it is a document of Microsoft Office", false},
    {LITERAL("\177ELF\2\1\1\0"), "it is a program (ELF)", false},
    {LITERAL("\xca\xfe\xba\xbe\0\0"), "it is a program (Java or Mach-O)", false},
    {LITERAL("\x89PNG\r\n\x1a\n\0\0"), "it is a picture (PNG)", false},
    {LITERAL("\xff\xd8\xff\xe0\0\x10"), "it is a picture (JPEG)", false},
    {LITERAL("\xff\xfe"
             "a\0b\0"),
     "it is UTF-16: convert it with 'iconv -f UTF-16 -t UTF-8'", true},
    {LITERAL("\xfe\xff\0a\0b"), "it is UTF-16", true},
    {LITERAL("\xff\xfe\0\0a\0\0\0"), "it is UTF-32", true},
    {LITERAL("\0\0\xfe\xff\0\0\0a"), "it is UTF-32", true},
    {LITERAL("\xff\xfeT\0h\0e\0 \0b\0i\0g\0 \0\x16 r\0e\0d\0"), "it is UTF-16: convert", false},
    {LITERAL("\xfe\xff\0T\0h\0e\0 \0b\0i\0g\0 \0r\0e\0d\0\n"), "it is UTF-16: convert", false},
    {LITERAL("\xff\xfe\0\0T\0\0\0h\0\0\0e\0\0\0 \0\0\0b\0\0\0i\0\0\0g\0\0\0 \0\0\0r\0\0\0"), "it is UTF-32", false},
    {LITERAL("\0\0\xfe\xff\0\0\0T\0\0\0h\0\0\0e\0\0\0 \0\0\0b\0\0\0i\0\0\0g\0\0\0 \0\0\0r"), "it is UTF-32", false},
    {LITERAL("version https://git-lfs.github.com/spec/v1\noid"), "fetch the file with 'git lfs pull'", false},
};

static void check_everywhere(const char *directory, const char *bytes, size_t count, const char *says, bool tokens)
{
    static const char *const names[] = {"a.txt", "a.jsonl", "a.gz", "a"};
    fsdp__token_file file;
    fsdp__text_file *text = NULL;

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) {
        char *path = test_path(directory, names[i]);

        test_write_file(path, bytes, count);
        CHECK_ERROR(fsdp__text_file_open(path, &text), FSDP_FORMAT, says);
        CHECK_CONTAINS(fsdp_last_error(), path);
        CHECK_NULL(text);
        for (int format = FSDP_TOKENS_AUTO; format <= FSDP_TOKENS_BINARY; format++) {
            bool as_text = format == FSDP_TOKENS_TEXT || format == FSDP_TOKENS_AUTO;

            memset(&file, 0, sizeof file);
            if (i != 1 && (as_text || tokens))
                CHECK_ERROR(fsdp__token_file_open(&file, path, (fsdp_token_format)format), FSDP_FORMAT, says);
            fsdp__token_file_close(&file);
        }
    }
}

TEST(what_is_no_text_is_told_by_its_kind)
{
    char *directory = test_directory(), tar[TAR_BYTES] = "a.txt";

    for (size_t i = 0; i < FSDP__COUNT_OF(strange); i++)
        check_everywhere(directory, strange[i].bytes, strange[i].count, strange[i].says, !strange[i].may_be_tokens);
    memcpy(tar + 257, "ustar", 6);
    check_everywhere(directory, tar, sizeof tar, "it is a tar archive: unpack it with 'tar -x'", true);
    memcpy(tar + 257, "ustar  ", 8);
    check_everywhere(directory, tar, sizeof tar, "it is a tar archive", true);
}

/* The marks of what may be tokens say nothing of a file of tokens. */
TEST(tokens_may_begin_like_much)
{
    static const uint32_t wide[] = {93, 7, 8, 9};
    static const uint16_t narrow[] = {0xfeff, 1, 2, 3, 0x9d1f, 50256, 65535, 65535, 112, 7, 16, 7};
    static const char letters[] = "bytes of a vocabulary of 256 look as UTF-16 does";
    uint16_t bytes[sizeof letters];
    char *directory = test_directory(), *u32 = test_path(directory, "a.u32"), *u16 = test_path(directory, "a.u16");
    fsdp__token_file file = {0};

    test_write_file(u32, wide, sizeof wide);
    CHECK_OK(fsdp__token_file_open(&file, u32, FSDP_TOKENS_AUTO));
    fsdp__token_file_close(&file);
    for (size_t first = 0; first < FSDP__COUNT_OF(narrow); first++) {
        test_write_file(u16, narrow + first, sizeof narrow - first * sizeof *narrow);
        CHECK_OK(fsdp__token_file_open(&file, u16, FSDP_TOKENS_AUTO));
        fsdp__token_file_close(&file);
    }
    for (size_t i = 0; i < sizeof letters; i++)
        bytes[i] = (unsigned char)letters[i];
    test_write_file(u16, bytes, sizeof bytes);
    CHECK_OK(fsdp__token_file_open(&file, u16, FSDP_TOKENS_AUTO));
    fsdp__token_file_close(&file);
}

TEST(text_of_any_encoding_with_ascii_is_text)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *says; /* NULL: it is text */
    } cases[] = {
        {LITERAL(""), NULL},
        {LITERAL("plain\r\n\f\ttext\x1a"), NULL},
        {LITERAL("\xef\xbb\xbfmark"), NULL},
        {LITERAL("\x1b[31mred\x1b[0m \b_"), NULL},
        {LITERAL("a\1b\1c\nd\1e\1f\n"), NULL}, /* Hive's fields */
        {LITERAL("\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0"), NULL},
        {LITERAL("\x83\x65\x83\x4c\x83\x58\x83\x67"), NULL},
        {LITERAL("\x1b$B4A;z\x1b(B"), NULL},
        {LITERAL("GIF89a is a format; PK, Rar! and ustar too"), NULL},
        {LITERAL("text with\0one"),
         "not text: a NUL byte at offset 107, in what is text otherwise: \"tr -d '\\000'\" takes"},
        {LITERAL("caf\xe9\0 en fran\xe7"
                 "ais"),
         "in what is text otherwise"},
        {LITERAL("padded\0\0\0\0\0\0\0\0\0\0"), "in what is text otherwise"},
        {LITERAL("x\x9c\x4b\x4c\x4a\x4e\x49\x4d\x4b\0\x06\x91\x02\xf9"), ", in what is binary"}, /* zlib */
        {LITERAL("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40"), ", in what is binary"},                  /* floats */
        {LITERAL("\0\1\2\3\4\5"), ", in what is binary"},
        {LITERAL("\0\0\0\0\0\0\0\0"), ", in what is binary"},
        {LITERAL("a\0b\0c\0d\0"), "it is UTF-16: convert it with 'iconv -f UTF-16LE"},
        {LITERAL("\0a\0b\0c\0d"), "iconv -f UTF-16BE"},
        {LITERAL("\x91\x05\xe2\x17\x80\xff\x03k\x99\x9a"), "3 of 10 bytes from offset 98 on are control characters"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++)
        if (cases[i].says)
            CHECK_ERROR(fsdp__content_check_text("x", 98, cases[i].bytes, cases[i].count), FSDP_FORMAT, cases[i].says);
        else
            CHECK_OK(fsdp__content_check_text("x", 98, cases[i].bytes, cases[i].count));
    CHECK_OK(fsdp__content_refuse("x", NULL, LITERAL("ORC files are tables\n"), false));
}
