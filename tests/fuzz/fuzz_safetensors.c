/* Any bytes as a safetensors file: what is accepted lies within them, in order, without overlap. */
#include <stdlib.h>

#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp__tensor_list list = {0};
    size_t covered = 0;

    if (fsdp__safetensors_parse("x.safetensors", data, bytes, &list) == FSDP_OK) {
        for (int64_t i = 0; i < list.count; i++) {
            const fsdp_safetensors_entry *entry = &list.entries[i];
            const uint8_t *begin = entry->data;

            if (begin < data || entry->bytes > bytes || begin + entry->bytes > data + bytes)
                abort();
            covered += entry->bytes;
        }
        if (covered > bytes)
            abort();
    }
    fsdp__tensor_list_release(&list);
    return 0;
}
