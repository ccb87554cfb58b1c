/* Folders and patterns in place of files; and what is no file. */
#include "data/files.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/compiler.h"
#include "support/calls.h"
#include "support/test.h"

static char *directory;

static int setup(void **state)
{
    (void)state;
    directory = test_directory();
    return 0;
}

static void make_folder(const char *name)
{
    char *path = test_path(directory, name);

    CHECK_EQ(mkdir(path, 0777), 0);
}

/* Lists `name` of the directory; the names that come out, below it, with spaces between. */
static void check_lists(const char *name, int format, const char *expected)
{
    char *path = test_path(directory, name), text[512] = "";
    fsdp__data_files files;
    size_t used = 0;

    CHECK_OK(fsdp__data_files_list((const char *const *)&path, 1, format, &files));
    for (int64_t i = 0; i < files.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? " " : "",
                                 files.paths[i] + strlen(directory) + 1);
    CHECK_STRING(text, expected);
    fsdp__data_files_release(&files);
}

static void check_refuses(const char *name, fsdp_token_format format, fsdp_status status, const char *part)
{
    char *path = test_path(directory, name);
    fsdp_tokens *tokens = (fsdp_tokens *)1;

    CHECK_ERROR(fsdp_tokens_open((const char *const *)&path, 1, format, &tokens), status, part);
    CHECK_CONTAINS(fsdp_last_error(), path);
    CHECK_NULL(tokens);
}

TEST_WITH(a_folder_is_its_files_that_fit_by_name, setup, NULL)
{
    make_folder("d");
    make_folder("d/deeper.txt");
    test_write_text(directory, "d/b.txt", "b");
    test_write_text(directory, "d/a.TXT", "a");
    test_write_text(directory, "d/B.txt", "B");
    test_write_text(directory, "d/10.txt", "10");
    test_write_text(directory, "d/.hidden.txt", "h");
    test_write_text(directory, "d/README.md", "r");
    check_lists("d", FSDP_TOKENS_AUTO, "d/10.txt d/B.txt d/a.TXT d/b.txt");
    check_lists("d/", FSDP_TOKENS_TEXT, "d/10.txt d/B.txt d/a.TXT d/b.txt");
    check_refuses("d", FSDP_TOKENS_UINT16, FSDP_FORMAT,
                  "holds no file named .bin, .u16 or .u32, but 5 others, such as '");
    test_write_text(directory, "d/x.bin", "xx");
    test_write_text(directory, "d/y.u32", "yyyy");
    check_refuses("d", FSDP_TOKENS_AUTO, FSDP_FORMAT, "holds text (4 files named .txt) and tokens (2 named .bin");
    check_lists("d", FSDP_TOKENS_TEXT, "d/10.txt d/B.txt d/a.TXT d/b.txt");
    check_lists("d", FSDP_TOKENS_BINARY, "d/x.bin d/y.u32");
    make_folder("empty");
    check_refuses("empty", FSDP_TOKENS_AUTO, FSDP_FORMAT, "holds no file named .txt, .bin, .u16 or .u32");
    check_refuses("empty", FSDP_TOKENS_TEXT, FSDP_FORMAT, "holds no file named .txt");
}

TEST_WITH(json_lines_of_a_folder_are_for_a_tokenizer, setup, NULL)
{
    make_folder("tokens");
    test_write_text(directory, "tokens/stats.jsonl", "{}");
    check_refuses("tokens", FSDP_TOKENS_AUTO, FSDP_FORMAT,
                  "but 1 other, such as 'stats.jsonl', which a tokenizer reads");
    test_write_text(directory, "tokens/x.bin", "xx");
    check_lists("tokens", FSDP_TOKENS_AUTO, "tokens/x.bin");
    check_lists("tokens", FSDP__LIST_DOCUMENTS, "tokens/stats.jsonl");
    check_lists("tokens", FSDP__LIST_ANY, "tokens/stats.jsonl tokens/x.bin");
    make_folder("text");
    test_write_text(directory, "text/a.txt", "a");
    test_write_text(directory, "text/meta.jsonl", "{}");
    check_lists("text", FSDP_TOKENS_AUTO, "text/a.txt");
    make_folder("mixed");
    test_write_text(directory, "mixed/a.txt", "a");
    test_write_text(directory, "mixed/x.U32", "xxxx");
    check_refuses("mixed", FSDP_TOKENS_AUTO, FSDP_FORMAT, "such as '");
    CHECK_CONTAINS(fsdp_last_error(), "/mixed/*.U32'");
    test_write_text(directory, "text/b.ndjson.gz", "{}");
    check_lists("text", FSDP__LIST_DOCUMENTS, "text/a.txt text/b.ndjson.gz text/meta.jsonl");
}

