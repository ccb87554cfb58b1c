/* flight_memory.c - where records lie: in memory that ranks share with their launcher, in a file, and in folders. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/limits.h"
#include "watch/flight.h"

/* ---- folders ---- */

fsdp_status fsdp__flight_folder(const char *path, char *folder)
{
    char here[PATH_MAX];
    int length;

    if (path[0] == '\0')
        return FSDP_FAIL(FSDP_INVALID, "cannot record calls: the folder's name is empty");
    if (path[0] != '/' && !getcwd(here, sizeof here))
        return FSDP_FAIL(FSDP_IO, "cannot record calls in '%s': the working directory: %s", path, strerror(errno));
    length = path[0] == '/' ? snprintf(folder, FSDP__FLIGHT_TEXT, "%s", path)
                            : snprintf(folder, FSDP__FLIGHT_TEXT, "%s/%s", here, path);
    if (length >= FSDP__FLIGHT_TEXT)
        return FSDP_FAIL(FSDP_INVALID, "cannot record calls in '%s': its path has more than %d bytes", path,
                         FSDP__FLIGHT_TEXT - 1);
    return FSDP_OK;
}

/* Makes a folder for its user alone, unless somebody else has made it meanwhile. */
static fsdp_status make_folder(const fsdp__directory *parent, const char *name)
{
    struct stat info;
    fsdp_status status = fsdp__directory_make(parent, name, 0700);

    return status != FSDP_OK && fsdp__directory_look(parent, name, &info) ? FSDP_OK : status;
}

/* Refuses a folder into which others may put names. */
static fsdp_status check_shared(const fsdp__directory *folder, const char *path)
{
    if (!fsdp__directory_is_shared(folder))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot write flight records to '%s': others may write to that folder: name another, or let "
                     "nobody else write there (chmod go-w)",
                     path);
}

fsdp_status fsdp__flight_folder_check(const char *path)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};
    char at[FSDP__FLIGHT_TEXT];
    bool there = true;
    struct stat info;

    FSDP_TRY(fsdp__flight_folder(path, at));
    while (stat(at, &info) != 0 && errno == ENOENT) { /* then it is made there, by the folders above it */
        char *end = strrchr(at, '/');

        end[end == at] = '\0';
        there = false;
    }
    FSDP_TRY(fsdp__directory_open(at, &folder));
    if (there)
        FSDP_TRY(check_shared(&folder, path));
    return faccessat(folder.fd, ".", W_OK | X_OK, AT_EACCESS) == 0 ? FSDP_OK : fsdp__file_error("write to", path);
}

/* Opens a folder, which is made if it is missing, and refuses one into which others may put names. */
static fsdp_status open_folder(const char *path, fsdp__directory *out)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory above_it = {.path = NULL}, parent = {.path = NULL};
    FSDP__FREED char *above = fsdp__path_parent(path), *name = NULL;
    struct stat info;
    fsdp_status status;

    FSDP__TRY_NEW(above);
    FSDP_TRY(fsdp__directory_make_path(above, &above_it, NULL));
    FSDP_TRY(fsdp__directory_of(path, &parent, &name));
    if (!fsdp__directory_look(&parent, name, &info))
        FSDP_TRY(make_folder(&parent, name));
    FSDP_TRY(fsdp__directory_open(path, out));
    status = check_shared(out, path);
    if (status != FSDP_OK)
        fsdp__directory_close(out);
    return status;
}

static const char *name_of(int rank, char name[32])
{
    snprintf(name, 32, "rank-%d.flight", rank);
    return name;
}

fsdp_status fsdp__flight_copy(const fsdp__flight_file *file, fsdp__flight_file **out)
{
    fsdp__flight_file *copy = fsdp__malloc(sizeof *copy);

    if (!copy)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write the flight record of rank %d", file->head.rank);
    memcpy(copy, file, sizeof *copy);
    atomic_store(&copy->end.written_ns, fsdp__clock_ns());
    *out = copy;
    return FSDP_OK;
}

