/* tensor_source.c - lists tensors and reads their elements. */
#include "cli/tensor_source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/sort.h"
#include "hub/hub.h"
#include "nn/module.h"
#include "state/entry.h"
#include "tensor/tensor.h"
#include "train/checkpoint_values.h"

fsdp_status fsdp__tensor_source_open(const char *path, fsdp__tensor_source *out)
{
    struct stat info;

    memset(out, 0, sizeof *out);
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return fsdp_weights_open(path, &out->weights);
    FSDP_TRY(fsdp__model_folder_find(path, &out->folder));
    return out->folder.is_checkpoint ? fsdp_checkpoint_open(out->folder.path, &out->reader)
                                     : fsdp_weights_open(path, &out->weights);
}

fsdp_status fsdp__adapter_weights(const char *folder, char **out)
{
    FSDP__FREED char *adapter = fsdp__path_join(folder, FSDP__ADAPTER_CONFIG);
    FSDP__FREED char *model = fsdp__path_join(folder, "config.json");

    *out = NULL;
    FSDP__TRY_NEW(adapter && model);
    if (fsdp__path_exists(adapter) && !fsdp__path_exists(model))
        FSDP__TRY_NEW(*out = fsdp__path_join(folder, FSDP__ADAPTER_WEIGHTS));
    return FSDP_OK;
}

fsdp_status fsdp__tensor_source_open_any(const char *path, fsdp__tensor_source *out)
{
    FSDP__FREED char *adapter = NULL;

    memset(out, 0, sizeof *out);
    FSDP_TRY(fsdp__adapter_weights(path, &adapter));
    return fsdp__tensor_source_open(adapter ? adapter : path, out);
}

void fsdp__tensor_source_release(fsdp__tensor_source *source)
{
    for (int64_t i = 0; i < source->count; i++)
        fsdp__free(source->tensors[i].name);
    fsdp__free(source->tensors);
    if (source->weights)
        fsdp_weights_close(source->weights);
    fsdp_checkpoint_close(source->reader);
    fsdp__model_folder_release(&source->folder);
    memset(source, 0, sizeof *source);
}

/* ---- the list ---- */

/* Adds a tensor. `name` is taken over; NULL: out of memory. */
static fsdp_status add(fsdp__tensor_source *s, char *name, fsdp__source_tensor tensor)
{
    if (!name)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot list the tensors");
    tensor.name = name;
    tensor.numel = fsdp__shape_numel(tensor.ndim, tensor.shape);
    if (tensor.bytes == 0)
        tensor.bytes = (uint64_t)tensor.numel * fsdp_dtype_size(tensor.dtype);
    s->tensors[s->count++] = tensor;
    return FSDP_OK;
}

static fsdp_status add_weights(fsdp__tensor_source *s, const char *name, const fsdp_weights_entry *e)
{
    return add(s, fsdp__strdup(name),
               (fsdp__source_tensor){.dtype = e->dtype,
                                     .dtype_name = e->dtype_name,
                                     .ndim = e->ndim,
                                     .shape = e->shape,
                                     .bytes = e->bytes,
                                     .entry = e});
}

static fsdp_status list_weights(fsdp__tensor_source *s)
{
    for (int64_t i = 0; i < fsdp_weights_count(s->weights); i++)
        FSDP_TRY(add_weights(s, fsdp_weights_at(s->weights, i)->name, fsdp_weights_at(s->weights, i)));
    return FSDP_OK;
}

static fsdp_status list_checkpoint(fsdp__tensor_source *s, bool weights_only)
{
    for (int64_t i = 0; i < fsdp_checkpoint_count(s->reader); i++) {
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_at(s->reader, i);

        if (weights_only && strcmp(t->section, FSDP__SECTION_MODEL) != 0)
            continue;
        FSDP_TRY(add(s, weights_only ? fsdp__strdup(t->name) : fsdp__sprintf("%s.%s", t->section, t->name),
                     (fsdp__source_tensor){.dtype = t->dtype,
                                           .dtype_name = fsdp_dtype_name(t->dtype),
                                           .ndim = t->ndim,
                                           .shape = t->shape,
                                           .entry = t}));
    }
    return FSDP_OK;
}

static fsdp_status make_room(fsdp__tensor_source *source, int64_t most)
{
    source->tensors = fsdp__calloc((size_t)(most + 1), sizeof *source->tensors);
    return source->tensors ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot list the tensors");
}

fsdp_status fsdp__tensor_source_list(fsdp__tensor_source *source, bool weights_only)
{
    FSDP_TRY(make_room(source,
                       source->reader ? fsdp_checkpoint_count(source->reader) : fsdp_weights_count(source->weights)));
    FSDP_TRY(source->reader ? list_checkpoint(source, weights_only) : list_weights(source));
    qsort(source->tensors, (size_t)source->count, sizeof *source->tensors, fsdp__by_name);
    return FSDP_OK;
}

static fsdp_status list_parameters(fsdp__tensor_source *s, const fsdp_state_dict *parameters,
                                   const fsdp_model_config *config)
{
    FSDP_TRY(make_room(s, parameters->count));
    for (int64_t i = 0; i < parameters->count; i++) {
        const char *name = parameters->entries[i].name;

        FSDP_TRY(add_weights(s, name, fsdp__hub_find(s->weights, config, name)));
    }
    qsort(s->tensors, (size_t)s->count, sizeof *s->tensors, fsdp__by_name);
    return FSDP_OK;
}

fsdp_status fsdp__tensor_source_list_model(fsdp__tensor_source *source, fsdp_context *context,
                                           const fsdp_model_config *config)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = fsdp_model_create(context, fsdp_meta(context), config);
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *parameters = NULL;

    FSDP_TRY(model ? fsdp_state_dict_from_module(model, &parameters) : fsdp_last_status());
    return list_parameters(source, parameters, config);
}

fsdp_status fsdp__tensor_source_read(fsdp__tensor_source *source, const fsdp__source_tensor *tensor, int64_t first,
                                     int64_t numel, void *out)
{
    return source->reader ? fsdp_checkpoint_read(source->reader, tensor->entry, first, numel, out)
                          : fsdp_weights_read(source->weights, tensor->entry, first, numel, out);
}
