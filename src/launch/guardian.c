/* guardian.c - kills the ranks' process groups when nobody holds the launcher's end of a connection any more. */
#include "launch/guardian.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/title.h"
#include "launch/launch.h"

/* The name that `ps` shows. */
typedef struct label {
    fsdp__title title;
    char text[48];
} label;

/* Runs the guardian; `groups` has room for `most`. It is a fork of a process that may have threads, so it makes only
 * system calls. A note is a group's number, negative when the group is gone. */
static void guard(int fd, pid_t *groups, int most, const label *name)
{
    sigset_t all;
    pid_t note;
    ssize_t got;
    int count = 0;

    sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)setsid(); /* so that a signal to the launcher's group does not reach it */
    fsdp__title_write(name->title, name->text);
    /* A process that waits for the end of one of the launcher's pipes must not wait for the guardian. */
    if (fd != STDIN_FILENO && dup2(fd, STDIN_FILENO) == STDIN_FILENO)
        fd = STDIN_FILENO;
    if (fd == STDIN_FILENO)
        (void)close_range(STDIN_FILENO + 1, ~0U, 0);
    while ((got = recv(fd, &note, sizeof note, 0)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got != sizeof note)
            break;
        if (note > 0 && count < most)
            groups[count++] = note;
        for (int i = 0; i < count; i++)
            if (groups[i] == -note)
                groups[i] = groups[--count];
    }
    for (int i = 0; i < count; i++)
        (void)kill(-groups[i], SIGKILL);
    _exit(0);
}

fsdp_status fsdp__guardian_start(int ranks, fsdp__guardian *out)
{
    FSDP__FREED pid_t *groups = fsdp__calloc((size_t)ranks, sizeof *groups);
    label name = {.title = fsdp__title_find()};
    int ends[2];

    *out = (fsdp__guardian){.fd = -1};
    FSDP__TRY_NEW(groups);
    /* A truncated number would be that of another process. */
    if (snprintf(name.text, sizeof name.text, "fsdp: guardian of %d", (int)getpid()) >= (int)name.title.bytes)
        snprintf(name.text, sizeof name.text, "fsdp: guardian");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot watch over the ranks: %s%s", strerror(errno), fsdp__limit_behind(errno));
    out->pid = fork();
    if (out->pid == 0) {
        (void)close(ends[1]); /* otherwise its own copy would keep it open */
        guard(ends[0], groups, ranks, &name);
    }
    (void)close(ends[0]);
    if (out->pid < 0) {
        int error = errno;

        (void)close(ends[1]);
        out->pid = 0;
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot watch over the ranks: %s%s", strerror(error),
                         fsdp__limit_behind(error));
    }
    out->fd = ends[1];
    return FSDP_OK;
}

static void send_note(int fd, pid_t note)
{
    /* Somebody may have killed the guardian: SIGPIPE must not kill this process. */
    while (send(fd, &note, sizeof note, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

void fsdp__guardian_watch(int fd, pid_t group)
{
    send_note(fd, group);
}

void fsdp__guardian_forget(int fd, pid_t group)
{
    send_note(fd, -group);
}

void fsdp__guardian_end(fsdp__guardian *guardian)
{
    int status;

    if (!guardian->pid)
        return;
    (void)close(guardian->fd);
    (void)kill(guardian->pid, SIGCONT); /* somebody may have stopped it, and it would never end */
    (void)fsdp__await_end(guardian->pid, "the guardian of the ranks", &status);
    *guardian = (fsdp__guardian){.fd = -1};
}