fsdp_status fsdp__flight_save(const fsdp__flight_file *file)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};
    char name[32];

    FSDP_TRY(open_folder(file->end.folder, &folder));
    return fsdp__directory_write_atomic(&folder, name_of(file->head.rank, name), file, sizeof *file);
}

/* ---- a record in a file ---- */

static fsdp_status map(int fd, const char *what, off_t offset, fsdp__flight_file **out)
{
    void *memory;
    /* With all blocks there, no later write can find the disk full, which would be SIGBUS. */
    int error = posix_fallocate(fd, offset, sizeof **out);

    if (error != 0)
        return FSDP_FAIL(FSDP_IO, "cannot make %zu bytes for a flight record in %s: %s%s", sizeof **out, what,
                         strerrordesc_np(error), fsdp__limit_behind(error));
    memory = mmap(NULL, sizeof **out, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (memory == MAP_FAILED)
        return FSDP_FAIL(FSDP_IO, "cannot map a flight record in %s: %s%s", what, strerror(errno),
                         fsdp__limit_behind(errno));
    *out = memory;
    return FSDP_OK;
}

fsdp_status fsdp__flight_map_file(const char *folder, int rank, fsdp__flight_file **out, fsdp__flight_file_id *id)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory in = {.path = NULL};
    struct stat info = {.st_ino = 0};
    char name[32];
    fsdp_status status;
    int fd = -1;

    FSDP_TRY(open_folder(folder, &in));
    (void)fsdp__directory_unlink(&in, name_of(rank, name)); /* of an earlier run; what cannot be removed is told next */
    if (!fsdp__file_is_refused(FSDP__POINT_WRITE, NULL))
        fd = openat(in.fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    status =
        fd < 0 || fstat(fd, &info) != 0 ? fsdp__file_error("make a flight record in", folder) : map(fd, folder, 0, out);
    *id = (fsdp__flight_file_id){info.st_dev, info.st_ino};
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && status != FSDP_OK)
        (void)fsdp__directory_unlink(&in, name);
    return status;
}

void fsdp__flight_remove_file(const char *folder, int rank, const fsdp__flight_file_id *id)
{
    bool held = fsdp_hold_error(true);
    fsdp__directory in = {.path = NULL}, parent = {.path = NULL};
    char name[32], *own = NULL;
    struct stat info;

    if (fsdp__directory_open(folder, &in) == FSDP_OK && fsdp__directory_look(&in, name_of(rank, name), &info) &&
        info.st_dev == id->device && info.st_ino == id->number)
        (void)fsdp__directory_unlink(&in, name);
    if (in.path && fsdp__directory_of(folder, &parent, &own) == FSDP_OK)
        (void)fsdp__directory_remove_empty(&parent, own, &in);
    fsdp__free(own);
    fsdp__directory_close(&parent);
    fsdp__directory_close(&in);
    fsdp_release_error(held);
}

/* ---- memory of all ranks that a process starts ---- */

/* Parts begin at pages. */
static size_t part_bytes(void)
{
    return (sizeof(fsdp__flight_file) + 4095) / 4096 * 4096;
}

static fsdp__flight_file *part_of(const fsdp__flight_memory *memory, int rank)
{
    return (fsdp__flight_file *)(void *)((char *)memory->files + (size_t)rank * part_bytes());
}

