/* The power goes at any call of a publication, and the disk keeps of what was not waited for whatever it likes: the
 * folder is the old one or the new one, whole, once a repair has finished what a journal says; it is the new one when
 * that was reported; and the next publication finds nothing in its way. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "faults/tree.h"
#include "format/garden.h"
#include "format/journal.h"
#include "support/disk.h"
#include "support/test.h"

enum {
    LUCKS = 40,
    BRIEF_LUCKS = 10
};

/* What was there, and what comes. */
typedef struct scenario {
    const char *old_flower, *new_flower; /* old: NULL: there is no folder */
} scenario;

static fsdp_status plant(garden *g, const char *flower, const char *text)
{
    const char *const names[] = {"gate", flower};

    fsdp__directory content;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(garden_begin(g));
    FSDP_TRY(fsdp__publication_content(g->publication, &content));
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = fsdp__directory_write_new(&content, names[i], text, strlen(text));
    fsdp__directory_close(&content);
    FSDP_TRY(status);
    return fsdp__publication_commit(g->publication);
}

static bool has(const char *folder, const char *name)
{
    char *path = test_path(folder, name);
    bool there = fsdp__path_exists(path);

    return there;
}

/* Whole, and one of the two. */
static void check_content(const scenario *s, const char *folder, bool reported)
{
    bool new = has(folder, s->new_flower), old = s->old_flower &&has(folder, s->old_flower), finished;
    char *gate = test_path(folder, "gate"), *text = NULL;

    if (has(folder, FSDP__JOURNAL_NAME)) {
        CHECK_OK(fsdp__publish_repair(folder, &finished));
        CHECK(finished);
        new = true;
        old = s->old_flower && has(folder, s->old_flower);
    }
    CHECK(new || !reported);
    CHECK(new || old || (!s->old_flower && !fsdp__path_exists(folder)));
    if (new || old) {
        text = test_read_file(gate, NULL);
        new = strcmp(text, "new") == 0;
        CHECK(new || !reported);
        CHECK_STRING(text, new ? "new" : "old");
        garden_check_file(folder, new ? s->new_flower : s->old_flower, text);
        if (s->old_flower && strcmp(s->old_flower, s->new_flower) != 0)
            garden_check_file(folder, new ? s->old_flower : s->new_flower, NULL);
    }
}

static void try_cut(const scenario *s, garden *cut, const disk *d, int calls, int luck, bool reported)
{
    disk_cut(d, calls, luck, cut->directory);
    check_content(s, cut->folder, reported);
    CHECK_OK(plant(cut, "lilies", "next"));
    garden_check(cut, "lilies", "next");
    garden_check_file(cut->folder, s->new_flower, NULL);
    test_remove_tree(cut->directory);
}

/* A garden of the new flower is published over the old one, and cut. */
static int sweep(const scenario *s)
{
    garden g = garden_create(), cut = garden_create();
    char *watched, *left;
    disk *d;
    int reported, tried = 0, lucks = test_brief() ? BRIEF_LUCKS : LUCKS;

    CHECK_EQ(rmdir(cut.directory), 0);
    if (s->old_flower)
        CHECK_OK(plant(&g, s->old_flower, "old"));
    d = disk_record(g.directory);
    CHECK_OK(plant(&g, s->new_flower, "new"));
    reported = disk_calls(d);
    disk_stop();
    watched = tree_text(g.directory, NULL);
    disk_cut(d, d->count, DISK_ALL, cut.directory);
    left = tree_text(cut.directory, NULL);
    CHECK_STRING(left, watched); /* the recording lacks nothing */
    test_remove_tree(cut.directory);
    for (int calls = 0; calls <= d->count; calls++)
        for (int luck = 0; luck < (disk_is_sure(d, calls) ? 1 : lucks); luck++, tried++)
            try_cut(s, &cut, d, calls, luck, calls >= reported);
    CHECK_EQ(mkdir(cut.directory, 0777), 0);
    disk_free(d);
    free(left);
    free(watched);
    garden_free(&cut);
    garden_free(&g);
    return tried;
}

TEST(any_cut_leaves_the_old_folder_or_the_new_one)
{
    static const scenario all[] = {{NULL, "roses"}, {"roses", "tulips"}, {"roses", "roses"}, {"tulips", "roses"}};
    int tried = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tried += sweep(&all[i]);
    printf("cut at %d points\n", tried);
    CHECK(tried > 1000);
}

TEST_FILE_IN_MEMORY(false, NULL)
