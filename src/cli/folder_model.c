/* folder_model.c - loads the model of a folder. */
#include "cli/folder_model.h"

#include <errno.h>
#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "fsdp/parallelize.h"
#include "fsdp/shard.h"
#include "hub/hub.h"
#include "parallel/degrees.h"
#include "parallel/meshes.h"
#include "state/entry.h"
#include "train/adapter_on_disk.h"
#include "train/kept_adapter.h"

fsdp_status fsdp__folder_model_check(const fsdp_model_config *config, int64_t ranks, int tp, int cp)
{
    const fsdp__degree tensors = {"--tensor-parallel", tp}, sequences = {"--context-parallel", cp};

    if (ranks > 0)
        FSDP_TRY(fsdp__check_teams((int)ranks, tensors, sequences));
    return fsdp__check_heads(tensors, config, fsdp__hub_heads_key(config->architecture, false),
                             fsdp__hub_heads_key(config->architecture, true));
}

fsdp_status fsdp__folder_adapter_check(const fsdp__model_folder *folder, const fsdp__adapters *adapters)
{
    FSDP__SCOPED(fsdp__kept_adapter_release) fsdp__kept_adapter kept = {0};

    if (!folder->is_adapter)
        return FSDP_OK;
    if (adapters->count > 0)
        return FSDP_FAIL(
            FSDP_INVALID,
            "--adapter: '%s' is a checkpoint of an adapter, with which its model computes: leave --adapter "
            "out, or name a model instead",
            folder->path);
    return fsdp__kept_adapter_read(folder->path, &kept);
}

fsdp_status fsdp__folder_adapter_text(const fsdp__model_folder *folder, char *text, size_t text_bytes)
{
    FSDP__SCOPED(fsdp__kept_adapter_release) fsdp__kept_adapter kept = {0};

    *text = '\0';
    if (!folder->is_adapter)
        return FSDP_OK;
    FSDP_TRY(fsdp__kept_adapter_read(folder->path, &kept));
    if (kept.base)
        snprintf(text, text_bytes, "adapter of '%s' beside the base '%s'", FSDP__SHOWN_PATH(folder->path),
                 FSDP__SHOWN_PATH(kept.base));
    else
        snprintf(text, text_bytes, "adapter of '%s' beside a base of drawn values (training.seed %llu)",
                 FSDP__SHOWN_PATH(folder->path), (unsigned long long)kept.seed);
    return FSDP_OK;
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

/* Says what is loaded: a model, maybe with an adapter of another folder; or a checkpoint's adapter beside its base. */
typedef struct loading {
    const fsdp__model_folder *folder;
    const fsdp_model_config *config;
    const fsdp__folder_model_options *options;
    fsdp__kept_adapter kept; /* of a checkpoint that has an adapter alone */
    fsdp_adapter *adapter;   /* NULL: there is none */
} loading;

static fsdp_status agree(const fsdp_module *model, fsdp_status status)
{
    return fsdp_context_world_size(model->context) > 1 ? fsdp_agree(fsdp_world(model->context), status) : status;
}

/* Loads the model's weights, and then the adapter's, if there is one. */
static fsdp_status load_parts(const loading *l, fsdp_module *model)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP_TRY(l->adapter ? fsdp_adapter_base_state_dict(l->adapter, &state)
                        : fsdp_state_dict_from_module(model, &state));
    FSDP_TRY(fsdp__model_folder_load(l->folder, state, l->config));
    return l->adapter ? fsdp__adapter_on_disk_load(l->adapter, NULL, l->options->adapter) : FSDP_OK;
}

static fsdp_status load_weights(const loading *l, fsdp_module *model)
{
    if (!l->folder->is_adapter)
        return agree(model, load_parts(l, model));
    FSDP_TRY(agree(model, fsdp__kept_adapter_load_base(&l->kept, l->adapter, l->config)));
    if (l->options->bare) /* the adapter is off, but must have values */
        return fsdp_adapter_initialize(l->adapter, 0);
    return agree(model, fsdp__adapter_on_disk_load(l->adapter, NULL, l->folder->path));
}

