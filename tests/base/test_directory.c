/* A directory that is held: what is done in it stays in it, which links lead to it, and what in it is believed. */
#include "base/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "check/fault.h"
#include "support/calls.h"
#include "support/test.h"

#define TEN(text) text text text text text text text text text text
#define LETTERS TEN(TEN("abc")) /* more than a name may have */

enum {
    OTHER = 65534 /* another user, where this one may give files away */
};

typedef struct fixture {
    char *path, *others; /* two folders */
    fsdp__directory held;
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->path = test_directory();
    f->others = test_directory();
    CHECK_OK(fsdp__directory_open(f->path, &f->held));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp__directory_close(&f->held);
    return 0;
}

static void check_text(const char *folder, const char *name, const char *expected)
{
    char *path = test_path(folder, name), *text = fsdp__path_exists(path) ? test_read_file(path, NULL) : NULL;

    CHECK_EQ(text != NULL, expected != NULL);
    if (text)
        CHECK_STRING(text, expected);
}

/* Only root gives files away. */
static void needs_two_users(void)
{
    if (geteuid() != 0)
        skip();
}

/* ---- paths ---- */

TEST_OF(a_path_is_walked_to_its_end, setup, teardown, fixture *f)
{
    char *deep = test_path(f->path, "a/b"), *link = test_path(f->path, "link"), *file = test_path(f->path, "file");
    char *round = test_path(f->path, "link/.././/a/b/"), magic[40], *name;
    fsdp__directory found, again;

    CHECK_OK(fsdp__make_directories(deep));
    CHECK_EQ(symlink("a", link), 0);
    test_write_text(f->path, "file", "x");
    CHECK_OK(fsdp__directory_resolve(round, &found));
    CHECK_STRING(found.path, deep);
    snprintf(magic, sizeof magic, "/proc/self/fd/%d", found.fd);
    CHECK_OK(fsdp__directory_open(magic, &again));
    CHECK_OK(fsdp__directory_write_new(&again, "x", "there", 5));
    fsdp__directory_close(&again);
    fsdp__directory_close(&found);
    check_text(deep, "x", "there");
    CHECK_ERROR(fsdp__directory_open(file, &found), FSDP_IO, "Not a directory");
    CHECK_NULL(found.path);
    CHECK_ERROR(fsdp__directory_open("", &found), FSDP_NOT_FOUND, "cannot open ''");
    CHECK_ERROR(fsdp__directory_of("..", &found, &name), FSDP_IO, "Is a directory");
    CHECK_EQ(unlink(link), 0);
    CHECK_EQ(symlink("link", link), 0);
    CHECK_ERROR(fsdp__directory_open(link, &found), FSDP_IO, "symbolic links");
}

TEST_OF(what_was_made_for_a_path_is_removed_again, setup, teardown, fixture *f)
{
    char *top = test_path(f->path, "a"), *middle = test_path(f->path, "a/b"), *deep = test_path(f->path, "a/b/c/d");
    fsdp__directory found;
    int made = 0;

    CHECK_OK(fsdp__make_directories(top));
    CHECK_OK(fsdp__directory_make_path(deep, &found, &made));
    CHECK_EQ(made, 3);
    fsdp__directory_unmake(&found, made);
    fsdp__directory_close(&found);
    CHECK(fsdp__path_exists(top) && !fsdp__path_exists(middle));
    CHECK_OK(fsdp__directory_make_path(deep, &found, &made));
    test_write_text(middle, "kept", "x");
    fsdp__directory_unmake(&found, made);
    fsdp__directory_close(&found);
    check_text(middle, "kept", "x");
    CHECK_OK(fsdp__directory_make_path(deep, &found, &made));
    CHECK_EQ(made, 2);
    fsdp__directory_close(&found);
}

/* Whoever comes to the end of such a path would go on with a part of its name. */
TEST_OF(a_path_that_is_too_long_without_its_links_is_refused, setup, teardown, fixture *f)
{
    char deep[3900], name[251], *link = test_path(f->path, "link"), *further = NULL;
    size_t used = (size_t)snprintf(deep, sizeof deep, "%s", f->path);
    fsdp__directory found;
    int made = 7;

    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    while (used + 1 + strlen(name) < sizeof deep)
        used += (size_t)snprintf(deep + used, sizeof deep - used, "/%s", name);
    CHECK_OK(fsdp__make_directories(deep));
    CHECK_EQ(symlink(deep, link), 0);
    CHECK(asprintf(&further, "%s/a/%s/%s", link, name, name) > 0);
    CHECK_ERROR(fsdp__directory_make_path(further, &found, &made), FSDP_IO, "File name too long");
    CHECK_EQ(made, 0);
    CHECK_EQ(rmdir(deep), 0); /* nothing is in it */
    free(further);
}

