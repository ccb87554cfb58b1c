/* A process is killed at every use of a file or folder of a save, and in the middle of every write: afterwards the
 * newest checkpoint, or the one before, loads to the bit, and the next save finds nothing in its way. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/scene.h"
#include "faults/tree.h"

enum {
    NEVER = 1000000,
    SPARSE = 43 /* of the points, every so manyth in the quick version */
};

/* Where it ends. */
typedef struct point {
    int rank;
    fsdp__fault_kind kind;
    fsdp__fault_act act;
    long nth;
} point;

typedef struct stage {
    scene_saving what;
    char *directory, *folder;
    char *before; /* a copy of the folder before */
    point at;
    long (*uses)[2]; /* by rank, of files and of folders, in memory that the child shares */
} stage;

/* ---- the process that is killed ---- */

static fsdp_status save_armed(fsdp_context *context, const stage *s)
{
    const fsdp_checkpoint_saver_options options = {.async = s->what.async, .keep_latest_k = s->what.later};
    int rank = fsdp_context_rank(context);
    fsdp_checkpoint_saver *saver = NULL;
    scene_content c;

    scene_content_create(&c, context, s->what.layout, 2, 2);
    FSDP_TRY(fsdp_checkpoint_saver_create(s->folder, &options, fsdp_world(context), &saver));
    fsdp__fault_set_act(s->at.act, 0);
    for (int i = 0; i < 2; i++) {
        fsdp__fault_kind kind = i ? FSDP__FAULT_FOLDER : FSDP__FAULT_WRITE;

        fsdp__fault_arm(kind, rank == s->at.rank && kind == s->at.kind ? s->at.nth : NEVER);
    }
    FSDP_TRY(fsdp_checkpoint_saver_save(saver, &c.content));
    FSDP_TRY(fsdp_checkpoint_saver_wait(saver, NULL));
    s->uses[rank][0] = fsdp__fault_uses(FSDP__FAULT_WRITE);
    s->uses[rank][1] = fsdp__fault_uses(FSDP__FAULT_FOLDER);
    fsdp_checkpoint_saver_free(saver);
    scene_content_free(&c);
    return FSDP_OK;
}

static fsdp_status rank_body(fsdp_context *context, void *arg)
{
    return save_armed(context, arg);
}

/* Runs the save in a process of its own; returns what waitpid says of it. */
static int save_in_child(const stage *s)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        fsdp_status failed =
            fsdp_run_threads(s->what.world, &(fsdp_context_options){.threads = 1}, rank_body, (void *)(uintptr_t)s);

        _exit(failed == FSDP_OK ? 0 : 3);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

/* ---- and what is found afterwards ---- */

static void try_point(stage *s, const point *at)
{
    fsdp_context *context;
    int status;

    tree_copy(s->before, s->folder);
    s->at = *at;
    status = save_in_child(s);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        TEST_FAIL("it was not killed at use %ld of kind %d of rank %d", at->nth, (int)at->kind, at->rank);
    context = test_context();
    scene_check_newest(s->folder, context, s->what.later);
    scene_check_next(s->folder, context);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

/* ---- all points ---- */

static stage stage_create(const scene_saving *what)
{
    stage s = {.what = *what, .directory = test_directory()};

    s.folder = test_path(s.directory, "checkpoints");
    s.before = test_path(s.directory, "before");
    s.uses = mmap(NULL, SCENE_SAVING_RANKS * sizeof *s.uses, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s.uses != MAP_FAILED);
    CHECK_OK(fsdp__make_directories(s.before));
    if (what->later) {
        fsdp_context *context = test_context();

        scene_save_to(s.before, context, SCENE_ROWS, 1, 1);
        fsdp_context_free(context);
    }
    return s;
}

static void stage_free(stage *s)
{
    munmap(s->uses, SCENE_SAVING_RANKS * sizeof *s->uses);
    test_directory_free(s->directory);
}

/* Tries the points of one rank; `*seen` counts all, also those that are left out. */
static int try_rank(stage *s, int rank, const long *uses, int *seen)
{
    int tried = 0;

    for (int kind = 0; kind < 2; kind++)
        for (long n = 1; n <= uses[kind]; n++)
            for (int half = 0; half < 2; half++) {
                const point at = {.rank = rank,
                                  .kind = kind ? FSDP__FAULT_FOLDER : FSDP__FAULT_WRITE,
                                  .act = half ? FSDP__FAULT_KILLS_HALF : FSDP__FAULT_KILLS,
                                  .nth = n};

                if (half && n == uses[kind]) /* nothing comes after the last */
                    continue;
                if (!test_long() && (*seen)++ % SPARSE != 0)
                    continue;
                try_point(s, &at);
                tried++;
            }
    return tried;
}

static int sweep(const scene_saving *what, int *seen)
{
    stage s = stage_create(what);
    long uses[SCENE_SAVING_RANKS][2];
    int tried = 0;

    s.at = (point){.rank = -1};
    tree_copy(s.before, s.folder);
    CHECK_EQ(save_in_child(&s), 0);
    memcpy(uses, s.uses, sizeof uses);
    CHECK(uses[0][0] > 10 && uses[0][1] > 5);
    for (int r = 0; r < what->world; r++)
        tried += try_rank(&s, r, uses[r], seen);
    stage_free(&s);
    return tried;
}

TEST(every_boundary_of_a_save_leaves_the_newest_or_the_one_before)
{
    test_not_on_gpu("its ranks are forks of this process");
    int tried = scene_each_saving(sweep);

    printf("killed at %d points\n", tried);
    CHECK(tried > (test_long() ? 1000 : 20));
}

TEST_FILE_IN_MEMORY(false, NULL)
