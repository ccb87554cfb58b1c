/* arrow.h - rows of Arrow's C data interface as JSON lines.
 *
 * The structs are those of the interface (https://arrow.apache.org/docs/format/CDataInterface.html), which is the same
 * in all versions of Arrow: whoever made one releases it by the function in it. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__arrow_schema fsdp__arrow_schema;
struct fsdp__arrow_schema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    fsdp__arrow_schema **children, *dictionary;
    void (*release)(fsdp__arrow_schema *schema); /* NULL: it has been released */
    void *private_data;
};

typedef struct fsdp__arrow_array fsdp__arrow_array;
struct fsdp__arrow_array {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    fsdp__arrow_array **children, *dictionary;
    void (*release)(fsdp__arrow_array *array); /* NULL: it has been released; of a stream's: it has no more */
    void *private_data;
};

typedef struct fsdp__arrow_stream fsdp__arrow_stream;
struct fsdp__arrow_stream {
    /* These return an errno. get_last_error returns the reason of the last failure, or NULL. */
    int (*get_schema)(fsdp__arrow_stream *stream, fsdp__arrow_schema *out);
    int (*get_next)(fsdp__arrow_stream *stream, fsdp__arrow_array *out);
    const char *(*get_last_error)(fsdp__arrow_stream *stream);
    void (*release)(fsdp__arrow_stream *stream);
    void *private_data;
};

/* Holds text that grows. */
typedef struct fsdp__arrow_text {
    char *bytes;
    int64_t count, capacity;
} fsdp__arrow_text;

/* Holds rows of one batch: a struct whose children are the columns. All is borrowed. */
typedef struct fsdp__arrow_rows {
    const char *path; /* of the file, for messages */
    const fsdp__arrow_schema *schema;
    const fsdp__arrow_array *array;
    int64_t before; /* rows of the file that came before these */
} fsdp__arrow_rows;

/* Checks that a batch is laid out as its schema says. A column of a type that has no place in JSON (decimals, times of
 * day, unions, ...) is FSDP_UNSUPPORTED and is named; anything else is FSDP_FORMAT. */
fsdp_status fsdp__arrow_check(const fsdp__arrow_rows *rows);
/* Appends row `row` of the batch, which has been checked, as one line of JSON with its newline. It is the line that
 * pandas' to_json(orient="records", lines=True) makes of the row, except for the spelling: a null is null, points of
 * time are milliseconds since 1970, and bytes are written as they are, whatever their encoding. A map is an object. An
 * offset that points out of its array is FSDP_FORMAT, which names the row, from 1, and the column. */
fsdp_status fsdp__arrow_row(const fsdp__arrow_rows *rows, int64_t row, fsdp__arrow_text *out);
