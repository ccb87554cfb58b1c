/* Another user may write where this one saves, and swaps what has a name for something else: nothing of the user's
 * outside of that goes, or changes, and what the other one has put there is not believed. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/directory.h"
#include "base/file.h"
#include "checkpoint/retention.h"
#include "checkpoint/saver.h"
#include "checkpoint/scene.h"
#include "faults/other_user.h"
#include "faults/tree.h"
#include "format/garden.h"
#include "format/journal.h"
#include "fsdp/hub.h"

enum {
    WORLD = 2
};

/* ---- an export ---- */

/* Every rank, with its rows; how it ends is not asked. */
static void export_rows(fsdp_context *context, void *arg)
{
    fsdp_placement by_rows = {.kind = FSDP_SHARD};
    fsdp_tensor *whole = NULL, *local = NULL;
    fsdp_state_dict *state = NULL;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &(int64_t){WORLD}, NULL, &mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(5, 3), FSDP_MEMORY_PARAMETER_SHARD, &whole));
    CHECK_OK(fsdp_tensor_fill_(whole, 1));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &by_rows, &local));
    CHECK_OK(fsdp_state_dict_add(state, "weight", local));
    (void)fsdp_hub_save(arg, state, NULL, FSDP_F32, fsdp_world(context));
    fsdp_tensor_unref(local);
    fsdp_tensor_unref(whole);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

TEST_OF(an_export_changes_nothing_outside_of_its_folder, other_setup, other_teardown, other_area *f)
{
    static const char *const names[] = {"model.saving",      "model",      "there/.saving",
                                        "there/.saving/new", "there/gate", NULL};
    char *folders[] = {test_path(f->area, "model"), other_open_folder(f, "there")};
    other_swapper s = {.names = names, .area = f->area, .precious = f->precious};

    other_swapper_start(&s);
    for (int tries = 0; other_goes_on(&s, tries); tries++)
        test_run_ranks(WORLD, export_rows, folders[tries % 2]);
    other_swapper_stop(&s);
    other_check_precious(f);
}

/* Between the calls of a publication, where a training run may take hours. */
static bool swap_staging(void *arg)
{
    const other_area *f = arg;
    char path[400], away[400];

    snprintf(path, sizeof path, "%s/model.saving", f->area);
    snprintf(away, sizeof away, "%s/away", f->area);
    return rename(path, away) == 0 && symlink(f->precious, path) == 0;
}

TEST_OF(a_staging_folder_that_was_swapped_is_left, other_setup, other_teardown, other_area *f)
{
    garden g = garden_create();
    char *folder = test_path(f->area, "model"), *link = test_path(f->area, "model.saving");
    char *away = test_path(f->area, "away");

    g.options.folder = folder;
    for (int commits = 0; commits < 2; commits++) {
        CHECK_OK(garden_begin(&g));
        garden_add(&g, "gate", "red");
        other_do(swap_staging, f);
        if (commits)
            CHECK_OK(fsdp__publication_commit(g.publication));
        fsdp__publication_abandon(g.publication);
        other_check_precious(f);
        CHECK_EQ(rmdir(away), 0); /* it was emptied, and is not known by that name */
        CHECK_EQ(unlink(link), 0);
    }
    garden_check_file(folder, "gate", "red");
    garden_free(&g);
}

static bool make_staging(void *arg)
{
    char path[400];

    snprintf(path, sizeof path, "%s/model.saving", (const char *)arg);
    return mkdir(path, 0777) == 0;
}

TEST_OF(a_staging_folder_of_another_is_refused_by_name, other_setup, other_teardown, other_area *f)
{
    garden g = garden_create();
    char *folder = test_path(f->area, "model"), *link = test_path(f->area, "model.saving");

    g.options.folder = folder;
    other_do(make_staging, f->area);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID,
                "model.saving' is in the way: its name is needed for a temporary folder, and belongs to user 65534: "
                "name another folder, or remove it if no run writes there");
    CHECK_EQ(rmdir(link), 0);
    CHECK_EQ(symlink(f->precious, link), 0);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID,
                "model.saving' is in the way: its name is needed for a temporary folder, and is not a folder");
    other_check_precious(f);
    garden_free(&g);
}

