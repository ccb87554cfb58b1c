/* The power goes at any call of a save of a model, and the disk keeps of what was not waited for whatever it likes: the
 * folder has the bytes of the old model or of the new one, every file, once a repair has finished what was begun; and
 * those of the new one when its save was reported. */
#include <unistd.h>

#include "base/file.h"
#include "faults/tree.h"
#include "format/journal.h"
#include "hub/hub.h"
#include "support/disk.h"
#include "support/ranks.h"

enum {
    WORLD = 2,
    LUCKS = 12,
    SPARSE = 5 /* of the cuts, every so manyth in the quick version */
};

typedef struct stage {
    char *watched, *folder, *cut, *cut_folder;
    disk *disk;
    double value;         /* of all that is saved */
    uint64_t limit_bytes; /* of a file */
    int reported[WORLD];  /* calls until each rank was told */
} stage;

static void save(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"a.weight", "b.weight", "c.weight"};
    fsdp_placement by_rows = {.kind = FSDP_SHARD};
    int64_t world = WORLD;
    stage *s = arg;
    fsdp_state_dict *state = NULL;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    for (int i = 0; i < 3; i++) {
        fsdp_tensor *whole = NULL, *local = NULL;

        CHECK_OK(
            fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(5, 3), FSDP_MEMORY_PARAMETER_SHARD, &whole));
        CHECK_OK(fsdp_tensor_fill_(whole, s->value + i));
        CHECK_OK(fsdp_distribute_tensor(whole, mesh, &by_rows, &local));
        CHECK_OK(fsdp_state_dict_add(state, names[i], local));
        fsdp_tensor_unref(local);
        fsdp_tensor_unref(whole);
    }
    CHECK_OK(fsdp_hub_save_split(s->folder, state, NULL, FSDP_F32, fsdp_world(context), s->limit_bytes));
    if (s->disk)
        s->reported[fsdp_context_rank(context)] = disk_calls(s->disk);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

static void try_cut(const stage *s, int calls, int luck, const char *old, const char *new)
{
    bool reported = calls >= s->reported[0] || calls >= s->reported[1], finished = false;
    char *left;

    disk_cut(s->disk, calls, luck, s->cut);
    if (fsdp__path_exists(s->cut_folder))
        CHECK_OK(fsdp_hub_repair(s->cut_folder, &finished));
    left = tree_text(s->cut_folder, FSDP__STAGING_NAME);
    if (strcmp(left, new) != 0 && (reported || finished || strcmp(left, old) != 0))
        TEST_FAIL("cut after call %d of %d with luck %d, %s: the folder has\n%s, and not\n%s", calls, s->disk->count,
                  luck, reported ? "reported" : "not reported", left, new);
    free(left);
    test_remove_tree(s->cut);
}

/* All tensors in files of `new_bytes` over those in files of `old_bytes`; 0: over nothing. */
static int sweep(uint64_t old_bytes, uint64_t new_bytes)
{
    char *directory = test_directory();
    stage s = {.watched = test_path(directory, "watched"), .cut = test_path(directory, "cut"), .value = 1};
    int tried = 0, seen = 0;
    char *old, *new;

    s.folder = test_path(s.watched, "models/one");
    s.cut_folder = test_path(s.cut, "models/one");
    CHECK_OK(fsdp__make_directories(s.watched));
    s.limit_bytes = old_bytes;
    if (old_bytes > 0)
        test_run_ranks(WORLD, save, &s);
    old = tree_text(s.folder, FSDP__STAGING_NAME);
    s.value = 2;
    s.limit_bytes = new_bytes;
    s.disk = disk_record(s.watched);
    test_run_ranks(WORLD, save, &s);
    disk_stop();
    new = tree_text(s.folder, FSDP__STAGING_NAME);
    for (int calls = 0; calls <= s.disk->count; calls++)
        for (int luck = 0; luck < (disk_is_sure(s.disk, calls) ? 1 : LUCKS); luck++) {
            if (!test_long() && seen++ % SPARSE != 0 && calls < s.disk->count)
                continue;
            try_cut(&s, calls, luck, old, new);
            tried++;
        }
    disk_free(s.disk);
    free(new);
    free(old);
    test_directory_free(directory);
    return tried;
}

TEST(any_cut_leaves_the_old_model_or_the_new_one)
{
    int tried = sweep(0, 64) + sweep(64, 64) + sweep(64, 1000) + sweep(1000, 64);

    printf("cut at %d points\n", tried);
    CHECK(tried > 200);
}

TEST_FILE_IN_MEMORY(false, NULL)
