/* preload_calls.c - a library for LD_PRELOAD that counts the calls which change a folder, and ends or fails the n-th.
 *
 *     CALLS_BELOW=/path   calls on files below this path count
 *     CALLS_LOG=FILE      the name of every counted call goes there, a line each
 *     CALLS_NTH=n         at the n-th counted call (from 1):
 *     CALLS_ACT=KILL      the process is killed; or EIO, ENOSPC: the call is not made and fails so; or TERM: the
 * process gets a SIGTERM, and the call is made; AFTER: the call is made, and then comes the SIGTERM, if it has made a
 * file
 *
 *     CALLS_REFUSE=call   fails from the first on as at a limit: memfd_create:NAME, pthread_create, fork,
 *                         posix_fallocate, or mmap of a file without a name
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long counted;
static _Thread_local bool ends_after; /* its next call */

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, #name))

static bool is_below(const char *path)
{
    const char *below = getenv("CALLS_BELOW");
    size_t length = below ? strlen(below) : 0;

    return length && strncmp(path, below, length) == 0 && (path[length] == '/' || !path[length]);
}

static bool fd_is_below(int fd)
{
    char link[40], path[4096];
    ssize_t bytes;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bytes = readlink(link, path, sizeof path - 1);
    if (bytes < 0)
        return false;
    path[bytes] = '\0';
    return is_below(path);
}

static bool at_is_below(int fd, const char *path)
{
    return *path == '/' || fd == AT_FDCWD ? is_below(path) : fd_is_below(fd);
}

/* Not by the functions below. */
static void note(const char *call)
{
    const char *log = getenv("CALLS_LOG");
    char line[64];
    long fd = log ? syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;

    if (fd < 0)
        return;
    snprintf(line, sizeof line, "%s\n", call);
    (void)!syscall(SYS_write, (int)fd, line, strlen(line));
    syscall(SYS_close, (int)fd);
}

/* Whether this call is the one that is not made; errno is set then. */
static bool refused(const char *call, bool below)
{
    const char *nth = getenv("CALLS_NTH"), *act = getenv("CALLS_ACT");
    bool mine;

    if (!below)
        return false;
    note(call);
    pthread_mutex_lock(&mutex);
    counted++;
    mine = nth && counted == atol(nth);
    pthread_mutex_unlock(&mutex);
    if (!mine || !act)
        return false;
    if (strcmp(act, "KILL") == 0)
        kill(getpid(), SIGKILL);
    ends_after = strcmp(act, "AFTER") == 0 && (strncmp(call, "open", 4) == 0 || strcmp(call, "linkat") == 0);
    if (strcmp(act, "AFTER") == 0)
        return false;
    if (strcmp(act, "TERM") == 0) {
        kill(getpid(), SIGTERM);
        return false;
    }
    errno = strcmp(act, "ENOSPC") == 0 ? ENOSPC : EIO;
    return true;
}

/* Passes on what a call that may make a file has given. */
static int made(int result)
{
    bool ends = ends_after;

    ends_after = false;
    if (ends && result >= 0)
        kill(getpid(), SIGTERM);
    return result;
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    mode_t mode;

    va_start(rest, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (refused("open", is_below(path)))
        return -1;
    return made(REAL(open, int (*)(const char *, int, ...))(path, flags, mode));
}

int openat(int fd, const char *path, int flags, ...)
{
    va_list rest;
    mode_t mode;

    va_start(rest, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (refused("openat", at_is_below(fd, path)))
        return -1;
    return made(REAL(openat, int (*)(int, const char *, int, ...))(fd, path, flags, mode));
}

int close(int fd)
{
    bool fails = refused("close", fd_is_below(fd));
    int error = errno, result = REAL(close, int (*)(int))(fd); /* it is closed all the same, as by the kernel */

    if (!fails)
        return result;
    errno = error;
    return -1;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (refused("write", fd_is_below(fd)))
        return -1;
    return REAL(write, ssize_t(*)(int, const void *, size_t))(fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    if (refused("pwrite", fd_is_below(fd)))
        return -1;
    return REAL(pwrite, ssize_t(*)(int, const void *, size_t, off_t))(fd, data, bytes, offset);
}

int ftruncate(int fd, off_t bytes)
{
    if (refused("ftruncate", fd_is_below(fd)))
        return -1;
    return REAL(ftruncate, int (*)(int, off_t))(fd, bytes);
}

int fsync(int fd)
{
    if (refused("fsync", fd_is_below(fd)))
        return -1;
    return REAL(fsync, int (*)(int))(fd);
}

int fdatasync(int fd)
{
    if (refused("fdatasync", fd_is_below(fd)))
        return -1;
    return REAL(fdatasync, int (*)(int))(fd);
}

int mkdir(const char *path, mode_t mode)
{
    if (refused("mkdir", is_below(path)))
        return -1;
    return REAL(mkdir, int (*)(const char *, mode_t))(path, mode);
}

int mkdirat(int fd, const char *path, mode_t mode)
{
    if (refused("mkdirat", at_is_below(fd, path)))
        return -1;
    return REAL(mkdirat, int (*)(int, const char *, mode_t))(fd, path, mode);
}

int rmdir(const char *path)
{
    if (refused("rmdir", is_below(path)))
        return -1;
    return REAL(rmdir, int (*)(const char *))(path);
}

int unlink(const char *path)
{
    if (refused("unlink", is_below(path)))
        return -1;
    return REAL(unlink, int (*)(const char *))(path);
}

int unlinkat(int fd, const char *path, int flags)
{
    if (refused("unlinkat", at_is_below(fd, path)))
        return -1;
    return REAL(unlinkat, int (*)(int, const char *, int))(fd, path, flags);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    if (refused("linkat", at_is_below(to_fd, to)))
        return -1;
    return made(REAL(linkat, int (*)(int, const char *, int, const char *, int))(from_fd, from, to_fd, to, flags));
}

int rename(const char *from, const char *to)
{
    if (refused("rename", is_below(to)))
        return -1;
    return REAL(rename, int (*)(const char *, const char *))(from, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned int flags)
{
    if (refused("renameat2", at_is_below(to_fd, to)))
        return -1;
    return REAL(renameat2, int (*)(int, const char *, int, const char *, unsigned int))(from_fd, from, to_fd, to,
                                                                                        flags);
}

/* ---- limits ---- */

static bool is_refused(const char *call)
{
    const char *refused = getenv("CALLS_REFUSE");

    return refused && strcmp(refused, call) == 0;
}

int memfd_create(const char *name, unsigned int flags)
{
    char call[300];

    snprintf(call, sizeof call, "memfd_create:%s", name);
    if (!is_refused(call))
        return REAL(memfd_create, int (*)(const char *, unsigned int))(name, flags);
    errno = EMFILE;
    return -1;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *arg)
{
    if (is_refused("pthread_create"))
        return EAGAIN;
    return REAL(pthread_create,
                int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))(thread, attributes, body, arg);
}

pid_t fork(void)
{
    if (!is_refused("fork"))
        return REAL(fork, pid_t(*)(void))();
    errno = EAGAIN;
    return -1;
}

int posix_fallocate(int fd, off_t offset, off_t bytes)
{
    return is_refused("posix_fallocate") ? EFBIG : REAL(posix_fallocate, int (*)(int, off_t, off_t))(fd, offset, bytes);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    struct stat info;

    if (fd < 0 || !is_refused("mmap") || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink > 0)
        return REAL(mmap, void *(*)(void *, size_t, int, int, int, off_t))(address, bytes, protection, flags, fd,
                                                                           offset);
    errno = ENOMEM;
    return MAP_FAILED;
}
