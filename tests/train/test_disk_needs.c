/* What a run needs at its end is tried at its start: room for all that it writes, told with what that is, and names. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "support/calls.h"
#include "train/config.h"
#include "train/story.h"

enum {
    PARAMETERS = 7692,
    MODEL = 4 * PARAMETERS,
    CHECKPOINT = 3 * MODEL,
    TEXTS = 1 << 14 /* beside the model, at most */
};

static int write_everything(void **state)
{
    story *s;

    CHECK_EQ(story_setup(state), 0);
    s = *state;
    test_set_keys(s->config, "checkpoint.folder=%s checkpoint.interval=2 export.path=%s metrics.jsonl=%s/m.jsonl",
                  s->folder, s->model, s->directory);
    return 0;
}

/* Runs where so much is free, which is too little because of `part`. */
static void refuses(story *s, int64_t room, const char *part)
{
    test_limit_room(room);
    story_run(s, 2);
    test_limit_room(-1);
    CHECK_STATUS(s->status, FSDP_IO);
    CHECK_CONTAINS(s->message, part);
    CHECK_EQ(s->last_step, 0);
}

static void goes(story *s, int64_t room)
{
    test_limit_room(room);
    story_go(s, 2);
    test_limit_room(-1);
}

TEST_OF(all_that_goes_to_one_disk_is_added_up, write_everything, NULL, story *s)
{
    int64_t metrics = 400 * STORY_STEPS, beside = 1 << 17; /* texts, which are long beside so small a model */

    refuses(s, CHECKPOINT - 1, "checkpoint.folder: it needs ");
    refuses(s, MODEL - 1, "export.path: cannot write the model");
    refuses(s, 2 * CHECKPOINT + MODEL + metrics, "KiB free: ");
    CHECK_CONTAINS(s->message, "for 2 checkpoints (checkpoint.folder), ");
    CHECK_CONTAINS(s->message, "for the model (export.path), 2.3KiB for metrics (metrics.jsonl): make room, or name");
    CHECK(!story_has(s, "step-2"));
    goes(s, 2 * CHECKPOINT + MODEL + metrics + beside);
    story_set(s, "export.overwrite", "true");
    story_set(s, "training.steps", "8"); /* one more, beside those that are there */
    refuses(s, CHECKPOINT + MODEL, "for 1 checkpoint (checkpoint.folder), ");
    goes(s, CHECKPOINT + MODEL + metrics + beside);
    refuses(s, MODEL - 1, "export.path: cannot write the model"); /* all steps are done */
    goes(s, MODEL + beside);
}

/* At the export the checkpoint before the last is gone, and a validation may have ended the run at its first one. */
TEST_OF(what_need_not_be_written_is_no_reason, write_everything, NULL, story *s)
{
    int64_t metrics = 400 * STORY_STEPS;

    story_set(s, "checkpoint.keep_latest_k", "1");
    refuses(s, 2 * CHECKPOINT, "KiB for 2 checkpoints (checkpoint.folder), 2.3KiB for metrics (metrics.jsonl): make");
    goes(s, 2 * CHECKPOINT + metrics);
    test_remove_tree(s->folder);
    story_set(s, "export.overwrite", "true");
    test_set_keys(s->config, "validation.share=0.1 validation.freq=2 training.early_stop=1");
    refuses(s, CHECKPOINT + MODEL, "for 1 checkpoint (checkpoint.folder), ");
    goes(s, 2 * CHECKPOINT - 1);
}

/* Returns a FIFO at a new path, with a reader, whose descriptor is given. */
static char *open_fifo(const story *s, int *out_fd)
{
    char *path = test_path(s->directory, "fifo");

    CHECK_EQ(mkfifo(path, 0600), 0);
    *out_fd = open(path, O_RDONLY | O_NONBLOCK);
    CHECK(*out_fd >= 0);
    return path;
}

TEST_OF(a_pipe_fills_no_disk, write_everything, NULL, story *s)
{
    int fd;

    story_set(s, "metrics.jsonl", open_fifo(s, &fd));
    goes(s, 2 * CHECKPOINT + MODEL + TEXTS);
    close(fd);
}

/* Gives a new folder on another file system than that of the tests; NULL: there is none. */
static char *other_disk(const story *s)
{
    const char *const places[] = {"/dev/shm", TEST_BINARY_DIR};
    struct stat own, other;

    CHECK_EQ(stat(s->directory, &own), 0);
    for (int i = 0; i < 2; i++)
        if (stat(places[i], &other) == 0 && other.st_dev != own.st_dev && access(places[i], W_OK) == 0)
            return mkdtemp(test_path(places[i], "disk-needs-XXXXXX"));
    return NULL;
}

TEST_OF(each_disk_has_a_sum_of_its_own, write_everything, NULL, story *s)
{
    char *other = other_disk(s);

    if (!other)
        skip();
    story_set(s, "export.path", test_path(other, "model"));
    refuses(s, 2 * CHECKPOINT, "KiB for 2 checkpoints (checkpoint.folder), 2.3KiB for metrics (metrics.jsonl): make");
    goes(s, 2 * CHECKPOINT + 400 * STORY_STEPS);
    test_remove_tree(other);
}

/* Nobody knows how many of so many steps are taken. */
TEST_OF(metrics_of_a_run_without_an_end_are_no_reason, write_everything, NULL, story *s)
{
    story_set(s, "training.steps", "1000000000000");
    refuses(s, (int64_t)300 << 20, "for metrics (metrics.jsonl): make room");
    s->end_after = 2;
    test_limit_room((int64_t)401 << 20);
    story_run(s, 2);
    test_limit_room(-1);
    CHECK_STATUS(s->status, FSDP_INTERRUPTED);
}

/* What is there under the name of a save, and is nobody's save, would make that save fail: hours later, perhaps. */
STORY_TEST(what_is_in_the_way_of_a_save_is_told_at_the_start)
{
    char *way = test_path(s->folder, "step-3.saving"), *file = test_path(s->folder, "step-3.saving/mine");

    test_set_keys(s->config, "checkpoint.folder=%s checkpoint.interval=100 training.steps=4", s->folder);
    CHECK_EQ(mkdir(s->folder, 0700), 0);
    for (int i = 0; i < 3; i++) {
        if (i == 0)
            CHECK_EQ(symlink("nothing", way), 0);
        else if (i == 1)
            test_write_file(way, "x", 1);
        else
            CHECK_EQ(mkdir(way, 0700), 0);
        if (i == 2)
            test_write_file(file, "x", 1);
        story_run(s, 2);
        CHECK_EQ(s->status, FSDP_INVALID);
        CHECK_CONTAINS(s->message, "checkpoint.folder: '");
        CHECK_CONTAINS(s->message, "/step-3.saving' is in the way: ");
        CHECK(!story_has(s, "step-4"));
        if (i < 2)
            CHECK_EQ(unlink(way), 0);
    }
    CHECK_EQ(unlink(file), 0);
    CHECK_EQ(rmdir(way), 0);
    story_go(s, 2);
    CHECK(story_has(s, "step-4"));
}

/* A run that fails before its first checkpoint leaves none of the folders that it has made for them. */
STORY_TEST(a_run_that_cannot_start_leaves_no_folders)
{
    test_set_keys(s->config, "checkpoint.folder=%s/above/it data.path=/none", s->folder);
    story_run(s, 2);
    CHECK(s->status != FSDP_OK);
    CHECK(!fsdp__path_exists(s->folder));
}