TEST_OF(a_path_that_fails_leaves_nothing, setup, teardown, fixture *f)
{
    char *long_name = test_path(f->path, "n/a/" LETTERS "/c"), *top = test_path(f->path, "n");
    char *below_file = test_path(f->path, "n/../file/x"), *below = test_path(f->path, "n/b/../../file/x");
    fsdp__directory found;
    int made = 7;

    CHECK_ERROR(fsdp__directory_make_path(long_name, &found, &made), FSDP_IO, "File name too long");
    CHECK_EQ(made, 0);
    CHECK(!fsdp__path_exists(top));
    CHECK_OK(fsdp__make_directories(top));
    CHECK_ERROR(fsdp__directory_make_path(long_name, &found, &made), FSDP_IO, "File name too long");
    CHECK_EQ(rmdir(top), 0);
    test_write_text(f->path, "file", "x");
    CHECK_ERROR(fsdp__directory_make_path(below_file, &found, NULL), FSDP_IO, "/file' is a file, not a folder");
    CHECK_ERROR(fsdp__directory_make_path(below, &found, NULL), FSDP_IO, "/file' is a file, not a folder");
    CHECK_ERROR(fsdp__directory_open(test_path(f->path, "file/x"), &found), FSDP_IO, "/file' is a file, not a folder");
    check_text(f->path, "file", "x");
}

/* Beside one that was made for the way there. */
TEST_OF(an_empty_folder_that_was_there_is_not_removed, setup, teardown, fixture *f)
{
    char *path = test_path(f->path, "n/../there"), *there = test_path(f->path, "there");
    fsdp__directory found;
    int made;

    CHECK_OK(fsdp__make_directories(there));
    CHECK_OK(fsdp__directory_make_path(path, &found, &made));
    CHECK_EQ(made, 0);
    fsdp__directory_unmake(&found, made);
    fsdp__directory_close(&found);
    CHECK(fsdp__path_exists(there));
}

TEST_OF(a_path_survives_failed_allocations, setup, teardown, fixture *f)
{
    char *deep = test_path(f->path, "a/b"), *file = test_path(f->path, "file");
    fsdp__directory found;
    char *name;

    CHECK_OK(fsdp__make_directories(deep));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__directory_make_path(deep, &found, NULL));
        fsdp__directory_close(&found);
    }
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__directory_of_target(file, &found, &name));
        fsdp__directory_close(&found);
        fsdp__free(name);
    }
}

/* ---- links of others ---- */

/* Whether a link of the owner is followed in a folder of another owner and mode: on the way, and at the end. */
static bool is_followed(const fixture *f, uid_t folder, mode_t mode, uid_t owner)
{
    char *link = test_path(f->path, "link"), *below = test_path(f->path, "link/x"), *name;
    fsdp__directory on_the_way, at_the_end;
    fsdp_status first, second;

    (void)unlink(link);
    CHECK_EQ(symlink(f->others, link), 0);
    CHECK_EQ(lchown(link, owner, owner), 0);
    CHECK_EQ(chown(f->path, folder, folder), 0);
    CHECK_EQ(chmod(f->path, mode), 0);
    first = fsdp__directory_of(below, &on_the_way, &name);
    fsdp__free(name);
    second = fsdp__directory_of_target(link, &at_the_end, &name);
    fsdp__free(name);
    CHECK_EQ(first, second);
    CHECK(first == FSDP_OK || first == FSDP_INVALID);
    if (first == FSDP_INVALID)
        CHECK_CONTAINS(fsdp_last_error(), "is a symbolic link that user");
    fsdp__directory_close(&on_the_way);
    fsdp__directory_close(&at_the_end);
    return first == FSDP_OK;
}

TEST_OF(a_link_of_another_is_followed_where_only_this_user_can_have_put_it, setup, teardown, fixture *f)
{
    needs_two_users();
    CHECK(is_followed(f, 0, 0755, OTHER));
    CHECK(is_followed(f, 0, 0777, 0));
    CHECK(is_followed(f, OTHER, 01777, 0));
    CHECK(is_followed(f, OTHER, 0755, 0));
    CHECK(!is_followed(f, OTHER, 01777, OTHER)); /* whoever owns the folder is another user, too */
    CHECK(!is_followed(f, OTHER, 0755, OTHER));
    CHECK(!is_followed(f, OTHER, 0700, OTHER - 1));
    CHECK(!is_followed(f, 0, 0777, OTHER));
    CHECK(!is_followed(f, 0, 01777, OTHER));
    CHECK(!is_followed(f, 0, 0775, OTHER));
    CHECK(!is_followed(f, OTHER, 0777, OTHER - 1));
}

