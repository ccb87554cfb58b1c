/* Saves one after the other: copies that are written on a thread, what is kept, what the dead have left, who gives up.
 */
#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/scene.h"
#include "faults/tree.h"
#include "support/calls.h"
#include "support/limits.h"

typedef struct job {
    char *directory, *folder;
} job;

static job job_create(void)
{
    job j = {.directory = test_directory()};

    j.folder = test_path(j.directory, "checkpoints");
    return j;
}

static void job_free(job *j)
{
    test_directory_free(j->directory);
}

static fsdp_checkpoint_saver *saver_of(fsdp_context *context, const job *j,
                                       const fsdp_checkpoint_saver_options *options)
{
    fsdp_checkpoint_saver *saver = NULL;

    CHECK_OK(fsdp_checkpoint_saver_create(j->folder, options, fsdp_world(context), &saver));
    return saver;
}

/* ---- asynchronous ---- */

/* Tensors change as soon as the call is back. */
static fsdp_status save_and_spoil(fsdp_checkpoint_saver *saver, fsdp_context *context, int64_t step, int salt)
{
    scene model = scene_create(context, SCENE_ROWS, FSDP_F32, salt, true);
    const fsdp_checkpoint_section section = {.name = "model", .state = model.state};
    const fsdp_checkpoint_content content = {.step = step, .sections = &section, .section_count = 1};
    fsdp_status status = fsdp_checkpoint_saver_save(saver, &content);

    for (int64_t i = 0; i < model.state->count; i++)
        CHECK_OK(fsdp_tensor_fill_(model.state->entries[i].tensor, 0));
    scene_free(&model);
    return status;
}

static void load_model(fsdp_context *context, const char *folder, int64_t step, int salt)
{
    scene model = scene_create(context, SCENE_FLAT, FSDP_F32, 0, false);
    fsdp_checkpoint_reader *reader = NULL;
    char *path = NULL;

    CHECK_OK(fsdp_checkpoint_find(folder, step, &path));
    CHECK_OK(fsdp_checkpoint_open(path, &reader));
    CHECK_OK(fsdp_checkpoint_load(reader, "model", model.state, NULL));
    scene_check(&model, salt);
    fsdp_checkpoint_close(reader);
    scene_free(&model);
    free(path);
}

static void copies_are_written(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_checkpoint_saver *saver = saver_of(context, j, &(fsdp_checkpoint_saver_options){.async = true});
    int64_t step = 0;

    CHECK_EQ(fsdp_checkpoint_saver_pending(saver), -1);
    CHECK_OK(fsdp_checkpoint_saver_poll(saver, &step));
    CHECK_EQ(step, -1);
    for (int64_t s = 1; s <= 4; s++) { /* each waits for the one before */
        CHECK_OK(save_and_spoil(saver, context, s, (int)s));
        CHECK_EQ(fsdp_checkpoint_saver_pending(saver), s);
        CHECK(s == 1 || fsdp_checkpoint_exists(j->folder, s - 1));
    }
    while (step < 0)
        CHECK_OK(fsdp_checkpoint_saver_poll(saver, &step));
    CHECK_EQ(step, 4);
    CHECK_EQ(fsdp_checkpoint_saver_pending(saver), -1);
    CHECK_OK(save_and_spoil(saver, context, 5, 5));
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, &step));
    CHECK_EQ(step, 5);
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, &step));
    CHECK_EQ(step, -1);
    fsdp_checkpoint_saver_free(saver);
    for (int64_t s = 1; s <= 5; s++)
        load_model(context, j->folder, s, (int)s);
}

TEST(a_copy_is_written_while_tensors_change)
{
    static const int worlds[] = {1, 2, 3};

    for (int w = 0; w < 3; w++) {
        job j = job_create();

        test_run_ranks(worlds[w], copies_are_written, &j);
        job_free(&j);
    }
}

