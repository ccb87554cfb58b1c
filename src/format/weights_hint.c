/* weights_hint.c - says what a folder has instead of weights that can be read. */
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "format/safetensors.h"

#define GET_INDEX ", but not the index that says what is in them: get that file of the model, too"
#define CONVERT ": its weights are in GGUF: fsdp convert FILE.gguf -o FOLDER makes a folder of them"
#define GET_OTHER ": get the model's model.safetensors, as transformers writes it"

static const struct {
    const char *begin, *end, *hint;
} others[] = {
    {"adapter_", "",
     ": it is an adapter (LoRA) for another model: name that model, and this folder with --adapter (adapter.path to "
     "train on); fsdp convert MODEL MERGED --adapter FOLDER makes one model of both"},
    {"step-", "",
     ": it has checkpoints of a run: checkpoint.initial_load_path takes the weights of one, and fsdp convert makes a "
     "model folder of it"},
    {"model-", ".safetensors", ": it has parts of a model" GET_INDEX},
    {"pytorch_model-", ".bin", ": it has parts of a model" GET_INDEX},
    {"consolidated", "", ": its weights have the names of the model's maker" GET_OTHER},
    {"", ".gguf", CONVERT},
    {"tf_model", ".h5", ": its weights are for TensorFlow" GET_OTHER},
    {"flax_model", ".msgpack", ": its weights are for Flax" GET_OTHER},
};

/* Returns the first entry of the table whose file exists. */
static size_t find(DIR *directory)
{
    size_t found = FSDP__COUNT_OF(others);
    const struct dirent *entry;

    while ((entry = readdir(directory)) != NULL)
        for (size_t i = 0; i < found; i++)
            if (fsdp__behind(entry->d_name, others[i].begin) && fsdp__ends_with(entry->d_name, others[i].end))
                found = i;
    return found;
}

static bool is_model(const char *folder, const char *name)
{
    FSDP__FREED char *config = name[0] == '.' ? NULL : fsdp__sprintf("%s/%s/config.json", folder, name);

    return config && access(config, F_OK) == 0;
}

/* Writes which folder inside this one has a model, if there is one such folder. */
static const char *hint_at_inside(DIR *directory, const char *folder, char *text, size_t text_bytes)
{
    const struct dirent *entry;
    int models = 0;

    rewinddir(directory);
    while ((entry = readdir(directory)) != NULL)
        if (is_model(folder, entry->d_name) && models++ == 0)
            snprintf(text, text_bytes, "; did you mean '%s/%s'?", folder, FSDP__SHOWN_NAME(entry->d_name));
    return models == 1 ? text : "";
}

const char *fsdp__weights_hint(const char *folder, char *text, size_t text_bytes)
{
    DIR *directory = opendir(folder);
    const char *inside;
    size_t found;

    if (!directory)
        return fsdp__ends_with(folder, ".gguf") ? CONVERT : "";
    found = find(directory);
    inside = found < FSDP__COUNT_OF(others) ? "" : hint_at_inside(directory, folder, text, text_bytes);
    closedir(directory);
    return found < FSDP__COUNT_OF(others) ? others[found].hint : inside;
}
