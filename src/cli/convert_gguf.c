/* convert_gguf.c - fsdp convert to and from files of llama.cpp. The model is in memory, in float32. */
#include "cli/convert_gguf.h"

#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/folder_model.h"
#include "format/safetensors.h"
#include "hub/gguf.h"
#include "hub/held_folder.h"
#include "nn/module.h"
#include "state/entry.h"
#include "train/adapter_on_disk.h"
#include "train/model_folder.h"

bool fsdp__is_gguf(const char *path)
{
    struct stat info;

    return fsdp__gguf_is_file(path) ||
           (fsdp__ends_with(path, ".gguf") && stat(path, &info) == 0 && S_ISREG(info.st_mode));
}

/* ---- out ---- */

/* Returns the type of the folder's weights, which --dtype need not name; of a checkpoint float32. */
static fsdp__gguf_type own_type(const fsdp__model_folder *folder)
{
    FSDP__SCOPED(fsdp_weights_close_at) fsdp_weights *weights = NULL;
    fsdp_dtype common = FSDP_F32;
    bool held = fsdp_hold_error(true);

    if (!folder->is_checkpoint && fsdp_weights_open(folder->path, &weights) == FSDP_OK)
        for (int64_t i = 0; i < fsdp_weights_count(weights); i++) {
            fsdp_dtype dtype = fsdp_weights_at(weights, i)->dtype;

            common = i == 0 || dtype == common ? dtype : FSDP_F32;
        }
    fsdp_release_error(held);
    return common == FSDP_BF16 ? FSDP__GGUF_BF16 : common == FSDP_F16 ? FSDP__GGUF_F16 : FSDP__GGUF_F32;
}

/* Returns the last part of a path, as a name for the model. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

static fsdp_status write_file(const fsdp__model_folder *folder, const char *to, fsdp__gguf_type type)
{
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;
    fsdp__gguf_model out = {.name = base_name(folder->path), .type = type};
    fsdp_model_config config;

    FSDP_TRY(fsdp_hub_read_config(folder->path, &config));
    FSDP_TRY(fsdp_context_create(NULL, &context));
    FSDP_TRY(fsdp__folder_model_load(context, folder->path, &config,
                                     &(fsdp__folder_model_options){.dtype = FSDP_F32, .device = fsdp_cpu(context)},
                                     &model));
    FSDP_TRY(fsdp_state_dict_from_module(model, &state));
    out.state = state;
    out.config = &config;
    out.tokenizer = fsdp__hub_has_tokenizer(folder->path) ? folder->path : NULL;
    FSDP_TRY(fsdp__gguf_save(to, &out));
    printf("model written to %s as %s%s\n", FSDP__SHOWN_PATH(to), fsdp__gguf_type_name(type),
           out.tokenizer ? "" : ", without a tokenizer: the folder has none");
    return FSDP_OK;
}

fsdp_status fsdp__convert_to_gguf(const char *from, const char *to, const char *dtype)
{
    FSDP__SCOPED(fsdp__model_folder_release) fsdp__model_folder folder = {0};
    fsdp__gguf_type type;

    if (dtype && !fsdp__gguf_type_of(dtype, &type))
        return FSDP_FAIL(FSDP_INVALID, "--dtype is '%s': expected f32, f16, bf16 or q8_0", dtype);
    if (fsdp__path_exists(to))
        return FSDP_FAIL(FSDP_IO, "'%s' exists already: name another file", to);
    if (fsdp__is_gguf(from))
        return FSDP_FAIL(FSDP_INVALID, "'%s' is a GGUF file: make a folder of it first (-o FOLDER without --to)", from);
    FSDP_TRY(fsdp__model_folder_find(from, &folder));
    if (folder.is_adapter)
        return fsdp__adapter_on_disk_refuse(folder.path);
    return write_file(&folder, to, dtype ? type : own_type(&folder));
}

/* ---- in ---- */

typedef struct reading {
    const fsdp__gguf *file;
    const char *to;
    fsdp_dtype dtype;
    char *tokenizer; /* a folder with its files, while they are not in `to` yet; NULL: the file has none */
    int made;        /* number of folders that were made for it, itself included */
} reading;

/* Checks the file against a model without bytes: one that claims sizes which it has not gets no memory for them. */
static fsdp_status check_file(fsdp_context *context, const fsdp__gguf *file, const fsdp_model_config *config)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = fsdp_model_create(context, fsdp_meta(context), config);
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP__TRY_MADE(model);
    FSDP_TRY(fsdp_state_dict_from_module(model, &state));
    return fsdp__gguf_check(file, config, state);
}