TEST(memory_is_that_of_one_copy)
{
    fsdp_context *context = test_context();
    job j = job_create();
    fsdp_checkpoint_saver *saver = saver_of(context, &j, &(fsdp_checkpoint_saver_options){.async = true});
    scene model = scene_create(context, SCENE_PLAIN, FSDP_F32, 1, true);
    const fsdp_checkpoint_section section = {.name = "model", .state = model.state};
    fsdp_memory_stats before, during;

    fsdp_device_memory(fsdp_cpu(context), &before);
    for (int64_t step = 0; step < 3; step++) {
        const fsdp_checkpoint_content content = {.step = step, .sections = &section, .section_count = 1};

        CHECK_OK(fsdp_checkpoint_saver_save(saver, &content));
        CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
        fsdp_device_memory(fsdp_cpu(context), &during);
        CHECK_EQ(during.live_bytes[FSDP_MEMORY_WORKSPACE] - before.live_bytes[FSDP_MEMORY_WORKSPACE],
                 (fsdp_checkpoint_snapshot_bytes(&content) + 63) / 64 * 64); /* whole lines of the cache */
    }
    fsdp_checkpoint_saver_free(saver);
    fsdp_device_memory(fsdp_cpu(context), &during);
    CHECK_EQ(during.live_total_bytes, before.live_total_bytes);
    scene_free(&model);
    fsdp_context_free(context);
    job_free(&j);
}

/* Does what a child of fork() may not do; returns 0 if it is refused, or does nothing. */
static int use_inherited(fsdp_checkpoint_saver *saver)
{
    const fsdp_checkpoint_content nothing = {.step = 9};
    int64_t step;
    bool refused = fsdp_checkpoint_saver_wait(saver, &step) == FSDP_STATE &&
                   fsdp_checkpoint_saver_poll(saver, &step) == FSDP_STATE &&
                   fsdp_checkpoint_saver_save(saver, &nothing) == FSDP_STATE &&
                   strstr(fsdp_last_error(), "a child of fork() cannot use it");

    fsdp_checkpoint_saver_abandon(saver);
    fsdp_checkpoint_saver_free(saver);
    return refused ? 0 : 1;
}

static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    CHECK(tasks);
    while (readdir(tasks))
        count++;
    closedir(tasks);
    return count;
}

/* The thread that writes has ended before the fork, or the child might wait for a lock that only that thread gives
 * back. */
TEST(a_child_of_fork_leaves_its_parents_save_alone)
{
    fsdp_context *context = NULL;
    fsdp_checkpoint_saver *saver = NULL;
    int status, threads;
    pid_t child;
    job j;

    test_not_on_gpu("a child of fork() has none of its threads");
    test_skip_if(TEST_SANITIZED, "a sanitizer takes the child for the parent, which has not joined its thread");
    context = test_context();
    j = job_create();
    saver = saver_of(context, &j, &(fsdp_checkpoint_saver_options){.async = true});
    CHECK_OK(save_and_spoil(saver, context, 0, 1)); /* starts all threads that stay */
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
    threads = count_threads();
    CHECK_OK(save_and_spoil(saver, context, 1, 1));
    while (count_threads() > threads)
        usleep(1000);
    child = fork();
    if (child == 0)
        _exit(use_inherited(saver));
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
    load_model(context, j.folder, 1, 1);
    fsdp_checkpoint_saver_free(saver);
    fsdp_context_free(context);
    job_free(&j);
}

/* ---- what is kept ---- */

static void check_steps(const char *folder, const int64_t *expected, int64_t expected_count)
{
    int64_t *steps = NULL, count = 0;

    CHECK_OK(fsdp_checkpoint_list(folder, &steps, &count));
    CHECK_EQ(count, expected_count);
    for (int64_t i = 0; i < count; i++)
        CHECK_EQ(steps[i], expected[i]);
    free(steps);
}

