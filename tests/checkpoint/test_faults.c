/* Whatever fails of a save, on whichever rank: all ranks say so, nothing of it stays, older checkpoints are as they
 * were, and the next save works. */
#include <errno.h>

#include "checkpoint/scene.h"
#include "faults/tree.h"

typedef struct job {
    char *directory, *folder;
    fsdp__fault_kind kind;
    bool async;
    int failing_rank;
    char *before; /* what the folder holds */
    int rounds;
} job;

static job job_create(fsdp__fault_kind kind, bool async)
{
    job j = {.directory = test_directory(), .kind = kind, .async = async};

    j.folder = test_path(j.directory, "checkpoints");
    return j;
}

static void job_free(job *j)
{
    free(j->before);
    test_directory_free(j->directory);
}

static void save_first(fsdp_context *context, void *arg)
{
    const job *j = arg;

    scene_save_to(j->folder, context, SCENE_ROWS, 1, 1);
}

/* With the n-th use of the job's kind failing on this rank; 0: none. `*out_hit`: whether there was one. */
static fsdp_status save_second_but(fsdp_context *context, const job *j, long nth, bool *out_hit)
{
    const fsdp_checkpoint_saver_options options = {.async = j->async};
    fsdp_checkpoint_saver *saver = NULL;
    scene_content c;
    fsdp_status status;

    scene_content_create(&c, context, SCENE_ROWS, 2, 2);
    fsdp__fault_arm(j->kind, nth);
    status =
        fsdp_agree(fsdp_world(context), fsdp_checkpoint_saver_create(j->folder, &options, fsdp_world(context), &saver));
    if (status == FSDP_OK)
        status = fsdp_checkpoint_saver_save(saver, &c.content);
    if (status == FSDP_OK)
        status = fsdp_checkpoint_saver_wait(saver, NULL);
    fsdp_checkpoint_saver_free(saver);
    *out_hit = fsdp__fault_hit(j->kind);
    fsdp__fault_arm(j->kind, 0);
    scene_content_free(&c);
    return status;
}

static bool on_any(fsdp_context *context, bool mine)
{
    int32_t any = mine;

    CHECK_OK(
        fsdp_all_reduce(fsdp_world(context), &any, &any, 1, FSDP_I32, FSDP_MAX, fsdp_device_stream(fsdp_cpu(context))));
    return any;
}

static void fail_each(fsdp_context *context, void *arg)
{
    job *j = arg;
    int rank = fsdp_context_rank(context), rounds = 0;
    bool hit = true;

    for (long n = 1; hit; n++, rounds++) {
        fsdp_status status = save_second_but(context, j, rank == j->failing_rank ? n : 0, &hit);

        hit = on_any(context, hit);
        CHECK_EQ(status != FSDP_OK, hit);
        if (status != FSDP_OK)
            CHECK(*fsdp_last_error());
        if (rank == 0 && hit) {
            char *now = tree_text(j->folder, NULL);

            CHECK_STRING(now, j->before);
            free(now);
        }
        CHECK_OK(fsdp_barrier(fsdp_world(context)));
    }
    scene_load_check(j->folder, context, SCENE_FLAT, FSDP_F32, 2); /* the last has worked */
    if (rank == 0)
        j->rounds = rounds;
}

static void sweep(fsdp__fault_kind kind, bool async, int world, int failing)
{
    job j = job_create(kind, async);

    j.failing_rank = failing;
    test_run_ranks(world, save_first, &j);
    j.before = tree_text(j.folder, NULL);
    test_run_ranks(world, fail_each, &j);
    CHECK(j.rounds > 3);
    job_free(&j);
}

TEST(a_failed_write_leaves_what_was_there)
{
    for (int async = 0; async < 2; async++) {
        sweep(FSDP__FAULT_WRITE, async, 1, 0);
        sweep(FSDP__FAULT_WRITE, async, 3, 0);
        sweep(FSDP__FAULT_WRITE, async, 3, 2);
    }
}

/* ---- any errno, short writes, a slow disk ---- */

TEST(an_error_names_file_and_reason)
{
    static const int errors[] = {ENOSPC, EIO, EROFS, EACCES};
    static const char *const texts[] = {"No space left on device", "Input/output error", "Read-only file system",
                                        "Permission denied"};
    fsdp_context *context = test_context();
    job j = job_create(FSDP__FAULT_WRITE, false);

    save_first(context, &j);
    for (int e = 0; e < 4; e++) {
        fsdp__fault_set_act(FSDP__FAULT_FAILS, errors[e]);
        for (long n = 1; n <= 4; n++) {
            bool hit;

            CHECK_ERROR(save_second_but(context, &j, n, &hit), FSDP_IO, texts[e]);
            CHECK_CONTAINS(fsdp_last_error(), "step-2");
        }
    }
    fsdp__fault_set_act(FSDP__FAULT_FAILS, ENOSPC);
    scene_load_check(j.folder, context, SCENE_PLAIN, FSDP_F32, 1);
    fsdp_context_free(context);
    job_free(&j);
}

