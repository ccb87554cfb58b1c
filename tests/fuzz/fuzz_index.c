/* Any bytes as a model.safetensors.index.json: file names stay in the folder. */
#include <stdlib.h>
#include <string.h>

#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp__index index = {0};

    if (fsdp__index_parse("model.safetensors.index.json", data, bytes, &index) == FSDP_OK)
        for (int64_t i = 0; i < index.count; i++)
            if (strchr(index.entries[i].file, '/') || strcmp(index.entries[i].file, "..") == 0)
                abort();
    fsdp__index_release(&index);
    return 0;
}