/* Adds the adapter of a checkpoint, as its run did. */
static fsdp_status add_own_adapter(loading *l, fsdp_module *model)
{
    const fsdp__kept_adapter *a = &l->kept;

    FSDP_TRY(fsdp_adapter_add(model, a->options, &l->adapter));
    fsdp__adapter_switch(l->adapter, !l->options->bare);
    if (a->quantize == FSDP_QUANTIZE_NONE)
        return FSDP_OK;
    if (l->options->tp > 1)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "--tensor-parallel would cut the blocks of the base of '%s', which is quantized "
                         "(adapter.quantize of its run): leave it out",
                         l->folder->path);
    return fsdp_adapter_quantize(l->adapter, a->quantize);
}

static fsdp_status add_named_adapter(loading *l, fsdp_module *model)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *options = NULL;
    fsdp_status status = fsdp__adapter_on_disk_options(l->options->adapter, &options);

    if (status == FSDP_OK)
        status = fsdp_adapter_add(model, options, &l->adapter);
    return fsdp_fail_prefix(status, "--adapter");
}

/* Makes the first products where a limit is set, if memory is left: oneDNN makes its code for plain and for transposed
 * weights then, and ends the process by a signal where it cannot. Activations would take what it needs. */
static fsdp_status check_products(fsdp_context *context)
{
    const uint64_t least = (uint64_t)16 << 20;
    fsdp_status status;
    fsdp_tensor *one;

    if (fsdp__memory_limit_of_one().bytes == FSDP__NO_LIMIT)
        return FSDP_OK;
    if (!fsdp__memory_is_left(least))
        return FSDP_FAIL(FSDP_NO_MEMORY, "the model is loaded, and products of matrices need %llu MiB more%s",
                         (unsigned long long)least >> 20, fsdp__limit_behind(ENOMEM));
    FSDP_TRY(fsdp_scope_begin(context));
    one = fsdp_zeros(fsdp_cpu(context), FSDP_F32, FSDP_SHAPE(64, 64));
    status = fsdp_matmul(fsdp_linear(one, one, NULL), one) ? FSDP_OK : fsdp_last_status();
    fsdp_scope_end(context, NULL);
    return status;
}

static fsdp_status fill(loading *l, fsdp_module *model)
{
    const fsdp__folder_model_options *o = l->options;
    const fsdp__parallel_degrees degrees = {1, FSDP__MAX(o->cp, 1), FSDP__MAX(o->tp, 1)};
    fsdp_dtype dtype = o->dtype != FSDP_DTYPE_NONE ? o->dtype : l->folder->is_adapter ? l->kept.dtype : FSDP_F32;

    FSDP_TRY(
        fsdp__folder_model_check(l->config, fsdp_context_world_size(model->context), (int)degrees.tp, (int)degrees.cp));
    if (dtype != FSDP_F32)
        FSDP_TRY(fsdp_module_to(model, dtype));
    if (l->folder->is_adapter)
        FSDP_TRY(add_own_adapter(l, model));
    else if (o->adapter)
        FSDP_TRY(add_named_adapter(l, model));
    if (fsdp_context_world_size(model->context) > 1 || degrees.tp * degrees.cp > 1)
        FSDP_TRY(shard(model, &degrees));
    FSDP_TRY(fsdp_module_materialize(model, o->device));
    FSDP_TRY(load_weights(l, model));
    fsdp_module_train(model, false);
    return check_products(model->context);
}

static void release(loading *l)
{
    fsdp_adapter_free(l->adapter);
    fsdp__kept_adapter_release(&l->kept);
}

static fsdp_status make(fsdp_context *context, loading *l, fsdp_module **out)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;

    FSDP_TRY(l->folder->is_adapter ? fsdp__kept_adapter_read(l->folder->path, &l->kept)
                                   : fsdp__model_folder_check(l->folder, context, l->config, false));
    model = fsdp_model_create(context, fsdp_meta(context), l->config);
    if (!model)
        return fsdp_last_status();
    FSDP_TRY(fill(l, model));
    *out = fsdp__take(&model);
    return FSDP_OK;
}

