/* Files under temporary names: those of this process are removed when it ends, and nothing else. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/directory.h"
#include "base/temporary.h"
#include "support/test.h"

/* Notes a file that is there already. */
static int made(int folder, const char *name)
{
    fsdp__making making = fsdp__temporary_begin();

    return fsdp__temporary_made(&making, folder, name);
}

static fsdp__directory folder_with(const char *const *names)
{
    char *path = test_directory();
    fsdp__directory in;

    CHECK_OK(fsdp__directory_open(path, &in));
    for (; *names; names++)
        test_write_text(path, *names, "x");
    return in;
}

TEST(what_is_not_whole_yet_is_removed_and_nothing_else)
{
    fsdp__directory in = folder_with((const char *const[]){"whole", "half", "other", NULL});
    int half = made(in.fd, "half"), status;
    pid_t child;

    fsdp__temporary_gone(made(in.fd, "whole"));
    child = fork();
    if (child == 0) { /* they are its parent's */
        fsdp__temporaries_remove();
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(test_names_in(in.path), 3);
    fsdp__temporaries_remove();
    CHECK(test_names_in(in.path) == 2 && faccessat(in.fd, "half", F_OK, 0) != 0);
    fsdp__temporary_gone(half);
    test_write_text(in.path, "half", "x");
    fsdp__temporaries_remove();
    CHECK_EQ(test_names_in(in.path), 3);
    fsdp__directory_close(&in);
}

TEST(of_very_many_some_stay)
{
    fsdp__directory in = folder_with((const char *const[]){NULL});
    int notes[100], last;
    char name[20];

    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%d", i);
        test_write_text(in.path, name, "x");
        notes[i] = made(in.fd, name);
    }
    fsdp__temporaries_remove();
    CHECK(test_names_in(in.path) > 0 && test_names_in(in.path) < 100);
    CHECK(notes[0] > 0 && notes[99] == 0);
    for (int i = 0; i < 100; i++)
        fsdp__temporary_gone(notes[i]);
    test_write_text(in.path, "0", "x");
    last = made(in.fd, "0"); /* there is a place again */
    fsdp__temporaries_remove();
    CHECK(faccessat(in.fd, "0", F_OK, 0) != 0);
    fsdp__temporary_gone(last);
    fsdp__directory_close(&in);
}

static atomic_bool over;

/* Notes another file and forgets it, over and over. */
static void *note_others(void *arg)
{
    while (!over)
        fsdp__temporary_gone(made(-1, arg));
    return NULL;
}

TEST(a_file_is_removed_whatever_other_threads_note)
{
    fsdp__directory in = folder_with((const char *const[]){NULL});
    pthread_t threads[2];

    over = false;
    for (int t = 0; t < 2; t++)
        CHECK_EQ(pthread_create(&threads[t], NULL, note_others, t ? "one" : "two"), 0);
    for (int i = 0; i < 500; i++) {
        int note;

        test_write_text(in.path, "half", "x");
        note = made(in.fd, "half");
        fsdp__temporaries_remove();
        CHECK(faccessat(in.fd, "half", F_OK, 0) != 0);
        fsdp__temporary_gone(note);
    }
    over = true;
    for (int t = 0; t < 2; t++)
        CHECK_EQ(pthread_join(threads[t], NULL), 0);
    fsdp__directory_close(&in);
}

typedef struct maker {
    const fsdp__directory *in;
    int note;
    atomic_bool begun;
} maker;

static void *make_late(void *arg)
{
    maker *m = arg;
    fsdp__making making = fsdp__temporary_begin();

    m->begun = true;
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL); /* the other thread looks meanwhile */
    test_write_text(m->in->path, "late", "x");
    m->note = fsdp__temporary_made(&making, m->in->fd, "late");
    return NULL;
}

TEST(a_file_that_another_thread_is_making_is_removed)
{
    fsdp__directory in = folder_with((const char *const[]){NULL});
    maker m = {.in = &in};
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, make_late, &m), 0);
    while (!m.begun)
        sched_yield();
    fsdp__temporaries_remove();
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(test_names_in(in.path), 0);
    fsdp__temporary_gone(m.note);
    fsdp__directory_close(&in);
}

static volatile sig_atomic_t taken;

static void take_signal(int signal)
{
    taken = signal;
}

TEST(no_signal_comes_between_a_file_and_its_note)
{
    struct sigaction act = {.sa_handler = take_signal}, before;
    fsdp__making making;

    CHECK_EQ(sigaction(SIGHUP, &act, &before), 0);
    for (int i = 0; i < 2; i++) { /* also where no file is made */
        taken = 0;
        making = fsdp__temporary_begin();
        CHECK_EQ(raise(SIGHUP), 0);
        CHECK_EQ(taken, 0);
        fsdp__temporary_gone(fsdp__temporary_made(&making, -1, i ? "name" : NULL));
        CHECK_EQ(taken, SIGHUP);
    }
    CHECK_EQ(sigaction(SIGHUP, &before, NULL), 0);
}

TEST(a_file_that_has_taken_the_name_stays)
{
    fsdp__directory in = folder_with((const char *const[]){"half", NULL});
    int note = made(in.fd, "half");

    CHECK_EQ(renameat(in.fd, "half", in.fd, "whole"), 0);
    test_write_text(in.path, "half", "somebody else's");
    fsdp__temporaries_remove();
    CHECK_EQ(test_names_in(in.path), 2);
    fsdp__temporary_gone(note);
    fsdp__directory_close(&in);
}

/* ---- while the process ends ---- */

/* The thread that begins then is still waiting when the end comes. */
static void *begin_too_late(void *arg)
{
    (void)arg;
    (void)fsdp__temporary_begin();
    _exit(1);
}

/* So is one whose file is gone: it would say that it is missing. */
static void *finish_too_late(void *arg)
{
    fsdp__temporary_gone(*(int *)arg);
    _exit(1);
}

static void check_waits_for_the_end(void *(*act)(void *))
{
    fsdp__directory in = folder_with((const char *const[]){"half", NULL});
    pid_t child = fork();
    int status;

    if (child == 0) {
        int note = made(in.fd, "half");
        pthread_t thread;

        fsdp__temporaries_end();
        if (pthread_create(&thread, NULL, act, &note) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
        (void)raise(SIGKILL);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK_EQ(test_names_in(in.path), 0);
    fsdp__directory_close(&in);
}

CALL_TEST(no_file_begins_once_the_process_ends, check_waits_for_the_end(begin_too_late))
CALL_TEST(who_has_lost_a_file_to_the_end_of_the_process_waits_for_it, check_waits_for_the_end(finish_too_late))