/* ---- what does not fit by its name ---- */

#define LITERAL(text) text, sizeof(text) - 1

typedef struct left_out {
    const char *name, *bytes;
    size_t count;
    const char *says;
} left_out;

static const int formats[] = {FSDP_TOKENS_AUTO, FSDP_TOKENS_TEXT, FSDP_TOKENS_BINARY, FSDP__LIST_DOCUMENTS,
                              FSDP__LIST_ANY};

/* Of a folder that holds a file that fits, and this one. */
static void check_left_out(const left_out *c, int format)
{
    const char *fits = format == FSDP_TOKENS_BINARY ? "d/x.bin" : "d/x.txt";
    char *folder = test_path(directory, "d"), name[64], hidden[64], *from, *to;
    fsdp__data_files files;

    snprintf(name, sizeof name, "d/%s", c->name);
    snprintf(hidden, sizeof hidden, "d/.%s", c->name);
    from = test_path(directory, name);
    to = test_path(directory, hidden);
    make_folder("d");
    test_write_text(directory, fits, "xx");
    test_write_file(from, c->bytes, c->count);
    if (c->says) {
        CHECK_ERROR(fsdp__data_files_list((const char *const *)&folder, 1, format, &files), FSDP_FORMAT, c->says);
        CHECK_CONTAINS(fsdp_last_error(), from);
        CHECK_CONTAINS(fsdp_last_error(), "would be left out: if that is meant, name the others by a pattern, such as");
        CHECK_CONTAINS(fsdp_last_error(), format == FSDP_TOKENS_BINARY ? "/d/*.bin'" : "/d/*.txt'");
        CHECK_EQ(files.count, 0);
    } else {
        check_lists("d", format, fits);
    }
    CHECK_EQ(rename(from, to), 0);
    check_lists("d", format, fits);
    unlink(to);
    to = test_path(directory, fits);
    unlink(to);
    CHECK_EQ(rmdir(folder), 0);
}

TEST_WITH(what_is_packed_or_a_table_is_not_passed_over, setup, NULL)
{
    static const left_out cases[] = {
        {"b.xz", LITERAL("\xfd\x37zXZ\0\0\4"), "it is xz data: unpack it with 'xz -d'"},
        {"b.jsonl.xz", LITERAL("\xfd\x37zXZ\0\0\4"), "it is xz data"},
        {"part-0", LITERAL("\xfd\x37zXZ\0\0\4"), "it is xz data"},
        {"b.bz2", LITERAL("BZh91AY&SY\1\2"), "it is bzip2 data"},
        {"b.lz4", LITERAL("\x04\x22\x4d\x18\x64\x40"), "it is lz4 data"},
        {"b.lzma", LITERAL("\x5d\0\0\x80\0\7\0\0\0\0\0\0\0\0"), "it is lzma data"},
        {"b", LITERAL("\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0"), "it is lzma data"},
        {"b.txt.Z",
         LITERAL("\x1f\x9d\x90"
                 "a"),
         "it is compress data"},
        {"b.7z", LITERAL("7z\xbc\xaf\x27\x1c\0\4"), "it is a 7z archive"},
        {"b.zip", LITERAL("PK\x03\x04\x14\0"), "it is a zip archive"},
        {"b.rar", LITERAL("Rar!\x1a\x07\x01\0"), "it is a rar archive"},
        {"README.md", LITERAL("PK\x03\x04\x14\0"), "it is a zip archive"},
        {"b", LITERAL("PAR1\x15\x04\x15"), "it is a Parquet file: write it as JSON lines: python3 -c"},
        {"b.arrow", LITERAL("ARROW1\0\0\xff\xff"), "it is an Arrow file"},
        {"b.arrow", LITERAL("\xff\xff\xff\xff\x70\1\0\0"), "it is an Arrow stream"},
        {"b", LITERAL("\xff\xff\xff\xff\x70\1\0\0\x10\0\0\0\0\0\x0a\0"), "it is an Arrow stream"},
        {"b.feather", LITERAL("FEA1\0\0\0\0\1"), "it is a Feather file"},
        {"b.orc", LITERAL("ORC\x0a\x06\x12\x04\x08\0\x50\0"), "it is an ORC file"},
        {"000000_0", LITERAL("ORC\x0a\x06\x12\x04\x08\0\x50\0"), "it is an ORC file"},
        {"b.avro", LITERAL("Obj\x01\x04\x14"), "it is an Avro file"},
        {"b.npy", LITERAL("\x93NUMPY\1\0v\0"), "it is a NumPy array (.npy): write its numbers as"},
        {"b.h5", LITERAL("\x89HDF\r\n\x1a\n\0"), "it is an HDF5 file"},
        {"b.db", LITERAL("SQLite format 3\0\x10"), "it is an SQLite database"},
        {"b.xz", LITERAL("text"), "its name ends in .xz, but no such file has its first bytes"},
        {"b.tar", LITERAL("of seven"), "its name ends in .tar, but"},
        {"b.feather", LITERAL(""), "its name ends in .feather, but it is empty"},
        {"b.feather", LITERAL("version https://git-lfs.github.com/spec/v1\noid"), "'git lfs pull'"},
        {"b.jsonl.br", LITERAL("\x0b\x02\x80\0\0\1\2\3\4\5"), "it is not text: a NUL byte"},
        {"b.json.br", LITERAL("\x0b\x02\x80\0\0\1\2\3\4\5"), "it is not text: a NUL byte"},
        {"b.TXT.snappy", LITERAL("\x91\x05\xe2\x17\x80\xff\x03k\x99\x9a"), "it is not text"},
    };
    char tar[512] = "a.txt";

    for (size_t f = 0; f < FSDP__COUNT_OF(formats); f++) {
        for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++)
            check_left_out(&cases[i], formats[f]);
        memcpy(tar + 257, "ustar", 6);
        check_left_out(&(left_out){"b.tar", tar, sizeof tar, "it is a tar archive"}, formats[f]);
    }
}

