/* A folder published whole: what may be replaced, what stays, who holds it, and that undoing brings the old one back.
 */
#include "format/publish.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "format/free_space.h"
#include "format/garden.h"
#include "format/journal.h"
#include "support/calls.h"
#include "support/test.h"

/* ---- where ---- */

TEST(a_new_folder_takes_its_name_at_the_end)
{
    garden g = garden_create();

    CHECK_OK(garden_begin(&g));
    CHECK(!fsdp__path_exists(g.folder));
    CHECK_OK(garden_plant(&g, "roses", "red"));
    garden_check(&g, "roses", "red");
    garden_free(&g);
}

TEST(one_that_must_be_new_replaces_nothing)
{
    garden g = garden_create();
    char *list = test_path(g.folder, FSDP__LIST_NAME);

    g.options.only_new = true;
    CHECK_OK(garden_begin(&g));
    CHECK_OK(fsdp__make_directories(g.folder)); /* also one that comes in the meantime, empty as it is */
    CHECK_ERROR(fsdp__publication_commit(g.publication), FSDP_STATE, "it exists already");
    CHECK_ERROR(garden_begin(&g), FSDP_STATE, "it exists already, and is never overwritten");
    test_remove_tree(g.folder);
    CHECK_OK(garden_begin(&g));
    CHECK_OK(garden_plant(&g, "roses", "red"));
    CHECK(!fsdp__path_exists(list));
    garden_free(&g);
}

TEST(what_is_given_up_goes_with_the_folders_made_for_it)
{
    garden g = garden_create();
    char *deep = test_path(g.directory, "a/b/c"), *top = test_path(g.directory, "a");
    char *beside = test_path(g.directory, "a/b/c.saving");

    g.options.folder = deep;
    CHECK_OK(garden_begin(&g));
    CHECK(fsdp__path_exists(beside));
    CHECK_OK(fsdp__publication_held(g.publication));
    fsdp__publication_abandon(g.publication);
    CHECK_ERROR(fsdp__publication_held(g.publication), FSDP_INTERRUPTED, "it was given up");
    CHECK(!fsdp__path_exists(top));
    CHECK_ERROR(fsdp__publication_commit(g.publication), FSDP_INTERRUPTED, "it was given up");
    CHECK(!fsdp__path_exists(top));
    garden_free(&g);
}

TEST(a_link_is_followed_and_stays)
{
    garden g = garden_create();
    char *link = test_path(g.directory, "link");
    struct stat info;

    CHECK(mkdir(g.folder, 0755) == 0 && symlink(g.folder, link) == 0);
    g.options.folder = link;
    CHECK_OK(garden_plant(&g, "roses", "red"));
    garden_check(&g, "roses", "red");
    CHECK(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
    garden_free(&g);
}

TEST(what_is_no_folder_is_refused)
{
    garden g = garden_create();
    char *file = test_path(g.directory, "file"), *below = test_path(g.directory, "file/garden");
    char *dangling = test_path(g.directory, "dangling");

    test_write_file(file, "x", 1);
    CHECK(symlink("/nonexistent/x", dangling) == 0);
    g.options.folder = file;
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "it exists and is not a folder");
    g.options.folder = below;
    CHECK_ERROR(garden_begin(&g), FSDP_IO, "a file of that name exists");
    g.options.folder = dangling;
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "a symbolic link to something that does not exist");
    g.options.folder = "/proc/none/garden";
    CHECK_ERROR(garden_begin(&g), FSDP_NOT_FOUND, "cannot write the garden to '/proc/none/garden'");
    g.options.folder = "";
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "its name is empty");
    garden_free(&g);
}

TEST(the_folder_that_is_read_from_is_not_written_to)
{
    garden g = garden_create();
    char *link = test_path(g.directory, "link"), *in_view = test_path(link, "roses");

    CHECK_OK(garden_plant(&g, "roses", "red"));
    CHECK(symlink(g.folder, link) == 0);
    g.options.source = link;
    g.options.overwrite = true;
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "the files are read from this folder");
    /* A folder of links, as a view of another. */
    CHECK_EQ(unlink(link), 0);
    CHECK_EQ(mkdir(link, 0777), 0);
    CHECK_EQ(symlink("../garden/roses", in_view), 0);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "its files are read, through a link in '");
    garden_check(&g, "roses", "red");
    CHECK_EQ(unlink(in_view), 0);
    CHECK_EQ(symlink("../nowhere", in_view), 0);
    CHECK_OK(garden_plant(&g, "roses", "white"));
    garden_free(&g);
}

