/* test_title.c - what `ps` shows of a process. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/title.h"
#include "support/test.h"

/* As `ps` does it: up to the first NUL, after which there are no arguments. */
static void read_title(char *text, size_t bytes)
{
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t got = file ? fread(text, 1, bytes - 1, file) : 0;

    text[got] = '\0';
    if (file)
        fclose(file);
}

/* 0: as it should be. In a process of its own: what it does cannot be undone. */
static int show(void)
{
    fsdp__title title = fsdp__title_find();
    char text[4096], wish[4096];

    if (title.start != program_invocation_name || title.bytes < strlen(program_invocation_name) + 1)
        return 1;
    fsdp__title_write(title, "abc");
    read_title(text, sizeof text);
    if (strcmp(text, "abc") != 0)
        return 2;
    memset(wish, 'y', sizeof wish);
    wish[sizeof wish - 1] = '\0';
    if (title.bytes >= sizeof wish)
        return 0;
    fsdp__title_write(title, wish); /* what does not fit is cut off */
    read_title(text, sizeof text);
    return strlen(text) == title.bytes - 1 && strspn(text, "y") == title.bytes - 1 ? 0 : 3;
}

TEST(it_is_what_was_written_as_far_as_there_is_room)
{
    int status = 0;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0)
        _exit(show());
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

/* As under valgrind: the arguments are not where the kernel shows them. */
TEST(where_the_arguments_lie_elsewhere_nothing_is_written)
{
    static char name[] = "elsewhere";
    char *before = program_invocation_name;
    fsdp__title title;

    program_invocation_name = name;
    title = fsdp__title_find();
    program_invocation_name = before;
    CHECK_NULL(title.start);
    fsdp__title_write(title, "abc");
}
