/* program.c - a program as a child process. */
#include "support/program.h"

#include <sys/stat.h>

program program_start(const char *directory, const char *const *argv)
{
    program p = {0};
    int out;

    p.output_path = test_path(directory, "output");
    out = open(p.output_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    fflush(NULL);
    p.pid = fork();
    CHECK(p.pid >= 0);
    if (p.pid == 0) {
        setpgid(0, 0);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails, or is ended, leaves nothing behind */
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(out);
    return p;
}

void program_wait(program *p)
{
    int status = 0;
    size_t bytes;
    struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    int looks = 0;

    while (waitpid(p->pid, &status, WNOHANG) == 0) {
        nanosleep(&pause, NULL);
        if (++looks > PATIENCE_LOOKS) {
            kill(-p->pid, SIGKILL);
            waitpid(p->pid, &status, 0);
            p->output = test_read_file(p->output_path, &bytes);
            TEST_FAIL("still running after %d s; it printed:\n%s", PATIENCE_SECONDS, p->output);
        }
    }
    p->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    p->output = test_read_file(p->output_path, &bytes);
}

program program_run(const char *directory, int expected, const char *const *argv)
{
    program p = program_start(directory, argv);

    program_wait(&p);
    if (p.status != expected)
        TEST_FAIL("exit status %d, expected %d; it printed:\n%s", p.status, expected, p.output);
    return p;
}

void program_other_build(const char *from, const char *path)
{
    static const char type_and_name[] = "\x03\0\0\0GNU"; /* of the note with its build id */
    size_t bytes;
    char *file = test_read_file(from, &bytes), *note;

    note = memmem(file, bytes, type_and_name, sizeof type_and_name);
    CHECK(note != NULL);
    note[sizeof type_and_name] ^= 1;
    test_write_file(path, file, bytes);
    CHECK_EQ(chmod(path, 0700), 0);
}

char *test_reference(const char *name, const char *suffix)
{
    const char *folders[] = {getenv("FSDP_REFERENCE"), REFERENCE};
    char file[256];

    snprintf(file, sizeof file, "%s%s", name, suffix);
    for (int i = 0; i < 2; i++) {
        char *path = folders[i] ? test_path(folders[i], file) : NULL;

        if (path && access(path, R_OK) == 0)
            return path;
    }
    return NULL;
}
