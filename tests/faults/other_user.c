/* other_user.c - another user, who may write where this one saves. */
#include "faults/other_user.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "faults/tree.h"

enum {
    TRIES = 40,
    SWAPS = 40,
    MOST = 400
};

/* ---- the other user ---- */

/* In a process of its own, for good. */
void other_become(void)
{
    umask(0);
    if (setresgid(OTHER, OTHER, OTHER) != 0 || setresuid(OTHER, OTHER, OTHER) != 0)
        _exit(2);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves nobody */
}

/* Does it in a process of the other user's, who may do what anybody may: false leaves a failure. */
void other_do(bool (*body)(void *), void *arg)
{
    int status = 0;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        other_become();
        _exit(body(arg) ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

/* What the user has made goes away, and a link has its name; the next time that goes, and it may come back. Where there
 * is nothing, a folder of the other user's may come first, for whoever takes what is there. */
static void swap_one(const other_swapper *s, const char *name, int turn)
{
    char path[400], away[440];
    struct stat info;

    snprintf(path, sizeof path, "%s/%s", s->area, name);
    snprintf(away, sizeof away, "%s.away-%d", path, turn % 50);
    if (lstat(path, &info) != 0) {
        if (turn % 8 == 0)
            (void)mkdir(path, 0777);
    } else if (S_ISLNK(info.st_mode)) {
        snprintf(away, sizeof away, "%s.away-%d", path, (turn - 1) % 50);
        (void)unlink(path);
        if (turn % 3 == 0)
            (void)rename(away, path);
    } else if (info.st_uid == OTHER) {
        (void)(S_ISDIR(info.st_mode) ? rmdir(path) : unlink(path));
    } else if (rename(path, away) == 0 && symlink(s->precious, path) == 0) {
        atomic_fetch_add(s->swaps, 1);
        sched_yield();
    }
}

void other_swapper_start(other_swapper *s)
{
    s->swaps = mmap(NULL, sizeof *s->swaps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s->swaps != MAP_FAILED);
    s->pid = fork();
    CHECK(s->pid >= 0);
    if (s->pid != 0)
        return;
    other_become();
    for (int turn = 0;; turn++)
        for (const char *const *name = s->names; *name; name++)
            swap_one(s, *name, turn);
}

void other_swapper_stop(other_swapper *s)
{
    CHECK_EQ(kill(s->pid, SIGKILL), 0);
    CHECK_EQ(waitpid(s->pid, NULL, 0), s->pid);
    munmap(s->swaps, sizeof *s->swaps);
}

/* Whether there is to be another try: the other user must have swapped something, or nothing was tried. */
bool other_goes_on(const other_swapper *s, int tries)
{
    long swaps = atomic_load(s->swaps);

    CHECK(tries < MOST || swaps > 0);
    sched_yield();
    return tries < TRIES || (tries < MOST && swaps < SWAPS);
}

/* ---- the user ---- */

void other_put(const char *folder, const char *name, const char *text)
{
    char *path = test_path(folder, name), *parent = fsdp__path_parent(path);

    CHECK_OK(fsdp__make_directories(parent));
    test_write_file(path, text, strlen(text));
    fsdp__free(parent);
}

int other_setup(void **state)
{
    static const char *const names[] = {"letter",        "gate",     "roses",      "config.json", "model.safetensors",
                                        "new/letter",    "new/gate", "old/letter", "old/gate",    "parts/letter",
                                        "step-1/letter", "a/b/c/d",  "new/rank-x"};
    other_area *f = test_new(sizeof *f);

    if (geteuid() != 0)
        skip();
    f->directory = test_directory();
    f->area = test_path(f->directory, "area");
    f->precious = test_path(f->directory, "precious");
    CHECK_EQ(chmod(f->directory, 0755), 0);
    CHECK_EQ(mkdir(f->area, 0777), 0);
    CHECK_EQ(chmod(f->area, 0777), 0);
    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
        other_put(f->precious, names[i], names[i]);
    f->before = tree_text(f->precious, NULL);
    f->context = test_context();
    *state = f;
    return 0;
}

int other_teardown(void **state)
{
    other_area *f = *state;

    fsdp_context_free(f->context);
    free(f->before);
    return 0;
}

void other_check_precious(const other_area *f)
{
    char *now = tree_text(f->precious, NULL);

    CHECK_STRING(now, f->before);
    free(now);
}

/* A folder of the user's in the area that everybody may write to. */
char *other_open_folder(const other_area *f, const char *name)
{
    char *path = test_path(f->area, name);

    CHECK_OK(fsdp__make_directories(path));
    CHECK_EQ(chmod(path, 0777), 0);
    return path;
}

bool other_plant(const char *folder, const char *name, const char *text)
{
    char path[400];
    int fd;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0;
}
