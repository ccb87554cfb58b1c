/* parquet.c - opens Arrow GLib, and takes the rows of a file from it: each group of rows is read as a table, which is
 * handed over batch by batch through Arrow's C data interface. */
#include "data/parquet.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"
#include "data/arrow.h"
#include "data/content.h"

#define VARIABLE "FSDP_ARROW_LIBRARIES"
#define LIBRARY "libparquet-glib.so"

enum {
    OLDEST = 600, /* the number after the library's name is 100 times Arrow's version; 6.0 brought the functions */
    NEWEST = 9900,
    MAGIC_BYTES = 4,
    LEAST_BYTES = 12, /* two marks, and the size of what describes the file */
    ROWS_BYTES = 1 << 16
};

/* ---- the library ---- */

/* Holds what GLib's functions say of an error. */
typedef struct g_error {
    uint32_t domain;
    int code;
    char *message;
} g_error;

/* Holds the functions, in the order of `names`. Objects are GObjects, whatever their class. */
typedef struct arrow_glib {
    void *(*file_reader_new_path)(const char *path, g_error **error);
    int (*file_reader_get_n_row_groups)(void *reader);
    void *(*file_reader_read_row_group)(void *reader, int group, int *columns, size_t column_count, g_error **error);
    void *(*table_batch_reader_new)(void *table);
    fsdp__arrow_stream *(*record_batch_reader_export)(void *reader, g_error **error);
    void (*object_unref)(void *object);
    void (*error_free)(g_error *error);
    void (*free)(void *memory);
} arrow_glib;

static const char *const names[] = {"gparquet_arrow_file_reader_new_path",
                                    "gparquet_arrow_file_reader_get_n_row_groups",
                                    "gparquet_arrow_file_reader_read_row_group",
                                    "garrow_table_batch_reader_new",
                                    "garrow_record_batch_reader_export",
                                    "g_object_unref",
                                    "g_error_free",
                                    "g_free"};

typedef struct search {
    void *handle;
    char why[512]; /* a library that is there cannot be opened, or one that it needs; "": none is there */
} search;

static void try_file(search *s, const char *folder, int length, const char *file)
{
    char path[PATH_MAX];
    const char *why;

    if (s->handle || snprintf(path, sizeof path, "%.*s%s%s", length, folder, length > 0 ? "/" : "", file) >= PATH_MAX)
        return;
    s->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    why = s->handle ? NULL : dlerror();
    if (why && !*s->why && (strncmp(why, path, strlen(path)) != 0 || access(path, F_OK) == 0))
        snprintf(s->why, sizeof s->why, "%s", why);
}

/* Looks in one folder, or where the loader looks ("", 0). */
static void look_in(search *s, const char *folder, int length)
{
    char file[40];

    for (int version = NEWEST; version >= OLDEST; version -= 100) {
        snprintf(file, sizeof file, LIBRARY ".%d", version);
        try_file(s, folder, length, file);
    }
    try_file(s, folder, length, LIBRARY);
}

static void look_in_folders(search *s, const char *folders)
{
    while (folders && *folders) {
        int length = (int)strcspn(folders, ":");

        if (length > 0)
            look_in(s, folders, length);
        folders += length + (folders[length] == ':');
    }
}

static fsdp_status open_library(const char *path, void **out)
{
    search s = {0};

    look_in_folders(&s, getenv(VARIABLE));
    look_in(&s, "", 0);
    *out = s.handle; /* for good: its types stay with GLib */
    if (s.handle)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "cannot read '%s': it is a Parquet file, which " LIBRARY " of Arrow GLib reads, and that %s%s: "
                     "install it (libparquet-glib-dev of Apache Arrow's packages for Debian, arrow-c-glib of conda), "
                     "or name the folder that has it in " VARIABLE "; or " FSDP__CONTENT_TO_LINES,
                     path, *s.why ? "cannot be opened: " : "was not found", s.why);
}

static fsdp_status get_functions(const char *path, arrow_glib *out)
{
    void *handle, *functions[FSDP__COUNT_OF(names)];

    _Static_assert(sizeof functions == sizeof *out, "a function for each name");
    FSDP_TRY(open_library(path, &handle));
    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) {
        functions[i] = dlsym(handle, names[i]);
        if (!functions[i])
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot read '%s': " LIBRARY " has no function %s: install version 6 of Arrow or later",
                             path, names[i]);
    }
    memcpy(out, functions, sizeof *out);
    return FSDP_OK;
}

