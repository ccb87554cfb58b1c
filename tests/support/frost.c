/* frost.c - the group, and a process that removes it if its test ends without doing so. */
#include "support/frost.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test.h"

enum {
    LOOK_MS = 50
};

static bool write_word(const frost *f, const char *file, const char *word)
{
    char path[192];
    FILE *out;
    bool ok;

    snprintf(path, sizeof path, "%s/%s", f->path, file);
    out = fopen(path, "r+e"); /* a folder that is no group has no such file */
    ok = out && fputs(word, out) >= 0;
    return out && fclose(out) == 0 && ok;
}

/* Ends what the test has left in the group. Of version 1 it cannot die before it thaws. */
static void clear(const frost *f)
{
    char path[192];
    FILE *in;
    int pid;

    (void)frost_thaw(f);
    snprintf(path, sizeof path, "%s/cgroup.procs", f->path);
    in = fopen(path, "re");
    while (in && fscanf(in, "%d", &pid) == 1)
        (void)kill(pid, SIGKILL);
    if (in)
        (void)fclose(in);
}

/* Waits until the group or its test is gone. It has nothing of the test's open, nor its session, whose signals end the
 * test. */
static _Noreturn void watch(const frost *f, pid_t test)
{
    struct pollfd end = {.events = POLLIN};

    (void)setsid();
    (void)close_range(0, ~0U, 0);
    end.fd = (int)syscall(SYS_pidfd_open, test, 0);
    while (access(f->path, F_OK) == 0)
        if (end.fd < 0 || poll(&end, 1, LOOK_MS) > 0) {
            clear(f);
            (void)rmdir(f->path);
            usleep(LOOK_MS * 1000);
        }
    _exit(0);
}

/* Starts the process that watches, as nobody's child: the test counts its own. */
static void start_watch(const frost *f)
{
    pid_t test = getpid(), middle = fork();

    CHECK(middle >= 0);
    if (middle == 0) {
        if (fork() == 0)
            watch(f, test);
        _exit(0);
    }
    CHECK_EQ(waitpid(middle, NULL, 0), middle);
}

bool frost_begin(frost *f)
{
    char path[192];

    snprintf(f->path, sizeof f->path, "%s/fsdp-test-%d", f->mount, (int)getpid());
    if (mkdir(f->path, 0755) != 0)
        return false;
    snprintf(path, sizeof path, "%s/%s", f->path, f->file);
    if (access(path, W_OK) == 0) {
        start_watch(f);
        return true;
    }
    (void)rmdir(f->path);
    return false;
}

bool frost_take(const frost *f, pid_t pid)
{
    char number[16];

    snprintf(number, sizeof number, "%d", (int)pid);
    return write_word(f, "cgroup.procs", number) && write_word(f, f->file, f->freeze);
}

bool frost_thaw(const frost *f)
{
    return write_word(f, f->file, f->thaw);
}

void frost_end(const frost *f)
{
    while (rmdir(f->path) != 0 && errno == EBUSY) /* what has just ended may be counted still */
        usleep(1000);
}
