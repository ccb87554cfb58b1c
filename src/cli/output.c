/* output.c - checks whether what was printed has arrived, and where else a command may write. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/own_process.h"
#include "train/inputs.h"
#include "train/metrics_lines.h"

bool fsdp__output_failed(char *text, size_t text_bytes)
{
    bool failed = ferror(stdout) != 0;

    errno = 0;
    if (fflush(stdout) != 0)
        failed = true;
    else if (failed) /* only the fact of the first failure is left: write once more to get a reason */
        (void)(putchar('\n') == EOF || fflush(stdout) != 0);
    if (!failed)
        return false;
    if (errno)
        snprintf(text, text_bytes, "cannot write to standard output: %s%s", strerror(errno), fsdp__limit_behind(errno));
    else
        snprintf(text, text_bytes, "cannot write to standard output: a part of the output is lost");
    return true;
}

/* ---- files ---- */

/* Describes the place where a file is written. */
typedef struct place {
    fsdp__directory folder;
    char *name;
} place;

static void release_place(place *p)
{
    fsdp__directory_close(&p->folder);
    fsdp__free(fsdp__take(&p->name));
}

/* Follows a link in /proc, such as /dev/stdout, which says where it leads. */
static fsdp_status follow_proc(place *p)
{
    char *link = fsdp__path_join(p->folder.path, p->name), whole[PATH_MAX];
    bool led = link && realpath(link, whole);

    fsdp__free(link);
    if (!led)
        return FSDP_FAIL(FSDP_IO, "it is a symbolic link that leads nowhere");
    release_place(p);
    return fsdp__directory_of(whole, &p->folder, &p->name);
}

/* Finds the place. Like exports, a file is written where a symbolic link leads, or the link would be lost. */
static fsdp_status find_place(const char *option, const char *path, place *out)
{
    fsdp_status status = fsdp__directory_of_target(path, &out->folder, &out->name);
    struct stat info;

    if (status == FSDP_OK && fsdp__directory_look(&out->folder, out->name, &info)) {
        if (S_ISLNK(info.st_mode))
            status = follow_proc(out);
    } else if (status != FSDP_INVALID && lstat(path, &info) == 0 && S_ISLNK(info.st_mode)) {
        status = FSDP_FAIL(FSDP_IO, "it is a symbolic link that leads nowhere: %s", strerrordesc_np(ENOENT));
    }
    if (status == FSDP_OK)
        return FSDP_OK;
    release_place(out);
    return fsdp_fail_prefix(status, "%s: cannot write '%s'", option, path);
}

static fsdp_status check_place(const char *option, const place *p)
{
    struct stat info;

    if (fsdp__directory_look(&p->folder, p->name, &info) && !S_ISREG(info.st_mode))
        return FSDP_FAIL(FSDP_IO, "%s: '%s/%s' exists and is not a file: name another", option, p->folder.path,
                         p->name);
    if (faccessat(p->folder.fd, ".", W_OK | X_OK, 0) != 0)
        return FSDP_FAIL(FSDP_IO, "%s: cannot write '%s/%s': %s", option, p->folder.path, p->name,
                         strerrordesc_np(errno));
    return FSDP_OK;
}

/* A file that is standard output is replaced by a rename, and what the command prints would be lost. */
fsdp_status fsdp__output_is_apart(const char *option, const char *path)
{
    struct stat named, own;
    bool is_own = stat(path, &named) == 0 && fstat(STDOUT_FILENO, &own) == 0 && fsdp__same_file(&named, &own);

    if (!is_own && strcmp(path, "-") != 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is standard output, where the command itself prints: name a file", option,
                     path);
}

const fsdp__output_kind fsdp__output_svg = {{"<svg", "<?xml", NULL}, "is no SVG picture"};

fsdp_status fsdp__output_check(fsdp__output *output, const fsdp_train_config *config, const char *option,
                               const fsdp__output_kind *kind)
{
    const char *path = output->path;
    fsdp_status status;
    place p;

    if (!path)
        return FSDP_OK;
    FSDP_TRY(fsdp__output_is_apart(option, path));
    FSDP_TRY(find_place(option, path, &p));
    status = check_place(option, &p);
    release_place(&p);
    FSDP_TRY(status);
    FSDP_TRY(fsdp__inputs_spare(config, option, path));
    output->replaces = fsdp__path_exists(path);
    if (!kind || !output->replaces)
        return FSDP_OK;
    return fsdp__metrics_check_contents(option, path, kind->firsts, kind->otherwise);
}

fsdp_status fsdp__output_is_other(const fsdp__output *output, const char *option, const fsdp__output *than,
                                  const char *than_option)
{
    FSDP__SCOPED(release_place) place p = {.name = NULL}, other = {.name = NULL};
    struct stat folder, others;

    if (!output->path || !than->path)
        return FSDP_OK;
    FSDP_TRY(find_place(option, output->path, &p));
    FSDP_TRY(find_place(than_option, than->path, &other));
    if (strcmp(p.name, other.name) != 0 || fstat(p.folder.fd, &folder) != 0 || fstat(other.folder.fd, &others) != 0 ||
        !fsdp__same_file(&folder, &others))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is the file of %s: name another", option, output->path, than_option);
}

/* Holds what becomes of a file while others are written. */
typedef struct writing {
    place p;
    fsdp__prepared file;
} writing;

static void release_writing(writing *w)
{
    fsdp__prepared_release(&w->file);
    release_place(&w->p);
}

static fsdp_status prepare(const fsdp__output_job *job, const void *what, writing *w)
{
    FSDP__FREED char *text = NULL;
    size_t bytes;
    FILE *out = fsdp__begin_text(&text, &bytes);
    fsdp_status status = out ? job->print(what, out) : FSDP_OK;

    FSDP_KEEP_FIRST(status, fsdp__end_text(out));
    FSDP_TRY(status);
    FSDP_TRY(find_place(job->option, job->output->path, &w->p));
    return fsdp_fail_prefix(fsdp__directory_prepare(&w->p.folder, w->p.name, text, bytes, true, &w->file), "%s",
                            job->option);
}

static fsdp_status publish(const fsdp__output_job *job, writing *w)
{
    fsdp_status status = fsdp__prepared_publish(&w->file);

    if (status == FSDP_OK)
        status = fsdp__directory_sync(&w->p.folder);
    job->output->written = status == FSDP_OK;
    return fsdp_fail_prefix(status, "%s", job->option);
}

fsdp_status fsdp__outputs_write(const fsdp__output_job *jobs, int count, const void *what)
{
    writing files[FSDP__OUTPUT_JOBS] = {{.file.temporary = NULL}};
    fsdp_status status = FSDP_OK;

    for (int i = 0; i < count && status == FSDP_OK; i++)
        status = jobs[i].output->path ? prepare(&jobs[i], what, &files[i]) : FSDP_OK;
    for (int i = 0; i < count && status == FSDP_OK; i++)
        status = jobs[i].output->path ? publish(&jobs[i], &files[i]) : FSDP_OK;
    for (int i = 0; i < count; i++)
        release_writing(&files[i]);
    return status;
}

void fsdp__output_tell(const fsdp__output *output, const char *what)
{
    if (output->written)
        printf("\n%s has the %s%s\n", FSDP__SHOWN_PATH(output->path), what, fsdp__in_place(output->replaces));
}