/* ---- what goes and what stays ---- */

TEST(what_an_export_wrote_is_replaced_and_the_rest_stays)
{
    garden g = garden_create();
    struct stat before, after;

    CHECK_OK(garden_plant(&g, "roses", "red"));
    test_write_text(g.folder, "README", "mine");
    CHECK(stat(g.folder, &before) == 0);
    CHECK_OK(garden_plant(&g, "tulips", "yellow"));
    garden_check(&g, "tulips", "yellow");
    garden_check_file(g.folder, "roses", NULL);
    garden_check_file(g.folder, "README", "mine");
    CHECK(stat(g.folder, &after) == 0 && before.st_ino == after.st_ino);
    /* A name that the export did not write is somebody else's, whenever it comes. */
    CHECK_OK(garden_begin(&g));
    garden_add(&g, "README", "new");
    CHECK_ERROR(fsdp__publication_commit(g.publication), FSDP_INVALID, "it holds 'README', which no export wrote");
    garden_check_file(g.folder, "README", "mine");
    garden_free(&g);
}

/* The folder that goes up would be made, and lead to what nobody has looked at. */
TEST(a_path_up_from_a_folder_that_does_not_exist_is_refused)
{
    garden g = garden_create();
    char *none = test_path(g.directory, "none");

    CHECK_OK(garden_plant(&g, "roses", "red"));
    test_write_text(g.folder, "README", "mine");
    g.options.folder = test_path(g.directory, "none/../garden");
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "/none', which does not exist: write it without");
    CHECK(!fsdp__path_exists(none));
    CHECK_OK(fsdp__make_directories(none));
    CHECK_OK(garden_plant(&g, "tulips", "yellow"));
    garden_check_file(g.folder, "README", "mine");
    garden_free(&g);
}

TEST(a_folder_that_comes_in_the_meantime_gets_the_content)
{
    garden g = garden_create();

    CHECK_OK(garden_begin(&g));
    CHECK_OK(fsdp__make_directories(g.folder));
    test_write_text(g.folder, "log", "theirs");
    garden_add(&g, "gate", "red");
    garden_add(&g, "roses", "red");
    CHECK_OK(fsdp__publication_commit(g.publication));
    garden_check(&g, "roses", "red");
    garden_check_file(g.folder, "log", "theirs");
    garden_free(&g);
}

TEST(what_was_changed_since_is_refused)
{
    garden g = garden_create();

    CHECK_OK(garden_plant(&g, "roses", "red"));
    test_write_text(g.folder, "roses", "Red");
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "it holds 'roses', which was changed after");
    test_write_text(g.folder, "roses", "red");
    CHECK_OK(garden_begin(&g));
    test_write_text(g.folder, "roses", "dark red");
    CHECK_ERROR(
        garden_begin(&g), FSDP_INVALID,
        "it holds 'roses', which was changed after the export that wrote it: name another folder, or set please");
    garden_check_file(g.folder, "roses", "dark red");
    garden_check_file(g.folder, FSDP__STAGING_NAME, NULL);
    g.options.overwrite = true;
    CHECK_OK(garden_plant(&g, "roses", "white"));
    garden_check(&g, "roses", "white");
    /* Also when it happens in the meantime. */
    g.options.overwrite = false;
    CHECK_OK(garden_begin(&g));
    test_write_text(g.folder, "roses", "dark red");
    garden_add(&g, "gate", "new");
    CHECK_ERROR(fsdp__publication_commit(g.publication), FSDP_INVALID, "it holds 'roses', which was changed after");
    garden_check_file(g.folder, "gate", "white");
    garden_free(&g);
}

