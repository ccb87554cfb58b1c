/* safetensors_header.c - the header of one safetensors file, which is checked as a whole before anybody follows an
 * offset. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"
#include "base/text.h"
#include "format/json.h"
#include "format/lfs_pointer.h"
#include "format/safetensors.h"
#include "tensor/tensor.h"

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER_BYTES = 100000000
};

/* The format's names of dtypes; NONE: the format has it and this library has not. */
static const struct {
    const char *name;
    fsdp_dtype dtype;
    int bits;
} dtypes[] = {
    {"F32", FSDP_F32, 32},
    {"BF16", FSDP_BF16, 16},
    {"F16", FSDP_F16, 16},
    {"I32", FSDP_I32, 32},
    {"I64", FSDP_I64, 64},
    {"U8", FSDP_U8, 8},
    {"BOOL", FSDP_BOOL, 8},
    {"F64", FSDP_DTYPE_NONE, 64},
    {"I8", FSDP_DTYPE_NONE, 8},
    {"I16", FSDP_DTYPE_NONE, 16},
    {"U16", FSDP_DTYPE_NONE, 16},
    {"U32", FSDP_DTYPE_NONE, 32},
    {"U64", FSDP_DTYPE_NONE, 64},
    {"C64", FSDP_DTYPE_NONE, 64},
    {"F8_E4M3", FSDP_DTYPE_NONE, 8},
    {"F8_E5M2", FSDP_DTYPE_NONE, 8},
    {"F8_E8M0", FSDP_DTYPE_NONE, 8},
    {"F8_E4M3FNUZ", FSDP_DTYPE_NONE, 8},
    {"F8_E5M2FNUZ", FSDP_DTYPE_NONE, 8},
    {"F6_E2M3", FSDP_DTYPE_NONE, 6},
    {"F6_E3M2", FSDP_DTYPE_NONE, 6},
    {"F4", FSDP_DTYPE_NONE, 4},
};

/* One file while its header is being read. */
typedef struct header {
    const char *path;
    const unsigned char *data; /* after the header */
    uint64_t data_bytes;
} header;

#define BAD_TENSOR(header, name, format, ...)                                                                \
    FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': tensor '%s': " format, (header)->path, FSDP__SHOWN_NAME(name), \
              __VA_ARGS__)

const char *fsdp__safetensors_dtype_name(fsdp_dtype dtype)
{
    size_t i = 0;

    while (dtypes[i].dtype != dtype)
        i++;
    return dtypes[i].name;
}

static fsdp_status read_dtype(const header *h, const json_t *tensor, fsdp_safetensors_entry *entry, int *out_bits)
{
    const char *text = json_string_value(json_object_get(tensor, "dtype"));

    if (!text)
        return BAD_TENSOR(h, entry->name, "%s", "it has no dtype");
    for (size_t i = 0; i < FSDP__COUNT_OF(dtypes); i++) {
        if (strcmp(text, dtypes[i].name) != 0)
            continue;
        entry->dtype = dtypes[i].dtype;
        entry->dtype_name = entry->dtype == FSDP_DTYPE_NONE ? dtypes[i].name : fsdp_dtype_name(entry->dtype);
        *out_bits = dtypes[i].bits;
        return FSDP_OK;
    }
    return BAD_TENSOR(h, entry->name, "unknown dtype '%s'", FSDP__SHOWN_NAME(text));
}

