/* dataset.c - ready-made data sets: rows of arrays, in memory or in files. */
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "data/array_file.h"
#include "data/fields.h"

/* Holds the rows of one field. */
typedef struct rows {
    const unsigned char *data;
    size_t row_bytes;
    size_t swap; /* bytes of an element whose order must be reversed; 0: nothing to do */
    fsdp__mapping map;
} rows;

typedef struct arrays {
    int64_t length;
    int count;
    rows *rows;
    fsdp_data_field *fields; /* with their own copies of the names */
} arrays;

static int64_t arrays_length(void *arg)
{
    return ((const arrays *)arg)->length;
}

static void copy_swapped(unsigned char *restrict dst, const unsigned char *restrict src, size_t bytes, size_t size)
{
    for (size_t at = 0; at < bytes; at += size)
        for (size_t i = 0; i < size; i++)
            dst[at + i] = src[at + size - 1 - i];
}

static fsdp_status arrays_item(void *arg, int64_t index, void *const *fields)
{
    const arrays *a = arg;

    for (int f = 0; f < a->count; f++) {
        const rows *r = &a->rows[f];
        const unsigned char *row = r->data + (size_t)index * r->row_bytes;

        if (r->swap)
            copy_swapped(fields[f], row, r->row_bytes, r->swap);
        else if (r->row_bytes > 0)
            memcpy(fields[f], row, r->row_bytes);
    }
    return FSDP_OK;
}

static void arrays_free(void *arg)
{
    arrays *a = arg;

    if (!a)
        return;
    for (int f = 0; a->rows && f < a->count; f++)
        fsdp__file_unmap(&a->rows[f].map);
    FSDP__FREE_ALL(a->fields, a->rows, a);
}

FSDP__SCOPED_POINTER(arrays, arrays_free)

static arrays *arrays_create(int count)
{
    FSDP__SCOPED(arrays_free_at) arrays *a = fsdp__calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->rows = fsdp__calloc((size_t)count, sizeof *a->rows);
    if (!a->rows)
        return NULL;
    a->count = count;
    return fsdp__take(&a);
}

/* Makes a data set of the arrays. Takes them over, also on failure. */
static fsdp_status publish(arrays *a, const fsdp_data_field *fields, fsdp_dataset *out)
{
    fsdp_status status = fsdp__fields_copy(fields, a->count, &a->fields);

    if (status != FSDP_OK) {
        arrays_free(a);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    *out = (fsdp_dataset){.length = arrays_length,
                          .item = arrays_item,
                          .arg = a,
                          .fields = a->fields,
                          .field_count = a->count,
                          .free = arrays_free};
    return FSDP_OK;
}

fsdp_status fsdp_dataset_from_memory(const fsdp_data_field *fields, const void *const *data, int field_count,
                                     int64_t length, fsdp_dataset *out)
{
    arrays *a;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a data set: there is no place for it");
    *out = (fsdp_dataset){0};
    if (!data || length < 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot make a data set: arrays are required, and a length of %lld is not possible",
                         (long long)length);
    FSDP_TRY(fsdp__fields_check(fields, field_count));
    for (int f = 0; f < field_count; f++)
        if (!data[f] && length > 0 && fsdp__field_bytes(&fields[f]) > 0)
            return FSDP_FAIL(FSDP_INVALID, "cannot make a data set: field '%s' has no array", fields[f].name);
    FSDP__TRY_NEW(a = arrays_create(field_count));
    a->length = length;
    for (int f = 0; f < field_count; f++)
        a->rows[f] = (rows){.data = data[f], .row_bytes = fsdp__field_bytes(&fields[f])};
    return publish(a, fields, out);
}

/* ---- files ---- */

static fsdp_status open_file(arrays *a, int f, const fsdp_data_file *files, fsdp_data_field *field)
{
    rows *r = &a->rows[f];
    fsdp__array_header header;

    if (!files[f].name || !files[f].path)
        return FSDP_FAIL(FSDP_INVALID, "cannot open a data set: file %d has no name or no path", f);
    FSDP_TRY(fsdp__file_map(files[f].path, &r->map));
    FSDP_TRY(fsdp__array_parse(files[f].path, r->map.data, r->map.bytes, &header));
    if (f > 0 && header.shape[0] != a->length)
        return FSDP_FAIL(FSDP_MISMATCH,
                         "'%s' has %lld items and '%s' %lld: all fields of a data set must have equally many",
                         files[0].path, (long long)a->length, files[f].path, (long long)header.shape[0]);
    a->length = header.shape[0];
    *field = (fsdp_data_field){.name = files[f].name, .dtype = header.dtype, .ndim = header.ndim - 1};
    memcpy(field->shape, header.shape + 1, (size_t)field->ndim * sizeof *field->shape);
    r->data = r->map.data + header.offset;
    r->row_bytes = fsdp__field_bytes(field);
    r->swap = header.swap ? fsdp_dtype_size(header.dtype) : 0;
    return FSDP_OK;
}

fsdp_status fsdp_dataset_open(const fsdp_data_file *files, int count, fsdp_dataset *out)
{
    FSDP__FREED fsdp_data_field *fields = NULL;
    FSDP__SCOPED(arrays_free_at) arrays *a = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot open a data set: there is no place for it");
    *out = (fsdp_dataset){0};
    if (!files || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot open a data set: it has no files");
    a = arrays_create(count);
    FSDP__TRY_NEW(fields = a ? fsdp__calloc((size_t)count, sizeof *fields) : NULL);
    for (int f = 0; f < count; f++)
        FSDP_TRY(open_file(a, f, files, &fields[f]));
    FSDP_TRY(fsdp__fields_check(fields, count));
    return publish(fsdp__take(&a), fields, out);
}

void fsdp_dataset_release(fsdp_dataset *dataset)
{
    if (dataset && dataset->free)
        dataset->free(dataset->arg);
    if (dataset)
        *dataset = (fsdp_dataset){0};
}
