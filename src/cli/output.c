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
    fsdp__free(p->name);
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

fsdp_status fsdp__output_write(fsdp__output *output, const char *option, fsdp_status (*print)(const void *, FILE *),
                               const void *what)
{
    place p = {.name = NULL};
    FSDP__FREED char *text = NULL;
    size_t bytes;
    fsdp_status status;
    FILE *out;

    if (!output->path)
        return FSDP_OK;
    out = fsdp__begin_text(&text, &bytes);
    status = out ? print(what, out) : FSDP_OK;
    FSDP_KEEP_FIRST(status, fsdp__end_text(out));
    if (status == FSDP_OK)
        status = find_place(option, output->path, &p);
    if (status == FSDP_OK && fsdp__directory_write_atomic(&p.folder, p.name, text, bytes) != FSDP_OK)
        status = fsdp_fail_prefix(fsdp_last_status(), "%s", option);
    release_place(&p);
    output->written = status == FSDP_OK;
    return status;
}

void fsdp__output_tell(const fsdp__output *output, const char *what)
{
    if (output->written)
        printf("\n%s has the %s%s\n", FSDP__SHOWN_PATH(output->path), what, fsdp__in_place(output->replaces));
}
