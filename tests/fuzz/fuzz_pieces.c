/* Any bytes as a tokenizer.model, whose tokenizer then encodes and decodes. */
#include <stdlib.h>

#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char text[] = "the <tool>  it's 1234,\n\n a\tb e\u0301 \u4f60\u597d\u3000\U0001f642 \u2581\u2581x ";
    fsdp_tokenizer *t = NULL;
    fsdp_token_list ids = {0};
    char *decoded = NULL;
    size_t decoded_bytes;

    if (fsdp__tokenizer_parse_model("tokenizer.model", data, bytes, &t) != FSDP_OK)
        return 0;
    if (fsdp_tokenizer_encode(t, text, sizeof text - 1, &(fsdp_encode_options){.add_specials = true}, &ids) ==
            FSDP_OK &&
        fsdp_tokenizer_decode(t, ids.ids, ids.count, NULL, &decoded, &decoded_bytes) != FSDP_OK)
        abort();
    free(decoded);
    fsdp_token_list_release(&ids);
    fsdp_tokenizer_close(t);
    return 0;
}
