/* checkpoint_extras.c - small files with which a checkpoint can be read without the run that wrote it: what the model
 * is, and how it was trained. */
#include "train/checkpoint_extras.h"

#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/file.h"
#include "hub/held_folder.h"
#include "hub/hub.h"
#include "train/run_start.h"

/* Adds a copy of name and bytes. */
static fsdp_status add(fsdp__extras *e, const char *name, const char *data, size_t bytes)
{
    FSDP__FREED char *own_name = fsdp__strdup(name), *own = fsdp__malloc(bytes + 1);

    if (!own || !own_name || e->count == FSDP__EXTRAS_MOST)
        return FSDP_FAIL(FSDP_NO_MEMORY, "no memory for '%s' of a checkpoint", name);
    memcpy(own, data, bytes);
    e->files[e->count++] =
        (fsdp_checkpoint_file){.name = fsdp__take(&own_name), .data = fsdp__take(&own), .bytes = bytes};
    return FSDP_OK;
}

static fsdp_status add_config(const fsdp_train_run *run, fsdp__extras *e)
{
    FSDP__FREED char *text = NULL;
    size_t bytes;
    FILE *out = fsdp__begin_text(&text, &bytes);
    fsdp_status status = out ? fsdp_train_config_print(run->config, out) : FSDP_OK;

    FSDP_KEEP_FIRST(status, fsdp__end_text(out));
    if (status == FSDP_OK)
        status = add(e, "config.yaml", text, bytes);
    return status == FSDP_OK ? FSDP_OK : FSDP_FAIL(status, "cannot print the config for a checkpoint");
}

static fsdp_status add_model(const fsdp_train_run *run, fsdp__extras *e)
{
    FSDP__FREED char *text = NULL;

    FSDP_TRY(fsdp__hub_keep_config(run->context, run->config->model.path, &run->model_config, FSDP_F32, &text));
    return add(e, "config.json", text, strlen(text));
}

/* Adds what says which adapter the tensors are. */
static fsdp_status add_adapter(const fsdp_train_run *run, fsdp__extras *e)
{
    FSDP__FREED char *text = NULL;

    if (!run->adapter)
        return FSDP_OK;
    FSDP_TRY(fsdp__train_adapter_config(run, &text));
    return add(e, FSDP__ADAPTER_CONFIG, text, strlen(text));
}

static fsdp_status add_generation_config(const fsdp_train_run *run, fsdp__extras *e)
{
    FSDP__FREED char *text = NULL;

    FSDP_TRY(fsdp__hub_generation_config(run->context, run->config->model.path, &run->model_config,
                                         run->talks ? &run->talk : NULL, &text));
    return add(e, "generation_config.json", text, strlen(text));
}

static fsdp_status add_file(const char *folder, const fsdp__listed_file *file, fsdp__extras *e)
{
    FSDP__FREED char *path = fsdp__path_join(folder, file->name), *data = NULL;
    size_t bytes = 0;

    FSDP_TRY(path ? fsdp__file_read(path, (size_t)file->bytes, &data, &bytes) : FSDP_NO_MEMORY);
    return add(e, file->name, data, bytes);
}

fsdp_status fsdp__extras_read(const fsdp_train_run *run, fsdp__extras *out)
{
    const char *folder = fsdp__text_tokenizer_folder(run);
    FSDP__SCOPED(fsdp__file_list_release) fsdp__file_list files = {.count = 0};

    FSDP_TRY(add_config(run, out));
    FSDP_TRY(add_model(run, out));
    FSDP_TRY(add_adapter(run, out));
    FSDP_TRY(add_generation_config(run, out));
    if (folder)
        FSDP_TRY(fsdp__hub_list_tokenizer(folder, &files));
    for (int64_t i = 0; i < files.count; i++)
        if (!run->chat_template || strcmp(files.files[i].name, FSDP__HUB_CHAT_TEMPLATE) != 0)
            FSDP_TRY(add_file(folder, &files.files[i], out));
    if (run->chat_template && folder)
        return add(out, FSDP__HUB_CHAT_TEMPLATE, run->chat_template, strlen(run->chat_template));
    return FSDP_OK;
}

void fsdp__extras_release(fsdp__extras *extras)
{
    for (int i = 0; i < extras->count; i++)
        FSDP__FREE_ALL(extras->files[i].name, extras->files[i].data);
    extras->count = 0;
}
