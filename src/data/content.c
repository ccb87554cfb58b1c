/* content.c - marks at the beginning of files, and bytes that text does not have. */
#include "data/content.h"

#include <string.h>
#include <strings.h>

#include "base/compiler.h"
#include "format/lfs_pointer.h"
#include "tokenizer/utf8.h"

/* ---- marks ---- */

#define UNPACK(command) "unpack it with '" command "'"
#define TO_UTF8(encoding) "convert it with 'iconv -f " encoding " -t UTF-8'"
#define TO_TEXT "write its text as .txt or .jsonl"
#define NONE "name another file"

typedef struct mark {
    const char *name, *advice, *bytes;
    size_t count, offset;
    bool weak; /* numbers may well begin like this */
} mark;

#define MARK(name, advice, bytes)                        \
    {                                                    \
        name, advice, bytes, sizeof(bytes) - 1, 0, false \
    }
#define WEAK(name, advice, bytes)                       \
    {                                                   \
        name, advice, bytes, sizeof(bytes) - 1, 0, true \
    }
#define TAR(bytes)                                                              \
    {                                                                           \
        "a tar archive", UNPACK("tar -x"), bytes, sizeof(bytes) - 1, 257, false \
    }

/* Marks of packed data, archives and tables, which may hold a folder's data. No text begins with one of these. A mark
 * that is a word ("GIF89a") is not in the list: its file is recognized by its NUL bytes. */
static const mark data_marks[] = {
    MARK("gzip data", UNPACK("gzip -d"), "\x1f\x8b\x08"),
    MARK("zstd data", UNPACK("zstd -d"), "\x28\xb5\x2f\xfd"),
    MARK("xz data", UNPACK("xz -d"), "\xfd\x37zXZ\0"),
    MARK("lz4 data", UNPACK("lz4 -d"), "\x04\x22\x4d\x18"),
    MARK("lz4 data", UNPACK("lz4 -d"), "\x02\x21\x4c\x18"),
    MARK("lzip data", UNPACK("lzip -d"), "LZIP\x01"),
    MARK("lzop data", UNPACK("lzop -d"), "\x89LZO\0\r\n\x1a\n"),
    WEAK("lzma data", UNPACK("xz --format=lzma -d"), "\x5d\0\0"),
    MARK("snappy data", "unpack it", "\xff\x06\0\0sNaPpY"),
    WEAK("compress data", UNPACK("gzip -d"), "\x1f\x9d"),
    WEAK("compress data", UNPACK("gzip -d"), "\x1f\xa0"),
    MARK("a zip archive, as .npz, .pt and .docx are", UNPACK("unzip"), "PK\x03\x04"),
    MARK("an empty zip archive", NONE, "PK\x05\x06"),
    MARK("a part of a zip archive", UNPACK("unzip"), "PK\x07\x08"),
    MARK("a 7z archive", UNPACK("7z x"), "7z\xbc\xaf\x27\x1c"),
    MARK("a rar archive", UNPACK("unrar x"), "Rar!\x1a\x07"),
    TAR("ustar\0"),
    TAR("ustar  \0"),
    MARK("an ar archive", UNPACK("ar x"), "!<arch>\n"),
    MARK("a Parquet file", FSDP__CONTENT_TO_LINES, "PAR1\x15"),
    MARK("an Arrow file", TO_TEXT, "ARROW1\0\0"),
    WEAK("an Arrow stream", TO_TEXT, "\xff\xff\xff\xff"),
    MARK("a Feather file", TO_TEXT, "FEA1\0\0\0\0"),
    MARK("an Avro file", TO_TEXT, "Obj\x01"),
    MARK("a NumPy array (.npy)", "write its numbers as uint16 or uint32 with tofile()", "\x93NUMPY"),
    MARK("an HDF5 file", TO_TEXT, "\x89HDF\r\n\x1a\n"),
    MARK("an SQLite database", TO_TEXT, "SQLite format 3\0"),
};