static void old_ones_go(fsdp_context *context, void *arg)
{
    const job *j = arg;
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = 2, .keep_every = 4};
    fsdp_checkpoint_saver *saver = saver_of(context, j, &options);

    CHECK_OK(fsdp_checkpoint_saver_pin(saver, (const int64_t[]){3}, 1));
    for (int64_t step = 1; step <= 10; step++)
        CHECK_OK(scene_save(saver, context, SCENE_ROWS, step, (int)step));
    if (fsdp_context_rank(context) == 0)
        check_steps(j->folder, (const int64_t[]){3, 4, 8, 9, 10}, 5);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    CHECK_OK(fsdp_checkpoint_saver_pin(saver, NULL, 0)); /* the best is another now */
    CHECK_OK(scene_save(saver, context, SCENE_ROWS, 11, 11));
    /* One that was started again from step 4: what it has just saved is not the newest, and stays. */
    CHECK_OK(scene_save(saver, context, SCENE_ROWS, 5, 5));
    if (fsdp_context_rank(context) == 0)
        check_steps(j->folder, (const int64_t[]){4, 5, 8, 10, 11}, 5);
    fsdp_checkpoint_saver_free(saver);
}

TEST(the_newest_and_every_so_manyth_stay)
{
    job j = job_create();
    char *text;

    test_run_ranks(2, old_ones_go, &j);
    text = tree_text(j.folder, NULL);
    CHECK_NULL(strstr(text, ".removing"));
    CHECK_NULL(strstr(text, ".saving"));
    free(text);
    job_free(&j);
}

static int count_logged(const char *text, const char *part)
{
    int count = 0;

    while ((text = strstr(text, part))) {
        count++;
        text++;
    }
    return count;
}

static void keep_line(void *arg, fsdp_log_level level, const char *line)
{
    char *log = arg;

    (void)level;
    snprintf(log + strlen(log), 2000 - strlen(log), "%s\n", line);
}

TEST(files_of_others_stay)
{
    fsdp_context *context = test_context();
    job j = job_create();
    fsdp_checkpoint_saver *saver = saver_of(context, &j, &(fsdp_checkpoint_saver_options){.keep_latest_k = 1});
    char log[2000] = "", *text, *path;

    fsdp_context_set_log(context, FSDP_LOG_WARNING, keep_line, log);
    CHECK_OK(scene_save(saver, context, SCENE_PLAIN, 1, 1));
    test_write_text(j.folder, "step-1/notes", "mine");
    CHECK_OK(scene_save(saver, context, SCENE_PLAIN, 2, 2));
    CHECK_OK(scene_save(saver, context, SCENE_PLAIN, 3, 3));
    CHECK_EQ(count_logged(log, "holds files that do not belong to the checkpoint"), 1); /* once */
    path = test_path(j.folder, "step-1.removing/notes");
    text = test_read_file(path, NULL);
    CHECK_STRING(text, "mine");
    check_steps(j.folder, (const int64_t[]){3}, 1);
    /* What cannot be read is not removed. */
    test_write_text(j.folder, "step-3/manifest.json", "{}");
    CHECK_OK(scene_save(saver, context, SCENE_PLAIN, 4, 4));
    check_steps(j.folder, (const int64_t[]){3, 4}, 2);
    CHECK_EQ(count_logged(log, "cannot be removed"), 1);
    /* Nor does it keep the others. */
    CHECK_OK(scene_save(saver, context, SCENE_PLAIN, 5, 5));
    check_steps(j.folder, (const int64_t[]){3, 5}, 2);
    fsdp_checkpoint_saver_free(saver);
    fsdp_context_free(context);
    job_free(&j);
}

TEST(one_that_cannot_be_examined_stays)
{
    fsdp_context *context = test_context();
    job j = job_create();
    fsdp_checkpoint_saver *saver = saver_of(context, &j, &(fsdp_checkpoint_saver_options){.keep_latest_k = 1});
    char log[2000] = "", *path = test_path(j.folder, "step-1");

    fsdp_context_set_log(context, FSDP_LOG_WARNING, keep_line, log);
    CHECK_OK(scene_save(saver, context, SCENE_PLAIN, 1, 1));
    test_fail_fstat(path);
    CHECK_OK(scene_save(saver, context, SCENE_PLAIN, 2, 2));
    test_fail_fstat(NULL);
    CHECK_CONTAINS(log, "step-1': Input/output error");
    check_steps(j.folder, (const int64_t[]){1, 2}, 2);
    fsdp_checkpoint_saver_free(saver);
    fsdp_context_free(context);
    job_free(&j);
}

/* ---- what the dead have left ---- */

