/* kept_adapter.c - reads what a checkpoint says of its adapter, and finds the model that it belongs to. */
#include "train/kept_adapter.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "fsdp/checkpoint.h"
#include "train/adapter_on_disk.h"
#include "train/checkpoint_values.h"
#include "train/run_config.h"
#include "train/same_facts.h"

/* Returns the line of facts with this name, with the name; *bytes: without its end. NULL: there is none. */
static const char *find_fact(const char *facts, const char *name, size_t *bytes)
{
    size_t length = strlen(name);

    for (const char *at = facts; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && at[length] == '\t') {
            *bytes = strcspn(at, "\n");
            return at;
        }
    return NULL;
}

/* Compares what the base holds with what it held in the run. */
static fsdp_status compare_base(const char *checkpoint, const char *base, const char *then)
{
    static const char name[] = "what model.path holds";
    FSDP__FREED char *now = NULL;
    size_t now_bytes, then_bytes, all;
    FILE *out = fsdp__begin_text(&now, &all);
    const char *was = find_fact(then, name, &then_bytes), *is;

    if (out)
        fsdp__facts_of_weights(base, false, "model.path", out);
    FSDP_TRY(fsdp__end_text(out));
    is = find_fact(now, name, &now_bytes);
    if (!was || !is || (now_bytes == then_bytes && memcmp(was, is, now_bytes) == 0))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "'%s' has an adapter of the model '%s', which is no longer what it was: then %.*s, now %.*s; "
                     "to use the adapter with it as it is, name the model, and the checkpoint with --adapter",
                     checkpoint, base, (int)(then_bytes - sizeof name), was + sizeof name,
                     (int)(now_bytes - sizeof name), is + sizeof name);
}

static fsdp_status check_base(const char *checkpoint, const char *base)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;
    const char *facts = NULL;

    if (!fsdp__path_exists(base))
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "'%s' has an adapter of the model '%s' (model.path of its run), and there is no such folder "
                         "here: name the model, and the checkpoint with --adapter",
                         checkpoint, base);
    FSDP_TRY(fsdp_checkpoint_open(checkpoint, &reader));
    FSDP_TRY(fsdp_checkpoint_get_text(reader, FSDP__VALUE_MODEL, &facts));
    return compare_base(checkpoint, base, facts);
}

static fsdp_status read_config(const char *checkpoint, fsdp__kept_adapter *out)
{
    FSDP__FREED char *path = fsdp__path_join(checkpoint, "config.yaml");
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;

    FSDP__TRY_NEW(path);
    FSDP_TRY(fsdp_train_config_create(&config));
    FSDP_TRY(fsdp_train_config_load(config, path));
    out->seed = (uint64_t)config->training.seed;
    out->dtype = (fsdp_dtype)config->adapter.base_dtype;
    out->quantize = (fsdp_quantization)config->adapter.quantize;
    if (config->model.path && config->model.pretrained != 0)
        FSDP__TRY_NEW(out->base = fsdp__strdup(config->model.path));
    return FSDP_OK;
}

fsdp_status fsdp__kept_adapter_read(const char *checkpoint, fsdp__kept_adapter *out)
{
    *out = (fsdp__kept_adapter){.options = NULL};
    FSDP_TRY(fsdp__adapter_on_disk_options(checkpoint, &out->options));
    FSDP_TRY(read_config(checkpoint, out));
    return out->base ? check_base(checkpoint, out->base) : FSDP_OK;
}

void fsdp__kept_adapter_release(fsdp__kept_adapter *kept)
{
    fsdp_lora_options_free(kept->options);
    fsdp__free(kept->base);
    *kept = (fsdp__kept_adapter){.options = NULL};
}

fsdp_status fsdp__kept_adapter_load_base(const fsdp__kept_adapter *kept, fsdp_adapter *adapter,
                                         const fsdp_model_config *config)
{
    return kept->base ? fsdp_adapter_load_base(adapter, kept->base, config)
                      : fsdp_adapter_initialize_base(adapter, kept->seed);
}