/* gzip and zstd are read, under a name that says what they hold. */
TEST_WITH(what_is_packed_and_could_be_read_is_told_how_to_be_named, setup, NULL)
{
    static const left_out cases[] = {
        {"c4.json.gz", LITERAL("\x1f\x8b\x08\0"), NULL},      {"b.csv.zst", LITERAL("\x28\xb5\x2f\xfd"), NULL},
        {"b.tgz", LITERAL("\x1f\x8b\x08\0"), NULL},           {"LICENSE", LITERAL("\x1f\x8b\x08\0"), NULL},
        {"b.tar.zst", LITERAL("\x50\x2a\x4d\x18\4\0"), NULL}, {"b.gz", LITERAL("\x1f\x8b\x08\0"), NULL},
    };

    for (size_t f = 0; f < FSDP__COUNT_OF(formats); f++)
        for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
            left_out c = cases[i];

            c.says = formats[f] >= FSDP__LIST_DOCUMENTS
                         ? ": if it is text, name it .txt or .jsonl, followed by .gz or .zst"
                     : c.bytes[0] == '\x1f' ? "it is gzip data: unpack it with 'gzip -d'"
                                            : "it is zstd data: unpack it with 'zstd -d'";
            check_left_out(&c, formats[f]);
        }
}

TEST_WITH(what_is_no_data_is_passed_over, setup, NULL)
{
    static const left_out cases[] = {
        {"README.md", LITERAL("# The data\n"), NULL},
        {"config.json", LITERAL("{}"), NULL},
        {"LICENSE", LITERAL(""), NULL},
        {"b.txt.sha256", LITERAL("9f86d081884c7d65  b.txt\n"), NULL},
        {"b.idx", LITERAL("\x5d\0\0\0\7\0\0\0"), NULL},
        {"c.idx", LITERAL("\xff\xff\xff\xff\3\0\0\0"), NULL},
        {"meta.pkl", LITERAL("\x80\x04\x95\x10\0\0\0\0\0\0\0"), NULL},
        {"meta.pkl", LITERAL("(dp0\n."), NULL},
        {"paper.pdf", LITERAL("%PDF-1.7\n%\xe2\xe3"), NULL},
        {"plot.png", LITERAL("\x89PNG\r\n\x1a\n\0\0"), NULL},
        {"a.out", LITERAL("\177ELF\2\1\1\0"), NULL},
        {"model.safetensors", LITERAL("\x40\0\0\0\0\0\0\0{\"a\":"), NULL},
        {"plot.svg", LITERAL("version https://git-lfs.github.com/spec/v1\noid"), NULL},
    };
    char *fifo;

    for (size_t f = 0; f < FSDP__COUNT_OF(formats); f++)
        for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++)
            check_left_out(&cases[i], formats[f]);
    make_folder("d");
    make_folder("d/deeper.xz");
    test_write_text(directory, "d/x.txt", "x");
    fifo = test_path(directory, "d/fifo.gz");
    CHECK_EQ(mkfifo(fifo, 0666), 0);
    check_lists("d", FSDP_TOKENS_TEXT, "d/x.txt");
    test_write_text(directory, "d/x.txt.bin", "\1");
    check_lists("d", FSDP__LIST_DOCUMENTS, "d/x.txt");
    unlink(fifo);
}

