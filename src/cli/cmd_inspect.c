/* cmd_inspect.c - fsdp inspect: lists what is in a model folder, a file of weights or a checkpoint, or the devices. */
#include <stdio.h>
#include <sys/stat.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/context.h"
#include "checkpoint/folder.h"
#include "cli/cli.h"
#include "cli/listing.h"
#include "cli/own_process.h"
#include "cli/tensor_source.h"
#include "format/safetensors.h"
#include "train/model_folder.h"

static void usage(void)
{
    puts("fsdp inspect PATH [--json] [--parts]\n"
         "fsdp inspect --devices [--json]\n"
         "\n"
         "Shows what is in a Hugging Face folder (config, parameters, shapes, dtypes and\n"
         "sizes; it is an error if the config and the weights do not belong together), in\n"
         "weights alone (a folder without a config, safetensors, .bin or an index), in the\n"
         "folder of an adapter (LoRA), or in a checkpoint (values, files, tensors, which\n"
         "ranks hold them, and how its mesh cuts them). For a folder of checkpoints it\n"
         "shows the newest, for FOLDER/step-best the one with the best validation.\n"
         "\n"
         "  --json     print one JSON object\n"
         "  --parts    list every part of a checkpoint: which elements of which tensor it\n"
         "             is, and where it lies\n"
         "  --devices  list the devices of this machine, with their memory and how much of\n"
         "             it is free: the CPU, and each GPU, or why none can be used");
}

static fsdp_status inspect_weights(const char *path, bool json)
{
    FSDP__SCOPED(fsdp_weights_close_at) fsdp_weights *weights = NULL;

    FSDP_TRY(fsdp_weights_open(path, &weights));
    (json ? fsdp__list_weights_as_json : fsdp__list_weights)(path, NULL, NULL, weights);
    return FSDP_OK;
}

/* Shows peft's folder, whose weights are in `file`. */
static fsdp_status inspect_adapter(const char *folder, const char *file, bool json)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *options = NULL;
    FSDP__SCOPED(fsdp_weights_close_at) fsdp_weights *weights = NULL;

    FSDP_TRY(fsdp_adapter_read_options(folder, &options));
    FSDP_TRY(fsdp_weights_open(file, &weights));
    (json ? fsdp__list_weights_as_json : fsdp__list_weights)(folder, NULL, options, weights);
    return FSDP_OK;
}

/* Shows a model folder, even if its config and its files do not belong together; then the reason comes last. */
static fsdp_status inspect_model(const char *folder, bool json)
{
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    FSDP__SCOPED(fsdp_weights_close_at) fsdp_weights *weights = NULL;
    fsdp_model_config config;

    FSDP_TRY(fsdp_hub_read_config(folder, &config));
    FSDP_TRY(fsdp_weights_open(folder, &weights));
    (json ? fsdp__list_weights_as_json : fsdp__list_weights)(folder, &config, NULL, weights);
    FSDP_TRY(fsdp_context_create(NULL, &context));
    return fsdp_hub_check(context, folder, &config);
}

static fsdp_status inspect_checkpoint(const char *path, bool json, bool parts)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;

    FSDP_TRY(fsdp_checkpoint_open(path, &reader));
    if (json)
        fsdp__list_checkpoint_as_json(reader);
    else
        fsdp__list_checkpoint(reader, parts);
    return FSDP_OK;
}

static fsdp_status no_parts(const char *path)
{
    return FSDP_FAIL(FSDP_INVALID, "--parts is for a checkpoint, and '%s' is none: leave it out", path);
}

static fsdp_status inspect(const char *path, bool json, bool parts)
{
    FSDP__SCOPED(fsdp__model_folder_release) fsdp__model_folder folder = {.path = NULL};
    FSDP__FREED char *adapter = NULL;
    struct stat info;

    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return parts ? no_parts(path) : inspect_weights(path, json);
    FSDP_TRY(fsdp__adapter_weights(path, &adapter));
    if (adapter && parts)
        return no_parts(path);
    if (adapter)
        return inspect_adapter(path, adapter, json);
    FSDP_TRY(fsdp__model_folder_find(path, &folder));
    if (parts && !folder.is_checkpoint)
        return no_parts(path);
    return folder.is_checkpoint ? inspect_checkpoint(folder.path, json, parts)
           : folder.has_config  ? inspect_model(path, json)
                                : inspect_weights(path, json);
}

static fsdp_status inspect_devices(bool json)
{
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;

    FSDP_TRY(fsdp_context_create(NULL, &context));
    (json ? fsdp__list_devices_as_json : fsdp__list_devices)(context);
    return FSDP_OK;
}

int fsdp__cmd_inspect(int argc, char **argv)
{
    bool json = false, parts = false, devices = false;
    const fsdp__option options[] = {
        {"json", 0, NULL, &json}, {"parts", 0, NULL, &parts}, {"devices", 0, NULL, &devices}, {0}};
    fsdp__args args = {.options = options, .positional_most = 1};
    int status;

    if (!fsdp__take_line(&args, "inspect", usage, argc, argv, &status))
        return status;
    if (devices && (args.positional_count > 0 || parts))
        return fsdp__usage_error("inspect: --devices is of this machine: leave out %s",
                                 args.positional_count > 0 ? "the path" : "--parts");
    if (devices)
        return inspect_devices(json) == FSDP_OK ? 0 : fsdp__failure("%s", fsdp_last_error());
    if (args.positional_count == 0)
        return fsdp__usage_error("inspect: no model folder given; see 'fsdp inspect --help'");
    fsdp__explain_bus_errors();
    return inspect(args.positional[0], json, parts) == FSDP_OK ? 0 : fsdp__failure("%s", fsdp_last_error());
}
