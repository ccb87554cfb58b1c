/* files.c - lists the files that paths stand for. */
#include "data/files.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"
#include "data/content.h"
#include "data/text_file.h"

int fsdp__data_width_by_name(const char *path)
{
    static const struct {
        const char *extension;
        int width;
    } known[] = {{".txt", 1}, {".bin", 2}, {".u16", 2}, {".u32", 4}};
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');

    for (size_t i = 0; dot && i < FSDP__COUNT_OF(known); i++)
        if (strcasecmp(dot, known[i].extension) == 0)
            return known[i].width;
    return 0;
}

/* ---- the list ---- */

/* Returns whether the path could be a data set's name on the hub, as load_dataset takes it: "owner/name". */
static bool may_be_on_the_hub(const char *path)
{
    const char *slash = strchr(path, '/');

    return path[0] != '/' && slash && slash[1] && !strpbrk(slash + 1, "/.");
}

static fsdp_status cannot_open(const char *path)
{
    if (errno == ENOENT && strchr(path, ','))
        return FSDP_FAIL(
            FSDP_NOT_FOUND,
            "cannot open '%s': there is no such file; if it is several, give each an option of its own, or "
            "name them in a list of the config ([a, b])",
            path);
    if (errno == ENOENT && may_be_on_the_hub(path))
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "cannot open '%s': there is no such file; if it is a data set of the Hugging Face hub, "
                         "download it first (hf download %s --repo-type dataset --local-dir %s) and name its files",
                         path, FSDP__SHELL_WORD(path), FSDP__SHELL_WORD(strchr(path, '/') + 1));
    return fsdp__file_error("open", path);
}

/* Adds `path` and takes it over, also on failure; NULL means out of memory. */
static fsdp_status take(fsdp__data_files *files, char *path)
{
    FSDP__FREED char *own = path;

    FSDP__TRY_NEW(own);
    FSDP_TRY(fsdp__grow(&files->paths, files->count, &files->capacity, sizeof *files->paths));
    files->paths[files->count++] = fsdp__take(&own);
    return FSDP_OK;
}

static void sort_from(fsdp__data_files *files, int64_t first)
{
    if (files->count > first)
        qsort(files->paths + first, (size_t)(files->count - first), sizeof *files->paths, fsdp__by_name);
}

/* ---- folders ---- */

/* Holds what a folder holds, and which of it is taken. */
typedef struct folder {
    const char *path;
    int format;
    int64_t text, tokens, others; /* numbers of files, by their names */
    char other[256];              /* the name of one of the others */
    char ending[8];               /* of a file of tokens */
} folder;

static int width_for(const folder *f, const char *name)
{
    if (f->format >= FSDP__LIST_DOCUMENTS && fsdp__is_document(name))
        return 1;
    return f->format == FSDP__LIST_DOCUMENTS ? 0 : fsdp__data_width_by_name(name);
}

static bool fits(folder *f, const char *name)
{
    int width = width_for(f, name);

    if ((width == 1 && f->format > FSDP_TOKENS_TEXT && f->format < FSDP__LIST_DOCUMENTS) ||
        (width > 1 && f->format == FSDP_TOKENS_TEXT) || width == 0) {
        if (f->others++ == 0)
            snprintf(f->other, sizeof f->other, "%s", name);
        return false;
    }
    ++*(width == 1 ? &f->text : &f->tokens);
    if (width > 1)
        snprintf(f->ending, sizeof f->ending, "%s", strrchr(name, '.'));
    return true;
}

/* ---- what a folder holds beside them ---- */

/* Returns whether it is the name of a text with one more ending, such as "a.jsonl.br". */
static bool is_named_as_text(const char *name)
{
    const char *dot = strrchr(name, '.');
    char inner[256];

    if (!dot || fsdp__data_width_by_name(name) > 0)
        return false;
    snprintf(inner, sizeof inner, "%.*s", (int)(dot - name), name);
    return fsdp__is_document(inner) || fsdp__is_json_lines(inner);
}

static fsdp_status check_bytes(const folder *f, const char *path, const char *name, const void *bytes, size_t count)
{
    if (f->format >= FSDP__LIST_DOCUMENTS && fsdp__text_is_packed(bytes, count))
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s', because its name does not say what is packed in it: if it is text, name it "
                         ".txt or .jsonl, followed by .gz or .zst",
                         path);
    FSDP_TRY(fsdp__content_refuse_data(path, bytes, count));
    return is_named_as_text(name) ? fsdp__content_check_text(path, 0, bytes, count) : FSDP_OK;
}

static fsdp_status look_into(const folder *f, const char *path, const char *name)
{
    char bytes[FSDP__CONTENT_BYTES];
    size_t count = 0;
    FSDP__CLOSED int fd = -1;

    if (faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) != 0 && errno == EACCES && !fsdp__content_is_named_data(name))
        return FSDP_OK; /* another user's */
    FSDP_TRY(fsdp__file_open(path, &fd, &count));
    count = FSDP__MIN(count, sizeof bytes);
    FSDP_TRY(fsdp__file_pread(fd, path, bytes, count, 0));
    return check_bytes(f, path, name, bytes, count);
}

/* Checks a file that is not taken. It may hold data all the same, and nobody should train without that data and not
 * know it. */
