/* cmd_verify.c - fsdp verify PATH: checks whether a checkpoint or a model folder is what it says it is, to the last
 * byte. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/context.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "cli/cli.h"
#include "cli/finite_values.h"
#include "cli/own_process.h"
#include "cli/tensor_source.h"
#include "cli/token_text.h"
#include "train/checkpoint_values.h"
#include "train/model_folder.h"

static void usage(void)
{
    puts("fsdp verify PATH [--all]\n"
         "\n"
         "Reads all of PATH and says whether it is whole. PATH is\n"
         "  a checkpoint: it checks the manifest, every checksum, that every element of\n"
         "    every tensor is in exactly one part, that the tensors of the model fit the\n"
         "    config.json in it (or the matrices of an adapter do), and that its weights\n"
         "    are finite;\n"
         "  a folder of checkpoints: it checks the newest, or all with --all\n"
         "    (FOLDER/step-best: the best validation);\n"
         "  a Hugging Face folder, or weights alone (a folder, a file or an index): it\n"
         "    checks headers and index, shapes against config.json if there is one, and\n"
         "    that all values are finite;\n"
         "  the folder of an adapter (LoRA): it checks the header, its config, and that\n"
         "    all values are finite.\n"
         "Only checkpoints have checksums. Of other weights no one can tell other finite\n"
         "values from those that were written.\n"
         "A tokenizer and a generation_config.json beside the weights must be such that\n"
         "they can be read.\n"
         "\n"
         "The exit status is 0 if nothing is wrong. Otherwise it is 1, and the first fault\n"
         "is printed.");
}

/* ---- progress ---- */

static void draw(void *bar, uint64_t done, uint64_t all)
{
    fsdp__bar_draw_bytes(bar, done, all);
}

static fsdp_status draw_checked(void *bar, uint64_t done, uint64_t all)
{
    fsdp__bar_draw_bytes(bar, done, all);
    return FSDP_OK;
}

/* ---- what lies beside weights ---- */

/* Checks that what generating text needs can be read, where it is there. A tokenizer of a kind that this program does
 * not know is no damage. */
static fsdp_status check_beside(const char *folder)
{
    const int64_t bytes = 256; /* of a vocabulary that needs no tokenizer: there may be none */
    fsdp_hub_stop_tokens stops;
    FSDP__SCOPED(fsdp__token_text_close) fsdp__token_text text = {0};
    fsdp_status status;

    FSDP_TRY(fsdp_hub_read_stop_tokens(folder, &stops));
    status = fsdp__token_text_open(folder, NULL, bytes, &text);
    return status == FSDP_UNSUPPORTED ? FSDP_OK : status;
}

/* ---- a checkpoint ---- */

/* Returns where ".lora_A." or ".lora_B." begins in the name of an adapter's matrix; NULL: it is another tensor. */
static const char *lora_part(const fsdp_checkpoint_tensor *tensor)
{
    const char *part = strcmp(tensor->section, FSDP__SECTION_MODEL) == 0 ? strstr(tensor->name, ".lora_") : NULL;

    return part && (part[6] == 'A' || part[6] == 'B') && part[7] == '.' ? part : NULL;
}

/* Returns whether the run has trained an adapter: then only its matrices are weights. */
static bool is_of_adapter(const fsdp_checkpoint_reader *reader)
{
    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++)
        if (lora_part(fsdp_checkpoint_at(reader, i)))
            return true;
    return false;
}

/* Checks that a matrix, with `part` behind the name of the layer that it is beside, has as many inputs (A) or outputs
 * (B) as that layer. */
static fsdp_status check_matrix(fsdp_module *model, const fsdp_checkpoint_tensor *tensor, const char *part)
{
    FSDP__FREED char *name = fsdp__sprintf("%.*s.weight", (int)(part - tensor->name), tensor->name);
    const fsdp_tensor *weight;
    int64_t features;

    FSDP__TRY_NEW(name);
    weight = fsdp_module_parameter(model, name);
    features = tensor->shape[part[6] == 'A'];
    if (weight && tensor->ndim == 2 &&
        (features == fsdp_tensor_shape(weight)[0] || features == fsdp_tensor_shape(weight)[1]))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT, "tensor '%s' is of an adapter (LoRA), and does not fit a layer of the config.json",
                     tensor->name);
}