fsdp_status fsdp__folder_model_load(fsdp_context *context, const char *path, const fsdp_model_config *config,
                                    const fsdp__folder_model_options *options, fsdp_module **out)
{
    FSDP__SCOPED(fsdp__model_folder_release) fsdp__model_folder folder = {0};
    FSDP__SCOPED(release) loading l = {.folder = &folder, .config = config, .options = options};

    *out = NULL;
    FSDP_TRY(fsdp__model_folder_find(path, &folder));
    return make(context, &l, out);
}

fsdp_status fsdp__team_option(const char *option, const char *text, int *out)
{
    int64_t ranks = 1;

    FSDP_TRY(fsdp__args_integer(option, text, 1, 1 << 16, &ranks));
    *out = (int)ranks;
    return FSDP_OK;
}

/* ---- adapters ---- */

/* Returns the folder that a name stands for: of a folder of checkpoints the newest, which all ranks find; otherwise the
 * name as it is, and who reads it tells what is wrong. NULL when out of memory. */
static char *folder_named(const char *name)
{
    FSDP__SCOPED(fsdp__model_folder_release) fsdp__model_folder folder = {0};
    bool held = fsdp_hold_error(true), found;

    found = fsdp__model_folder_find(name, &folder) == FSDP_OK && folder.is_checkpoint;
    fsdp_release_error(held);
    return found ? fsdp__take(&folder.path) : fsdp__strdup(name);
}

/* Appends a folder, with a NUL after it. */
static fsdp_status append_folder(fsdp__adapters *out, const char *name, size_t *used)
{
    FSDP__FREED char *folder = folder_named(name);
    size_t bytes = folder ? strlen(folder) + 1 : 0;
    char *longer;

    FSDP__TRY_NEW(folder);
    FSDP__TRY_NEW(longer = fsdp__malloc(*used + bytes));
    if (*used > 0)
        memcpy(longer, out->folders, *used);
    memcpy(longer + *used, folder, bytes);
    fsdp__free(out->folders);
    out->folders = longer;
    out->count++;
    *used += bytes;
    return FSDP_OK;
}

fsdp_status fsdp__adapters_read(const char *text, fsdp__adapters *out)
{
    FSDP__FREED char *names = text ? fsdp__strdup(text) : NULL;
    size_t used = 0;

    *out = (fsdp__adapters){.folders = NULL};
    if (!text)
        return FSDP_OK;
    FSDP__TRY_NEW(names);
    for (char *at = names, *next; at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (!*at)
            return FSDP_FAIL(FSDP_INVALID, "--adapter is '%s': expected a folder, or several with commas between them",
                             text);
        FSDP_TRY(append_folder(out, at, &used));
    }
    return FSDP_OK;
}

fsdp_status fsdp__adapters_check(const fsdp__adapters *adapters)
{
    for (int i = 0; i < adapters->count; i++) {
        fsdp_lora_options *options = NULL;
        fsdp_status status = fsdp__adapter_on_disk_options(fsdp__adapters_at(adapters, i), &options);

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
    FSDP__FREED char *config = fsdp__path_join(adapter, FSDP__ADAPTER_CONFIG), *text = NULL;
    size_t bytes = 0;

    if (config && fsdp__file_read(config, FSDP__CONFIG_LIMIT_BYTES, &text, &bytes) == FSDP_OK)
        fprintf(out, "the adapter's config\t%016llx\n",
                (unsigned long long)fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, bytes));
    fsdp__adapter_on_disk_facts(adapter, "the adapter's folder", out);
}

void fsdp__facts_of_adapters(const fsdp__adapters *adapters, FILE *out)
{
    for (int i = 0; i < adapters->count; i++)
        write_adapter(fsdp__adapters_at(adapters, i), out);
}
