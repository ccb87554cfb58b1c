/* Reading, mapping and durable writing, and what they say when they fail. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "base/file.h"
#include "support/test.h"

static int entries_in(const char *path)
{
    DIR *directory = opendir(path);
    int count = -2; /* . and .. */

    CHECK(directory != NULL);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

TEST(a_file_is_read_whole_and_ends_in_nul)
{
    char *folder = test_directory(), *path = test_path(folder, "x.txt"), *data;
    size_t bytes, sizes[] = {0, 1, 4095, 4096, 4097, 100001};
    char *text = malloc(100001);

    CHECK(text != NULL);
    for (int i = 0; i < 100001; i++)
        text[i] = (char)(i * 7 + 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        test_write_file(path, text, sizes[i]);
        CHECK_OK(fsdp__file_read(path, sizes[i], &data, &bytes));
        CHECK_EQ(bytes, sizes[i]);
        CHECK_BYTES(data, text, bytes);
        CHECK_EQ(data[bytes], 0);
        fsdp__free(data);
    }
    free(text);
}

TEST(what_cannot_be_read_says_why)
{
    char *folder = test_directory(), *path = test_path(folder, "x"), *data;
    size_t bytes;

    CHECK_ERROR(fsdp__file_read(path, 10, &data, &bytes), FSDP_NOT_FOUND, "No such file");
    CHECK_CONTAINS(fsdp_last_error(), path);
    CHECK_NULL(data);
    CHECK_ERROR(fsdp__file_read(folder, 10, &data, &bytes), FSDP_IO, "it is a directory");
    test_write_file(path, "eleven byte", 11);
    CHECK_ERROR(fsdp__file_read(path, 10, &data, &bytes), FSDP_FORMAT, "its 11 bytes are more than the limit of 10");
    CHECK_NULL(data);
    CHECK_ERROR(fsdp__file_read("/proc/self/maps", 100, &data, &bytes), FSDP_FORMAT, "larger than 100 bytes");
    CHECK_NULL(data);
}

/* A socket in the file system, named `path`. */
static void make_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    CHECK_EQ(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

/* Nobody writes to the FIFO: what waited for a writer would wait forever. */
TEST(what_is_no_file_is_refused_by_its_kind)
{
    char *folder = test_directory(), *pipe = test_path(folder, "pipe"), *socket_path = test_path(folder, "socket");
    char *loop = test_path(folder, "loop"), *data;
    const struct {
        const char *path, *part;
    } kinds[] = {{folder, "it is a directory, not a regular file"},
                 {pipe, "it is a FIFO, not a regular file"},
                 {socket_path, "it is a socket, not a regular file"},
                 {"/dev/zero", "it is a device, not a regular file"},
                 {loop, "symbolic links"}};
    fsdp__mapping mapping;
    size_t bytes;

    CHECK_EQ(mkfifo(pipe, 0600), 0);
    CHECK_EQ(symlink("loop", loop), 0);
    make_socket(socket_path);
    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++) {
        CHECK_ERROR(fsdp__file_read(kinds[i].path, 100, &data, &bytes), FSDP_IO, kinds[i].part);
        CHECK_CONTAINS(fsdp_last_error(), kinds[i].path);
        CHECK_ERROR(fsdp__file_map(kinds[i].path, &mapping), FSDP_IO, kinds[i].part);
        CHECK(fsdp__path_exists(kinds[i].path));
    }
}

TEST(files_without_a_size_are_read_to_their_end)
{
    size_t bytes;
    char *data;

    CHECK_OK(fsdp__file_read("/proc/self/status", 1 << 20, &data, &bytes));
    CHECK(bytes > 100 && strlen(data) == bytes);
    fsdp__free(data);
}

TEST(reading_survives_failed_allocations)
{
    char *folder = test_directory(), *path = test_path(folder, "x");

    test_write_file(path, "text", 4);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        size_t bytes;
        char *data;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__file_read(path, 100, &data, &bytes));
        fsdp__free(data);
    }
}