/* The mark of UTF-32 begins like that of UTF-16. */
static const mark other_marks[] = {
    MARK("a PDF", "convert it to text with 'pdftotext'", "%PDF-"),
    MARK("a document of Microsoft Office", TO_TEXT, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    MARK("a program (ELF)", NONE, "\177ELF"),
    MARK("a program (Mach-O)", NONE, "\xce\xfa\xed\xfe"),
    MARK("a program (Mach-O)", NONE, "\xcf\xfa\xed\xfe"),
    MARK("a program (Java or Mach-O)", NONE, "\xca\xfe\xba\xbe"),
    MARK("a picture (PNG)", NONE, "\x89PNG\r\n\x1a\n"),
    MARK("a picture (JPEG)", NONE, "\xff\xd8\xff"),
    WEAK("UTF-32", TO_UTF8("UTF-32"), "\xff\xfe\0\0"),
    WEAK("UTF-32", TO_UTF8("UTF-32"), "\0\0\xfe\xff"),
    WEAK("UTF-16", TO_UTF8("UTF-16"), "\xff\xfe"),
    WEAK("UTF-16", TO_UTF8("UTF-16"), "\xfe\xff"),
};

/* Formats whose marks are not the same in all files. */
static const mark zstd = {.name = "zstd data", .advice = UNPACK("zstd -d")};
static const mark bzip2 = {.name = "bzip2 data", .advice = UNPACK("bzip2 -d")};
static const mark orc = {.name = "an ORC file", .advice = TO_TEXT};
static const mark safetensors = {.name = "a safetensors file (weights)", .advice = NONE};
static const mark pickle = {.name = "a pickle of Python", .advice = TO_TEXT};

/* ---- marks that numbers may begin with, where what follows leaves no doubt ---- */

static const mark arrow = {.name = "an Arrow stream", .advice = TO_TEXT};
static const mark lzma = {.name = "lzma data", .advice = UNPACK("xz --format=lzma -d")};
static const mark utf16 = {.name = "UTF-16", .advice = TO_UTF8("UTF-16")};
static const mark utf32 = {.name = "UTF-32", .advice = TO_UTF8("UTF-32")};

/* Returns whether the byte is a control character that text does not have. Text in some encodings has white space, and
 * controls for terminals (backspace, escape). */
static bool is_control(unsigned char byte)
{
    return byte == 0x7f || (byte < 0x20 && !(byte >= '\b' && byte <= '\r') && byte != 0x1b && byte != 0x1a);
}

/* Returns whether three of four characters after the byte order mark are ASCII. */
static bool is_wide_ascii(const unsigned char *data, size_t bytes, size_t width, bool big_endian)
{
    size_t units = FSDP__MIN(bytes, (size_t)FSDP__CONTENT_BYTES) / width, ascii = 0;

    for (size_t i = 1; i < units; i++) {
        const unsigned char *unit = data + i * width;
        size_t low = big_endian ? width - 1 : 0;
        bool is_ascii = unit[low] < 0x80 && !is_control(unit[low]);

        for (size_t b = 0; b < width; b++)
            is_ascii = is_ascii && (b == low || unit[b] == 0);
        ascii += is_ascii;
    }
    return units > 8 && ascii * 4 >= units * 3;
}

/* Returns whether it is an Arrow stream: its mark is followed by the size of the first message and the offset of the
 * message's root in it. */
static bool is_arrow_stream(const unsigned char *data, size_t bytes)
{
    uint32_t words[3];

    if (bytes < sizeof words)
        return false;
    memcpy(words, data, sizeof words);
    return words[0] == UINT32_MAX && words[1] > 0 && words[1] % 8 == 0 && words[1] < 1 << 24 && words[2] > 0 &&
           words[2] % 4 == 0 && words[2] < FSDP__MIN(words[1], (uint32_t)1 << 10);
}

/* Returns whether it is LZMA data of unknown size, as xz writes it. */
static bool is_lzma(const unsigned char *data, size_t bytes)
{
    return bytes >= 13 && memcmp(data, "\x5d\0\0", 3) == 0 &&
           memcmp(data + 5, "\xff\xff\xff\xff\xff\xff\xff\xff", 8) == 0;
}

static const mark *find_sure_encoding(const unsigned char *data, size_t bytes)
{
    if (bytes >= 4 && ((memcmp(data, "\xff\xfe\0\0", 4) == 0 && is_wide_ascii(data, bytes, 4, false)) ||
                       (memcmp(data, "\0\0\xfe\xff", 4) == 0 && is_wide_ascii(data, bytes, 4, true))))
        return &utf32;
    if (bytes >= 2 && ((memcmp(data, "\xff\xfe", 2) == 0 && is_wide_ascii(data, bytes, 2, false)) ||
                       (memcmp(data, "\xfe\xff", 2) == 0 && is_wide_ascii(data, bytes, 2, true))))
        return &utf16;
    return NULL;
}

/* ---- what a file is ---- */

static size_t count_controls(const unsigned char *data, size_t bytes)
{
    size_t count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += is_control(data[i]);
    return count;
}

static const mark *find_in(const mark *marks, size_t count, const unsigned char *data, size_t bytes, bool tokens)
{
    for (size_t i = 0; i < count; i++) {
        const mark *m = &marks[i];

        if (!(tokens && m->weak) && bytes >= m->offset + m->count && memcmp(data + m->offset, m->bytes, m->count) == 0)
            return m;
    }
    return NULL;
}

static const mark *find_data(const unsigned char *data, size_t bytes, bool tokens)
{
    const mark *kind = find_in(data_marks, FSDP__COUNT_OF(data_marks), data, bytes, tokens);

    if (kind)
        return kind;
    if (tokens && is_arrow_stream(data, bytes))
        return &arrow;
    if (tokens && is_lzma(data, bytes))
        return &lzma;
    /* A skippable frame, which pzstd and others begin with; and frames of versions before 1.0. */
    if (bytes >= 4 && (data[0] & 0xf0) == 0x50 && memcmp(data + 1, "\x2a\x4d\x18", 3) == 0)
        return &zstd;
    if (bytes >= 4 && data[0] >= 0x22 && data[0] < 0x28 && memcmp(data + 1, "\xb5\x2f\xfd", 3) == 0)
        return &zstd;
    if (bytes >= 10 && memcmp(data, "BZh", 3) == 0 && data[3] >= '1' && data[3] <= '9' &&
        (memcmp(data + 4, "1AY&SY", 6) == 0 || memcmp(data + 4, "\x17\x72\x45\x38\x50\x90", 6) == 0))
        return &bzip2;
    /* "ORC" is a word, unless what follows it is not text. */
    if (bytes >= 4 && memcmp(data, "ORC", 3) == 0 && count_controls(data, FSDP__MIN(bytes, (size_t)32)) > 0)
        return &orc;
    return NULL;
}

static const mark *find_other(const unsigned char *data, size_t bytes, bool tokens)
{
    const mark *kind = find_in(other_marks, FSDP__COUNT_OF(other_marks), data, bytes, tokens);

    if (!kind && tokens)
        kind = find_sure_encoding(data, bytes);
    if (kind)
        return kind;
    if (bytes >= 10 && memcmp(data + 4, "\0\0\0\0{\"", 6) == 0)
        return &safetensors;
    if (bytes >= 3 && data[0] == 0x80 && data[1] >= 2 && data[1] <= 5 && (!tokens || data[2] == 0x95))
        return &pickle;
    return NULL;
}

static fsdp_status refuse_kind(const char *path, const char *in, const mark *kind)
{
    if (in)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': %s holds %s: %s", path, in, kind->name, kind->advice);
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is %s: %s", path, kind->name, kind->advice);
}

fsdp_status fsdp__content_refuse(const char *path, const char *in, const void *data, size_t bytes, bool tokens)
{
    const mark *kind = find_data(data, bytes, tokens);

    if (!kind)
        kind = find_other(data, bytes, tokens);
    return kind ? refuse_kind(path, in, kind) : fsdp__lfs_pointer_refuse(path, data, bytes);
}

/* ---- names ---- */

/* .pt and .br are not in the list, because they are also language codes. */
static const char *const data_endings[] = {".gz",  ".zst",  ".xz",  ".bz2",   ".lz4",     ".lz",     ".lzma", ".lzo",
                                           ".z",   ".sz",   ".7z",  ".zip",   ".rar",     ".tar",    ".tgz",  ".npz",
                                           ".npy", ".avro", ".orc", ".arrow", ".feather", ".parquet"};
static const char *const other_endings[] = {".pkl", ".pdf"};
static const char *const table_endings[] = {".csv", ".tsv"};

/* Returns the ending that the name has, or NULL if it has none of them. */
static const char *ending_among(const char *const *endings, size_t count, const char *path)
{
    size_t length = strlen(path);

    for (size_t i = 0; i < count; i++)
        if (length > strlen(endings[i]) && strcasecmp(path + length - strlen(endings[i]), endings[i]) == 0)
            return endings[i];
    return NULL;
}

bool fsdp__content_is_named_data(const char *path)
{
    return ending_among(data_endings, FSDP__COUNT_OF(data_endings), path) != NULL;
}

fsdp_status fsdp__content_refuse_name(const char *path, size_t bytes)
{
    const char *ending = ending_among(data_endings, FSDP__COUNT_OF(data_endings), path);
    const char *table = ending_among(table_endings, FSDP__COUNT_OF(table_endings), path);

    if (table)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it is a table by its name, whose rows would be learned with commas and "
                         "all: write them as JSON lines: python3 -c \"import pandas; pandas.read_csv('IN', sep=%s)"
                         ".to_json('OUT.jsonl', orient='records', lines=True)\"; if it is text, take %s off its name",
                         path, strcasecmp(table, ".tsv") == 0 ? "'\\t'" : "','", table);
    if (!ending)
        ending = ending_among(other_endings, FSDP__COUNT_OF(other_endings), path);
    if (!ending)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read '%s': its name ends in %s, but %s: it may be damaged; if it is text, take %s off its "
                     "name",
                     path, ending, bytes ? "no such file has its first bytes" : "it is empty", ending);
}