/* ---- what is held ---- */

/* Another folder has its name by now. */
static void swap(const fixture *f, const char *name)
{
    char *path = test_path(f->path, name), *away = test_path(f->path, "away");

    CHECK_EQ(rename(path, away), 0);
    CHECK_EQ(symlink(f->others, path), 0);
}

TEST_OF(what_is_done_in_a_folder_stays_in_it, setup, teardown, fixture *f)
{
    char *away = test_path(f->path, "away"), *text;
    fsdp__directory held, no;
    size_t bytes;

    test_write_text(f->others, "a", "theirs");
    test_write_text(f->others, "b", "theirs");
    CHECK_OK(fsdp__directory_make(&f->held, "mine", 0700));
    CHECK_OK(fsdp__directory_enter(&f->held, "mine", &held));
    swap(f, "mine");
    CHECK_ERROR(fsdp__directory_enter(&f->held, "mine", &no), FSDP_IO, "cannot open '");
    CHECK(!fsdp__directory_has(&f->held, "mine", &held) && fsdp__directory_has(&f->held, "away", &held));
    CHECK_OK(fsdp__directory_write_new(&held, "a", "mine", 4));
    CHECK_OK(fsdp__directory_write_atomic(&held, "b", "mine", 4));
    CHECK_OK(fsdp__directory_rename(&held, "a", &held, "c", FSDP__RENAME_NEW));
    CHECK_OK(fsdp__directory_read(&held, "c", 10, &text, &bytes));
    CHECK_STRING(text, "mine");
    fsdp__free(text);
    check_text(away, "b", "mine");
    check_text(f->others, "a", "theirs");
    CHECK_OK(fsdp__directory_clear(&held, NULL, 0));
    CHECK(!fsdp__directory_remove_empty(&f->held, "mine", &held));
    CHECK(fsdp__directory_remove_empty(&f->held, "away", &held));
    check_text(f->others, "a", "theirs");
    check_text(f->others, "b", "theirs");
    fsdp__directory_close(&held);
}

TEST_OF(what_has_the_name_is_replaced_only_where_asked, setup, teardown, fixture *f)
{
    test_write_text(f->path, "a", "a");
    test_write_text(f->path, "b", "b");
    CHECK_ERROR(fsdp__directory_rename(&f->held, "a", &f->held, "b", FSDP__RENAME_NEW), FSDP_IO, "File exists");
    check_text(f->path, "b", "b");
    CHECK_OK(fsdp__directory_rename(&f->held, "a", &f->held, "b", FSDP__RENAME_REPLACES));
    check_text(f->path, "b", "a");
    CHECK_ERROR(fsdp__directory_rename(&f->held, "a", &f->held, "b", FSDP__RENAME_NEW), FSDP_NOT_FOUND,
                "cannot rename");
}

TEST_OF(a_clearing_follows_no_link_and_goes_no_deeper_than_it_may, setup, teardown, fixture *f)
{
    char *link = test_path(f->path, "link"), *deep = test_path(f->path, "a/b"), *a = test_path(f->path, "a");

    test_write_text(f->others, "x", "theirs");
    CHECK_EQ(symlink(f->others, link), 0);
    CHECK_OK(fsdp__make_directories(deep));
    test_write_text(a, "x", "mine");
    test_write_text(deep, "x", "kept");
    test_write_text(f->path, "lock", "kept");
    CHECK_ERROR(fsdp__directory_clear(&f->held, "lock", 1), FSDP_STATE, "holds 'b', which this program has not made");
    check_text(deep, "x", "kept");
    CHECK_OK(fsdp__directory_clear(&f->held, "lock", 2));
    CHECK(!fsdp__path_exists(a) && !fsdp__path_exists(link));
    check_text(f->path, "lock", "kept");
    check_text(f->others, "x", "theirs");
}