TEST(a_map_shows_the_file)
{
    char *folder = test_directory(), *path = test_path(folder, "x");
    fsdp__mapping mapping;
    int fd = -1;

    CHECK_ERROR(fsdp__file_map(path, &mapping), FSDP_NOT_FOUND, path);
    test_write_file(path, "mapped", 6);
    CHECK_OK(fsdp__file_map(path, &mapping));
    CHECK_EQ(mapping.bytes, 6);
    CHECK_BYTES(mapping.data, "mapped", 6);
    CHECK_OK(fsdp__file_open(path, &fd, NULL));
    CHECK(fsdp__file_is_mapped(&mapping, fd));
    CHECK(!fsdp__file_is_mapped(&mapping, STDIN_FILENO) && !fsdp__file_is_mapped(&mapping, -1));
    close(fd);
    fsdp__file_unmap(&mapping);
    CHECK_NULL(mapping.data);
    fsdp__file_unmap(&mapping);
    test_write_file(path, "", 0);
    CHECK_OK(fsdp__file_map(path, &mapping));
    CHECK(mapping.data == NULL && mapping.bytes == 0);
    fsdp__file_unmap(&mapping);
    CHECK_ERROR(fsdp__file_map(folder, &mapping), FSDP_IO, "it is a directory");
    CHECK_ERROR(fsdp__file_map("/dev/null", &mapping), FSDP_IO, "not a regular file");
}

static fsdp_status write_atomic(const char *path, const void *data, size_t bytes)
{
    fsdp__directory in;
    fsdp_status status;
    char *name;

    FSDP_TRY(fsdp__directory_of(path, &in, &name));
    status = fsdp__directory_write_atomic(&in, name, data, bytes);
    fsdp__directory_close(&in);
    fsdp__free(name);
    return status;
}

TEST(an_atomic_write_replaces_the_whole_file)
{
    char *folder = test_directory(), *path = test_path(folder, "x"), *data;
    size_t bytes;

    CHECK_OK(write_atomic(path, "first", 5));
    CHECK_OK(write_atomic(path, "second one", 10));
    data = test_read_file(path, &bytes);
    CHECK_EQ(bytes, 10);
    CHECK_STRING(data, "second one");
    CHECK_OK(write_atomic(path, "", 0));
    data = test_read_file(path, &bytes);
    CHECK_EQ(bytes, 0);
    CHECK_EQ(entries_in(folder), 1);
}

/* Whatever fails, the file holds the old or the new bytes, and nothing lies beside it. */
static void check_atomic_under_faults(fsdp__fault_kind kind)
{
    char *folder = test_directory(), *path = test_path(folder, "x");
    long uses = 0;

    for (long n = 0; test_next_fault(kind, &n); uses = n) {
        fsdp_status status;
        size_t bytes;
        char *data;

        test_write_file(path, "old", 3);
        status = write_atomic(path, "new content", 11);
        CHECK_FAULT(kind, status);
        if (status != FSDP_OK)
            CHECK_CONTAINS(fsdp_last_error(), "cannot ");
        data = test_read_file(path, &bytes);
        CHECK(strcmp(data, "new content") == 0 || (status != FSDP_OK && strcmp(data, "old") == 0));
        CHECK_EQ(entries_in(folder), 1);
    }
    CHECK(uses > 2);
    test_directory_free(folder);
}

TEST(no_failed_write_leaves_half_a_file)
{
    check_atomic_under_faults(FSDP__FAULT_WRITE);
    check_atomic_under_faults(FSDP__FAULT_ALLOCATION);
}

TEST(a_failed_write_names_file_and_offset)
{
    char *folder = test_directory(), *path = test_path(folder, "x"), *data;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    size_t bytes;

    CHECK(fd >= 0);
    CHECK_OK(fsdp__file_pwrite(fd, path, "abc", 3, 2));
    CHECK_OK(fsdp__file_pwrite(fd, path, "", 0, 100));
    CHECK_OK(fsdp__file_sync(fd, path));
    fsdp__fault_arm(FSDP__FAULT_WRITE, 1);
    CHECK_ERROR(fsdp__file_pwrite(fd, path, "abc", 3, 77), FSDP_IO, "No space left on device at byte 77");
    CHECK_CONTAINS(fsdp_last_error(), path);
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    close(fd);
    CHECK_ERROR(fsdp__file_pwrite(fd, path, "abc", 3, 0), FSDP_IO, "at byte 0");
    data = test_read_file(path, &bytes);
    CHECK_EQ(bytes, 5);
    CHECK_BYTES(data, "\0\0abc", 5);
}

TEST(a_write_into_a_missing_directory_fails)
{
    char *folder = test_directory(), *path = test_path(folder, "no/x");

    CHECK_ERROR(write_atomic(path, "x", 1), FSDP_NOT_FOUND, "cannot create");
}