/* ---- a file ---- */

struct fsdp__parquet {
    const char *path;
    arrow_glib arrow;
    void *reader, *table, *batches; /* GObjects, NULL: none. `batches` reads from `table` */
    fsdp__arrow_stream *stream;     /* of `batches` */
    fsdp__arrow_schema schema;      /* of the stream; released: release is NULL */
    fsdp__arrow_array batch;
    int groups, group; /* all, and the next one */
    int64_t row;       /* the next of the batch */
    int64_t rows;      /* of the file, before the batch */
    fsdp__arrow_text text;
    int64_t at; /* what of the text has been read */
};

bool fsdp__parquet_is_named(const char *path)
{
    size_t length = strlen(path), ending = strlen(".parquet");

    return length > ending && strcasecmp(path + length - ending, ".parquet") == 0;
}

bool fsdp__parquet_begins(const void *data, size_t bytes)
{
    return bytes >= MAGIC_BYTES && (memcmp(data, "PAR1", MAGIC_BYTES) == 0 || memcmp(data, "PARE", MAGIC_BYTES) == 0);
}

/* Refuses what says at its ends that it cannot be read. */
static fsdp_status check_ends(const char *path)
{
    FSDP__CLOSED int fd = -1;
    char first[MAGIC_BYTES], last[MAGIC_BYTES];
    size_t bytes;

    FSDP_TRY(fsdp__file_open(path, &fd, &bytes));
    if (bytes < LEAST_BYTES)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is a Parquet file that is cut short: it has %zu bytes",
                         path, bytes);
    FSDP_TRY(fsdp__file_pread(fd, path, first, sizeof first, 0));
    FSDP_TRY(fsdp__file_pread(fd, path, last, sizeof last, bytes - sizeof last));
    if (first[3] == 'E' || memcmp(last, "PARE", sizeof last) == 0)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it is a Parquet file that is encrypted: decrypt it, and write it anew",
                         path);
    if (memcmp(last, "PAR1", sizeof last) != 0)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it is a Parquet file that is cut short: it does not end with PAR1: fetch "
                         "it again",
                         path);
    return FSDP_OK;
}

/* Says why Arrow has not done what it was asked for, and frees the error. */
static fsdp_status no_answer(const fsdp__parquet *p, const char *what, g_error *error)
{
    char shown[600];

    fsdp__shown(error && error->message ? error->message : "Arrow does not say why", shown, sizeof shown);
    if (error)
        p->arrow.error_free(error);
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': Arrow cannot %s: %s", p->path, what, shown);
}

static void drop(const fsdp__parquet *p, void **object)
{
    void *dropped = fsdp__take(object);

    if (dropped)
        p->arrow.object_unref(dropped);
}

static void drop_batch(fsdp__parquet *p)
{
    if (p->batch.release)
        p->batch.release(&p->batch);
    p->batch = (fsdp__arrow_array){0};
}

static void drop_group(fsdp__parquet *p)
{
    fsdp__arrow_stream *stream = fsdp__take(&p->stream);

    drop_batch(p);
    if (p->schema.release)
        p->schema.release(&p->schema);
    p->schema = (fsdp__arrow_schema){0};
    if (stream && stream->release)
        stream->release(stream);
    if (stream)
        p->arrow.free(stream);
    drop(p, &p->batches);
    drop(p, &p->table);
}

void fsdp__parquet_close(fsdp__parquet *parquet)
{
    if (!parquet)
        return;
    drop_group(parquet);
    drop(parquet, &parquet->reader);
    FSDP__FREE_ALL(parquet->text.bytes, parquet);
}

FSDP__SCOPED_POINTER(fsdp__parquet, fsdp__parquet_close)

