/* Whether the data is what it was: every token counts, and no save waits for it. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "train/run_start.h"
#include "train/story.h"

/* Text that is long beside what 16 samples of 64 tokens see of it. */
static char *write_long_data(const story *s)
{
    char *path = test_path(s->directory, "long.txt");
    FILE *file = fopen(path, "w");

    for (int i = 0; i < 600; i++)
        fprintf(file, "%d bottles. ", 5000 - 7 * i);
    fclose(file);
    return path;
}

static void change_byte(const char *path, long at)
{
    FILE *file = fopen(path, "r+");
    int byte;

    CHECK(file && fseek(file, at, SEEK_SET) == 0);
    byte = fgetc(file);
    CHECK(fseek(file, at, SEEK_SET) == 0);
    fputc(byte ^ 1, file);
    fclose(file);
}

/* Also where its size and its time of change are what they were. */
STORY_TEST(one_byte_of_other_data_is_refused)
{
    char *data = write_long_data(s);
    struct stat before;

    story_set(s, "data.path", data);
    story_set(s, "checkpoint.folder", s->folder);
    story_stop(s, 2, 2);
    CHECK_EQ(stat(data, &before), 0);
    for (long at = 0; at < before.st_size; at += 401) {
        const struct timespec times[] = {before.st_atim, before.st_mtim};

        change_byte(data, at);
        CHECK_EQ(utimensat(AT_FDCWD, data, times, 0), 0);
        story_run(s, 1 + (int)(at / 401 % 4));
        CHECK_EQ(s->status, FSDP_INVALID);
        CHECK_CONTAINS(s->message, "go through different data");
        change_byte(data, at);
    }
    story_stop(s, 3, 3);
    CHECK_EQ(s->resumed_step, 2);
    change_byte(data, before.st_size / 2 + 3);
    story_set(s, "checkpoint.exclude_from_loading", "dataloader");
    s->end_after = 4;
    story_run(s, 2);
    CHECK_EQ(s->resumed_step, 3);
    CHECK_EQ(s->status, FSDP_INTERRUPTED);
}

STORY_TEST(another_share_is_named)
{
    story_set(s, "data.path", write_long_data(s));
    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "validation.share", "0.1");
    story_stop(s, 1, 2);
    story_set(s, "validation.share", "0.25");
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "go through different data: validation.share is 0.1 there, and 0.25 here: set it back");
    story_set(s, "validation.share", "0.1");
    story_stop(s, 2, 3);
    CHECK_EQ(s->resumed_step, 2);
}

/* As those of before there were digests of all. */
STORY_TEST(a_checkpoint_without_a_digest_compares_samples)
{
    char *data = write_long_data(s);

    story_set(s, "data.path", data);
    story_set(s, "checkpoint.folder", s->folder);
    s->end_after = 2;
    story_run(s, 2);
    story_edit_manifest(s, "step-2", "\"data.digest\"", "\"data.nought\"");
    change_byte(data, 70); /* between the first two samples */
    story_stop(s, 2, 3);
    CHECK_EQ(s->resumed_step, 2);
    change_byte(data, 71); /* step-3 has one again */
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    change_byte(data, 71);
    story_edit_manifest(s, "step-3", "\"data.digest\"", "\"data.nought\"");
    change_byte(data, 0);
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
}

/* The story whose first checkpoint comes before the data is read; a save that waited for that would wait 20 minutes. */
static story *_Atomic held;

/* The C library's, which the thread that reads the data calls first, and nobody else. */
int setpriority(__priority_which_t which, id_t who, int priority)
{
    const story *s = held;

    for (int i = 0; s && i < 120000 && !story_has(s, "step-1"); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    return (int)syscall(SYS_setpriority, which, who, priority);
}

/* Data that takes a thread of its own. */
static char *write_large_data(const story *s)
{
    size_t bytes = FSDP__DIGEST_AT_ONCE + 1000;
    char *path = test_path(s->directory, "large.txt");

    test_write_letters(path, bytes, 23);
    return path;
}

static bool has_digest(const story *s, const char *step)
{
    char *folder = test_path(s->folder, step), *path = test_path(folder, "manifest.json");
    char *text = test_read_file(path, NULL);
    bool has = strstr(text, "\"data.digest\"") != NULL;

    return has;
}

static void end_before_the_data_is_read(story *s)
{
    held = s;
    s->end_after = 1;
    story_run(s, 2);
    held = NULL;
    CHECK_EQ(s->status, FSDP_INTERRUPTED);
    CHECK(!has_digest(s, "step-1"));
}

/* Two steps, a checkpoint of each: between them the data is read to its end. */
static void save_before_and_after(fsdp_context *context, void *arg)
{
    const story *s = arg;
    fsdp_train_run *run = NULL;
    const char *text = NULL;
    int64_t files;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, s->config, &run));
    CHECK(fsdp_train_step(run, NULL) == FSDP_OK && fsdp_train_save(run) == FSDP_OK);
    while (!text && fsdp_context_rank(context) == 0)
        CHECK_OK(fsdp__digest_get(run, &text, &files));
    CHECK(fsdp_train_step(run, NULL) == FSDP_OK && fsdp_train_save(run) == FSDP_OK);
    fsdp_train_run_free(run);
}

STORY_TEST(a_save_does_not_wait_until_the_data_is_read)
{
    char *data = write_large_data(s);

    story_set(s, "data.path", data);
    story_set(s, "checkpoint.folder", s->folder);
    end_before_the_data_is_read(s);
    change_byte(data, 70); /* between the first two samples */
    story_stop(s, 2, 2);
    CHECK_EQ(s->resumed_step, 1);
    s->folder = test_path(s->directory, "by_hand");
    story_set(s, "checkpoint.folder", s->folder);
    held = s;
    test_run_ranks(2, save_before_and_after, s);
    held = NULL;
    CHECK(!has_digest(s, "step-1"));
    CHECK(has_digest(s, "step-2"));
    change_byte(data, 70);
    s->end_after = 3;
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "data.path holds as many tokens, but not the same");
}

/* Files that are still the same are not read again: what the checkpoint says of them is believed. */
STORY_TEST(data_that_has_not_changed_is_known_again)
{
    story_set(s, "data.path", TEST_SOURCE_DIR "/README.md");
    story_set(s, "data.format", "text");
    story_set(s, "checkpoint.folder", s->folder);
    story_stop(s, 2, 2);
    story_edit_manifest(s, "step-2", "\"data.digest\":{\"text\":\"", "\"data.digest\":{\"text\":\"abcdabcdabcd");
    story_stop(s, 3, 3);
    CHECK_EQ(s->resumed_step, 2);
    story_edit_manifest(s, "step-3", "\"data.files\"", "\"data.nofil\""); /* now all of them is */
    story_run(s, 3);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "data.path holds as many tokens, but not the same ones (digest abcdabcdabcd");
}
