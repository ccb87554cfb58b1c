/* weights_hint.c - says what a folder has instead of weights that can be read. */
#include <dirent.h>

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

const char *fsdp__weights_hint(const char *folder)
{
    DIR *directory = opendir(folder);
    size_t found;

    if (!directory)
        return fsdp__ends_with(folder, ".gguf") ? CONVERT : "";
    found = find(directory);
    closedir(directory);
    return found < FSDP__COUNT_OF(others) ? others[found].hint : "";
}
