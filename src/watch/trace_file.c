/* trace_file.c - writes a trace beside its place, and puts it there. */
#include "watch/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/temporary.h"

/* ---- whether there may be one ---- */

static bool is_trace(const unsigned char *head, size_t bytes)
{
    static const unsigned char gzip[] = {0x1f, 0x8b, 8, 16 /* a comment follows */};
    const size_t comment = 10;

    if (bytes == 0)
        return true;
    if (bytes >= comment + sizeof FSDP__TRACE_FORMAT && memcmp(head, gzip, sizeof gzip) == 0)
        return memcmp(head + comment, FSDP__TRACE_FORMAT, sizeof FSDP__TRACE_FORMAT) == 0;
    return bytes >= strlen(FSDP__TRACE_HEAD) && memcmp(head, FSDP__TRACE_HEAD, strlen(FSDP__TRACE_HEAD)) == 0;
}

/* Checks what has the name of the file. */
static fsdp_status check_place(const fsdp__directory *folder, const char *name, const char *path)
{
    unsigned char head[sizeof FSDP__TRACE_HEAD];
    struct stat info;
    ssize_t bytes;
    int fd = -1;

    if (!fsdp__directory_look(folder, name, &info))
        return errno == ENOENT ? FSDP_OK : fsdp__file_error("look at", path);
    if (S_ISDIR(info.st_mode))
        return FSDP_FAIL(FSDP_IO, "cannot write '%s': it is a folder", path);
    if (!fsdp__directory_admits(folder, &info))
        return FSDP_FAIL(FSDP_IO, "cannot write '%s': it may be another user's", path);
    FSDP_TRY(fsdp__directory_open_file(folder, name, &fd, &info));
    bytes = read(fd, head, sizeof head);
    (void)close(fd);
    if (bytes < 0)
        return fsdp__file_error("read", path);
    if (!is_trace(head, (size_t)bytes))
        return FSDP_FAIL(FSDP_INVALID, "'%s' exists and is not a trace: name another file, or remove it", path);
    return FSDP_OK;
}

fsdp_status fsdp__trace_file_check(const char *path)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};
    FSDP__FREED char *name = NULL;

    FSDP_TRY(fsdp__directory_of_target(path, &folder, &name));
    FSDP_TRY(check_place(&folder, name, path));
    return faccessat(folder.fd, ".", W_OK | X_OK, AT_EACCESS) == 0 ? FSDP_OK : fsdp__file_error("write", path);
}

/* ---- writing ---- */

/* Whoever ends the process while another thread writes must know whether the file is there. */
static struct {
    pthread_mutex_t mutex;
    bool any;
} published = {.mutex = PTHREAD_MUTEX_INITIALIZER};

bool fsdp__trace_files_stop(void)
{
    pthread_mutex_lock(&published.mutex); /* for good */
    return published.any;
}

fsdp_status fsdp__trace_file_open(const char *path, fsdp__trace_file *out)
{
    fsdp_status status;

    *out = (fsdp__trace_file){.path = path, .fd = -1};
    FSDP_TRY(fsdp__directory_of_target(path, &out->folder, &out->name));
    FSDP_TRY(check_place(&out->folder, out->name, path));
    out->temporary = fsdp__sprintf("%s.tmp-%ld", out->name, (long)getpid());
    FSDP__TRY_NEW(out->temporary);
    status = fsdp__directory_create_temporary(&out->folder, out->temporary, &out->fd, &out->note);
    if (status != FSDP_OK) /* what has that name is not ours to remove */
        fsdp__free(fsdp__take(&out->temporary));
    return status;
}

fsdp_status fsdp__trace_file_add(fsdp__trace_file *f, const void *data, size_t bytes)
{
    FSDP_TRY(fsdp__file_pwrite(f->fd, f->path, data, bytes, f->bytes));
    f->bytes += bytes;
    return FSDP_OK;
}

fsdp_status fsdp__trace_file_finish(fsdp__trace_file *f)
{
    int fd = f->fd;

    f->fd = -1;
    FSDP_TRY(fsdp__file_close(fd, f->path));
    FSDP__HELD(&published.mutex);
    FSDP_TRY(fsdp__directory_rename(&f->folder, f->temporary, &f->folder, f->name, FSDP__RENAME_REPLACES));
    fsdp__temporary_gone(f->note);
    fsdp__free(fsdp__take(&f->temporary));
    published.any = true;
    return FSDP_OK;
}

void fsdp__trace_file_release(fsdp__trace_file *f)
{
    bool held = fsdp_hold_error(true);

    if (f->fd >= 0)
        (void)close(f->fd);
    if (f->temporary) {
        (void)fsdp__directory_unlink(&f->folder, f->temporary);
        fsdp__temporary_gone(f->note);
    }
    fsdp_release_error(held);
    FSDP__FREE_ALL(f->temporary, f->name);
    fsdp__directory_close(&f->folder);
    *f = (fsdp__trace_file){.fd = -1};
}