TEST(leftovers_of_the_dead_go)
{
    fsdp_context *context = test_context();
    job j = job_create();
    char *dead = test_path(j.folder, "step-7.saving/new"), *half = test_path(j.folder, "step-6.removing");
    char *theirs = test_path(j.folder, "step-5.saving"), *text;

    CHECK_OK(fsdp__make_directories(dead));
    test_write_text(j.folder, "step-7.saving/held-by", "process 1 on nowhere");
    test_write_text(j.folder, "step-7.saving/new/rank-00000-of-00001.safetensors", "half");
    CHECK_OK(fsdp__make_directories(half));
    CHECK_OK(fsdp__make_directories(theirs));
    test_write_text(j.folder, "step-5.saving/file", "of somebody");
    scene_save_to(j.folder, context, SCENE_PLAIN, 8, 8);
    text = tree_text(j.folder, NULL);
    CHECK_NULL(strstr(text, "step-7"));
    CHECK_NULL(strstr(text, "step-6"));
    CHECK_CONTAINS(text, "step-5.saving/file");
    free(text);
    fsdp_context_free(context);
    job_free(&j);
}

/* ---- giving up ---- */

static void a_saver_is_abandoned(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_checkpoint_saver *saver = saver_of(context, j, &(fsdp_checkpoint_saver_options){.async = true});

    CHECK_OK(scene_save(saver, context, SCENE_ROWS, 1, 1));
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
    CHECK_OK(scene_save(saver, context, SCENE_ROWS, 2, 2));
    if (fsdp_context_rank(context) == 0)
        fsdp_checkpoint_saver_abandon(saver);
    CHECK_ERROR(fsdp_checkpoint_saver_wait(saver, NULL), FSDP_INTERRUPTED, "given up");
    CHECK_ERROR(scene_save(saver, context, SCENE_ROWS, 3, 3), FSDP_INTERRUPTED, "given up");
    fsdp_checkpoint_saver_free(saver);
}

TEST(a_save_can_be_given_up)
{
    job j = job_create();
    char *text;

    test_run_ranks(3, a_saver_is_abandoned, &j);
    text = tree_text(j.folder, NULL);
    CHECK_CONTAINS(text, "step-1/manifest.json");
    CHECK_NULL(strstr(text, "step-2"));
    CHECK_NULL(strstr(text, "step-3"));
    free(text);
    fsdp_checkpoint_saver_abandon(NULL);
    fsdp_checkpoint_saver_free(NULL);
    job_free(&j);
}

/* Freed without a wait: nothing is left but what was there. */
static void a_saver_is_freed(fsdp_context *context, void *arg)
{
    fsdp_checkpoint_saver *saver = saver_of(context, arg, &(fsdp_checkpoint_saver_options){.async = true});

    CHECK_OK(scene_save(saver, context, SCENE_ROWS, 1, 1));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    fsdp_checkpoint_saver_free(saver);
}

TEST(a_saver_may_be_freed_while_it_writes)
{
    job j = job_create();
    char *text;

    for (int i = 0; i < 5; i++)
        test_run_ranks(2, a_saver_is_freed, &j);
    text = tree_text(j.folder, NULL);
    CHECK_NULL(strstr(text, "step-1/"));
    free(text);
    job_free(&j);
}

/* ---- room ---- */

