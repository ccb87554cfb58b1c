/* manifest_read.c - makes the manifest from its text. */
#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "format/json.h"
#include "tensor/tensor.h"

#define LIMIT_BYTES ((size_t)256 << 20)

enum {
    MAX_WORLD = 1 << 20,
    MAX_SECTIONS = 64
};

/* Holds a text that is being parsed. */
typedef struct parser {
    const char *path;
    fsdp__manifest *m;
} parser;

static fsdp_status damaged(const parser *p, const char *what)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': %s", p->path, what);
}

/* ---- digest ---- */

static fsdp_status check_digest(const parser *p, const char *text, size_t bytes)
{
    char end[FSDP__DIGEST_BYTES + 1];
    size_t length = bytes - FSDP__DIGEST_BYTES;

    if (bytes < FSDP__DIGEST_BYTES)
        return damaged(p, "it is cut off: take another checkpoint");
    fsdp__digest_text(fsdp__checksum(text, length), end);
    if (memcmp(text + length, end, FSDP__DIGEST_BYTES) != 0)
        return damaged(p, "it is damaged, or was changed after the save (its digest does not fit): take another "
                          "checkpoint");
    return FSDP_OK;
}

/* ---- numbers ---- */

static fsdp_status get_integer(const parser *p, const json_t *object, const char *key, int64_t least, int64_t most,
                               int64_t *out)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < least || json_integer_value(value) > most)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' is not a number from %lld to %lld", p->path, key,
                         (long long)least, (long long)most);
    *out = json_integer_value(value);
    return FSDP_OK;
}

static fsdp_status get_hex(const parser *p, const json_t *object, const char *key, uint64_t *out)
{
    const char *digits = json_string_value(json_object_get(object, key));

    if (!digits || strlen(digits) != FSDP__HEX_DIGITS || !fsdp__hex_read(digits, out))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' does not have 16 hexadecimal digits", p->path, key);
    return FSDP_OK;
}

/* ---- values and small files ---- */

static fsdp_status parse_value(const parser *p, const char *name, const json_t *object)
{
    fsdp_checkpoint_value value = {.name = name, .type = FSDP_CHECKPOINT_INTEGER};

    if (json_object_size(object) != 1)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': value '%s' is malformed", p->path, FSDP__SHOWN_NAME(name));
    if (json_object_get(object, "integer")) {
        FSDP_TRY(get_integer(p, object, "integer", INT64_MIN, INT64_MAX, &value.integer));
    } else if (json_object_get(object, "number")) {
        uint64_t bits = 0;

        value.type = FSDP_CHECKPOINT_NUMBER;
        FSDP_TRY(get_hex(p, object, "number", &bits));
        memcpy(&value.number, &bits, sizeof bits);
    } else {
        value.type = FSDP_CHECKPOINT_TEXT;
        value.text = json_string_value(json_object_get(object, "text"));
        if (!value.text)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': value '%s' has an unknown type", p->path,
                             FSDP__SHOWN_NAME(name));
    }
    return fsdp__manifest_add_value(p->m, &value);
}

static fsdp_status parse_values(const parser *p, json_t *object)
{
    const char *name;
    json_t *value;

    if (!json_is_object(object))
        return damaged(p, "it has no values");
    json_object_foreach(object, name, value) FSDP_TRY(parse_value(p, name, value));
    return FSDP_OK;
}

static fsdp_status parse_small(const parser *p, const json_t *array)
{
    if (!json_is_array(array))
        return damaged(p, "it has no list of small files");
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *object = json_array_get(array, i);
        const char *name = json_string_value(json_object_get(object, "name"));
        uint64_t checksum = 0;
        int64_t bytes = 0;

        if (!name)
            return damaged(p, "one of its files has no name");
        FSDP_TRY(get_integer(p, object, "bytes", 0, INT64_MAX, &bytes));
        FSDP_TRY(get_hex(p, object, "checksum", &checksum));
        FSDP_TRY(fsdp__manifest_add_small(p->m, name, (uint64_t)bytes, checksum));
    }
    return FSDP_OK;
}

/* ---- files of ranks ---- */

static fsdp_status parse_blocks(const parser *p, const char *digits, fsdp__rank_file *file)
{
    size_t length = digits ? strlen(digits) : 1;

    if (length % FSDP__HEX_DIGITS != 0)
        return damaged(p, "the checksums of a file are cut off");
    file->block_count = (int64_t)(length / FSDP__HEX_DIGITS);
    file->blocks = fsdp__malloc((size_t)file->block_count * sizeof *file->blocks);
    if (!file->blocks)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", p->path);
    for (int64_t i = 0; i < file->block_count; i++)
        if (!fsdp__hex_read(digits + i * FSDP__HEX_DIGITS, &file->blocks[i]))
            return damaged(p, "a checksum is not hexadecimal");
    return FSDP_OK;
}