static void act_on_each(fsdp_context *context, job *j, fsdp__fault_act act, long most)
{
    bool hit = true;

    fsdp__fault_set_act(act, EIO);
    for (long n = 1; n <= most && hit; n++) {
        CHECK_OK(save_second_but(context, j, n, &hit));
        scene_load_check(j->folder, context, SCENE_PLAIN, FSDP_F32, 2);
        test_remove_tree(j->folder);
    }
    fsdp__fault_set_act(FSDP__FAULT_FAILS, ENOSPC);
}

TEST(short_writes_and_slow_disks_change_nothing)
{
    fsdp_context *context = test_context();
    job j = job_create(FSDP__FAULT_WRITE, false);

    act_on_each(context, &j, FSDP__FAULT_SHORTENS, 1000);
    act_on_each(context, &j, FSDP__FAULT_DELAYS, 3);
    j.async = true;
    act_on_each(context, &j, FSDP__FAULT_SHORTENS, 1000);
    fsdp_context_free(context);
    job_free(&j);
}

/* ---- memory ---- */

TEST(a_failed_allocation_of_a_load_is_an_error)
{
    fsdp_context *context = test_context();
    job j = job_create(FSDP__FAULT_ALLOCATION, false);
    scene model = scene_create(context, SCENE_PLAIN, FSDP_BF16, 0, false);

    save_first(context, &j);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_state_dict_keys keys = {.missing_count = 0};
        const fsdp_checkpoint_load_options options = {.partial = true, .keys = &keys};
        fsdp_checkpoint_reader *reader = NULL;
        fsdp_status status = fsdp_checkpoint_open(j.folder, &reader);

        if (status == FSDP_OK)
            status = fsdp_checkpoint_load(reader, "model", model.state, &options);
        fsdp_state_dict_keys_release(&keys);
        fsdp_checkpoint_close(reader);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
    scene_check(&model, 1);
    scene_free(&model);
    fsdp_context_free(context);
    job_free(&j);
}

/* ---- what breaks a group when it fails: each try has a world of its own ---- */

typedef struct single_try {
    job *j;
    long nth;
    bool hit;
} single_try;

static void fail_one(fsdp_context *context, void *arg)
{
    single_try *t = arg;
    bool mine = fsdp_context_rank(context) == t->j->failing_rank, hit;
    fsdp_status status = save_second_but(context, t->j, mine ? t->nth : 0, &hit);

    if (!mine)
        return;
    t->hit = hit;
    CHECK_EQ(status != FSDP_OK, hit);
}

/* The save is whole, or nothing is left of it: the first rank may know that it is published, and the others not. */
static void check_left(const job *j)
{
    char *now = tree_text(j->folder, NULL), *path = test_path(j->folder, "step-2");

    CHECK_NULL(strstr(now, ".saving"));
    if (fsdp_checkpoint_exists(j->folder, 2)) {
        fsdp_checkpoint_reader *reader = NULL;

        CHECK_OK(fsdp_checkpoint_open(path, &reader));
        CHECK_OK(fsdp_checkpoint_verify(reader, NULL, NULL));
        fsdp_checkpoint_close(reader);
        test_remove_tree(path);
    } else {
        CHECK_STRING(now, j->before);
    }
    free(now);
}

static void sweep_worlds(fsdp__fault_kind kind, bool async, int world, int failing)
{
    job j = job_create(kind, async);
    single_try t = {.j = &j, .nth = 1, .hit = true};
    char text[4000] = "";

    j.failing_rank = failing;
    test_run_ranks(world, save_first, &j);
    j.before = tree_text(j.folder, NULL);
    for (; t.hit && t.nth < 2000; t.nth += test_brief() ? 1 + t.nth / 10 : 1) {
        if (test_try_ranks(world, fail_one, &t, text, sizeof text) != 0)
            TEST_FAIL("use %ld: %s", t.nth, text);
        check_left(&j);
    }
    CHECK(t.nth > 4 && t.nth < 2000);
    job_free(&j);
}

TEST(a_failed_allocation_leaves_what_was_there)
{
    sweep_worlds(FSDP__FAULT_ALLOCATION, false, 1, 0);
    if (!test_brief())
        sweep_worlds(FSDP__FAULT_ALLOCATION, false, 2, 1);
    sweep_worlds(FSDP__FAULT_ALLOCATION, true, 2, 0);
}

TEST(a_failed_collective_ends_the_save)
{
    for (int async = 0; async < 2; async++)
        sweep_worlds(FSDP__FAULT_COLLECTIVE, async, 2, 1);
}

TEST_FILE_IN_MEMORY(false, NULL)