fsdp_status fsdp__content_refuse_data(const char *path, const void *data, size_t bytes)
{
    bool named = fsdp__content_is_named_data(path);
    const mark *kind = find_data(data, bytes, !named);

    if (kind)
        return refuse_kind(path, NULL, kind);
    if (!named)
        return FSDP_OK;
    FSDP_TRY(fsdp__lfs_pointer_refuse(path, data, bytes));
    return fsdp__content_refuse_name(path, bytes);
}

/* ---- text ---- */

/* Returns whether the text is UTF-8. It may end within a character. */
static bool is_utf8(const char *text, size_t bytes)
{
    size_t good = fsdp__utf8_prefix(text, bytes);
    bool cut = false;

    if (good == bytes)
        return true;
    return fsdp__utf8_broken(text + good, bytes - good, &cut) == bytes - good && cut;
}

/* Returns the name of the encoding if every second byte is zero, as in ASCII text as UTF-16; otherwise NULL. */
static const char *wide_encoding(const unsigned char *data, size_t bytes)
{
    size_t zeros[2] = {0, 0}, count = FSDP__MIN(bytes, (size_t)FSDP__CONTENT_BYTES) / 2 * 2;

    for (size_t i = 0; i < count; i++)
        zeros[i % 2] += data[i] == 0;
    if (count < 8)
        return NULL;
    if (zeros[1] * 4 > count && zeros[0] == 0)
        return "UTF-16LE";
    return zeros[0] * 4 > count && zeros[1] == 0 ? "UTF-16BE" : NULL;
}

