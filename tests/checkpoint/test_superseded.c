/* Checkpoints that a run has gone back behind: their names, and that they go first. */
#include "checkpoint/superseded.h"

#include <sys/stat.h>

#include "checkpoint/scene.h"
#include "faults/tree.h"
#include "support/calls.h"

static void make(const char *folder, const char *name)
{
    char *path = test_path(folder, name);

    CHECK_EQ(mkdir(path, 0777), 0);
}

static fsdp_status list_in(const char *folder, fsdp__superseded **out, int64_t *out_count)
{
    fsdp__directory held;
    fsdp_status status;

    FSDP_TRY(fsdp__directory_open(folder, &held));
    status = fsdp__superseded_list(&held, out, out_count);
    fsdp__directory_close(&held);
    return status;
}

static fsdp_status supersede(const char *folder, int64_t step, char **out)
{
    fsdp__directory held;
    fsdp_status status;

    *out = NULL;
    FSDP_TRY(fsdp__directory_open(folder, &held));
    status = fsdp__supersede(&held, step, out);
    fsdp__directory_close(&held);
    return status;
}

static void check_list(const char *folder, const fsdp__superseded *expected, int64_t expected_count)
{
    fsdp__superseded *list = NULL;
    int64_t count = -1;

    CHECK_OK(list_in(folder, &list, &count));
    CHECK_EQ(count, expected_count);
    for (int64_t i = 0; i < count; i++) {
        CHECK_EQ(list[i].step, expected[i].step);
        CHECK_EQ(list[i].turn, expected[i].turn);
    }
    free(list);
}

TEST(names_tell_step_and_turn)
{
    static const char *const others[] = {"step-1",
                                         "step-01.superseded-1",
                                         "step-1.superseded-0",
                                         "step-1.superseded-",
                                         "step-1.superseded-2x",
                                         "step-1.superseded-2.removing",
                                         "xstep-1.superseded-1",
                                         "step-.superseded-1",
                                         "step-1.superseded-1234567890123456789"};
    char *folder = test_directory(), *path = NULL;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        make(folder, others[i]);
    check_list(folder, NULL, 0);
    make(folder, "step-3.superseded-2");
    make(folder, "step-20.superseded-1");
    make(folder, "step-3.superseded-10");
    check_list(folder, (const fsdp__superseded[]){{20, 1}, {3, 10}, {3, 2}}, 3);
    CHECK_ERROR(supersede(folder, 3, &path), FSDP_NOT_FOUND, "step-3"); /* there is none */
    CHECK_NULL(path);
    make(folder, "step-3");
    CHECK_OK(supersede(folder, 3, &path)); /* never a name that was older */
    CHECK_CONTAINS(path, "/step-3.superseded-11");
    free(path);
    CHECK_OK(supersede(folder, 1, &path));
    CHECK_CONTAINS(path, "/step-1.superseded-1");
    free(path);
    check_list(folder, (const fsdp__superseded[]){{20, 1}, {3, 11}, {3, 10}, {3, 2}, {1, 1}}, 5);
}

TEST(a_folder_that_cannot_be_read_to_its_end_is_an_error)
{
    char *folder = test_directory();
    fsdp__superseded *list;
    fsdp_status status;
    int64_t count;

    make(folder, "step-3.superseded-2");
    test_fail_readdir(true);
    status = list_in(folder, &list, &count);
    test_fail_readdir(false);
    CHECK_ERROR(status, FSDP_IO, "cannot list '");
    CHECK_EQ(count, 0);
}

TEST(no_memory_is_an_error)
{
    char *folder = test_directory();

    make(folder, "step-3.superseded-2");
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__superseded *list = NULL;
        int64_t count = 0;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, list_in(folder, &list, &count));
        free(list);
    }
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        char *from = test_path(folder, "step-4"), *path = NULL;

        (void)mkdir(from, 0777); /* is there, unless only what follows the renaming has failed */
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, supersede(folder, 4, &path));
        free(path);
    }
}

static void check_has(const char *folder, const char *name, bool there)
{
    char *text = tree_text(folder, NULL);

    if ((strstr(text, name) != NULL) != there)
        TEST_FAIL("%s is%s there:\n%s", name, there ? " not" : "", text);
    free(text);
}

static void save(const char *folder, fsdp_context *context, int64_t keep_latest_k, int64_t step)
{
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = keep_latest_k};
    fsdp_checkpoint_saver *saver = NULL;

    CHECK_OK(fsdp_checkpoint_saver_create(folder, &options, fsdp_world(context), &saver));
    CHECK_OK(scene_save(saver, context, SCENE_PLAIN, step, (int)step));
    fsdp_checkpoint_saver_free(saver);
}

/* Whatever their steps are, they count as older than those that have their names. */
CONTEXT_TEST(they_are_the_oldest_that_are_kept)
{
    char *directory = test_directory(), *folder = test_path(directory, "checkpoints"), *path = NULL;

    for (int64_t step = 1; step <= 4; step++)
        save(folder, context, 0, step);
    for (int64_t step = 3; step <= 4; step++) {
        CHECK_OK(supersede(folder, step, &path));
        free(path);
    }
    save(folder, context, 0, 3); /* all stay */
    check_list(folder, (const fsdp__superseded[]){{4, 1}, {3, 1}}, 2);
    save(folder, context, 5, 4); /* with 1, 2 and 3: one more has room */
    check_list(folder, (const fsdp__superseded[]){{4, 1}}, 1);
    save(folder, context, 5, 5);
    check_list(folder, NULL, 0);
    check_has(folder, "step-1/", true);
    check_has(folder, ".removing", false);
}