static fsdp_status leave_out(const folder *f, const char *path, const char *name)
{
    bool tokens = f->format > FSDP_TOKENS_TEXT && f->format < FSDP__LIST_DOCUMENTS;
    fsdp_status status = look_into(f, path, name);

    if (status == FSDP_OK || status == FSDP_NO_MEMORY)
        return status;
    return fsdp_fail_prefix(
        status,
        "a file of the folder '%s' would be left out: if that is meant, name the others by a pattern, such as '%s/*%s'",
        f->path, f->path, tokens ? ".bin" : ".txt");
}

static fsdp_status take_entry(fsdp__data_files *files, folder *f, const char *name)
{
    FSDP__FREED char *path = NULL;
    struct stat info;

    if (name[0] == '.')
        return FSDP_OK;
    FSDP__TRY_NEW(path = fsdp__path_join(f->path, name));
    if (stat(path, &info) != 0)
        return cannot_open(path);
    if (!S_ISDIR(info.st_mode) && fits(f, name))
        return take(files, fsdp__take(&path));
    return S_ISREG(info.st_mode) ? leave_out(f, path, name) : FSDP_OK;
}

static fsdp_status check_folder(const folder *f)
{
    char such_as[340] = "";

    if (f->text && f->tokens && f->format != FSDP__LIST_ANY)
        return FSDP_FAIL(FSDP_FORMAT,
                         "the folder '%s' holds text (%lld file%s named .txt) and tokens (%lld named .bin, .u16 or "
                         ".u32): say which format is meant, or name one kind by a pattern, such as '%s/*%s'",
                         f->path, (long long)f->text, fsdp__plural(f->text), (long long)f->tokens, f->path, f->ending);
    if (f->text || f->tokens)
        return FSDP_OK;
    if (f->others)
        snprintf(such_as, sizeof such_as, ", but %lld other%s, such as '%s'%s", (long long)f->others,
                 fsdp__plural(f->others), f->other,
                 f->format <= FSDP_TOKENS_TEXT && fsdp__is_document(f->other) ? ", which a tokenizer reads" : "");
    return FSDP_FAIL(FSDP_FORMAT, "the folder '%s' holds no file named %s%s", f->path,
                     f->format == FSDP_TOKENS_TEXT       ? ".txt"
                     : f->format == FSDP__LIST_DOCUMENTS ? ".txt, .jsonl or .ndjson, packed or not, or .parquet"
                     : f->format == FSDP__LIST_ANY       ? ".txt, .jsonl, .ndjson, .parquet, .bin, .u16 or .u32"
                     : f->format == FSDP_TOKENS_AUTO     ? ".txt, .bin, .u16 or .u32"
                                                         : ".bin, .u16 or .u32",
                     such_as);
}

static fsdp_status take_folder(fsdp__data_files *files, const char *path, int format)
{
    folder f = {.path = path, .format = format};
    int64_t first = files->count;
    fsdp_status status = FSDP_OK;
    DIR *directory = opendir(path);
    struct dirent *entry;

    if (!directory)
        return cannot_open(path);
    while (status == FSDP_OK && (entry = fsdp__directory_next(directory, path, &status)))
        status = take_entry(files, &f, entry->d_name);
    closedir(directory);
    FSDP_TRY(status);
    sort_from(files, first);
    return check_folder(&f);
}

/* ---- patterns ---- */

static fsdp_status take_matches(fsdp__data_files *files, const char *pattern)
{
    int64_t first = files->count;
    FSDP__SCOPED(globfree) glob_t found = {0};
    int code = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &found);

    if (code == GLOB_NOMATCH)
        return FSDP_FAIL(FSDP_NOT_FOUND, "cannot open '%s': no file has such a name", pattern);
    if (code == GLOB_NOSPACE)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot list '%s': out of memory", pattern);
    if (code != 0)
        return FSDP_FAIL(FSDP_IO, "cannot list '%s': a folder in it cannot be read", pattern);
    for (size_t i = 0; i < found.gl_pathc; i++)
        FSDP_TRY(take(files, fsdp__strdup(found.gl_pathv[i])));
    sort_from(files, first);
    return FSDP_OK;
}

/* ---- all ---- */

static fsdp_status take_path(fsdp__data_files *files, const char *path, int format)
{
    struct stat info;

    if (stat(path, &info) != 0) {
        if (errno == ENOENT && strpbrk(path, "*?["))
            return take_matches(files, path);
        return cannot_open(path);
    }
    if (S_ISDIR(info.st_mode))
        return take_folder(files, path, format);
    return take(files, fsdp__strdup(path));
}

fsdp_status fsdp__data_files_list(const char *const *paths, int64_t count, int format, fsdp__data_files *out)
{
    FSDP__SCOPED(fsdp__data_files_release) fsdp__data_files files = {0};

    *out = files;
    for (int64_t i = 0; i < count; i++) {
        if (!paths[i])
            return FSDP_FAIL(FSDP_INVALID, "cannot open data: path %lld of %lld is NULL", (long long)i + 1,
                             (long long)count);
        FSDP_TRY(take_path(&files, paths[i], format));
    }
    *out = files;
    files = (fsdp__data_files){0};
    return FSDP_OK;
}

void fsdp__data_files_release(fsdp__data_files *files)
{
    for (int64_t i = 0; i < files->count; i++)
        fsdp__free(files->paths[i]);
    fsdp__free(files->paths);
    *files = (fsdp__data_files){0};
}
