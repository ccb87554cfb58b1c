/* folder_model.c - loads the model of a folder. */
#include "cli/folder_model.h"

#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "fsdp/parallelize.h"
#include "fsdp/shard.h"
#include "hub/hub.h"
#include "parallel/degrees.h"
#include "parallel/meshes.h"
#include "state/entry.h"
#include "train/model_folder.h"
#include "train/same_facts.h"

fsdp_status fsdp__folder_model_check(const fsdp_model_config *config, int64_t ranks, int tp, int cp)
{
    const fsdp__degree tensors = {"--tensor-parallel", tp}, sequences = {"--context-parallel", cp};

    if (ranks > 0)
        FSDP_TRY(fsdp__check_teams((int)ranks, tensors, sequences));
    return fsdp__check_heads(tensors, config, fsdp__hub_heads_key(config->architecture, false),
                             fsdp__hub_heads_key(config->architecture, true));
}

/* Cuts layers and sequences over the ranks that compute them together. */
static fsdp_status parallelize(fsdp_module *model, const fsdp__parallel_meshes *meshes)
{
    if (meshes->tp &&
        fsdp_model_parallelize(model, meshes->tp, &(fsdp_model_parallel_options){.loss_parallel = true}) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "--tensor-parallel");
    if (meshes->cp && fsdp_model_context_parallel(model, meshes->cp) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "--context-parallel");
    return FSDP_OK;
}

static fsdp_status shard_over(fsdp_module *model, const fsdp__parallel_meshes *meshes)
{
    fsdp_shard_options options = {.mesh = meshes->sharded};

    FSDP_TRY(parallelize(model, meshes));
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        FSDP_TRY(fsdp_fully_shard(fsdp_model_block(model, i), &options));
    return fsdp_fully_shard(model, &options);
}

static fsdp_status shard(fsdp_module *model, const fsdp__parallel_degrees *degrees)
{
    fsdp__parallel_meshes meshes = {0};
    fsdp_status status;

    status = fsdp__parallel_meshes_create(model->context, degrees, &meshes);
    if (status == FSDP_OK)
        status = shard_over(model, &meshes);
    fsdp__parallel_meshes_release(&meshes);
    return status;
}

/* Loads the model's weights, and then the adapter's, if there is one. */
static fsdp_status load_parts(const fsdp__model_folder *folder, const fsdp_model_config *config, fsdp_module *model,
                              fsdp_adapter *adapter, const char *adapter_folder)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP_TRY(adapter ? fsdp_adapter_base_state_dict(adapter, &state) : fsdp_state_dict_from_module(model, &state));
    FSDP_TRY(fsdp__model_folder_load(folder, state, config));
    return adapter ? fsdp_adapter_load(adapter, adapter_folder) : FSDP_OK;
}

static fsdp_status load_weights(const fsdp__model_folder *folder, const fsdp_model_config *config, fsdp_module *model,
                                fsdp_adapter *adapter, const char *adapter_folder)
{
    fsdp_status status = load_parts(folder, config, model, adapter, adapter_folder);

    return fsdp_context_world_size(model->context) > 1 ? fsdp_agree(fsdp_world(model->context), status) : status;
}

static fsdp_status add_adapter(fsdp_module *model, const char *folder, fsdp_adapter **out)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *options = NULL;

    FSDP_TRY(fsdp_adapter_read_options(folder, &options));
    return fsdp_adapter_add(model, options, out);
}

static fsdp_status fill(const fsdp__model_folder *folder, const fsdp_model_config *config,
                        const fsdp__folder_model_options *o, fsdp_module *model)
{
    const fsdp__parallel_degrees degrees = {1, FSDP__MAX(o->cp, 1), FSDP__MAX(o->tp, 1)};
    FSDP__SCOPED(fsdp_adapter_free_at) fsdp_adapter *adapter = NULL;

    FSDP_TRY(
        fsdp__folder_model_check(config, fsdp_context_world_size(model->context), (int)degrees.tp, (int)degrees.cp));
    if (o->dtype != FSDP_F32)
        FSDP_TRY(fsdp_module_to(model, o->dtype));
    if (o->adapter && add_adapter(model, o->adapter, &adapter) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "--adapter");
    if (fsdp_context_world_size(model->context) > 1 || degrees.tp * degrees.cp > 1)
        FSDP_TRY(shard(model, &degrees));
    FSDP_TRY(fsdp_module_materialize(model, o->device));
    FSDP_TRY(load_weights(folder, config, model, adapter, o->adapter));
    fsdp_module_train(model, false);
    return FSDP_OK;
}