/* Saves where no file may have more bytes, which fails because of `text`. */
static void save_within(fsdp_checkpoint_saver *saver, const fsdp_checkpoint_content *content, rlim_t bytes,
                        const char *part)
{
    struct rlimit before, low;
    fsdp_status status;
    char text[300];

    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = (struct rlimit){.rlim_cur = bytes, .rlim_max = before.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
    status = fsdp_checkpoint_saver_save(saver, content);
    snprintf(text, sizeof text, "%s", fsdp_last_error());
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK_EQ(status, FSDP_IO);
    CHECK_CONTAINS(text, part);
}

/* The manifest is one. */
TEST(a_file_that_would_be_too_large_is_refused_before_it_is_written)
{
    fsdp_context *context = test_context();
    job j = job_create();
    fsdp_checkpoint_saver *saver = saver_of(context, &j, NULL);
    size_t bytes;
    char limit[80];
    scene_content c;

    scene_content_create(&c, context, SCENE_PLAIN, 1, 1);
    save_within(saver, &c.content, 500, "and a file may have 500: raise the limit");
    CHECK(!fsdp__path_exists(j.folder));
    CHECK_OK(fsdp_checkpoint_saver_save(saver, &c.content));
    (void)test_read_file(test_path(j.folder, "step-1/manifest.json"), &bytes);
    c.content.step = 2;
    snprintf(limit, sizeof limit, "and a file may have %zu: raise the limit", bytes - 1);
    save_within(saver, &c.content, bytes - 1, "'manifest.json' has ");
    save_within(saver, &c.content, bytes - 1, limit);
    scene_content_free(&c);
    fsdp_checkpoint_saver_free(saver);
    fsdp_context_free(context);
    job_free(&j);
}

TEST(a_thread_that_cannot_start_costs_the_checkpoint)
{
    fsdp_context *context = test_context();
    job j = job_create();
    fsdp_checkpoint_saver *saver = saver_of(context, &j, &(fsdp_checkpoint_saver_options){.async = true});
    fsdp_status status;
    char text[300];

    CHECK_PTR(test_device(context)); /* whose stream may have a thread */
    test_refuse_threads(true);
    status = save_and_spoil(saver, context, 1, 1);
    snprintf(text, sizeof text, "%s", fsdp_last_error());
    test_refuse_threads(false);
    CHECK_EQ(status, FSDP_NO_MEMORY);
    CHECK_CONTAINS(text, "cannot start a thread to save step 1: Resource temporarily unavailable; 'ulimit -u', or ");
    CHECK_OK(save_and_spoil(saver, context, 2, 1));
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
    load_model(context, j.folder, 2, 1);
    fsdp_checkpoint_saver_free(saver);
    CHECK(!fsdp__path_exists(test_path(j.folder, "step-1")));
    fsdp_context_free(context);
    job_free(&j);
}

/* ---- ranks that differ ---- */

static void ranks_differ(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_checkpoint_saver *saver = saver_of(context, j, NULL);
    int rank = fsdp_context_rank(context);
    scene s = scene_create(context, SCENE_ROWS, rank == 1 ? FSDP_BF16 : FSDP_F32, 1, true);
    const fsdp_checkpoint_section section = {.name = "model", .state = s.state};

    CHECK_ERROR(scene_save(saver, context, SCENE_ROWS, rank, 1), FSDP_MISMATCH, "rank 1: cannot save step 1");
    CHECK_ERROR(fsdp_checkpoint_saver_save(saver, &(fsdp_checkpoint_content){.sections = &section, .section_count = 1}),
                FSDP_MISMATCH, "differ from those of rank 0");
    CHECK_ERROR(fsdp_checkpoint_saver_save(saver, rank == 1 ? NULL : &(fsdp_checkpoint_content){.step = 1}),
                FSDP_INVALID, "rank 1: cannot save a checkpoint: its content is required");
    fsdp_checkpoint_saver_free(saver);
    scene_free(&s);
}

TEST(ranks_that_differ_all_fail)
{
    job j = job_create();

    test_run_ranks(3, ranks_differ, &j);
    CHECK(!fsdp__path_exists(j.folder));
    job_free(&j);
}

/* A rank of a mesh that saves what it has of it by itself. */
static void one_rank_saves_alone(fsdp_context *context, void *arg)
{
    const job *j = arg;
    const int ranks[] = {0};
    fsdp_process_group *alone = NULL;
    scene s = scene_create(context, SCENE_ROWS, FSDP_F32, 1, true);
    const fsdp_checkpoint_section section = {.name = "model", .state = s.state};

    CHECK_OK(fsdp_process_group_create(context, ranks, 1, "alone", &alone));
    if (alone)
        CHECK_ERROR(fsdp_checkpoint_save(j->folder,
                                         &(fsdp_checkpoint_content){.sections = &section, .section_count = 1}, alone),
                    FSDP_INVALID, "all ranks that share the tensors must save them together");
    scene_free(&s);
    fsdp_process_group_free(alone);
}

TEST(a_part_of_the_ranks_cannot_save)
{
    job j = job_create();

    test_run_ranks(2, one_rank_saves_alone, &j);
    job_free(&j);
}

/* ---- tensors of one rank alone ---- */

static void add_number(fsdp_context *context, fsdp_state_dict *state, const char *name, float value)
{
    fsdp_tensor *tensor = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(2), FSDP_MEMORY_OPTIMIZER_STATE, &tensor));
    CHECK_OK(fsdp_tensor_fill_(tensor, value));
    CHECK_OK(fsdp_state_dict_add(state, name, tensor));
    fsdp_tensor_unref(tensor);
}