static fsdp_status write_folder(fsdp_context *context, void *arg)
{
    const reading *r = arg;
    const fsdp__hub_target target = {.folder = r->to, .source = r->tokenizer, .tokenizer = r->tokenizer};
    FSDP__SCOPED(fsdp__hub_hold_free_at) fsdp_hub_hold *hold = fsdp__hub_hold_create(context, &target);
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;
    fsdp_model_config config;

    if (!hold)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    FSDP_TRY(fsdp__gguf_config(r->file, &config));
    FSDP_TRY(check_file(context, r->file, &config));
    FSDP_TRY(fsdp__hub_hold_begin(hold));
    FSDP__TRY_MADE(model = fsdp_model_create(context, fsdp_cpu(context), &config));
    FSDP_TRY(fsdp_state_dict_from_module(model, &state));
    FSDP_TRY(fsdp__gguf_load(r->file, &config, state));
    return fsdp__hub_save_held(hold, state, &config, r->dtype, fsdp_world(context), FSDP__FILE_LIMIT_BYTES);
}

/* Returns the dtype of the file's matrices; float32 where a quantised one is among them, or if they differ. */
static fsdp_dtype own_dtype(const fsdp__gguf *file)
{
    fsdp_dtype common = FSDP_DTYPE_NONE;

    for (int64_t i = 0; i < file->tensor_count; i++) {
        const fsdp__gguf_tensor *t = &file->tensors[i];
        fsdp_dtype dtype = t->type == FSDP__GGUF_F16 ? FSDP_F16 : t->type == FSDP__GGUF_BF16 ? FSDP_BF16 : FSDP_F32;

        if (t->ndim > 1 && strcmp(t->name, "position_embd.weight") != 0)
            common = common == FSDP_DTYPE_NONE || common == dtype ? dtype : FSDP_F32;
    }
    return common == FSDP_DTYPE_NONE ? FSDP_F32 : common;
}

/* Writes the tokenizer's files into a folder of its own beside `to`. */
static fsdp_status write_tokenizer(reading *r)
{
    FSDP__FREED char *json = NULL, *settings = NULL;
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {0};

    FSDP_TRY(fsdp__gguf_tokenizer(r->file, &json, &settings));
    if (!json)
        return FSDP_OK;
    FSDP__TRY_NEW(r->tokenizer = fsdp__sprintf("%s.tokenizer", r->to));
    FSDP_TRY(fsdp__directory_make_path(r->tokenizer, &folder, &r->made));
    FSDP_TRY(fsdp__directory_write_atomic(&folder, "tokenizer.json", json, strlen(json)));
    return fsdp__directory_write_atomic(&folder, "tokenizer_config.json", settings, strlen(settings));
}

static void remove_tokenizer(const reading *r)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {0};
    bool held = fsdp_hold_error(true);

    if (r->tokenizer && fsdp__directory_open(r->tokenizer, &folder) == FSDP_OK) {
        (void)fsdp__directory_unlink(&folder, "tokenizer.json");
        (void)fsdp__directory_unlink(&folder, "tokenizer_config.json");
        fsdp__directory_unmake(&folder, FSDP__MAX(r->made, 1)); /* unless there is something in them now */
    }
    fsdp_release_error(held);
}

static fsdp_status read_into(const char *to, const char *dtype, const fsdp__gguf *file)
{
    reading r = {.file = file, .to = to, .dtype = own_dtype(file)};
    fsdp_status status;

    if (dtype)
        FSDP_TRY(fsdp__dtype_option(dtype, &r.dtype));
    status = write_tokenizer(&r);
    if (status == FSDP_OK)
        status = fsdp_run_threads(1, NULL, write_folder, &r);
    if (status == FSDP_OK)
        printf("model written to %s%s\n", FSDP__SHOWN_PATH(to),
               r.tokenizer ? "" : ", without a tokenizer: the file has none");
    remove_tokenizer(&r);
    fsdp__free(r.tokenizer);
    return status;
}

fsdp_status fsdp__convert_from_gguf(const char *from, const char *to, const char *dtype)
{
    FSDP__SCOPED(fsdp__file_unmap) fsdp__mapping mapping = {0};
    FSDP__SCOPED(fsdp__gguf_release) fsdp__gguf file = {0};

    if (fsdp__path_exists(to))
        return FSDP_FAIL(FSDP_IO, "'%s' exists already: name another folder", to);
    FSDP_TRY(fsdp__file_map(from, &mapping));
    FSDP_TRY(fsdp__gguf_parse(from, mapping.data, mapping.bytes, &file));
    return read_into(to, dtype, &file);
}