static fsdp_status make(fsdp_context *context, const fsdp__model_folder *folder, const fsdp_model_config *config,
                        const fsdp__folder_model_options *options, fsdp_module **out)
{
    fsdp_status status;

    FSDP_TRY(fsdp__model_folder_check(folder, context, config, false));
    FSDP__TRY_MADE(*out = fsdp_model_create(context, fsdp_meta(context), config));
    status = fill(folder, config, options, *out);
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_module_unref(fsdp__take(out));
    return status;
}

fsdp_status fsdp__folder_model_load(fsdp_context *context, const char *path, const fsdp_model_config *config,
                                    const fsdp__folder_model_options *options, fsdp_module **out)
{
    FSDP__SCOPED(fsdp__model_folder_release) fsdp__model_folder folder = {0};

    *out = NULL;
    FSDP_TRY(fsdp__model_folder_find(path, &folder));
    return make(context, &folder, config, options, out);
}

fsdp_status fsdp__team_option(const char *option, const char *text, int *out)
{
    int64_t ranks = 1;

    FSDP_TRY(fsdp__args_integer(option, text, 1, 1 << 16, &ranks));
    *out = (int)ranks;
    return FSDP_OK;
}

/* ---- adapters ---- */

fsdp_status fsdp__adapters_read(const char *text, fsdp__adapters *out)
{
    *out = (fsdp__adapters){.folders = NULL};
    if (!text)
        return FSDP_OK;
    FSDP__TRY_NEW(out->folders = fsdp__strdup(text));
    out->count = 1;
    for (char *at = out->folders; *at; at++)
        if (*at == ',') {
            *at = '\0';
            out->count++;
        }
    for (int i = 0; i < out->count; i++)
        if (!*fsdp__adapters_at(out, i))
            return FSDP_FAIL(FSDP_INVALID, "--adapter is '%s': expected a folder, or several with commas between them",
                             text);
    return FSDP_OK;
}

fsdp_status fsdp__adapters_check(const fsdp__adapters *adapters)
{
    for (int i = 0; i < adapters->count; i++) {
        fsdp_lora_options *options = NULL;
        fsdp_status status = fsdp_adapter_read_options(fsdp__adapters_at(adapters, i), &options);

        fsdp_lora_options_free(options);
        FSDP_TRY(fsdp_fail_prefix(status, "--adapter"));
    }
    return FSDP_OK;
}

void fsdp__adapters_release(fsdp__adapters *adapters)
{
    fsdp__free(fsdp__take(&adapters->folders));
    adapters->count = 0;
}

const char *fsdp__adapters_at(const fsdp__adapters *adapters, int index)
{
    const char *at = adapters->folders;

    for (int i = 0; i < index; i++)
        at += strlen(at) + 1;
    return at;
}

static void write_adapter(const char *adapter, FILE *out)
{
    FSDP__FREED char *weights = fsdp__path_join(adapter, FSDP__ADAPTER_WEIGHTS);
    FSDP__FREED char *config = fsdp__path_join(adapter, FSDP__ADAPTER_CONFIG), *text = NULL;
    size_t bytes = 0;

    if (!weights || !config)
        return;
    if (fsdp__file_read(config, FSDP__CONFIG_LIMIT_BYTES, &text, &bytes) == FSDP_OK)
        fprintf(out, "the adapter's config\t%016llx\n",
                (unsigned long long)fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, bytes));
    fsdp__facts_of_weights(weights, false, "the adapter's folder", out);
}

void fsdp__facts_of_adapters(const fsdp__adapters *adapters, FILE *out)
{
    for (int i = 0; i < adapters->count; i++)
        write_adapter(fsdp__adapters_at(adapters, i), out);
}
