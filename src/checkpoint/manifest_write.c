/* manifest_write.c - writes the manifest as JSON, with the digest at its end. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "checkpoint/manifest.h"
#include "format/safetensors.h"

/* Puts `value` into the object and takes it over; returns whether that worked. */
static bool put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

/* Returns `json` if all that belongs in it is there, and otherwise gives it up. */
static json_t *complete(json_t *json, bool done)
{
    if (done)
        return json;
    json_decref(json);
    return NULL;
}

static bool append(json_t *array, int64_t value)
{
    return json_array_append_new(array, json_integer(value)) == 0;
}

static json_t *integers(const int64_t *values, int count)
{
    json_t *array = json_array();
    bool done = true;

    for (int i = 0; i < count && done; i++)
        done = append(array, values[i]);
    return complete(array, done);
}

static json_t *value_json(const fsdp_checkpoint_value *value)
{
    char bits[FSDP__HEX_DIGITS + 1];
    uint64_t number;

    if (value->type == FSDP_CHECKPOINT_INTEGER)
        return json_pack("{s:I}", "integer", (json_int_t)value->integer);
    if (value->type == FSDP_CHECKPOINT_TEXT)
        return json_pack("{s:s}", "text", value->text);
    memcpy(&number, &value->number, sizeof number);
    return json_pack("{s:s}", "number", fsdp__hex(number, bits));
}

static json_t *values_json(const fsdp__manifest *m)
{
    json_t *object = json_object();
    bool done = true;

    for (int64_t i = 0; i < m->value_count && done; i++)
        done = put(object, m->values[i].name, value_json(&m->values[i]));
    return complete(object, done);
}

static json_t *small_json(const fsdp__manifest *m)
{
    json_t *array = json_array();
    bool done = true;
    char digits[FSDP__HEX_DIGITS + 1];

    for (int64_t i = 0; i < m->small_count && done; i++)
        done = json_array_append_new(array, json_pack("{s:s, s:I, s:s}", "name", m->small[i].name, "bytes",
                                                      (json_int_t)m->small[i].bytes, "checksum",
                                                      fsdp__hex(m->small[i].checksum, digits))) == 0;
    return complete(array, done);
}

/* ---- files ---- */

static json_t *file_json(const fsdp__rank_file *file)
{
    char digits[FSDP__HEX_DIGITS + 1];
    FSDP__FREED char *blocks = fsdp__malloc((size_t)file->block_count * FSDP__HEX_DIGITS + 1);

    if (!blocks)
        return NULL;
    blocks[0] = '\0';
    for (int64_t i = 0; i < file->block_count; i++)
        fsdp__hex(file->blocks[i], blocks + (size_t)i * FSDP__HEX_DIGITS);
    return json_pack("{s:i, s:I, s:I, s:s, s:I, s:s}", "rank", file->rank, "bytes", (json_int_t)file->bytes,
                     "header_bytes", (json_int_t)file->header_bytes, "header", fsdp__hex(file->header_checksum, digits),
                     "block_bytes", (json_int_t)file->block_bytes, "blocks", blocks);
}

static json_t *files_json(const fsdp__manifest *m)
{
    json_t *array = json_array();
    bool done = true;

    for (int64_t i = 0; i < m->file_count && done; i++)
        done = json_array_append_new(array, file_json(&m->files[i])) == 0;
    return complete(array, done);
}

/* ---- tensors ---- */

static json_t *part_json(const fsdp_checkpoint_tensor *tensor, const fsdp_checkpoint_part *part)
{
    int ndim = part->flat ? 1 : tensor->ndim;
    json_t *array = json_array();
    bool done = append(array, part->rank) && append(array, (int64_t)part->begin);

    for (int d = 0; d < ndim && done; d++)
        done = append(array, part->offset[d]);
    for (int d = 0; d < ndim && done; d++)
        done = append(array, part->size[d]);
    return complete(array, done);
}

static json_t *parts_json(const fsdp_checkpoint_tensor *tensor)
{
    json_t *array = json_array();
    bool done = true;

    for (int64_t i = 0; i < tensor->part_count && done; i++)
        done = json_array_append_new(array, part_json(tensor, &tensor->parts[i])) == 0;
    return complete(array, done);
}

static json_t *tensor_json(const fsdp_checkpoint_tensor *tensor)
{
    bool flat = tensor->part_count > 0 && tensor->parts[0].flat;

    return json_pack("{s:s, s:o, s:o}", "dtype", fsdp__safetensors_dtype_name(tensor->dtype), "shape",
                     integers(tensor->shape, tensor->ndim), flat ? "runs" : "boxes", parts_json(tensor));
}

static json_t *section_json(const fsdp__manifest *m, const char *section)
{
    json_t *object = json_object();
    bool done = true;

    for (int64_t i = 0; i < m->tensor_count && done; i++)
        if (strcmp(m->tensors[i].section, section) == 0)
            done = put(object, m->tensors[i].name, tensor_json(&m->tensors[i]));
    return complete(object, done);
}

static json_t *tensors_json(const fsdp__manifest *m)
{
    json_t *object = json_object();
    bool done = true;

    for (int64_t i = 0; i < m->section_count && done; i++)
        done = put(object, m->sections[i], section_json(m, m->sections[i]));
    return complete(object, done);
}

/* ---- all of it ---- */

static json_t *manifest_json(const fsdp__manifest *m)
{
    json_t *object =
        json_pack("{s:s, s:i, s:I, s:i, s:s}", "format", FSDP__MANIFEST_FORMAT, "version", FSDP__MANIFEST_VERSION,
                  "step", (json_int_t)m->step, "world_size", m->world_size, "mesh", m->mesh ? m->mesh : "");
    bool done = put(object, "values", values_json(m)) && put(object, "small", small_json(m)) &&
                put(object, "files", files_json(m)) && put(object, "tensors", tensors_json(m));

    return complete(object, done);
}

/* Adds the digest. `text` is an object, whose closing brace makes room for it. */
static char *with_digest(const char *text)
{
    size_t length = strlen(text) - 1;
    char *whole = fsdp__malloc(length + FSDP__DIGEST_BYTES + 1);

    if (!whole)
        return NULL;
    memcpy(whole, text, length);
    fsdp__digest_text(fsdp__checksum(text, length), whole + length);
    return whole;
}

fsdp_status fsdp__manifest_text(const fsdp__manifest *m, char **out)
{
    json_t *object = manifest_json(m);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

    *out = text ? with_digest(text) : NULL;
    free(text);
    json_decref(object);
    return *out ? FSDP_OK : FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for the text of a manifest");
}