TEST(directories_are_made_with_their_parents_and_removed_with_their_content)
{
    char *folder = test_directory(), *deep = test_path(folder, "a/b//c/"), *top = test_path(folder, "a");
    char *file = test_path(folder, "a/b/c/file"), *link = test_path(folder, "a/link"), *kept = test_path(folder, "k");
    char *below = test_path(folder, "k/below"), *deeper = test_path(folder, "k/below/it"), *text, told[2000];
    size_t bytes;

    CHECK_OK(fsdp__make_directories(deep));
    CHECK_OK(fsdp__make_directories(deep));
    CHECK(fsdp__path_exists(deep));
    test_write_file(file, "x", 1);
    test_write_file(kept, "x", 1);
    CHECK_ERROR(fsdp__make_directories(kept), FSDP_IO, "a file of that name exists");
    snprintf(told, sizeof told, "cannot make directory '%s': '%s' is a file, not a folder", below, kept);
    CHECK_ERROR(fsdp__make_directories(below), FSDP_IO, told);
    CHECK_ERROR(fsdp__make_directories(deeper), FSDP_IO, "/k' is a file, not a folder");
    CHECK_ERROR(fsdp__file_read(below, 100, &text, &bytes), FSDP_IO, "/k' is a file, not a folder");
    CHECK_EQ(symlink(folder, link), 0);
    test_remove_tree(top);
    CHECK(!fsdp__path_exists(top));
    CHECK(fsdp__path_exists(kept));
    test_remove_tree(top);
}

TEST(a_directory_whose_name_may_be_lost_is_not_made)
{
    char *folder = test_directory(), *top = test_path(folder, "a"), *deep = test_path(folder, "a/b");

    fsdp__fault_set_act(FSDP__FAULT_FAILS, EIO);
    fsdp__fault_arm(FSDP__FAULT_WRITE, 2);
    CHECK_ERROR(fsdp__make_directories(deep), FSDP_IO, "cannot sync '");
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    CHECK(!fsdp__path_exists(top));
    CHECK_OK(fsdp__make_directories(deep));
}

TEST(paths_join_with_one_slash)
{
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}, {"a", "/b", "/b"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *path = fsdp__path_join(cases[i][0], cases[i][1]);

        CHECK_STRING(path, cases[i][2]);
        fsdp__free(path);
    }
}

TEST(a_path_has_a_parent)
{
    static const char *const cases[][2] = {{"a", "."}, {"a/b", "a"}, {"/a", "/"}, {"/a/b", "/a"}, {"./a", "."}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *parent = fsdp__path_parent(cases[i][0]);

        CHECK_STRING(parent, cases[i][1]);
        fsdp__free(parent);
    }
}

TEST(the_clock_does_not_go_back)
{
    int64_t before = fsdp__clock_ns(), after;

    usleep(2000);
    after = fsdp__clock_ns();
    CHECK(after - before >= 1900000);
}

TEST(a_text_may_come_through_a_pipe_but_from_no_device)
{
    char *folder = test_directory(), *path = test_path(folder, "x"), *data, name[40];
    int ends[2];
    size_t bytes;

    test_write_file(path, "some text", 9);
    CHECK_OK(fsdp__file_read_stream(path, 9, &data, &bytes));
    CHECK_STRING(data, "some text");
    fsdp__free(data);
    CHECK_ERROR(fsdp__file_read_stream(path, 8, &data, &bytes), FSDP_FORMAT,
                "its 9 bytes are more than the limit of 8");
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(write(ends[1], "piped", 5), 5);
    close(ends[1]);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    CHECK_OK(fsdp__file_read_stream(name, 100, &data, &bytes));
    CHECK_STRING(data, "piped");
    fsdp__free(data);
    close(ends[0]);
    CHECK_ERROR(fsdp__file_read_stream("/dev/zero", 100, &data, &bytes), FSDP_IO, "it is a device, not a file or");
    CHECK_ERROR(fsdp__file_read_stream(folder, 100, &data, &bytes), FSDP_IO, "it is a directory");
    CHECK_NULL(data);
    unlink(path);
    CHECK_ERROR(fsdp__file_read_stream(path, 100, &data, &bytes), FSDP_NOT_FOUND, "No such file");
}