static fsdp_status parse_file(const parser *p, const json_t *object)
{
    int64_t rank = 0, bytes = 0, header_bytes = 0, block_bytes = 0;
    fsdp__rank_file file = {.blocks = NULL};
    fsdp_status status = FSDP_OK;

    FSDP_TRY(get_integer(p, object, "rank", 0, p->m->world_size - 1, &rank));
    FSDP_TRY(get_integer(p, object, "bytes", 0, INT64_MAX, &bytes));
    FSDP_TRY(get_integer(p, object, "header_bytes", 0, bytes, &header_bytes));
    FSDP_TRY(get_integer(p, object, "block_bytes", 1, (int64_t)1 << 30, &block_bytes));
    FSDP_TRY(get_hex(p, object, "header", &file.header_checksum));
    file.rank = (int)rank;
    file.bytes = (uint64_t)bytes;
    file.header_bytes = (uint64_t)header_bytes;
    file.block_bytes = (uint64_t)block_bytes;
    status = parse_blocks(p, json_string_value(json_object_get(object, "blocks")), &file);
    if (status == FSDP_OK)
        status = fsdp__manifest_add_file(p->m, &file);
    if (status != FSDP_OK)
        fsdp__free(file.blocks);
    return status;
}

static fsdp_status parse_files(const parser *p, const json_t *array)
{
    if (!json_is_array(array))
        return damaged(p, "it has no list of files");
    for (size_t i = 0; i < json_array_size(array); i++)
        FSDP_TRY(parse_file(p, json_array_get(array, i)));
    return FSDP_OK;
}

/* ---- tensors ---- */

static fsdp_status parse_shape(const parser *p, const json_t *array, fsdp_checkpoint_tensor *tensor)
{
    if (!json_is_array(array) || json_array_size(array) > FSDP_MAX_DIMS)
        return fsdp__manifest_wrong(p->path, tensor, "has no shape");
    tensor->ndim = (int)json_array_size(array);
    for (int d = 0; d < tensor->ndim; d++) {
        const json_t *size = json_array_get(array, (size_t)d);

        if (!json_is_integer(size))
            return fsdp__manifest_wrong(p->path, tensor, "has no shape");
        tensor->shape[d] = json_integer_value(size);
    }
    if (fsdp__shape_numel(tensor->ndim, tensor->shape) < 0)
        return fsdp__manifest_wrong(p->path, tensor, "has an impossible shape");
    return FSDP_OK;
}

static fsdp_status parse_part(const parser *p, const fsdp_checkpoint_tensor *tensor, const json_t *array,
                              fsdp_checkpoint_part *part)
{
    int ndim = part->flat ? 1 : tensor->ndim;
    int64_t numbers[2 + 2 * FSDP_MAX_DIMS], numel = 1;

    if (json_array_size(array) != (size_t)(2 + 2 * ndim))
        return fsdp__manifest_wrong(p->path, tensor, "has a part without a place");
    for (int i = 0; i < 2 + 2 * ndim; i++) {
        const json_t *value = json_array_get(array, (size_t)i);

        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return fsdp__manifest_wrong(p->path, tensor, "has a part with an impossible place");
        numbers[i] = json_integer_value(value);
    }
    if (numbers[0] >= p->m->world_size)
        return fsdp__manifest_wrong(p->path, tensor, "has a part of a rank that does not exist");
    part->rank = (int)numbers[0];
    part->begin = (uint64_t)numbers[1];
    memcpy(part->offset, numbers + 2, (size_t)ndim * sizeof *numbers);
    memcpy(part->size, numbers + 2 + ndim, (size_t)ndim * sizeof *numbers);
    numel = fsdp__shape_numel(ndim, part->size);
    if (numel < 0 || numel > INT64_MAX / 8)
        return fsdp__manifest_wrong(p->path, tensor, "has a part of an impossible size");
    part->bytes = (uint64_t)numel * fsdp_dtype_size(tensor->dtype);
    return FSDP_OK;
}

/* Parses the boxes, or the runs. */
static fsdp_status parse_parts(const parser *p, const json_t *object, fsdp_checkpoint_tensor *tensor,
                               fsdp_checkpoint_part **out)
{
    const json_t *boxes = json_object_get(object, "boxes"), *array = boxes ? boxes : json_object_get(object, "runs");

    if (!json_is_array(array))
        return fsdp__manifest_wrong(p->path, tensor, "has no parts");
    tensor->part_count = (int64_t)json_array_size(array);
    *out = fsdp__calloc((size_t)tensor->part_count, sizeof **out);
    if (!*out)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", p->path);
    tensor->parts = *out;
    for (int64_t i = 0; i < tensor->part_count; i++) {
        (*out)[i].flat = !boxes;
        FSDP_TRY(parse_part(p, tensor, json_array_get(array, (size_t)i), &(*out)[i]));
    }
    return FSDP_OK;
}

