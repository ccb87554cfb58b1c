/* A replacement that was interrupted: who reads, finishes and repairs it, and that it leads nowhere else. */
#include "format/journal.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "format/garden.h"
#include "support/test.h"

/* Everything stands ready, and the journal is in the folder. */
static void interrupt(garden *g)
{
    fsdp__journal journal = {0};
    char *staging = test_path(g->folder, FSDP__STAGING_NAME), *content = test_path(staging, "new");
    fsdp__directory folder, held;

    CHECK_OK(fsdp__make_directories(content));
    test_write_text(staging, "held-by", "process 1");
    test_write_text(content, "gate", "yellow");
    test_write_text(content, "tulips", "yellow");
    CHECK_OK(fsdp__file_list_add(&journal.fresh, "tulips", 6));
    CHECK_OK(fsdp__file_list_add(&journal.fresh, "gate", 6));
    CHECK_OK(fsdp__file_list_add(&journal.gone, "roses", 3));
    CHECK_OK(fsdp__directory_open(g->folder, &folder));
    CHECK_OK(fsdp__directory_open(staging, &held));
    CHECK_OK(fsdp__journal_write(&journal, &folder, &held));
    fsdp__directory_close(&held);
    fsdp__directory_close(&folder);
    fsdp__journal_release(&journal);
}

TEST(an_interrupted_replacement_is_refused_and_finished)
{
    garden g = garden_create();
    bool finished = true;

    CHECK_OK(garden_plant(&g, "roses", "red"));
    CHECK_OK(fsdp__publish_repair(g.folder, &finished));
    CHECK(!finished);
    CHECK_OK(fsdp__journal_check(g.folder));
    interrupt(&g);
    CHECK_ERROR(fsdp__journal_check(g.folder), FSDP_STATE, ": fsdp repair ");
    CHECK_OK(fsdp__publish_repair(g.folder, &finished));
    CHECK(finished);
    garden_check(&g, "tulips", "yellow");
    garden_check_file(g.folder, "roses", NULL);
    /* The next one does it too: the list is not of these files, but by then the folder is whole. */
    test_write_text(g.folder, "roses", "red");
    interrupt(&g);
    g.options.overwrite = true;
    CHECK_OK(garden_begin(&g));
    garden_check_file(g.folder, "gate", "yellow");
    garden_check_file(g.folder, FSDP__JOURNAL_NAME, NULL);
    CHECK_ERROR(fsdp__publish_repair("/nonexistent", &finished), FSDP_NOT_FOUND, "there is no such folder");
    garden_free(&g);
}

TEST(a_replacement_without_its_files_is_named)
{
    garden g = garden_create();
    char *staging = test_path(g.folder, FSDP__STAGING_NAME);
    bool finished = true;

    CHECK_OK(garden_plant(&g, "roses", "red"));
    interrupt(&g);
    test_remove_tree(staging);
    CHECK_ERROR(fsdp__publish_repair(g.folder, &finished), FSDP_STATE, "'tulips' is missing");
    CHECK(!finished);
    garden_check_file(g.folder, "roses", "red");
    garden_free(&g);
}

/* A folder from elsewhere, with a journal that would move files to where a link leads, and from there. */
TEST(a_replacement_leads_nowhere_else)
{
    static const char *const names[] = {"old", "new"};
    bool finished = true;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        garden g = garden_create();
        char *staging = test_path(g.folder, FSDP__STAGING_NAME), *link = test_path(staging, names[i]);
        char *others = test_path(g.directory, "others");

        CHECK_OK(garden_plant(&g, "roses", "red"));
        CHECK_OK(fsdp__make_directories(others));
        test_write_text(others, "roses", "theirs");
        test_write_text(others, "gate", "theirs");
        interrupt(&g);
        test_remove_tree(link);
        CHECK_EQ(symlink(others, link), 0);
        CHECK_ERROR(fsdp__publish_repair(g.folder, &finished), FSDP_FORMAT, "is not a folder, so no save has left it");
        CHECK(!finished);
        CHECK_ERROR(garden_begin(&g), FSDP_FORMAT, "is not a folder");
        garden_check_file(others, "roses", "theirs");
        garden_check_file(others, "gate", "theirs");
        garden_check_file(g.folder, "roses", "red");
        garden_check_file(g.folder, "gate", "red");
        garden_free(&g);
    }
}
