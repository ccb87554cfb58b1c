/* The power goes at any call of a save, and the disk keeps of what was not waited for whatever it likes: the newest
 * checkpoint, or the one before, loads to the bit, the newest one does when the save was reported, and the next save
 * finds nothing in its way. */
#include "base/file.h"
#include "checkpoint/scene.h"
#include "faults/tree.h"
#include "support/disk.h"

enum {
    LUCKS = 9,
    SPARSE = 23 /* of the cuts, every so manyth in the quick version */
};

typedef struct stage {
    scene_saving what;
    char *directory, *watched, *folder; /* the folder is in the watched one, and not there where nothing was saved */
    char *cut, *cut_folder;             /* what is left of them */
    disk *disk;
    int reported[SCENE_SAVING_RANKS]; /* calls until each rank was told that the checkpoint is there */
} stage;

static stage stage_create(const scene_saving *what)
{
    stage s = {.what = *what, .directory = test_directory()};
    fsdp_context *context = test_context();

    s.watched = test_path(s.directory, "watched");
    s.folder = test_path(s.watched, "runs/checkpoints");
    s.cut = test_path(s.directory, "cut");
    s.cut_folder = test_path(s.cut, "runs/checkpoints");
    CHECK_OK(fsdp__make_directories(s.watched));
    if (what->later)
        scene_save_to(s.folder, context, SCENE_ROWS, 1, 1);
    fsdp_context_free(context);
    return s;
}

static void stage_free(stage *s)
{
    disk_free(s->disk);
    test_directory_free(s->directory);
}

static void save(fsdp_context *context, void *arg)
{
    stage *s = arg;
    const fsdp_checkpoint_saver_options options = {.async = s->what.async, .keep_latest_k = s->what.later};
    fsdp_checkpoint_saver *saver = NULL;
    scene_content c;

    scene_content_create(&c, context, s->what.layout, 2, 2);
    CHECK_OK(fsdp_checkpoint_saver_create(s->folder, &options, fsdp_world(context), &saver));
    CHECK_OK(fsdp_checkpoint_saver_save(saver, &c.content));
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
    s->reported[fsdp_context_rank(context)] = disk_calls(s->disk);
    fsdp_checkpoint_saver_free(saver);
    scene_content_free(&c);
}

/* That the recording lacks nothing. */
static void check_recording(const stage *s)
{
    char *watched = tree_text(s->watched, NULL), *cut;

    disk_cut(s->disk, s->disk->count, DISK_ALL, s->cut);
    cut = tree_text(s->cut, NULL);
    CHECK_STRING(cut, watched);
    test_remove_tree(s->cut);
    free(cut);
    free(watched);
}

static int first_report(const stage *s)
{
    int first = s->reported[0];

    for (int r = 1; r < s->what.world; r++)
        first = s->reported[r] < first ? s->reported[r] : first;
    return first;
}

static void try_cut(const stage *s, int calls, int luck)
{
    fsdp_context *context = test_context();

    disk_cut(s->disk, calls, luck, s->cut);
    if (calls >= first_report(s)) {
        char *path = NULL;

        CHECK_OK(fsdp_checkpoint_find(s->cut_folder, 2, &path));
        free(path);
    }
    scene_check_newest(s->cut_folder, context, s->what.later);
    scene_check_next(s->cut_folder, context);
    test_remove_tree(s->cut);
    fsdp_context_free(context);
}

/* `*seen` counts all, also those that are left out. */
static int sweep(const scene_saving *what, int *seen)
{
    stage s = stage_create(what);
    int tried = 0;

    s.disk = disk_record(s.watched);
    test_run_ranks(what->world, save, &s);
    disk_stop();
    check_recording(&s);
    CHECK(s.disk->count > 20);
    for (int calls = 0; calls <= s.disk->count; calls++) {
        int lucks = disk_is_sure(s.disk, calls) ? 1 : LUCKS;

        for (int luck = 0; luck < lucks; luck++) {
            if (!test_long() && (*seen)++ % SPARSE != 0 && calls < s.disk->count)
                continue;
            try_cut(&s, calls, luck);
            tried++;
        }
    }
    stage_free(&s);
    return tried;
}

TEST(any_cut_leaves_the_newest_or_the_one_before)
{
    int tried = scene_each_saving(sweep);

    printf("cut at %d points\n", tried);
    CHECK(tried > (test_long() ? 1000 : 50));
}

TEST_FILE_IN_MEMORY(false, NULL)