static fsdp_status check_adapter(const fsdp_checkpoint_reader *reader, fsdp_context *context,
                                 const fsdp_model_config *config)
{
    fsdp_module *model = fsdp_model_create(context, fsdp_meta(context), config);
    fsdp_status status = model ? FSDP_OK : fsdp_last_status();

    for (int64_t i = 0; status == FSDP_OK && i < fsdp_checkpoint_count(reader); i++) {
        const fsdp_checkpoint_tensor *tensor = fsdp_checkpoint_at(reader, i);
        const char *part = lora_part(tensor);

        if (part)
            status = check_matrix(model, tensor, part);
    }
    fsdp_module_unref(model);
    return fsdp_fail_prefix(status, "'%s'", fsdp_checkpoint_path(reader));
}

static fsdp_status check_config(const fsdp_checkpoint_reader *reader)
{
    fsdp__model_folder folder = {.path = (char *)(uintptr_t)fsdp_checkpoint_path(reader), .is_checkpoint = true};
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    fsdp_model_config config;

    FSDP_TRY(fsdp_hub_read_config(folder.path, &config));
    FSDP_TRY(fsdp_context_create(NULL, &context));
    return is_of_adapter(reader) ? check_adapter(reader, context, &config)
                                 : fsdp__model_folder_check(&folder, context, &config, false);
}

/* Checks that the weights are finite. A run that continues after NaN may have saved it. */
static fsdp_status check_weights(fsdp_checkpoint_reader *reader)
{
    FSDP__SCOPED(fsdp__tensor_source_release) fsdp__tensor_source source = {.reader = reader};
    fsdp__bar bar = {.possible = false};
    fsdp_status status;

    fsdp__bar_begin(&bar);
    status = fsdp__check_finite_weights(&source, draw, &bar);
    fsdp__bar_clear(&bar);
    source.reader = NULL; /* it belongs to the caller */
    return status;
}

static fsdp_status check_checkpoint(fsdp_checkpoint_reader *reader)
{
    bool has_model = fsdp_checkpoint_file_find(reader, "config.json") != NULL;
    int64_t count = fsdp_checkpoint_count(reader);
    bool has_weights = fsdp_checkpoint_has_section(reader, FSDP__SECTION_MODEL);
    fsdp__bar bar = {.possible = false};
    fsdp_status status;

    fsdp__bar_begin(&bar);
    status = fsdp_checkpoint_verify(reader, draw_checked, &bar);
    fsdp__bar_clear(&bar);
    FSDP_TRY(status);
    if (has_model)
        FSDP_TRY(check_config(reader));
    if (has_weights)
        FSDP_TRY(check_weights(reader));
    FSDP_TRY(check_beside(fsdp_checkpoint_path(reader)));
    printf("%s: whole: %lld tensor%s of %d rank%s, every checksum is right%s%s\n",
           FSDP__SHOWN_PATH(fsdp_checkpoint_path(reader)), (long long)count, fsdp__plural(count),
           fsdp_checkpoint_world_size(reader), fsdp__plural(fsdp_checkpoint_world_size(reader)),
           !has_model              ? ""
           : is_of_adapter(reader) ? "; its adapter (LoRA) fits its config.json"
                                   : "; shapes are those of its config.json",
           has_weights ? "; all weights are finite" : "");
    return FSDP_OK;
}

static fsdp_status verify_checkpoint(const char *path)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;

    FSDP_TRY(fsdp_checkpoint_open(path, &reader));
    return check_checkpoint(reader);
}

/* Verifies all checkpoints, including those after a damaged one. The error then says how many are damaged. */
static fsdp_status verify_each(const char *folder)
{
    FSDP__FREED int64_t *steps = NULL;
    int64_t count = 0, damaged = 0;

    FSDP_TRY(fsdp_checkpoint_list(folder, &steps, &count));
    for (int64_t i = 0; i < count; i++) {
        FSDP__FREED char *path = fsdp__step_path(folder, steps[i]);

        if (!path || verify_checkpoint(path) != FSDP_OK) {
            (void)fsdp__failure("%s", fsdp_last_error());
            damaged++;
        }
    }
    if (count == 0)
        return FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has no checkpoints: it has no folder named step-N", folder);
    if (damaged > 0)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': %lld of %lld checkpoints are damaged", folder, (long long)damaged,
                         (long long)count);
    return FSDP_OK;
}

