/* Any bytes as a GGUF file: what is accepted lies within them, and is a model with a tokenizer, or is refused. */
#include <stdlib.h>

#include "base/alloc.h"
#include "hub/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_tensors(const fsdp__gguf *file, const uint8_t *data, size_t bytes)
{
    for (int64_t i = 0; i < file->tensor_count; i++) {
        const fsdp__gguf_tensor *t = &file->tensors[i];

        if (t->data < data || t->bytes > bytes || t->data + t->bytes > data + bytes)
            abort();
        if (t->type == FSDP__GGUF_Q8_0) {
            float *values = malloc((size_t)t->numel * sizeof *values);

            if (values)
                fsdp__gguf_from_blocks(t->data, t->numel, values);
            free(values);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp__gguf file;
    fsdp_model_config config;
    char *json = NULL, *settings = NULL;

    if (fsdp__gguf_parse("x.gguf", data, bytes, &file) != FSDP_OK)
        return 0;
    check_tensors(&file, data, bytes);
    (void)fsdp__gguf_config(&file, &config);
    (void)fsdp__gguf_tokenizer(&file, &json, &settings);
    fsdp__free(json);
    fsdp__free(settings);
    fsdp__gguf_release(&file);
    return 0;
}