TEST(other_folders_are_refused_or_lose_the_same_names_only)
{
    garden g = garden_create();
    char *list = test_path(g.folder, FSDP__LIST_NAME);
    const fsdp__file_list none = {0};

    CHECK(mkdir(g.folder, 0755) == 0);
    test_write_text(g.folder, "gate", "theirs");
    test_write_text(g.folder, "letters", "theirs");
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "it holds 'gate', which no export wrote");
    garden_check_file(g.folder, FSDP__STAGING_NAME, NULL);
    g.options.overwrite = true;
    CHECK_OK(garden_plant(&g, "roses", "red"));
    garden_check(&g, "roses", "red");
    garden_check_file(g.folder, "letters", "theirs");
    /* A folder goes in no case, not even one of the list's name. */
    test_remove_tree(list);
    CHECK(mkdir(list, 0755) == 0);
    test_write_text(list, "diary", "theirs");
    CHECK_OK(garden_begin(&g));
    CHECK_ERROR(fsdp__publication_check(g.publication, &none), FSDP_INVALID, "it holds a folder '" FSDP__LIST_NAME "'");
    CHECK_ERROR(garden_plant(&g, "roses", "white"), FSDP_INVALID, "it holds a folder '" FSDP__LIST_NAME "'");
    garden_check_file(list, "diary", "theirs");
    garden_free(&g);
}

TEST(what_would_be_read_in_place_of_the_new_is_refused)
{
    garden g = garden_create();
    char *folder = test_path(g.folder, "tulips");

    CHECK(mkdir(g.folder, 0755) == 0);
    test_write_text(g.folder, "roses.index", "theirs");
    g.options.overwrite = true;
    CHECK_ERROR(garden_plant(&g, "roses", "red"), FSDP_INVALID,
                "it holds 'roses.index', which would stay beside the new");
    garden_check_file(g.folder, "roses", NULL);
    test_remove_tree(g.folder);
    CHECK(mkdir(g.folder, 0755) == 0 && mkdir(folder, 0755) == 0);
    CHECK_ERROR(garden_plant(&g, "tulips", "red"), FSDP_INVALID, "it holds a folder 'tulips', where a file is to be");
    garden_free(&g);
}

TEST(a_list_that_leads_out_of_the_folder_is_refused)
{
    static const char text[] = "{\"version\": 1, \"files\": [{\"name\": \"../letters\", \"bytes\": 6}]}";
    garden g = garden_create();

    test_write_text(g.directory, "letters", "theirs");
    CHECK(mkdir(g.folder, 0755) == 0);
    test_write_text(g.folder, FSDP__LIST_NAME, text);
    CHECK_ERROR(garden_begin(&g), FSDP_FORMAT, "file 1 has no name and size");
    garden_check_file(g.directory, "letters", "theirs");
    garden_free(&g);
}

/* ---- who else is there ---- */

TEST(the_second_is_told_who_holds_the_folder)
{
    garden g = garden_create();
    fsdp__publication *first;
    char words[64];

    snprintf(words, sizeof words, "another run writes there: process %d on ", (int)getpid());
    for (int exists = 0; exists < 2; exists++) {
        CHECK_OK(exists ? fsdp__make_directories(g.folder) : FSDP_OK);
        CHECK_OK(garden_begin(&g));
        first = g.publication;
        g.publication = NULL;
        CHECK_ERROR(garden_begin(&g), FSDP_STATE, words);
        /* One that began before the folder was there holds it too. */
        CHECK_OK(fsdp__make_directories(g.folder));
        CHECK_ERROR(garden_begin(&g), FSDP_STATE, words);
        fsdp__publication_free(first);
        CHECK_OK(garden_begin(&g));
        fsdp__publication_free(g.publication);
        g.publication = NULL;
        test_remove_tree(g.folder);
    }
    garden_free(&g);
}