/* What another user may read only is his, unless its name says that it is data. */
TEST_WITH(what_cannot_be_opened_is_judged_by_its_name, setup, NULL)
{
    char *notes = test_path(directory, "notes.md"), *packed = test_path(directory, "b.xz");
    bool root = geteuid() == 0;
    fsdp_status with_both, with_notes;
    fsdp__data_files files;
    char error[512];

    test_write_text(directory, "a.txt", "x");
    test_write_text(directory, "notes.md", "x");
    test_write_text(directory, "b.xz", "x");
    CHECK_EQ(chmod(directory, 0777), 0);
    CHECK_EQ(chmod(notes, 0), 0);
    CHECK_EQ(chmod(packed, 0), 0);
    if (root)
        CHECK_EQ(seteuid(65534), 0);
    with_both = fsdp__data_files_list((const char *const *)&directory, 1, FSDP_TOKENS_TEXT, &files);
    snprintf(error, sizeof error, "%s", fsdp_last_error());
    unlink(packed);
    with_notes = fsdp__data_files_list((const char *const *)&directory, 1, FSDP_TOKENS_TEXT, &files);
    if (root)
        CHECK_EQ(seteuid(0), 0);
    CHECK_EQ(with_both, FSDP_IO);
    CHECK_CONTAINS(error, "/b.xz': Permission denied");
    CHECK_OK(with_notes);
    CHECK_EQ(files.count, 1);
    fsdp__data_files_release(&files);
}

TEST_WITH(a_pattern_is_what_it_matches_unless_a_file_has_the_name, setup, NULL)
{
    fsdp_tokens *tokens = NULL;
    char *pattern;

    make_folder("d");
    test_write_text(directory, "d/b1.txt", "1");
    test_write_text(directory, "d/b10.txt", "10");
    test_write_text(directory, "d/b2.txt", "2");
    test_write_text(directory, "d/c.md", "c");
    test_write_text(directory, "d/.b3.txt", "3");
    check_lists("d/b*.txt", FSDP_TOKENS_AUTO, "d/b1.txt d/b10.txt d/b2.txt");
    check_lists("d/b[12].txt", FSDP_TOKENS_AUTO, "d/b1.txt d/b2.txt");
    check_lists("d/?.md", FSDP_TOKENS_AUTO, "d/c.md");
    check_lists("d/*", FSDP_TOKENS_TEXT, "d/b1.txt d/b10.txt d/b2.txt d/c.md");
    test_write_text(directory, "d/b*.txt", "star");
    check_lists("d/b*.txt", FSDP_TOKENS_AUTO, "d/b*.txt");
    check_refuses("d/z*.txt", FSDP_TOKENS_AUTO, FSDP_NOT_FOUND, "no file has such a name");
    make_folder("d/ba.txt");
    pattern = test_path(directory, "d/ba*");
    CHECK_ERROR(fsdp_tokens_open((const char *const *)&pattern, 1, FSDP_TOKENS_AUTO, &tokens), FSDP_IO,
                "/d/ba.txt': it is a directory");
}

TEST_WITH(paths_are_taken_in_the_order_they_are_given, setup, NULL)
{
    char *paths[3], *tokens_of = test_path(directory, "d");
    fsdp_tokens *tokens = NULL;
    int32_t read[6];

    make_folder("d");
    test_write_text(directory, "z.txt", "z");
    test_write_text(directory, "d/b.txt", "bb");
    test_write_text(directory, "d/a.txt", "a");
    test_write_text(directory, "m1.txt", "m");
    test_write_text(directory, "m0.txt", "n");
    paths[0] = test_path(directory, "z.txt");
    paths[1] = tokens_of;
    paths[2] = test_path(directory, "m?.txt");
    CHECK_OK(fsdp_tokens_open((const char *const *)paths, 3, FSDP_TOKENS_AUTO, &tokens));
    CHECK_EQ(fsdp_tokens_count(tokens), 6);
    CHECK_OK(fsdp_tokens_read(tokens, 0, 6, read));
    for (int i = 0; i < 6; i++)
        CHECK_EQ(read[i], "zabbnm"[i]);
    fsdp_tokens_close(tokens);
}