TEST_OF(a_removal_that_fails_names_the_entry, setup, teardown, fixture *f)
{
    char *a = test_path(f->path, "a"), *x = test_path(f->path, "a/x"), text[600];

    CHECK_OK(fsdp__make_directories(a));
    test_write_text(a, "x", "mine");
    fsdp__fault_set_act(FSDP__FAULT_FAILS, EACCES);
    fsdp__fault_arm(FSDP__FAULT_FOLDER, 2); /* after the try to unlink the folder */
    snprintf(text, sizeof text, "cannot remove '%s': Permission denied", x);
    CHECK_ERROR(fsdp__directory_clear(&f->held, NULL, 1), FSDP_IO, text);
    fsdp__fault_arm(FSDP__FAULT_FOLDER, 3);
    snprintf(text, sizeof text, "cannot remove '%s': Permission denied", a);
    CHECK_ERROR(fsdp__directory_clear(&f->held, NULL, 1), FSDP_IO, text);
    fsdp__fault_arm(FSDP__FAULT_FOLDER, 0);
    CHECK(!fsdp__path_exists(x));
}

TEST_OF(a_folder_whose_names_cannot_be_read_is_not_empty, setup, teardown, fixture *f)
{
    fsdp_status status;

    test_write_text(f->path, "x", "mine");
    test_fail_readdir(true);
    status = fsdp__directory_clear(&f->held, NULL, 1);
    test_fail_readdir(false);
    CHECK_ERROR(status, FSDP_IO, "cannot list '");
    CHECK_CONTAINS(fsdp_last_error(), "Input/output error");
    check_text(f->path, "x", "mine");
}

/* ---- what lies in it ---- */

/* Nobody writes to the FIFO: what waited for a writer would wait forever. */
TEST_OF(only_a_file_is_opened_to_be_read, setup, teardown, fixture *f)
{
    char *link = test_path(f->path, "link"), *fifo = test_path(f->path, "fifo");
    int fd = -1;

    test_write_text(f->path, "file", "x");
    CHECK_EQ(symlink("file", link), 0);
    CHECK_EQ(mkfifo(fifo, 0600), 0);
    CHECK_OK(fsdp__directory_make(&f->held, "folder", 0700));
    CHECK_OK(fsdp__directory_open_file(&f->held, "file", &fd, NULL));
    close(fd);
    CHECK_ERROR(fsdp__directory_open_file(&f->held, "link", &fd, NULL), FSDP_FORMAT, "link': it is not a regular file");
    CHECK_ERROR(fsdp__directory_open_file(&f->held, "fifo", &fd, NULL), FSDP_FORMAT, "fifo': it is not a regular file");
    CHECK_ERROR(fsdp__directory_open_file(&f->held, "folder", &fd, NULL), FSDP_FORMAT, "it is not a regular file");
    CHECK_ERROR(fsdp__directory_open_file(&f->held, "none", &fd, NULL), FSDP_NOT_FOUND, "cannot open '");
}

static bool is_appended(const fixture *f, const char *name)
{
    char *path = test_path(f->path, name);
    int fd = -1;
    fsdp_status status = fsdp__file_append(path, &fd);

    if (status == FSDP_OK)
        CHECK_EQ(write(fd, "+", 1), 1);
    if (fd >= 0 && status == FSDP_OK)
        close(fd);
    return status == FSDP_OK;
}

TEST_OF(nothing_is_written_behind_what_another_may_have_put_there, setup, teardown, fixture *f)
{
    char *file = test_path(f->others, "file"), *second = test_path(f->path, "second"),
         *fifo = test_path(f->path, "fifo");
    char *link = test_path(f->path, "link");

    test_write_text(f->others, "file", "x");
    CHECK_EQ(symlink(file, link), 0);
    CHECK(is_appended(f, "link"));
    check_text(f->others, "file", "x+");
    CHECK_EQ(linkat(AT_FDCWD, file, AT_FDCWD, second, 0), 0);
    CHECK(is_appended(f, "second"));
    CHECK_EQ(chmod(f->path, 0777), 0);
    CHECK(!is_appended(f, "second"));
    CHECK_CONTAINS(fsdp_last_error(), "or it has a second name, in a folder that others may write to");
    CHECK(is_appended(f, "new"));
    CHECK_EQ(mkfifo(fifo, 0666), 0);
    CHECK(!is_appended(f, "fifo")); /* nobody reads there: it does not wait */
    check_text(f->others, "file", "x++");
    check_text(f->path, "new", "+");
}