/* By a umask of those days; the lock's file is a second name of a letter. */
TEST_OF(a_staging_folder_that_was_open_to_others_is_closed_and_not_believed, other_setup, other_teardown, other_area *f)
{
    garden g = garden_create();
    char *folder = test_path(f->area, "model"), *staging = other_open_folder(f, "model.saving");
    char *lock = test_path(staging, "held-by"), *letter = test_path(f->precious, "letter");
    struct stat info;

    g.options.folder = folder;
    CHECK_EQ(link(letter, lock), 0);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "held-by': no run of this user has left it");
    CHECK_EQ(unlink(lock), 0);
    CHECK_EQ(mkfifo(lock, 0666), 0);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "held-by': no run of this user has left it");
    CHECK_EQ(unlink(lock), 0);
    CHECK_OK(garden_begin(&g));
    CHECK(stat(staging, &info) == 0 && (info.st_mode & 0777) == 0700);
    other_check_precious(f);
    garden_free(&g);
}

/* ---- lists and journals ---- */

static bool plant_list(void *arg)
{
    return other_plant(arg, FSDP__LIST_NAME, "{\"version\": 1, \"files\": [{\"name\": \"letter\", \"bytes\": 4}]}");
}

TEST_OF(a_list_of_another_removes_nothing, other_setup, other_teardown, other_area *f)
{
    garden g = garden_create();
    char *folder = other_open_folder(f, "model");

    g.options.folder = folder;
    other_put(folder, "letter", "mine");
    other_do(plant_list, folder);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, FSDP__LIST_NAME "' belongs to user 65534, and it may not change files");
    g.options.overwrite = true;
    CHECK_OK(garden_plant(&g, "roses", "red"));
    garden_check_file(folder, "letter", "mine");
    garden_check_file(folder, "roses", "red");
    garden_free(&g);
}

#define JOURNAL                                                                                          \
    "{\"version\": 1, \"new\": [{\"name\": \"gate\", \"bytes\": 4}], \"gone\": [{\"name\": \"letter\", " \
    "\"bytes\": 4}]}"

static bool plant_journal(void *arg)
{
    char path[400];

    snprintf(path, sizeof path, "%s/" FSDP__STAGING_NAME, (const char *)arg);
    return other_plant(arg, FSDP__JOURNAL_NAME, JOURNAL) && mkdir(path, 0777) == 0 &&
           other_plant(path, "held-by", "") && strcat(path, "/new") && mkdir(path, 0777) == 0 &&
           other_plant(path, "gate", "evil");
}

TEST_OF(a_journal_of_another_moves_nothing, other_setup, other_teardown, other_area *f)
{
    garden g = garden_create();
    char *folder = other_open_folder(f, "model"), *journal = test_path(folder, FSDP__JOURNAL_NAME), *before, *now;
    bool finished = true;

    g.options.folder = folder;
    other_put(folder, "letter", "mine");
    other_put(folder, "gate", "mine");
    other_do(plant_journal, folder);
    before = tree_text(folder, NULL);
    CHECK_ERROR(fsdp_hub_repair(folder, &finished), FSDP_INVALID, FSDP__JOURNAL_NAME "' belongs to user 65534");
    CHECK(!finished);
    g.options.overwrite = true;
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, FSDP__JOURNAL_NAME "' belongs to user 65534");
    CHECK_EQ(chown(journal, 0, 0), 0); /* as one of the user's that was moved here from another folder */
    CHECK_ERROR(fsdp_hub_repair(folder, &finished), FSDP_INVALID, ".saving' is in the way");
    now = tree_text(folder, NULL);
    CHECK_STRING(now, before);
    free(now);
    free(before);
    garden_free(&g);
}