/* Reads the shape, and computes the bytes that it takes. */
static fsdp_status read_shape(const header *h, const json_t *tensor, int bits, fsdp_safetensors_entry *entry)
{
    const json_t *shape = json_object_get(tensor, "shape");
    int64_t numel;

    if (!json_is_array(shape))
        return BAD_TENSOR(h, entry->name, "%s", "it has no shape");
    if (json_array_size(shape) > FSDP_MAX_DIMS)
        return BAD_TENSOR(h, entry->name, "%zu dimensions: at most %d are supported", json_array_size(shape),
                          FSDP_MAX_DIMS);
    entry->ndim = (int)json_array_size(shape);
    for (int dim = 0; dim < entry->ndim; dim++) {
        const json_t *value = json_array_get(shape, (size_t)dim);

        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return BAD_TENSOR(h, entry->name, "size %d of its shape is not a whole number", dim);
        entry->shape[dim] = json_integer_value(value);
    }
    numel = fsdp__shape_numel(entry->ndim, entry->shape);
    if (numel < 0 || numel > INT64_MAX / bits)
        return BAD_TENSOR(h, entry->name, "%s", "its shape is too large");
    if (numel * bits % 8 != 0)
        return BAD_TENSOR(h, entry->name, "%lld elements of %s do not end with a byte", (long long)numel,
                          entry->dtype_name);
    entry->bytes = (size_t)(numel * bits / 8);
    return FSDP_OK;
}

static fsdp_status read_offsets(const header *h, const json_t *tensor, fsdp_safetensors_entry *entry)
{
    const json_t *offsets = json_object_get(tensor, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    int64_t begin = json_integer_value(first), end = json_integer_value(second);

    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return BAD_TENSOR(h, entry->name, "%s", "data_offsets are not two whole numbers");
    if (begin < 0 || begin > end)
        return BAD_TENSOR(h, entry->name, "data_offsets [%lld, %lld] are not a range", (long long)begin,
                          (long long)end);
    if ((uint64_t)end > h->data_bytes)
        return BAD_TENSOR(h, entry->name, "data_offsets [%lld, %lld] go beyond the file's %llu bytes of data",
                          (long long)begin, (long long)end, (unsigned long long)h->data_bytes);
    if ((uint64_t)(end - begin) != entry->bytes)
        return BAD_TENSOR(h, entry->name, "data_offsets [%lld, %lld] hold %lld bytes, but %s of shape %s is %zu",
                          (long long)begin, (long long)end, (long long)(end - begin), entry->dtype_name,
                          FSDP__SHAPE_OF(entry), entry->bytes);
    entry->data = h->data + begin;
    return FSDP_OK;
}

static fsdp_status read_tensor(const header *h, const char *name, const json_t *tensor, fsdp__tensor_list *list)
{
    fsdp_safetensors_entry entry = {.name = name, .file = h->path};
    int bits = 0;

    if (!json_is_object(tensor))
        return BAD_TENSOR(h, name, "%s", "its entry is not an object");
    FSDP_TRY(read_dtype(h, tensor, &entry, &bits));
    FSDP_TRY(read_shape(h, tensor, bits, &entry));
    FSDP_TRY(read_offsets(h, tensor, &entry));
    if (fsdp__grow(&list->entries, list->count, &list->capacity, sizeof *list->entries) != 0)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", h->path);
    entry.name = fsdp__strdup(name);
    if (!entry.name)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", h->path);
    list->entries[list->count++] = entry;
    return FSDP_OK;
}

static fsdp_status read_metadata(const header *h, const json_t *metadata)
{
    const char *key;
    json_t *value;

    if (json_is_null(metadata)) /* as the format's own library accepts it */
        return FSDP_OK;
    if (!json_is_object(metadata))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': __metadata__ is not an object", h->path);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': '%s' in __metadata__ is not a string", h->path,
                             FSDP__SHOWN_NAME(key));
    }
    return FSDP_OK;
}

static int by_offset(const void *a, const void *b)
{
    const fsdp_safetensors_entry *x = a, *y = b;
    uintptr_t begin_x = (uintptr_t)x->data, begin_y = (uintptr_t)y->data;

    FSDP__ORDER_BY(begin_x, begin_y);
    return FSDP__COMPARE(x->bytes, y->bytes); /* empty tensors first: they end where they begin */
}