/* Returns whether the data would be text without its NUL bytes. */
static bool is_text_among_nuls(const unsigned char *data, size_t bytes)
{
    size_t zeros = 0, controls;

    for (size_t i = 0; i < bytes; i++)
        zeros += data[i] == 0;
    controls = count_controls(data, bytes) - zeros;
    if (zeros == bytes || controls * 50 > bytes - zeros)
        return false;
    return zeros * 4 <= bytes || is_utf8((const char *)data, bytes);
}

fsdp_status fsdp__content_check_text(const char *path, int64_t offset, const void *data, size_t bytes)
{
    const unsigned char *zero = bytes ? memchr(data, 0, bytes) : NULL;
    long long at = zero ? offset + (zero - (const unsigned char *)data) : 0;
    const char *encoding = zero ? wide_encoding(data, bytes) : NULL;
    size_t controls;

    if (encoding)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is UTF-16: convert it with 'iconv -f %s -t UTF-8'", path,
                         encoding);
    if (zero && is_text_among_nuls(data, bytes))
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it is not text: a NUL byte at offset %lld, in what is text otherwise: \"tr "
                         "-d '\\000'\" takes NULs out",
                         path, at);
    if (zero)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is not text: a NUL byte at offset %lld, in what is binary",
                         path, at);
    controls = count_controls(data, bytes);
    if (controls * 50 <= bytes || is_utf8(data, bytes))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read '%s': it is not text: %zu of %zu bytes from offset %lld on are control characters, "
                     "and the rest is not UTF-8",
                     path, controls, bytes, (long long)offset);
}

/* Returns whether three of four bytes are ASCII, as in Latin-1 and similar encodings. */
static bool is_mostly_ascii(const unsigned char *data, size_t bytes)
{
    size_t ascii = 0;

    for (size_t i = 0; i < bytes; i++)
        ascii += data[i] < 0x80;
    return bytes >= 64 && ascii * 4 >= bytes * 3;
}

bool fsdp__content_is_text(const void *data, size_t bytes)
{
    return bytes >= 16 && count_controls(data, bytes) == 0 && (is_utf8(data, bytes) || is_mostly_ascii(data, bytes));
}