fsdp_status fsdp__parquet_open(const char *path, fsdp__parquet **out)
{
    FSDP__SCOPED(fsdp__parquet_close_at) fsdp__parquet *p = NULL;
    g_error *error = NULL;

    *out = NULL;
    FSDP_TRY(check_ends(path));
    FSDP__TRY_NEW(p = fsdp__calloc(1, sizeof *p));
    p->path = path;
    FSDP_TRY(get_functions(path, &p->arrow));
    p->reader = p->arrow.file_reader_new_path(path, &error);
    if (!p->reader)
        return no_answer(p, "open it", error);
    p->groups = p->arrow.file_reader_get_n_row_groups(p->reader);
    if (p->groups < 0)
        return no_answer(p, "count its groups of rows", NULL);
    *out = fsdp__take(&p);
    return FSDP_OK;
}

double fsdp__parquet_progress(const fsdp__parquet *parquet)
{
    return parquet->groups > 0 ? (double)parquet->group / parquet->groups : 1;
}

/* ---- rows ---- */

static fsdp_status stream_failed(const fsdp__parquet *p, const char *what, int code)
{
    const char *why = p->stream->get_last_error ? p->stream->get_last_error(p->stream) : NULL;

    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': Arrow cannot %s after row %lld: %s", p->path, what,
                     (long long)p->rows, fsdp__shown(why ? why : strerrordesc_np(code), FSDP__ROOM(600)));
}

static fsdp_status open_group(fsdp__parquet *p)
{
    char what[60];
    g_error *error = NULL;
    int code;

    snprintf(what, sizeof what, "read group %d of %d of its rows", p->group + 1, p->groups);
    p->table = p->arrow.file_reader_read_row_group(p->reader, p->group++, NULL, 0, &error);
    if (!p->table)
        return no_answer(p, what, error);
    p->batches = p->arrow.table_batch_reader_new(p->table);
    p->stream = p->batches ? p->arrow.record_batch_reader_export(p->batches, &error) : NULL;
    if (!p->stream || !p->stream->get_schema || !p->stream->get_next)
        return no_answer(p, what, error);
    code = p->stream->get_schema(p->stream, &p->schema);
    if (code == 0 && p->schema.release)
        return FSDP_OK;
    p->schema.release = NULL; /* there is nothing to release */
    return stream_failed(p, "name the columns of rows", code);
}

/* Gets the next batch; `*more` is false after the last of the group. */
static fsdp_status next_batch(fsdp__parquet *p, bool *more)
{
    const fsdp__arrow_rows rows = {.path = p->path, .schema = &p->schema, .array = &p->batch, .before = p->rows};
    int code = p->stream->get_next(p->stream, &p->batch);

    p->row = 0;
    if (code != 0) {
        p->batch = (fsdp__arrow_array){0};
        return stream_failed(p, "read rows", code);
    }
    *more = p->batch.release != NULL;
    return *more ? fsdp__arrow_check(&rows) : FSDP_OK;
}

/* Goes to a row that has not been read; `*more` is false at the end of the file. */
static fsdp_status find_row(fsdp__parquet *p, bool *more)
{
    while (p->row >= p->batch.length) {
        p->rows += p->batch.length;
        drop_batch(p);
        *more = false;
        if (p->stream)
            FSDP_TRY(next_batch(p, more));
        if (*more)
            continue;
        drop_group(p);
        if (p->group == p->groups)
            return FSDP_OK;
        FSDP_TRY(open_group(p));
    }
    *more = true;
    return FSDP_OK;
}

/* Makes text of some rows, in place of those that have been read. */
static fsdp_status make_text(fsdp__parquet *p)
{
    bool more = true;

    p->at = p->text.count = 0;
    while (more && p->text.count < ROWS_BYTES) {
        FSDP_TRY(find_row(p, &more));
        if (more) {
            const fsdp__arrow_rows rows = {
                .path = p->path, .schema = &p->schema, .array = &p->batch, .before = p->rows};

            FSDP_TRY(fsdp__arrow_row(&rows, p->row++, &p->text));
        }
    }
    return FSDP_OK;
}

fsdp_status fsdp__parquet_read(fsdp__parquet *parquet, char *into, size_t room, size_t *got)
{
    *got = 0;
    if (parquet->at == parquet->text.count)
        FSDP_TRY(make_text(parquet));
    *got = FSDP__MIN(room, (size_t)(parquet->text.count - parquet->at));
    if (*got > 0)
        memcpy(into, parquet->text.bytes + parquet->at, *got);
    parquet->at += (int64_t)*got;
    return FSDP_OK;
}
