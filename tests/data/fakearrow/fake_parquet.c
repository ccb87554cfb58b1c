/* fake_parquet.c - stands in for Arrow GLib, as a library of its own (libparquet-glib.so.2300): the functions that
 * src/data/parquet.c calls. Its files are a word behind the mark, then lines, "PAR1 word\n...PAR1". Each line is a row
 * of one column of texts, "text"; a line "-" begins a new group of rows, and "|" a new batch of the group. The word
 * says what goes wrong. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/arrow.h"

#define EXPORT __attribute__((visibility("default")))

enum {
    ROWS_MOST = 100
};

typedef struct failure {
    uint32_t domain;
    int code;
    char *message;
} failure;

/* Any object: a file, a table, or a reader of batches. `at`: what is left of the lines. */
typedef struct object {
    char *all, word[32];
    const char *at;
} object;

/* What a batch is made of. */
typedef struct rows {
    fsdp__arrow_array column, *columns[1];
    const void *none[1], *buffers[3];
    int32_t ends[ROWS_MOST + 1];
    char text[4096];
} rows;

/* The functions that are looked for by name. */
object *gparquet_arrow_file_reader_new_path(const char *path, failure **error);
int gparquet_arrow_file_reader_get_n_row_groups(object *file);
object *gparquet_arrow_file_reader_read_row_group(object *file, int group, int *columns, size_t count, failure **error);
object *garrow_table_batch_reader_new(object *table);
fsdp__arrow_stream *garrow_record_batch_reader_export(object *batches, failure **error);
void g_object_unref(object *dropped);
void g_error_free(failure *error);
void g_free(void *memory);

static void *fail(failure **error, const char *why)
{
    *error = calloc(1, sizeof **error);
    (*error)->message = strdup(why);
    return NULL;
}

static object *object_of(const char *word, const char *begin, size_t bytes)
{
    object *made = calloc(1, sizeof *made);

    snprintf(made->word, sizeof made->word, "%s", word);
    made->all = strndup(begin, bytes);
    made->at = made->all;
    return made;
}

EXPORT object *gparquet_arrow_file_reader_new_path(const char *path, failure **error)
{
    char bytes[4096] = "", word[32] = "";
    FILE *in = fopen(path, "rb");
    size_t count = in ? fread(bytes, 1, sizeof bytes - 1, in) : 0;
    const char *lines = strchr(bytes, '\n');

    if (in)
        fclose(in);
    sscanf(bytes, "PAR1\x15%31s", word);
    if (strcmp(word, "refused") == 0)
        return fail(error, "Invalid: no footer\nat all");
    return strcmp(word, "nothing") == 0 ? NULL : object_of(word, lines + 1, count - (size_t)(lines + 1 - bytes) - 4);
}

EXPORT int gparquet_arrow_file_reader_get_n_row_groups(object *file)
{
    int groups = 1;

    for (const char *at = file->all; (at = strstr(at, "-\n")); at++)
        groups++;
    return strcmp(file->word, "no-count") == 0 ? -1 : *file->all ? groups : 0;
}

EXPORT object *gparquet_arrow_file_reader_read_row_group(object *file, int group, int *columns, size_t count,
                                                         failure **error)
{
    const char *begin = file->all, *end;

    if (columns || count || (group == 1 && strcmp(file->word, "bad-group") == 0))
        return fail(error, "IOError: damaged");
    for (int i = 0; i < group; i++)
        begin = strstr(begin, "-\n") + 2;
    end = strstr(begin, "-\n");
    return object_of(file->word, begin, end ? (size_t)(end - begin) : strlen(begin));
}

EXPORT object *garrow_table_batch_reader_new(object *table)
{
    return strcmp(table->word, "no-batches") == 0 ? NULL : object_of(table->word, table->all, strlen(table->all));
}

/* ---- the stream ---- */

static void release_schema(fsdp__arrow_schema *schema)
{
    free(schema->children[0]);
    free(schema->children);
    schema->release = NULL;
}

static int get_schema(fsdp__arrow_stream *stream, fsdp__arrow_schema *out)
{
    const object *o = stream->private_data;

    if (strcmp(o->word, "no-schema") == 0)
        return 5;
    *out = (fsdp__arrow_schema){.format = "+s", .n_children = 1, .release = release_schema};
    out->children = calloc(1, sizeof *out->children);
    out->children[0] = calloc(1, sizeof *out->children[0]);
    *out->children[0] = (fsdp__arrow_schema){.format = strcmp(o->word, "decimal") == 0 ? "d:9,2" : "u", .name = "text"};
    return 0;
}

static void release_rows(fsdp__arrow_array *array)
{
    free(array->private_data);
    array->release = NULL;
}

static int get_next(fsdp__arrow_stream *stream, fsdp__arrow_array *out)
{
    object *o = stream->private_data;
    rows *r;
    int count = 0;

    *out = (fsdp__arrow_array){0};
    if (strcmp(o->word, "bad-batch") == 0 && o->at != o->all)
        return 5;
    if (!*o->at)
        return 0;
    r = calloc(1, sizeof *r);
    for (size_t length; *o->at && *o->at != '|' && count < ROWS_MOST; o->at += length + 1, count++) {
        length = strcspn(o->at, "\n");
        memcpy(r->text + r->ends[count], o->at, length);
        r->ends[count + 1] = r->ends[count] + (int32_t)length;
    }
    o->at += *o->at == '|' ? 2 : 0;
    memcpy(r->buffers, ((const void *[]){NULL, r->ends, r->text}), sizeof r->buffers);
    r->column = (fsdp__arrow_array){.length = count, .n_buffers = 3, .buffers = r->buffers};
    r->columns[0] = &r->column;
    *out = (fsdp__arrow_array){.length = count,
                               .n_buffers = 1,
                               .buffers = r->none,
                               .n_children = 1,
                               .children = r->columns,
                               .release = release_rows,
                               .private_data = r};
    return 0;
}

static const char *get_last_error(fsdp__arrow_stream *stream)
{
    const object *o = stream->private_data;

    return strcmp(o->word, "bad-batch") == 0 ? "OSError: gone" : NULL;
}

static void release_stream(fsdp__arrow_stream *stream)
{
    g_object_unref(stream->private_data);
    stream->release = NULL;
}

EXPORT fsdp__arrow_stream *garrow_record_batch_reader_export(object *batches, failure **error)
{
    fsdp__arrow_stream *stream;

    if (strcmp(batches->word, "no-stream") == 0)
        return fail(error, "NotImplemented");
    stream = calloc(1, sizeof *stream);
    *stream = (fsdp__arrow_stream){.get_schema = get_schema,
                                   .get_next = get_next,
                                   .get_last_error = get_last_error,
                                   .release = release_stream,
                                   .private_data = object_of(batches->word, batches->all, strlen(batches->all))};
    return stream;
}

/* ---- GLib ---- */

EXPORT void g_object_unref(object *dropped)
{
    free(dropped->all);
    free(dropped);
}

EXPORT void g_error_free(failure *error)
{
    free(error->message);
    free(error);
}

EXPORT void g_free(void *memory)
{
    free(memory);
}