/* One of the user's own, of another folder: what it lists is not what stands ready here. */
TEST_OF(a_journal_of_another_folder_moves_nothing, other_setup, other_teardown, other_area *f)
{
    char *folder = other_open_folder(f, "model"), *before, *now;
    bool finished = true;

    other_put(folder, "letter", "mine");
    other_put(folder, "gate", "mine");
    other_put(folder, FSDP__STAGING_NAME "/held-by", "");
    other_put(folder, FSDP__STAGING_NAME "/new/gate", "other");
    other_put(folder, FSDP__JOURNAL_NAME, JOURNAL);
    before = tree_text(folder, "held-by");
    CHECK_ERROR(fsdp_hub_repair(folder, &finished), FSDP_STATE, "'gate' has another size");
    now = tree_text(folder, "held-by");
    CHECK_STRING(now, before);
    CHECK(!finished);
    free(now);
    free(before);
}

static bool give_folder_a_files_name(void *arg)
{
    char from[400], to[400];

    snprintf(from, sizeof from, "%s/diary", (const char *)arg);
    snprintf(to, sizeof to, "%s/gate", (const char *)arg);
    return rename(from, to) == 0;
}

/* Who may write to the folder cannot look into the diary, but may call it what the journal moves away. */
TEST_OF(a_folder_that_gets_the_name_of_a_file_is_not_moved, other_setup, other_teardown, other_area *f)
{
    char *folder = other_open_folder(f, "model"), *diary;
    bool finished = true;

    other_put(folder, "diary/monday", "mine");
    other_put(folder, FSDP__STAGING_NAME "/held-by", "");
    other_put(folder, FSDP__STAGING_NAME "/new/gate", "good");
    other_put(folder, FSDP__JOURNAL_NAME, JOURNAL);
    other_do(give_folder_a_files_name, folder);
    CHECK_ERROR(fsdp_hub_repair(folder, &finished), FSDP_STATE, "gate' has become a folder, which is not moved");
    diary = test_path(folder, "gate");
    garden_check_file(diary, "monday", "mine");
}

/* ---- a folder of the other's on the way ---- */

static bool make_folder_with_link(void *arg)
{
    const other_area *f = arg;
    char path[400];

    snprintf(path, sizeof path, "%s/theirs", f->area);
    if (mkdir(path, 0755) != 0)
        return false;
    snprintf(path, sizeof path, "%s/theirs/link", f->area);
    return symlink(f->precious, path) == 0;
}

TEST_OF(no_link_in_a_folder_of_another_is_followed, other_setup, other_teardown, other_area *f)
{
    static const char refused[] = "'link' in '";
    garden g = garden_create();
    char *link = test_path(f->area, "theirs/link"), *letter = test_path(link, "letter"), *new = test_path(link, "new");
    fsdp__directory in;
    char *name;
    int fd;

    other_do(make_folder_with_link, f);
    CHECK_ERROR(fsdp__directory_of(letter, &in, &name), FSDP_INVALID, refused);
    CHECK_ERROR(fsdp__file_append(letter, &fd), FSDP_INVALID, refused);
    CHECK_ERROR(fsdp__make_directories(new), FSDP_INVALID, refused);
    g.options.folder = link;
    g.options.overwrite = true;
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, refused);
    other_check_precious(f);
    garden_free(&g);
}

/* ---- checkpoints ---- */

typedef struct saving {
    const char *folder;
    int64_t step;
} saving;

static void save_step(fsdp_context *context, void *arg)
{
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = 1};
    const saving *what = arg;
    fsdp_checkpoint_saver *saver = NULL;
    scene_content c;

    scene_content_create(&c, context, SCENE_ROWS, what->step, 1);
    CHECK_OK(fsdp_checkpoint_saver_create(what->folder, &options, fsdp_world(context), &saver));
    (void)fsdp_checkpoint_saver_save(saver, &c.content);
    fsdp_checkpoint_saver_free(saver);
    scene_content_free(&c);
}