static fsdp_status parse_tensor(const parser *p, const char *section, const char *name, const json_t *object)
{
    fsdp_checkpoint_tensor tensor = {.section = section, .name = name};
    const char *dtype = json_string_value(json_object_get(object, "dtype"));
    FSDP__FREED fsdp_checkpoint_part *parts = NULL;

    tensor.dtype = dtype ? fsdp_dtype_from_name(dtype) : FSDP_DTYPE_NONE;
    if (tensor.dtype == FSDP_DTYPE_NONE)
        return fsdp__manifest_wrong(p->path, &tensor, "has no known dtype");
    FSDP_TRY(parse_shape(p, json_object_get(object, "shape"), &tensor));
    FSDP_TRY(parse_parts(p, object, &tensor, &parts));
    return fsdp__manifest_add_tensor(p->m, &tensor);
}

static fsdp_status parse_tensors(const parser *p, json_t *object)
{
    const char *name, *own = NULL, *tensor_name;
    json_t *section, *tensor;

    if (!json_is_object(object) || json_object_size(object) > MAX_SECTIONS)
        return damaged(p, "it has no sections of tensors");
    json_object_foreach(object, name, section)
    {
        if (strlen(name) > FSDP__SECTION_BYTES || !json_is_object(section))
            return damaged(p, "one of its sections is malformed");
        FSDP_TRY(fsdp__manifest_add_section(p->m, name, &own));
        json_object_foreach(section, tensor_name, tensor) FSDP_TRY(parse_tensor(p, own, tensor_name, tensor));
    }
    fsdp__manifest_sort(p->m);
    return FSDP_OK;
}

/* ---- all of it ---- */

static fsdp_status parse_head(const parser *p, const json_t *object)
{
    const char *format = json_string_value(json_object_get(object, "format"));
    const char *mesh = json_string_value(json_object_get(object, "mesh"));
    int64_t world = 0;

    if (!format || strcmp(format, FSDP__MANIFEST_FORMAT) != 0)
        return damaged(p, "it is not the manifest of a checkpoint");
    if (json_integer_value(json_object_get(object, "version")) != FSDP__MANIFEST_VERSION)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': it was written by another version of fsdp", p->path);
    FSDP_TRY(get_integer(p, object, "step", 0, INT64_MAX, &p->m->step));
    FSDP_TRY(get_integer(p, object, "world_size", 1, MAX_WORLD, &world));
    p->m->world_size = (int)world;
    p->m->mesh = fsdp__strdup(mesh ? mesh : "");
    return p->m->mesh ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", p->path);
}

static fsdp_status parse(const parser *p, const json_t *object)
{
    FSDP_TRY(parse_head(p, object));
    FSDP_TRY(parse_values(p, json_object_get(object, "values")));
    FSDP_TRY(parse_small(p, json_object_get(object, "small")));
    FSDP_TRY(parse_files(p, json_object_get(object, "files")));
    return parse_tensors(p, json_object_get(object, "tensors"));
}

fsdp_status fsdp__manifest_parse(const char *path, const char *text, size_t bytes, fsdp__manifest *out)
{
    parser p = {.path = path, .m = out};
    json_t *object = NULL;
    fsdp_status status;

    *out = (fsdp__manifest){0};
    if (bytes > LIMIT_BYTES)
        return damaged(&p, "it is larger than the manifest of any model");
    FSDP_TRY(check_digest(&p, text, bytes));
    FSDP_TRY(fsdp__json_parse(path, text, bytes, &object));
    status = parse(&p, object);
    json_decref(object);
    if (status != FSDP_OK)
        fsdp__manifest_release(out);
    return status;
}

fsdp_status fsdp__manifest_load(const char *path, fsdp__manifest *out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    *out = (fsdp__manifest){0};
    FSDP_TRY(fsdp__file_read(path, LIMIT_BYTES, &text, &bytes));
    return fsdp__manifest_parse(path, text, bytes, out);
}

fsdp_status fsdp__manifest_load_in(const fsdp__directory *in, const char *name, fsdp__manifest *out)
{
    FSDP__FREED char *path = fsdp__path_join(in->path, name), *text = NULL;
    size_t bytes = 0;

    *out = (fsdp__manifest){0};
    FSDP__TRY_NEW(path);
    FSDP_TRY(fsdp__directory_read(in, name, LIMIT_BYTES, &text, &bytes));
    return fsdp__manifest_parse(path, text, bytes, out);
}