TEST_WITH(what_is_no_file_is_refused_with_name_and_kind, setup, NULL)
{
    char *fifo = test_path(directory, "fifo.txt"), *link = test_path(directory, "link.txt");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fsdp_tokens *tokens = NULL;

    CHECK_EQ(mkfifo(fifo, 0666), 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket.txt", directory);
    CHECK_EQ(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    check_refuses("fifo.txt", FSDP_TOKENS_AUTO, FSDP_IO, "FIFO");
    check_refuses("socket.txt", FSDP_TOKENS_AUTO, FSDP_IO, "socket");
    CHECK_EQ(symlink("/dev/zero", link), 0);
    check_refuses("link.txt", FSDP_TOKENS_TEXT, FSDP_IO, "device");
    CHECK_ERROR(fsdp_tokens_open((const char *const *)&directory, 1, FSDP_TOKENS_AUTO, &tokens), FSDP_IO, ".txt'");
    unlink(link);
    CHECK_EQ(symlink("/nonexistent", link), 0);
    unlink(fifo);
    unlink(address.sun_path);
    CHECK_ERROR(fsdp_tokens_open((const char *const *)&directory, 1, FSDP_TOKENS_AUTO, &tokens), FSDP_NOT_FOUND,
                "link.txt'");
    unlink(link);
    test_write_text(directory, "a.txt", "text");
    test_write_text(directory, "nothing.txt", "");
    CHECK_ERROR(fsdp_tokens_open((const char *const *)&directory, 1, FSDP_TOKENS_AUTO, &tokens), FSDP_FORMAT,
                "nothing.txt': it is empty");
    check_refuses("a.txt,b.txt", FSDP_TOKENS_AUTO, FSDP_NOT_FOUND, "if it is several, give each an option of its own");
    close(fd);
}

/* More files than a process may have open. */
TEST_WITH(many_files_need_no_descriptors, setup, NULL)
{
    enum {
        FILES = 3000
    };
    struct rlimit before, few;
    fsdp_tokens *tokens = NULL;
    int32_t token;
    char name[32];
    int64_t at;

    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "%06d.txt", i);
        test_write_text(directory, name, i % 2 ? "ab" : "c");
    }
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 32;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    CHECK_OK(fsdp_tokens_open((const char *const *)&directory, 1, FSDP_TOKENS_AUTO, &tokens));
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(fsdp_tokens_count(tokens), FILES / 2 * 3);
    CHECK_OK(fsdp_tokens_read(tokens, FILES / 2 * 3 - 1, 1, &token));
    CHECK_EQ(token, 'b');
    CHECK_CONTAINS(fsdp_tokens_locate(tokens, FILES / 2 * 3 - 1, &at), "/002999.txt");
    fsdp_tokens_close(tokens);
}

TEST_WITH(listing_survives_every_failed_allocation, setup, NULL)
{
    char *paths[2] = {directory, test_path(directory, "a*")};

    for (int i = 0; i < 20; i++) {
        char name[16];

        snprintf(name, sizeof name, "a%d.txt", i);
        test_write_text(directory, name, "a");
    }
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__data_files files;
        fsdp_status status = fsdp__data_files_list((const char *const *)paths, 2, FSDP_TOKENS_AUTO, &files);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK_EQ(files.count, status == FSDP_OK ? 40 : 0);
        fsdp__data_files_release(&files);
    }
}

TEST_WITH(a_folder_that_cannot_be_read_to_its_end_is_an_error, setup, NULL)
{
    fsdp__data_files files;
    fsdp_status status;

    test_write_text(directory, "a.txt", "x");
    test_fail_readdir(true);
    status = fsdp__data_files_list((const char *const *)&directory, 1, FSDP_TOKENS_TEXT, &files);
    test_fail_readdir(false);
    CHECK_ERROR(status, FSDP_IO, "cannot list '");
    fsdp__data_files_release(&files);
}