/* A process that begins and is killed. */
static void die_holding(garden *g)
{
    int status = 0;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        if (garden_begin(g) == FSDP_OK)
            garden_add(g, "roses", "half");
        kill(getpid(), SIGKILL);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

TEST(a_child_of_fork_leaves_its_parents_publication_alone)
{
    garden g = garden_create();
    int status = 0;
    pid_t child;

    for (int old = 0; old < 2; old++) { /* a new folder, then one that is replaced */
        CHECK_OK(garden_begin(&g));
        garden_add(&g, "gate", "green");
        garden_add(&g, "roses", old ? "red" : "white");
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            fsdp__publication_free(g.publication);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK_OK(fsdp__publication_commit(g.publication));
        garden_check_file(g.folder, "roses", old ? "red" : "white");
    }
    garden_free(&g);
}

TEST(what_a_dead_process_left_is_removed)
{
    garden g = garden_create();
    char *beside = test_path(g.directory, "garden.saving"), *inside = test_path(g.folder, FSDP__STAGING_NAME);

    die_holding(&g);
    CHECK(fsdp__path_exists(beside));
    CHECK_OK(garden_plant(&g, "tulips", "yellow"));
    garden_check(&g, "tulips", "yellow");
    garden_check_file(g.folder, "roses", NULL);
    die_holding(&g);
    CHECK(fsdp__path_exists(inside));
    CHECK_OK(garden_plant(&g, "tulips", "white"));
    garden_check(&g, "tulips", "white");
    /* Left when there was no folder, found when there is one. */
    test_remove_tree(g.folder);
    die_holding(&g);
    CHECK_OK(fsdp__make_directories(g.folder));
    CHECK_OK(garden_plant(&g, "tulips", "red"));
    garden_check(&g, "tulips", "red");
    garden_free(&g);
}

TEST(a_folder_of_the_temporary_name_that_is_not_ours_stays)
{
    garden g = garden_create();
    char *beside = test_path(g.directory, "garden.saving");
    struct stat info;

    CHECK(mkdir(beside, 0700) == 0 && chmod(beside, 0755) == 0);
    test_write_text(beside, "letters", "theirs");
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID,
                "garden.saving' is in the way: its name is needed for a temporary folder, and holds files that no save "
                "has made: name another folder");
    garden_check_file(beside, "letters", "theirs");
    CHECK(stat(beside, &info) == 0);
    CHECK_EQ(info.st_mode & 0777, 0755);
    garden_free(&g);
}

TEST(a_folder_that_cannot_be_read_to_its_end_is_not_empty)
{
    garden g = garden_create();
    char *beside = test_path(g.directory, "garden.saving");
    fsdp_status status;

    CHECK_OK(fsdp__make_directories(g.folder));
    test_write_text(g.folder, "letters", "mine");
    test_fail_readdir(true);
    status = garden_begin(&g);
    test_fail_readdir(false);
    CHECK_ERROR(status, FSDP_IO, "cannot list '");
    garden_check_file(g.folder, "letters", "mine");
    test_remove_tree(g.folder);
    CHECK_OK(fsdp__make_directories(beside));
    test_write_text(beside, "letters", "mine");
    test_fail_readdir(true);
    status = garden_begin(&g);
    test_fail_readdir(false);
    CHECK_ERROR(status, FSDP_INVALID, "garden.saving' is in the way");
    garden_free(&g);
}

/* ---- room ---- */

TEST(what_cannot_be_held_is_refused_before)
{
    garden g = garden_create();
    struct rlimit limit, less;
    fsdp__file_list files = {0};

    CHECK_OK(garden_begin(&g));
    CHECK_OK(fsdp__file_list_add(&files, "roses", 1000000));
    CHECK_OK(fsdp__publication_check(g.publication, &files));
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    less = (struct rlimit){.rlim_cur = 4096, .rlim_max = limit.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &less) == 0);
    CHECK_ERROR(fsdp__publication_check(g.publication, &files), FSDP_IO,
                "'roses' has 1000000 bytes, and a file may have 4096: raise the limit (ulimit -f)");
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_OK(fsdp__file_list_add(&files, "trees", (uint64_t)1 << 60));
    CHECK_ERROR(fsdp__publication_check(g.publication, &files), FSDP_IO,
                "it needs 1048576.00TiB, and its file system has ");
    fsdp__file_list_release(&files);
    garden_free(&g);
}