/* ---- weights ---- */

/* Counts the tensors whose values cannot be read, and names the dtype of the first. */
static void note_unread(const fsdp__tensor_source *source, char *text, size_t bytes)
{
    const char *dtype = NULL;
    bool others = false;
    int64_t count = 0;

    for (int64_t i = 0; i < source->count; i++) {
        const fsdp__source_tensor *tensor = &source->tensors[i];

        if (tensor->dtype != FSDP_DTYPE_NONE)
            continue;
        dtype = dtype ? dtype : tensor->dtype_name;
        others = others || strcmp(tensor->dtype_name, dtype) != 0;
        count++;
    }
    if (count > 0)
        snprintf(text, bytes, " but for %lld of %s%s, which %s not checked", (long long)count, dtype,
                 others ? " and others" : "", count == 1 ? "was" : "were");
}

/* Verifies the weights in a file or folder, which are those of `path`. */
static fsdp_status verify_weights_of(const char *path, const char *weights, const char *and)
{
    FSDP__SCOPED(fsdp__tensor_source_release) fsdp__tensor_source source = {.count = 0};
    char unread[96] = "";
    fsdp__bar bar = {.possible = false};
    fsdp_status status;

    FSDP_TRY(fsdp_weights_open(weights, &source.weights));
    fsdp__bar_begin(&bar);
    status = fsdp__check_finite_weights(&source, draw, &bar);
    fsdp__bar_clear(&bar);
    FSDP_TRY(status);
    FSDP_TRY(check_beside(path));
    note_unread(&source, unread, sizeof unread);
    printf("%s: whole: %lld tensor%s, all values are finite%s%s (only checkpoints have checksums)\n",
           FSDP__SHOWN_PATH(path), (long long)source.count, fsdp__plural(source.count), unread, and);
    return FSDP_OK;
}

static fsdp_status verify_weights(const char *path, const char *and)
{
    return verify_weights_of(path, path, and);
}

static fsdp_status verify_adapter(const char *folder, const char *file)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *options = NULL;

    FSDP_TRY(fsdp_adapter_read_options(folder, &options));
    return verify_weights_of(folder, file, "; its " FSDP__ADAPTER_CONFIG " can be read");
}

static fsdp_status verify_model(const char *folder)
{
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    fsdp_model_config config;

    FSDP_TRY(fsdp_hub_read_config(folder, &config));
    FSDP_TRY(fsdp_context_create(NULL, &context));
    FSDP_TRY(fsdp_hub_check(context, folder, &config));
    return verify_weights(folder, "; shapes are those of its config.json");
}

/* ---- command ---- */

static fsdp_status verify(const char *path, bool all)
{
    FSDP__SCOPED(fsdp__model_folder_release) fsdp__model_folder folder = {.path = NULL};
    FSDP__FREED char *adapter = NULL;
    struct stat info;

    if (all)
        return verify_each(path);
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return verify_weights(path, "");
    FSDP_TRY(fsdp__adapter_weights(path, &adapter));
    if (adapter)
        return verify_adapter(path, adapter);
    FSDP_TRY(fsdp__model_folder_find(path, &folder));
    return folder.is_checkpoint ? verify_checkpoint(folder.path)
           : folder.has_config  ? verify_model(path)
                                : verify_weights(path, "");
}

int fsdp__cmd_verify(int argc, char **argv)
{
    bool all = false;
    const fsdp__option options[] = {{"all", 0, NULL, &all}, {0}};
    fsdp__args args = {.options = options, .positional_most = 1};
    int status;

    if (!fsdp__take_line(&args, "verify", usage, argc, argv, &status))
        return status;
    if (args.positional_count == 0)
        return fsdp__usage_error("verify: no checkpoint or model folder given; see 'fsdp verify --help'");
    fsdp__explain_bus_errors();
    return verify(args.positional[0], all) == FSDP_OK ? 0 : fsdp__failure("%s", fsdp_last_error());
}