/* Of a file of the owner in a folder of mode: believed, and used. */
static void check_belief(const fixture *f, uid_t owner, mode_t mode, bool trusted, bool admitted)
{
    char *path = test_path(f->path, "file");
    struct stat info;

    test_write_text(f->path, "file", "x");
    CHECK_EQ(chown(path, owner, owner), 0);
    CHECK_EQ(chmod(f->path, mode), 0);
    CHECK(fsdp__directory_look(&f->held, "file", &info));
    CHECK_EQ(fsdp__directory_trusts(&f->held, &info), trusted);
    CHECK_EQ(fsdp__directory_admits(&f->held, &info), admitted);
}

TEST_OF(a_file_of_another_is_not_believed, setup, teardown, fixture *f)
{
    char *path = test_path(f->path, "file"), *second = test_path(f->path, "second");

    needs_two_users();
    check_belief(f, 0, 0777, true, true);
    check_belief(f, OTHER, 0777, false, false);
    check_belief(f, OTHER, 0755, false, true);
    CHECK_EQ(chown(f->path, OTHER, OTHER), 0);
    check_belief(f, OTHER, 0777, false, false);
    check_belief(f, OTHER, 0755, false, false);
    check_belief(f, 0, 0755, true, true);
    CHECK_EQ(chown(f->path, 0, 0), 0);
    CHECK_EQ(link(path, second), 0);
    check_belief(f, 0, 0755, true, true);
    check_belief(f, 0, 0775, false, false);
}

/* ---- making and failing ---- */

TEST_OF(a_new_file_is_never_one_that_was_there, setup, teardown, fixture *f)
{
    CHECK_OK(fsdp__directory_write_new(&f->held, "new", "one", 3));
    CHECK_ERROR(fsdp__directory_write_new(&f->held, "new", "two", 3), FSDP_IO, "new': File exists");
    check_text(f->path, "new", "one");
    CHECK_OK(fsdp__directory_unlink(&f->held, "new"));
    CHECK_OK(fsdp__directory_unlink(&f->held, "new"));
    CHECK_OK(fsdp__directory_make(&f->held, "folder", 0700));
    CHECK_ERROR(fsdp__directory_unlink(&f->held, "folder"), FSDP_IO, "cannot remove '");
}

TEST_OF(what_happens_at_a_use_can_be_chosen, setup, teardown, fixture *f)
{
    fsdp__fault_set_act(FSDP__FAULT_FAILS, EROFS);
    fsdp__fault_arm(FSDP__FAULT_WRITE, 2);
    CHECK_ERROR(fsdp__directory_write_new(&f->held, "new", "whole text", 10), FSDP_IO,
                "Read-only file system at byte 0");
    CHECK_OK(fsdp__directory_unlink(&f->held, "new"));
    fsdp__fault_set_act(FSDP__FAULT_SHORTENS, 0);
    fsdp__fault_arm(FSDP__FAULT_WRITE, 2);
    CHECK_OK(fsdp__directory_write_new(&f->held, "new", "whole text", 10));
    CHECK(fsdp__fault_hit(FSDP__FAULT_WRITE));
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    check_text(f->path, "new", "whole text");
    fsdp__fault_set_act(FSDP__FAULT_FAILS, EIO);
    fsdp__fault_arm(FSDP__FAULT_FOLDER, 1);
    CHECK_ERROR(fsdp__directory_unlink(&f->held, "new"), FSDP_IO, "Input/output error");
    fsdp__fault_arm(FSDP__FAULT_FOLDER, 1);
    CHECK_ERROR(fsdp__directory_sync_removals(&f->held), FSDP_IO, "cannot sync '");
    fsdp__fault_arm(FSDP__FAULT_FOLDER, 0);
    fsdp__fault_set_act(FSDP__FAULT_FAILS, ENOSPC);
}

/* In a process of its own, which a use kills. */
static void kill_at(const fixture *f, fsdp__fault_act act, long nth)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        fsdp__fault_set_act(act, 0);
        fsdp__fault_arm(FSDP__FAULT_WRITE, nth);
        (void)fsdp__directory_write_new(&f->held, "new", "whole text", 10);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_OF(a_process_can_be_killed_at_a_use, setup, teardown, fixture *f)
{
    kill_at(f, FSDP__FAULT_KILLS, 1);
    check_text(f->path, "new", NULL);
    kill_at(f, FSDP__FAULT_KILLS, 2);
    check_text(f->path, "new", "");
    CHECK_OK(fsdp__directory_unlink(&f->held, "new"));
    kill_at(f, FSDP__FAULT_KILLS_HALF, 2);
    check_text(f->path, "new", "whol");
}
