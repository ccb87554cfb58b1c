/* weights_plan.c - decides where each tensor goes in the files that are to be written. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "format/weights_plan.h"

enum {
    LENGTH_BYTES = 8
};

static fsdp_status out_of_memory(void)
{
    return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for the headers of model files");
}

/* Splits the entries over files in order; the last file of *plan takes what follows. */
static fsdp_status split(const fsdp_safetensors_entry *entries, int64_t count, uint64_t limit_bytes,
                         fsdp__save_plan *plan)
{
    for (int64_t i = 0; i < count || plan->file_count == 0; i++) {
        fsdp__save_file *last = plan->file_count ? &plan->files[plan->file_count - 1] : NULL;
        uint64_t bytes = i < count ? entries[i].bytes : 0;

        if (!last || (last->count > 0 && last->total_bytes + bytes > limit_bytes)) {
            FSDP_TRY(fsdp__grow(&plan->files, plan->file_count, &plan->file_capacity, sizeof *plan->files) != 0
                         ? out_of_memory()
                         : FSDP_OK);
            last = &plan->files[plan->file_count++];
            *last = (fsdp__save_file){.first = i};
        }
        if (i == count)
            break;                            /* a model without parameters still has a file */
        plan->offsets[i] = last->total_bytes; /* in the data; the header's length is added when it is known */
        last->total_bytes += bytes;
        last->count++;
    }
    return FSDP_OK;
}

static json_t *entry_json(const fsdp_safetensors_entry *entry, uint64_t begin)
{
    json_auto_t *shape = json_array();

    for (int dim = 0; dim < entry->ndim; dim++)
        if (json_array_append_new(shape, json_integer(entry->shape[dim])) != 0)
            return NULL;
    return json_pack("{s:s, s:O, s:[I, I]}", "dtype", fsdp__safetensors_dtype_name(entry->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + entry->bytes));
}

/* Makes the file's JSON; free() it. NULL when out of memory. */
static char *header_text(const fsdp_safetensors_entry *entries, const fsdp__save_plan *plan,
                         const fsdp__save_file *file)
{
    json_auto_t *object = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");

    for (int64_t i = file->first; i < file->first + file->count; i++) {
        const fsdp_safetensors_entry *entry = &entries[i];

        if (json_object_set_new(object, entry->name, entry_json(entry, plan->offsets[i])) != 0)
            return NULL;
    }
    return object ? json_dumps(object, JSON_COMPACT) : NULL;
}

/* Makes the header as it lies in the file: length, text, and spaces up to a multiple of 8. */
static fsdp_status make_header(const fsdp_safetensors_entry *entries, fsdp__save_plan *plan, fsdp__save_file *file)
{
    char *text = header_text(entries, plan, file);
    size_t length = text ? strlen(text) : 0, padded = (length + 7) / 8 * 8;

    file->header = text ? fsdp__malloc(LENGTH_BYTES + padded) : NULL;
    if (!file->header) {
        free(text);
        return out_of_memory();
    }
    for (int i = 0; i < LENGTH_BYTES; i++)
        file->header[i] = (char)((uint64_t)padded >> (8 * i));
    memcpy(file->header + LENGTH_BYTES, text, length);
    memset(file->header + LENGTH_BYTES + length, ' ', padded - length);
    free(text);
    file->header_bytes = LENGTH_BYTES + padded;
    file->total_bytes += file->header_bytes;
    for (int64_t i = file->first; i < file->first + file->count; i++)
        plan->offsets[i] += file->header_bytes;
    return FSDP_OK;
}

static fsdp_status name_files(fsdp__save_plan *plan)
{
    for (int64_t i = 0; i < plan->file_count; i++) {
        plan->files[i].name = plan->file_count == 1 ? fsdp__strdup("model.safetensors")
                                                    : fsdp__sprintf("model-%05lld-of-%05lld.safetensors",
                                                                    (long long)i + 1, (long long)plan->file_count);
        if (!plan->files[i].name)
            return out_of_memory();
    }
    return FSDP_OK;
}

static fsdp_status make_index(const fsdp_safetensors_entry *entries, fsdp__save_plan *plan)
{
    json_auto_t *map = json_object(), *index = NULL;
    uint64_t bytes = 0;

    for (int64_t f = 0; f < plan->file_count; f++) {
        for (int64_t i = plan->files[f].first; i < plan->files[f].first + plan->files[f].count; i++) {
            if (json_object_set_new(map, entries[i].name, json_string(plan->files[f].name)) != 0)
                return out_of_memory();
            bytes += entries[i].bytes;
        }
    }
    index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    plan->index = index ? json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    return plan->index ? FSDP_OK : out_of_memory();
}

static fsdp_status make_plan(const fsdp_safetensors_entry *entries, int64_t count, uint64_t limit_bytes,
                             fsdp__save_plan *plan)
{
    plan->offsets = fsdp__calloc((size_t)count, sizeof *plan->offsets);
    if (!plan->offsets)
        return out_of_memory();
    FSDP_TRY(split(entries, count, limit_bytes, plan));
    FSDP_TRY(name_files(plan));
    for (int64_t i = 0; i < plan->file_count; i++)
        FSDP_TRY(make_header(entries, plan, &plan->files[i]));
    return plan->file_count > 1 ? make_index(entries, plan) : FSDP_OK;
}

fsdp_status fsdp__save_plan_create(const fsdp_safetensors_entry *entries, int64_t count, uint64_t limit_bytes,
                                   fsdp__save_plan *out)
{
    FSDP__SCOPED(fsdp__save_plan_release) fsdp__save_plan plan = {0};

    FSDP_TRY(make_plan(entries, count, limit_bytes, &plan));
    *out = plan;
    plan = (fsdp__save_plan){0};
    return FSDP_OK;
}

void fsdp__save_plan_release(fsdp__save_plan *plan)
{
    for (int64_t i = 0; i < plan->file_count; i++)
        FSDP__FREE_ALL(plan->files[i].name, plan->files[i].header);
    FSDP__FREE_ALL(plan->files, plan->offsets);
    free(plan->index);
    *plan = (fsdp__save_plan){0};
}
