/* Runs that begin one file at the same time. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/story.h"

static const char other_columns[] = "run,step,loss\n0123456789abcdef,1,5.5\n";

/* Begins a table while a run that has opened its file waits for its turn. `arg`: the file, locked. */
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
            holders += stat(name, &other) == 0 && other.st_ino == own.st_ino && other.st_dev == own.st_dev;
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
    story *s = *state;
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