TEST(files_take_whole_blocks)
{
    fsdp__file_list files = {0};

    CHECK_OK(fsdp__file_list_add(&files, "a", 1));
    CHECK_OK(fsdp__file_list_add(&files, "b", 4096));
    CHECK_OK(fsdp__file_list_add(&files, "c", 4097));
    CHECK_OK(fsdp__file_list_add(&files, "d", 0));
    CHECK_EQ(fsdp__room_needed(&files, 4096), 4 * 4096);
    CHECK_EQ(fsdp__room_needed(&files, 1), 1 + 4096 + 4097);
    fsdp__file_list_release(&files);
}

/* Whether there is a journal is not known then, but that there is a wrong one would be a guess. */
TEST(without_descriptors_the_limit_is_named)
{
    char *directory = test_directory();
    struct rlimit limit, none;
    fsdp__journal journal = {0};
    fsdp__directory held;

    CHECK_OK(fsdp__directory_open(directory, &held));
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK_ERROR(fsdp__journal_read(&journal, &held), FSDP_IO, "Too many open files; 'ulimit -n' says");
    CHECK_ERROR(fsdp__journal_check(directory), FSDP_IO, "Too many open files; 'ulimit -n' says");
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    fsdp__journal_release(&journal);
    fsdp__directory_close(&held);
}

/* ---- failures and interruptions ---- */

TEST(a_failed_write_leaves_the_old_one)
{
    garden g = garden_create();
    bool hit = true;

    CHECK_OK(garden_plant(&g, "roses", "red"));
    for (long n = 1; hit; n++) {
        fsdp_status status;

        fsdp__fault_arm(FSDP__FAULT_WRITE, n);
        status = garden_plant(&g, "tulips", "yellow");
        hit = fsdp__fault_hit(FSDP__FAULT_WRITE);
        fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
        fsdp__publication_abandon(g.publication);
        CHECK_EQ(status != FSDP_OK, hit);
        garden_check(&g, hit ? "roses" : "tulips", hit ? "red" : "yellow");
    }
    garden_free(&g);
}

/* A folder that comes behind the end would be nobody's, and in the way of the next publication for ever. */
TEST(no_scratch_is_made_for_what_was_given_up)
{
    garden g = garden_create();
    char *beside = test_path(g.directory, "garden.saving");
    fsdp__directory scratch, again;

    CHECK_OK(garden_begin(&g));
    CHECK_OK(fsdp__publication_scratch(g.publication, "seeds", &scratch));
    CHECK(fsdp__path_exists(scratch.path));
    CHECK_ERROR(fsdp__publication_scratch(g.publication, "seeds", &again), FSDP_IO, "File exists");
    CHECK_NULL(again.path);
    fsdp__publication_abandon(g.publication);
    CHECK_ERROR(fsdp__publication_scratch(g.publication, "seeds", &again), FSDP_INTERRUPTED, "it was given up");
    CHECK_NULL(again.path);
    CHECK(!fsdp__path_exists(beside));
    CHECK_OK(garden_plant(&g, "roses", "red"));
    garden_check(&g, "roses", "red");
    garden_free(&g);
    fsdp__directory_close(&scratch);
}

static void *abandon(void *arg)
{
    fsdp__publication_abandon(arg);
    return NULL;
}

/* A signal comes at any time: there is the one or the other, and no rest. */
TEST(giving_up_from_another_thread_waits_for_the_exchange)
{
    garden g = garden_create();

    CHECK_OK(garden_plant(&g, "roses", "red"));
    for (int i = 0; i < 30; i++) {
        bool was_new = false;
        pthread_t thread;
        char *tulips = test_path(g.folder, "tulips");

        CHECK_OK(garden_begin(&g));
        garden_add(&g, "gate", "yellow");
        garden_add(&g, "tulips", "yellow");
        CHECK(pthread_create(&thread, NULL, abandon, g.publication) == 0);
        was_new = fsdp__publication_commit(g.publication) == FSDP_OK;
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK_EQ(fsdp__path_exists(tulips), was_new);
        garden_check(&g, was_new ? "tulips" : "roses", was_new ? "yellow" : "red");
        if (was_new)
            CHECK_OK(garden_plant(&g, "roses", "red"));
    }
    garden_free(&g);
}
