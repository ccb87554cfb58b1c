/* Files under temporary names: those of this process are removed when it ends, and nothing else. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/directory.h"
#include "base/temporary.h"
#include "support/test.h"

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
    int half = fsdp__temporary_made(in.fd, "half"), status;
    pid_t child;

    fsdp__temporary_gone(fsdp__temporary_made(in.fd, "whole"));
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
        notes[i] = fsdp__temporary_made(in.fd, name);
    }
    fsdp__temporaries_remove();
    CHECK(test_names_in(in.path) > 0 && test_names_in(in.path) < 100);
    CHECK(notes[0] > 0 && notes[99] == 0);
    for (int i = 0; i < 100; i++)
        fsdp__temporary_gone(notes[i]);
    test_write_text(in.path, "0", "x");
    last = fsdp__temporary_made(in.fd, "0"); /* there is a place again */
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
        fsdp__temporary_gone(fsdp__temporary_made(-1, arg));
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
        note = fsdp__temporary_made(in.fd, "half");
        fsdp__temporaries_remove();
        CHECK(faccessat(in.fd, "half", F_OK, 0) != 0);
        fsdp__temporary_gone(note);
    }
    over = true;
    for (int t = 0; t < 2; t++)
        CHECK_EQ(pthread_join(threads[t], NULL), 0);
    fsdp__directory_close(&in);
}