TEST_OF(a_checkpoint_changes_nothing_outside_of_its_folder, other_setup, other_teardown, other_area *f)
{
    static const char *const names[] = {
        "runs/step-1.saving", "runs/step-2.saving",   "runs/step-1", "runs/step-2.removing",
        "runs/step-2",        "runs/step-1.removing", NULL};
    saving what = {.folder = other_open_folder(f, "runs")};
    other_swapper s = {.names = names, .area = f->area, .precious = f->precious};

    other_swapper_start(&s);
    for (int tries = 0; other_goes_on(&s, tries); tries++) {
        what.step = 1 + tries % 2;
        test_run_ranks(WORLD, save_step, &what);
    }
    other_swapper_stop(&s);
    other_check_precious(f);
}

static bool swap_runs(void *arg)
{
    const other_area *f = arg;
    char runs[400], away[400], others[400];

    snprintf(runs, sizeof runs, "%s/runs", f->area);
    snprintf(away, sizeof away, "%s/away", f->area);
    snprintf(others, sizeof others, "%s/others", f->area);
    return rename(runs, away) == 0 && rename(others, runs) == 0;
}

/* Another run of the same user's has its checkpoints in a folder that gets the name of this one's. */
TEST_OF(a_save_into_another_runs_folder_removes_nothing, other_setup, other_teardown, other_area *f)
{
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = 1};
    char *folder = other_open_folder(f, "runs"), *others = other_open_folder(f, "others"), *before, *now;
    fsdp_checkpoint_saver *saver = NULL;
    fsdp__directory held;

    for (int step = 1; step <= 2; step++)
        scene_save_to(others, f->context, SCENE_PLAIN, step, step);
    before = tree_text(others, NULL);
    CHECK_OK(fsdp_checkpoint_saver_create(folder, &options, fsdp_world(f->context), &saver));
    CHECK_OK(fsdp__directory_open(folder, &held));
    CHECK_OK(fsdp__saver_stay(saver, &held));
    fsdp__directory_close(&held);
    CHECK_OK(scene_save(saver, f->context, SCENE_PLAIN, 3, 3));
    other_do(swap_runs, f);
    CHECK_ERROR(scene_save(saver, f->context, SCENE_PLAIN, 4, 4), FSDP_STATE,
                "runs' is no longer the folder that this process holds");
    now = tree_text(folder, NULL);
    CHECK_STRING(now, before);
    fsdp_checkpoint_saver_free(saver);
    free(now);
    free(before);
}

static bool make_leftovers(void *arg)
{
    const other_area *f = arg;
    char path[400];

    snprintf(path, sizeof path, "%s/runs/step-8.saving", f->area);
    if (symlink(f->precious, path) != 0)
        return false;
    snprintf(path, sizeof path, "%s/runs/step-9.removing", f->area);
    if (symlink(f->precious, path) != 0)
        return false;
    snprintf(path, sizeof path, "%s/runs/step-7.saving", f->area);
    return mkdir(path, 0777) == 0 && other_plant(path, "held-by", "") && other_plant(path, "theirs", "theirs");
}

TEST_OF(what_another_calls_a_leftover_stays, other_setup, other_teardown, other_area *f)
{
    char *folder = other_open_folder(f, "runs"), *theirs = test_path(folder, "step-7.saving");
    fsdp__directory held;

    other_do(make_leftovers, f);
    CHECK_OK(fsdp__directory_open(folder, &held));
    fsdp__remove_leftovers(f->context, &held);
    fsdp__directory_close(&held);
    other_check_precious(f);
    garden_check_file(theirs, "theirs", "theirs");
    scene_save_to(folder, f->context, SCENE_PLAIN, 1, 1);
    other_check_precious(f);
}

TEST_FILE_IN_MEMORY(geteuid() != 0, "only root can be another user")
