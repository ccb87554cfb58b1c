/* One of several rank processes is killed in a save, and the others live for a while: the newest checkpoint, or the one
 * before, loads to the bit. Links: launch */
#include "checkpoint/scene.h"
#include "faults/tree.h"
#include "fsdp/launch.h"

enum {
    WORLD = 2,
    SPARSE = 9, /* of the uses, every so manyth in the quick version */
    MOST_USES = 200
};

typedef struct stage {
    char *directory, *folder, *before;
} stage;

/* Whether the use was reached: the rank was killed. */
static bool killed_at(const stage *s, bool async, int rank, fsdp__fault_kind kind, fsdp__fault_act act, long nth)
{
    static const char program[] = TEST_BINARY_DIR "/tests/program_checkpoint";
    char words[5][24];
    const char *argv[] = {program, s->folder, words[0], words[1], words[2], words[3], words[4], NULL};
    fsdp_launch_report report;

    snprintf(words[0], sizeof words[0], "%d", async);
    snprintf(words[1], sizeof words[1], "%d", rank);
    snprintf(words[2], sizeof words[2], "%d", (int)kind);
    snprintf(words[3], sizeof words[3], "%d", (int)act);
    snprintf(words[4], sizeof words[4], "%ld", nth);
    if (fsdp_launch(&(fsdp_launch_options){.ranks = WORLD, .argv = argv}, &report) == FSDP_OK)
        return false;
    CHECK_EQ(report.failed_rank, rank);
    CHECK_CONTAINS(report.reason, "killed by signal 9");
    return true;
}

static bool try_use(const stage *s, bool async, int rank, fsdp__fault_kind kind, fsdp__fault_act act, long nth)
{
    fsdp_context *context;
    bool killed;

    tree_copy(s->before, s->folder);
    killed = killed_at(s, async, rank, kind, act, nth);
    context = test_context();
    scene_check_newest(s->folder, context, true);
    scene_check_next(s->folder, context);
    fsdp_context_free(context);
    return killed;
}

TEST(a_killed_rank_leaves_the_newest_or_the_one_before)
{
    test_not_on_gpu("its ranks are forks of this process");
    stage s = {.directory = test_directory()};
    fsdp_context *context = test_context();
    int tried = 0;

    s.folder = test_path(s.directory, "checkpoints");
    s.before = test_path(s.directory, "before");
    scene_save_to(s.before, context, SCENE_ROWS, 1, 1);
    fsdp_context_free(context);
    for (int i = 0; i < 2 * WORLD * 2; i++) {
        bool async = i & 1;
        int rank = i >> 1 & 1;
        fsdp__fault_kind kind = i & 4 ? FSDP__FAULT_FOLDER : FSDP__FAULT_WRITE;

        for (long n = 1 + (test_long() ? 0 : i); n < MOST_USES; n += test_long() ? 1 : SPARSE, tried++)
            if (!try_use(&s, async, rank, kind, n % 2 ? FSDP__FAULT_KILLS : FSDP__FAULT_KILLS_HALF, n))
                break;
    }
    printf("killed at %d points\n", tried);
    CHECK(tried > 5);
}

TEST_FILE_IN_MEMORY(false, NULL)
