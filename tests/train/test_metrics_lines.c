/* Runs that begin one file at the same time, or go on with what another one could not finish. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/metrics.h"
#include "train/story.h"

static const char other_columns[] = "run,step,loss\n0123456789abcdef,1,5.5\n";

/* Begins a table while a run that has opened its file to write waits for its turn: before, the run reads what there is.
 * `arg`: the file, locked. */
static void *begin_while_another_waits(void *arg)
{
    int fd = *(int *)arg, holders = 0;
    struct stat own, other;
    char name[40];

    CHECK_EQ(fstat(fd, &own), 0);
    while (holders < 2) {
        holders = 0;
        for (int i = 0; i < 256; i++) {
            snprintf(name, sizeof name, "/proc/self/fd/%d", i);
            holders += stat(name, &other) == 0 && other.st_ino == own.st_ino && other.st_dev == own.st_dev &&
                       (fcntl(i, F_GETFL) & O_ACCMODE) != O_RDONLY;
        }
        usleep(1000);
    }
    if (write(fd, other_columns, sizeof other_columns - 1) != sizeof other_columns - 1)
        abort();
    CHECK_EQ(flock(fd, LOCK_UN), 0);
    return NULL;
}

/* Whichever comes first has the file, and the other one the file beside it. */
STORY_TEST(a_table_that_another_version_begins_at_the_same_time_keeps_its_columns)
{
    char *path = test_path(s->directory, "both.csv"), *table;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
    pthread_t other;
    int lines = 0;

    story_set(s, "metrics.csv", path);
    CHECK(fd >= 0);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    CHECK_EQ(pthread_create(&other, NULL, begin_while_another_waits, &fd), 0);
    story_go(s, 1);
    CHECK_EQ(pthread_join(other, NULL), 0);
    table = test_read_file(path, NULL);
    CHECK_STRING(table, other_columns);
    table = test_read_file(test_path(s->directory, "both-2.csv"), NULL);
    CHECK_EQ(strncmp(table, "run,step,", 9), 0);
    for (const char *at = table; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    CHECK_EQ(lines, 1 + STORY_STEPS);
    close(fd);
}

static atomic_bool is_locked;

/* Whoever may read a file can lock it. The run says what it waits for, and begins all the same; this takes a second. */
static void *lock_for_a_while(void *arg)
{
    char *path = arg;
    int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0644);

    CHECK_EQ(flock(fd, LOCK_EX), 0);
    atomic_store(&is_locked, true);
    usleep(1500000); /* longer than the run is silent */
    CHECK_EQ(flock(fd, LOCK_UN), 0);
    close(fd);
    return NULL;
}

STORY_TEST(a_lock_of_somebody_else_is_told)
{
    char *path = test_path(s->directory, "locked.jsonl");
    pthread_t other;

    if (!test_long())
        return;
    story_set(s, "metrics.jsonl", path);
    CHECK_EQ(pthread_create(&other, NULL, lock_for_a_while, path), 0);
    while (!atomic_load(&is_locked))
        usleep(1000);
    story_go(s, 1);
    CHECK_EQ(pthread_join(other, NULL), 0);
    CHECK_CONTAINS(s->log, "metrics.jsonl: another process holds a lock on '");
    CHECK_CONTAINS(s->log, "; the run begins without the lock if it still does in 9 seconds");
}

/* ---- what another run could not finish ---- */

/* Writes what a run of one step writes. */
static void write_step(const story *s)
{
    const fsdp_train_summary summary = {.model = "m", .world_size = 1, .run = "0123456789abcdef"};
    fsdp_context *context = test_context();
    fsdp__metrics *metrics = NULL;

    CHECK_OK(fsdp__metrics_check(s->config));
    CHECK_OK(fsdp__metrics_begin(context, s->config, &summary, &metrics));
    CHECK_OK(fsdp__metrics_write(metrics, &(fsdp_train_report){.step = 1}));
    CHECK_OK(fsdp__metrics_end(metrics));
    fsdp_context_free(context);
}

/* A full disk has cut the first line off, anywhere. */
STORY_TEST(a_file_whose_first_line_was_cut_off_is_completed)
{
    static const char *const keys[] = {"metrics.csv", "metrics.jsonl"};

    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++) {
        char *path = test_path(s->directory, keys[i]), *whole, *text;
        int line;

        story_set(s, keys[i], path);
        write_step(s);
        whole = test_read_file(path, NULL);
        line = (int)strcspn(whole, "\n");
        for (int bytes = 1; bytes <= line; bytes += 1 + bytes / 12 * 9) {
            test_write_file(path, whole, (size_t)bytes);
            write_step(s);
            text = test_read_file(path, NULL);
            CHECK_EQ(strncmp(text, whole, i == 0 ? (size_t)line + 1 : 9), 0);
            CHECK_EQ(test_count(text, "\n"), 2 + (i == 1 && bytes >= 9));
            write_step(s); /* and it can be gone on with */
        }
        test_write_file(path, "{\"rum", 5);
        CHECK_ERROR(fsdp__metrics_check(s->config), FSDP_INVALID, "exists and does");
        story_set(s, keys[i], "");
    }
}

/* A line that did not fit is not finished later, behind the lines of others. */
STORY_TEST(a_line_that_a_full_disk_cuts_off_stays_so)
{
    enum {
        FITS = 40 /* bytes of a line */
    };
    const fsdp_train_summary summary = {.model = "m", .world_size = 1, .run = "0123456789abcdef"};
    const fsdp_train_report report = {.step = 1};
    fsdp_context *context = test_context();
    char *path = test_path(s->directory, "m.jsonl"), *before, *after;
    fsdp__metrics *metrics = NULL;
    struct rlimit limit, full;
    size_t bytes;

    story_set(s, "metrics.jsonl", path);
    CHECK_OK(fsdp__metrics_begin(context, s->config, &summary, &metrics));
    before = test_read_file(path, &bytes);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    full = (struct rlimit){.rlim_cur = bytes + FITS, .rlim_max = limit.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    CHECK_STATUS(fsdp__metrics_write(metrics, &report), FSDP_IO);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_STATUS(fsdp__metrics_end(metrics), FSDP_IO);
    after = test_read_file(path, &bytes);
    CHECK_EQ(bytes, strlen(before) + FITS);
    CHECK_OK(fsdp__metrics_begin(context, s->config, &summary, &metrics));
    CHECK_OK(fsdp__metrics_end(metrics));
    after = test_read_file(path, NULL);
    CHECK_EQ(test_count(after, "\n{\"run\": "), 1);
    fsdp_context_free(context);
}
