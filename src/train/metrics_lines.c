/* metrics_lines.c - files to which runs add lines, and the checks of what they may be. */
#include "train/metrics_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/probe.h"

enum {
    LINE_BYTES = 1 << 16, /* a line in one write, or those of several runs would mix; the longest has some KiB */
    TURN_US = 10000,
    TURNS = 1000,
    TURNS_IN_SILENCE = 100
};

fsdp_status fsdp__metrics_cannot_write(const char *key, const char *path)
{
    return fsdp_fail_prefix(fsdp__file_error("write", path), "%s", key);
}

/* ---- before a run ---- */

fsdp_status fsdp__metrics_check_contents(const char *key, const char *path, const char *const *firsts,
                                         const char *otherwise)
{
    FSDP__FREED char *text = NULL;
    size_t longest = 0;
    bool fits = false;
    ssize_t got = -1;
    int fd;

    for (int i = 0; firsts[i]; i++)
        longest = strlen(firsts[i]) > longest ? strlen(firsts[i]) : longest;
    FSDP__TRY_NEW(text = fsdp__calloc(1, longest + 1));
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        got = read(fd, text, longest);
        close(fd);
    }
    for (int i = 0; firsts[i]; i++)
        fits = fits || strncmp(text, firsts[i], strlen(firsts[i])) == 0;
    if (got < 0)
        return FSDP_FAIL(FSDP_IO, "%s: cannot read '%s', which exists: %s", key, path, strerrordesc_np(errno));
    if (got > 0 && !fits)
        return FSDP_FAIL(FSDP_INVALID, "%s: '%s' exists and %s: name another file, or remove it", key, path, otherwise);
    return FSDP_OK;
}

fsdp_status fsdp__metrics_make_folder(const char *key, const char *path)
{
    FSDP__FREED char *folder = fsdp__path_parent(path);
    fsdp_status status;

    FSDP__TRY_NEW(folder);
    status = fsdp__path_exists(folder) ? FSDP_OK : fsdp__make_directories(folder);
    FSDP_TRY(fsdp_fail_prefix(status, "%s: cannot write '%s'", key, path));
    return access(folder, W_OK | X_OK) == 0 ? FSDP_OK : fsdp__metrics_cannot_write(key, path);
}

/* Returns the bytes of a file that holds nothing but a part of what a file begins with, as a full disk leaves it; 0: it
 * holds nothing, or something else. */
static size_t unfinished(const char *path, const char *first)
{
    size_t bytes = strlen(first);
    char text[1 << 12];
    FSDP__CLOSED int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text) : 0;

    return got > 0 && (size_t)got < bytes && memcmp(text, first, (size_t)got) == 0 ? (size_t)got : 0;
}

fsdp_status fsdp__metrics_lines_check(const char *key, const char *path, const char *const *firsts,
                                      const char *otherwise)
{
    struct stat info;

    if (stat(path, &info) != 0)
        return errno == ENOENT ? fsdp__metrics_make_folder(key, path) : fsdp__metrics_cannot_write(key, path);
    errno = EISDIR;
    if (S_ISDIR(info.st_mode) || access(path, W_OK) != 0)
        return fsdp__metrics_cannot_write(key, path);
    return S_ISREG(info.st_mode) && !unfinished(path, firsts[0])
               ? fsdp__metrics_check_contents(key, path, firsts, otherwise)
               : FSDP_OK;
}

/* ---- writing ---- */

/* Finds out how the file ends, which has content: what an earlier run left unfinished, on a full disk, must not swallow
 * this one's first line, and what it left of the file's first line is completed. */
static void look_at_end(fsdp__metrics_lines *lines, int fd, off_t bytes, const char *first)
{
    char link[40], last = '\n';
    int reader;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    lines->unfinished = unfinished(link, first);
    reader = open(link, O_RDONLY | O_CLOEXEC);
    if (reader >= 0) {
        (void)!pread(reader, &last, 1, bytes - 1);
        close(reader);
    }
    lines->cut_off = last != '\n' && !lines->unfinished;
}

/* Waits until nobody else begins. Whoever can read the file can lock it, so this goes on without in the end. */
static void take_turn(fsdp_context *context, const fsdp__metrics_lines *lines, int fd)
{
    for (int i = 0; i < TURNS && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; i++) {
        if (i == TURNS_IN_SILENCE)
            fsdp_log(context, FSDP_LOG_WARNING,
                     "%s: another process holds a lock on '%s'; the run begins without the lock if it still does in "
                     "%d seconds",
                     lines->key, lines->path, (TURNS - TURNS_IN_SILENCE) * TURN_US / 1000000);
        usleep(TURN_US);
    }
}

fsdp_status fsdp__metrics_lines_open(fsdp_context *context, const char *key, const char *path, const char *first,
                                     fsdp__metrics_lines *lines)
{
    struct stat info;
    fsdp_status status;
    int fd = -1;

    *lines = (fsdp__metrics_lines){.key = key, .path = path};
    FSDP__TRY_NEW(lines->buffer = fsdp__malloc(LINE_BYTES));
    status = fsdp_fail_prefix(fsdp__file_append(path, &fd), "%s", key);
    lines->file = status == FSDP_OK ? fdopen(fd, "a") : NULL;
    if (!lines->file) {
        status = status == FSDP_OK ? fsdp__metrics_cannot_write(key, path) : status;
        if (fd >= 0)
            close(fd);
        fsdp__free(fsdp__take(&lines->buffer));
        return status;
    }
    setvbuf(lines->file, lines->buffer, _IOFBF, LINE_BYTES);
    take_turn(context, lines, fd);
    lines->begun = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
    if (lines->begun)
        look_at_end(lines, fd, info.st_size, first);
    return FSDP_OK;
}

fsdp_status fsdp__metrics_lines_begun(const fsdp__metrics_lines *lines)
{
    fsdp_status status = fsdp__metrics_lines_written(lines);

    (void)flock(fileno(lines->file), LOCK_UN);
    return status;
}

fsdp_status fsdp__metrics_lines_written(const fsdp__metrics_lines *lines)
{
    /* What could not be written stdio forgets: the rest of the line does not follow lines of others later. */
    if (fsdp__file_is_refused(FSDP__POINT_WRITE, NULL) || fflush(lines->file) != 0 || ferror(lines->file))
        return fsdp__metrics_cannot_write(lines->key, lines->path);
    return FSDP_OK;
}

fsdp_status fsdp__metrics_lines_close(fsdp__metrics_lines *lines)
{
    FILE *file = lines->file;
    bool failed = file && fclose(file) != 0;

    lines->file = NULL;
    fsdp__free(fsdp__take(&lines->buffer));
    return failed ? fsdp__metrics_cannot_write(lines->key, lines->path) : FSDP_OK;
}