fsdp_status fsdp__flight_memory_create(int ranks, const char *folder, fsdp__flight_memory *out)
{
    size_t bytes = (size_t)ranks * part_bytes();
    char absolute[FSDP__FLIGHT_TEXT];
    void *files;
    int fd;

    *out = (fsdp__flight_memory){.fd = -1};
    FSDP_TRY(fsdp__flight_folder(folder, absolute));
    fd = memfd_create("fsdp-flight", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        int error = errno;

        if (fd >= 0)
            close(fd);
        return FSDP_FAIL(FSDP_IO, "cannot make memory for the flight records of %d ranks: %s%s", ranks, strerror(error),
                         fsdp__limit_behind(error));
    }
    files = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (files == MAP_FAILED) {
        close(fd);
        return FSDP_FAIL(FSDP_IO, "cannot map the flight records of %d ranks: %s%s", ranks, strerrordesc_np(errno),
                         fsdp__limit_behind(errno));
    }
    *out = (fsdp__flight_memory){.fd = fd, .ranks = ranks, .files = files};
    for (int r = 0; r < ranks; r++)
        memcpy(part_of(out, r)->end.folder, absolute, strlen(absolute) + 1);
    return FSDP_OK;
}

void fsdp__flight_memory_free(fsdp__flight_memory *memory)
{
    if (!memory->files)
        return;
    (void)munmap(memory->files, (size_t)memory->ranks * part_bytes());
    close(memory->fd);
    *memory = (fsdp__flight_memory){.fd = -1};
}

fsdp_status fsdp__flight_map(int fd, int rank, fsdp__flight_file **out)
{
    struct stat info;
    off_t offset = (off_t)((size_t)rank * part_bytes());

    if (fstat(fd, &info) != 0 || info.st_size < offset + (off_t)part_bytes())
        return FSDP_FAIL(FSDP_INVALID, "descriptor %d is no memory of the launcher's for rank %d", fd, rank);
    return map(fd, "memory of the launcher", offset, out);
}

void fsdp__flight_memory_ending(fsdp__flight_memory *memory, int rank, const char *ending)
{
    fsdp__flight_end *end;

    if (!memory->files)
        return;
    end = &part_of(memory, rank)->end;
    snprintf(end->ending, sizeof end->ending, "%s", ending);
}

void fsdp__flight_memory_freeze(fsdp__flight_memory *memory)
{
    for (int r = 0; memory->files && r < memory->ranks; r++) {
        int64_t none = 0;

        (void)atomic_compare_exchange_strong(&part_of(memory, r)->end.frozen_ns, &none, fsdp__clock_ns());
    }
}

static bool has_begun(const fsdp__flight_file *file)
{
    return atomic_load(&file->end.state) != FSDP__FLIGHT_EMPTY;
}

bool fsdp__flight_memory_tells(const fsdp__flight_memory *memory)
{
    for (int r = 0; memory->files && r < memory->ranks; r++)
        if (has_begun(part_of(memory, r)) && atomic_load(&part_of(memory, r)->end.state) != FSDP__FLIGHT_SETTLED)
            return true;
    return false;
}

/* Writes one. A rank may have written anything into its memory: the folder must end, and its file has its number. */
static fsdp_status write_one(const fsdp__flight_memory *memory, int rank, char *folder)
{
    FSDP__FREED fsdp__flight_file *copy = NULL;

    FSDP_TRY(fsdp__flight_copy(part_of(memory, rank), &copy));
    copy->end.folder[FSDP__FLIGHT_TEXT - 1] = '\0';
    if (copy->head.rank != rank)
        return FSDP_FAIL(FSDP_STATE, "the flight record of rank %d is damaged", rank);
    FSDP_TRY(fsdp__flight_save(copy));
    if (folder[0] == '\0')
        memcpy(folder, copy->end.folder, FSDP__FLIGHT_TEXT);
    return FSDP_OK;
}

fsdp_status fsdp__flight_memory_write(const fsdp__flight_memory *memory, char *folder)
{
    fsdp_status status = FSDP_OK;
    int written = 0;

    folder[0] = '\0';
    for (int r = 0; memory->files && r < memory->ranks; r++)
        if (has_begun(part_of(memory, r))) {
            FSDP_KEEP_FIRST(status, write_one(memory, r, folder));
            written++;
        }
    if (written == 0)
        return FSDP_FAIL(FSDP_STATE, "no rank has recorded any calls");
    return folder[0] ? FSDP_OK : status;
}