/* Checks that the tensors from `first` on cover the data from its first byte to its last, each byte once. */
static fsdp_status check_coverage(const header *h, const fsdp__tensor_list *list, int64_t first)
{
    int64_t count = list->count - first;
    fsdp_safetensors_entry *entries = count > 0 ? list->entries + first : NULL;
    uint64_t covered = 0;

    if (count > 1)
        qsort(entries, (size_t)count, sizeof *entries, by_offset);
    for (int64_t i = 0; i < count; i++) {
        uint64_t begin = (uint64_t)((const unsigned char *)entries[i].data - h->data);

        if (begin < covered)
            return BAD_TENSOR(h, entries[i].name, "its data at offset %llu overlaps that of tensor '%s'",
                              (unsigned long long)begin, FSDP__SHOWN_NAME(entries[i - 1].name));
        if (begin > covered)
            return BAD_TENSOR(h, entries[i].name, "%llu bytes before its data at offset %llu belong to no tensor",
                              (unsigned long long)(begin - covered), (unsigned long long)begin);
        covered = begin + entries[i].bytes;
    }
    if (covered != h->data_bytes)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its last %llu bytes belong to no tensor", h->path,
                         (unsigned long long)(h->data_bytes - covered));
    /* Sort them in the order in which an index lists them: the two are compared side by side (safetensors.c). */
    if (count > 1)
        qsort(entries, (size_t)count, sizeof *entries, fsdp__by_name);
    return FSDP_OK;
}

/* Fails with what the file is instead, if that is known. */
static fsdp_status fail_other_file(const char *path, const unsigned char *data, size_t bytes)
{
    FSDP_TRY(fsdp__lfs_pointer_refuse(path, data, bytes));
    if (bytes >= 4 && memcmp(data, "PK\3\4", 4) == 0)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it is not a safetensors file but a zip archive, as torch.save writes: give "
                         "it a name that ends in .bin, .pt or .pth",
                         path);
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read '%s': it is not a safetensors file: its header does not begin with '{' at offset %d",
                     path, LENGTH_BYTES);
}

static fsdp_status find_header(const char *path, const unsigned char *data, size_t bytes, uint64_t *out_bytes)
{
    uint64_t length = 0;

    if (bytes < LENGTH_BYTES)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': %zu bytes are too few for a safetensors file", path, bytes);
    for (int i = 0; i < LENGTH_BYTES; i++)
        length |= (uint64_t)data[i] << (8 * i);
    if (bytes == LENGTH_BYTES || data[LENGTH_BYTES] != '{')
        return fail_other_file(path, data, bytes);
    if (length > MAX_HEADER_BYTES)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a header of %llu bytes is over the limit of %d", path,
                         (unsigned long long)length, MAX_HEADER_BYTES);
    if (length > bytes - LENGTH_BYTES)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its header of %llu bytes goes beyond its %zu bytes", path,
                         (unsigned long long)length, bytes);
    *out_bytes = length;
    return FSDP_OK;
}

fsdp_status fsdp__safetensors_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__tensor_list *list)
{
    int64_t first = list->count;
    uint64_t length = 0;
    json_auto_t *object = NULL;
    json_t *value;
    const char *name;
    header h;

    FSDP_TRY(find_header(path, data, bytes, &length));
    h = (header){.path = path, .data = data + LENGTH_BYTES + length, .data_bytes = bytes - LENGTH_BYTES - length};
    FSDP_TRY(fsdp__json_parse(path, data + LENGTH_BYTES, (size_t)length, &object));
    json_object_foreach(object, name, value)
    {
        bool metadata = strcmp(name, "__metadata__") == 0;

        FSDP_TRY(metadata ? read_metadata(&h, value) : read_tensor(&h, name, value, list));
    }
    return check_coverage(&h, list, first);
}

void fsdp__tensor_list_release(fsdp__tensor_list *list)
{
    for (int64_t i = 0; i < list->count; i++)
        fsdp__free((void *)(uintptr_t)list->entries[i].name);
    fsdp__free(list->entries);
    *list = (fsdp__tensor_list){0};
}
