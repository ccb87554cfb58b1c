/* fields.c - the description of an item. */
#include "data/fields.h"

#include <string.h>

#include "base/alloc.h"

size_t fsdp__field_bytes(const fsdp_data_field *field)
{
    size_t bytes = fsdp_dtype_size(field->dtype);

    for (int d = 0; d < field->ndim; d++)
        bytes *= (size_t)field->shape[d];
    return bytes;
}

static fsdp_status check(const fsdp_data_field *field, int number)
{
    int64_t bytes = (int64_t)fsdp_dtype_size(field->dtype);

    if (!field->name || !field->name[0])
        return FSDP_FAIL(FSDP_INVALID, "field %d of the items has no name", number);
    if (bytes == 0)
        return FSDP_FAIL(FSDP_INVALID, "field '%s' has no dtype", field->name);
    if (field->ndim < 0 || field->ndim >= FSDP_DATA_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "field '%s' has %d dimensions: 0 to %d are possible", field->name, field->ndim,
                         FSDP_DATA_DIMS - 1);
    for (int d = 0; d < field->ndim; d++)
        if (field->shape[d] < 0 || __builtin_mul_overflow(bytes, field->shape[d], &bytes))
            return FSDP_FAIL(FSDP_INVALID, "field '%s' has a size of %lld in dimension %d", field->name,
                             (long long)field->shape[d], d);
    return FSDP_OK;
}

fsdp_status fsdp__fields_check(const fsdp_data_field *fields, int count)
{
    if (!fields || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "items have no fields");
    for (int f = 0; f < count; f++) {
        FSDP_TRY(check(&fields[f], f));
        for (int other = 0; other < f; other++)
            if (strcmp(fields[other].name, fields[f].name) == 0)
                return FSDP_FAIL(FSDP_INVALID, "fields %d and %d of the items are both called '%s'", other, f,
                                 fields[f].name);
    }
    return FSDP_OK;
}

fsdp_status fsdp__fields_copy(const fsdp_data_field *fields, int count, fsdp_data_field **out)
{
    size_t bytes = (size_t)count * sizeof *fields;
    char *memory, *name;

    for (int f = 0; f < count; f++)
        bytes += strlen(fields[f].name) + 1;
    FSDP__TRY_NEW(memory = fsdp__malloc(bytes));
    *out = (fsdp_data_field *)(void *)memory;
    memcpy(memory, fields, (size_t)count * sizeof *fields);
    name = memory + (size_t)count * sizeof *fields;
    for (int f = 0; f < count; f++) {
        size_t length = strlen(fields[f].name) + 1;

        memcpy(name, fields[f].name, length);
        (*out)[f].name = name;
        name += length;
    }
    return FSDP_OK;
}
