/* contents.c - what an open checkpoint contains. */
#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "checkpoint/reader.h"

const char *fsdp_checkpoint_path(const fsdp_checkpoint_reader *reader)
{
    return reader ? reader->path : NULL;
}

int64_t fsdp_checkpoint_step(const fsdp_checkpoint_reader *reader)
{
    return reader ? reader->manifest.step : -1;
}

int fsdp_checkpoint_world_size(const fsdp_checkpoint_reader *reader)
{
    return reader ? reader->manifest.world_size : 0;
}

const char *fsdp_checkpoint_mesh(const fsdp_checkpoint_reader *reader)
{
    return reader ? reader->manifest.mesh : NULL;
}

/* ---- tensors ---- */

int64_t fsdp_checkpoint_count(const fsdp_checkpoint_reader *reader)
{
    return reader ? reader->manifest.tensor_count : 0;
}

const fsdp_checkpoint_tensor *fsdp_checkpoint_at(const fsdp_checkpoint_reader *reader, int64_t index)
{
    return index >= 0 && index < fsdp_checkpoint_count(reader) ? &reader->manifest.tensors[index] : NULL;
}

const fsdp_checkpoint_tensor *fsdp_checkpoint_tensor_find(const fsdp_checkpoint_reader *reader, const char *section,
                                                          const char *name)
{
    return reader && section && name ? fsdp_checkpoint_at(reader, fsdp__manifest_find(&reader->manifest, section, name))
                                     : NULL;
}

bool fsdp_checkpoint_has_section(const fsdp_checkpoint_reader *reader, const char *section)
{
    return reader && section && fsdp__manifest_section(&reader->manifest, section) >= 0;
}

/* ---- values ---- */

int fsdp_checkpoint_value_count(const fsdp_checkpoint_reader *reader)
{
    return reader ? (int)reader->manifest.value_count : 0;
}

const fsdp_checkpoint_value *fsdp_checkpoint_value_at(const fsdp_checkpoint_reader *reader, int index)
{
    return index >= 0 && index < fsdp_checkpoint_value_count(reader) ? &reader->manifest.values[index] : NULL;
}

static fsdp_status get_value(const fsdp_checkpoint_reader *reader, const char *name, fsdp_checkpoint_value_type type,
                             const fsdp_checkpoint_value **out)
{
    static const char *const types[] = {"a whole number", "a number", "a text"};

    if (!reader)
        return FSDP__FAIL_NULL("cannot get a value of a checkpoint: the reader is NULL");
    if (!name)
        return FSDP_FAIL(FSDP_INVALID, "cannot get a value of '%s': the name is NULL", reader->path);
    for (int64_t i = 0; i < reader->manifest.value_count; i++) {
        const fsdp_checkpoint_value *value = &reader->manifest.values[i];

        if (strcmp(value->name, name) != 0)
            continue;
        *out = value;
        if (value->type == type)
            return FSDP_OK;
        return FSDP_FAIL(FSDP_FORMAT, "value '%s' of '%s' is %s, not %s", FSDP__SHOWN_NAME(name), reader->path,
                         types[value->type], types[type]);
    }
    return FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has no value '%s'", reader->path, FSDP__SHOWN_NAME(name));
}

fsdp_status fsdp_checkpoint_get_integer(const fsdp_checkpoint_reader *reader, const char *name, int64_t *out)
{
    const fsdp_checkpoint_value *value;

    FSDP_TRY(get_value(reader, name, FSDP_CHECKPOINT_INTEGER, &value));
    *out = value->integer;
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_get_number(const fsdp_checkpoint_reader *reader, const char *name, double *out)
{
    const fsdp_checkpoint_value *value;

    FSDP_TRY(get_value(reader, name, FSDP_CHECKPOINT_NUMBER, &value));
    *out = value->number;
    return FSDP_OK;
}

fsdp_status fsdp_checkpoint_get_text(const fsdp_checkpoint_reader *reader, const char *name, const char **out)
{
    const fsdp_checkpoint_value *value;

    FSDP_TRY(get_value(reader, name, FSDP_CHECKPOINT_TEXT, &value));
    *out = value->text;
    return FSDP_OK;
}

/* ---- small files ---- */

int fsdp_checkpoint_file_count(const fsdp_checkpoint_reader *reader)
{
    return reader ? (int)reader->manifest.small_count : 0;
}

const fsdp_checkpoint_file *fsdp_checkpoint_file_at(const fsdp_checkpoint_reader *reader, int index)
{
    return index >= 0 && index < fsdp_checkpoint_file_count(reader) ? &reader->small[index] : NULL;
}

const fsdp_checkpoint_file *fsdp_checkpoint_file_find(const fsdp_checkpoint_reader *reader, const char *name)
{
    for (int i = 0; name && i < fsdp_checkpoint_file_count(reader); i++)
        if (strcmp(reader->small[i].name, name) == 0)
            return &reader->small[i];
    return NULL;
}