static void each_saves_its_own(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"zero", "one", "two"};
    const job *j = arg;
    int rank = fsdp_context_rank(context);
    fsdp_checkpoint_section section = {.name = "optimizer", .own = true};
    const fsdp_checkpoint_content content = {.sections = &section, .section_count = 1};
    fsdp_checkpoint_reader *reader = NULL;
    float values[2];

    CHECK_OK(fsdp_state_dict_create(&section.state));
    add_number(context, section.state, names[rank], (float)rank + 0.5f);
    CHECK_OK(fsdp_checkpoint_save(j->folder, &content, fsdp_world(context)));
    CHECK_OK(fsdp_checkpoint_open(j->folder, &reader));
    CHECK_EQ(fsdp_checkpoint_count(reader), 3);
    CHECK_OK(fsdp_tensor_fill_(section.state->entries[0].tensor, 0));
    CHECK_OK(
        fsdp_checkpoint_load(reader, "optimizer", section.state, &(fsdp_checkpoint_load_options){.partial = true}));
    CHECK_OK(fsdp_tensor_read(section.state->entries[0].tensor, FSDP_F32, values));
    CHECK(values[0] == (float)rank + 0.5f && values[1] == values[0]);
    fsdp_checkpoint_close(reader);
    /* Two of one name are an error that names it, and so are ranks that do not know of it. */
    add_number(context, section.state, rank == 1 ? "other" : "same", 1);
    CHECK_ERROR(fsdp_checkpoint_save(j->folder,
                                     &(fsdp_checkpoint_content){.step = 1, .sections = &section, .section_count = 1},
                                     fsdp_world(context)),
                FSDP_FORMAT, "'optimizer.same' has elements twice");
    section.own = rank == 0;
    CHECK_ERROR(fsdp_checkpoint_save(j->folder,
                                     &(fsdp_checkpoint_content){.step = 1, .sections = &section, .section_count = 1},
                                     fsdp_world(context)),
                FSDP_MISMATCH, "differ from those of rank 0");
    fsdp_state_dict_free(section.state);
}

TEST(ranks_may_have_tensors_of_their_own)
{
    job j = job_create();

    test_run_ranks(3, each_saves_its_own, &j);
    CHECK(!fsdp_checkpoint_exists(j.folder, 1));
    job_free(&j);
}

CONTEXT_TEST(impossible_options_are_refused)
{
    fsdp_checkpoint_saver *saver = NULL;

    CHECK_ERROR(fsdp_checkpoint_saver_create("a", &(fsdp_checkpoint_saver_options){.keep_latest_k = -1},
                                             fsdp_world(context), &saver),
                FSDP_INVALID, "keep_latest_k is -1");
    CHECK_ERROR(fsdp_checkpoint_saver_create("", NULL, fsdp_world(context), &saver), FSDP_INVALID, "folder, group");
    CHECK_ERROR(fsdp_checkpoint_saver_save(NULL, NULL), FSDP_INVALID, "no saver");
    CHECK_ERROR(fsdp_checkpoint_saver_poll(NULL, NULL), FSDP_INVALID, "no saver");
    CHECK_ERROR(fsdp_checkpoint_saver_wait(NULL, NULL), FSDP_INVALID, "no saver");
    CHECK_ERROR(fsdp_checkpoint_saver_pin(NULL, NULL, 0), FSDP_INVALID, "a saver and");
}

TEST_FILE_IN_MEMORY(false, NULL)
