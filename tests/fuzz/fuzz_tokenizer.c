/* Any bytes: as a tokenizer.json, whose tokenizer then encodes and decodes; and as text, which comes back as it was,
 * and has the same ids when it is parted where that is allowed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char parts[] =
    "{\"added_tokens\": [{\"id\": 260, \"content\": \"<e>\", \"special\": true, \"lstrip\": true}, {\"id\": 261, "
    "\"content\": \"a b\"}], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "
    "{\"type\": \"BPE\", \"merges\": [\"h e\", \"t he\", \"a b\", \"1 2\"], \"vocab\": {\"he\": 256, \"the\": 257, "
    "\"ab\": 258, \"12\": 259";

/* One with a token for each byte. */
static fsdp_tokenizer *make_tokenizer(void)
{
    fsdp_tokenizer *tokenizer = NULL;
    char *text = NULL;
    size_t bytes = 0;
    unsigned stand_in = 256;
    FILE *out = open_memstream(&text, &bytes);

    fputs(parts, out);
    for (unsigned byte = 0; byte < 256; byte++) {
        bool visible = (byte > ' ' && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);

        fprintf(out, ", \"\\u%04x\": %u", visible ? byte : stand_in++, byte);
    }
    fputs("}}}", out);
    fclose(out);
    if (fsdp__tokenizer_parse("tokenizer.json", text, bytes, &tokenizer) != FSDP_OK)
        abort();
    free(text);
    return tokenizer;
}

static void encode(const fsdp_tokenizer *t, const char *text, size_t bytes, fsdp_token_list *ids)
{
    if (fsdp_tokenizer_encode(t, text, bytes, NULL, ids) != FSDP_OK)
        abort();
}

static void check_text(const fsdp_tokenizer *t, const char *text, size_t bytes)
{
    fsdp_token_list ids = {0}, again = {0};
    fsdp_encode_options plain = {.plain_specials = true};
    size_t cut = fsdp__tokenizer_find_cut(t, text, bytes), decoded_bytes = 0;
    char *decoded = NULL;

    encode(t, text, bytes, &ids);
    encode(t, text, cut, &again);
    encode(t, text + cut, bytes - cut, &again);
    if (ids.count != again.count || (ids.count && memcmp(ids.ids, again.ids, (size_t)ids.count * sizeof *ids.ids) != 0))
        abort();
    ids.count = 0;
    if (fsdp_tokenizer_encode(t, text, bytes, &plain, &ids) != FSDP_OK ||
        fsdp_tokenizer_decode(t, ids.ids, ids.count, NULL, &decoded, &decoded_bytes) != FSDP_OK ||
        decoded_bytes != bytes || memcmp(decoded, text, bytes) != 0)
        abort();
    free(decoded);
    fsdp_token_list_release(&ids);
    fsdp_token_list_release(&again);
}

static void try_tokenizer(const uint8_t *data, size_t bytes)
{
    static const char text[] = "the <e>  it's 1234,\n\n a b e\u0301 \u4f60\u597d\u3000\U0001f642 ";
    fsdp_tokenizer *t = NULL;
    fsdp_token_list ids = {0};
    char *decoded = NULL;
    size_t decoded_bytes;

    if (fsdp__tokenizer_parse("tokenizer.json", data, bytes, &t) != FSDP_OK)
        return;
    if (fsdp_tokenizer_encode(t, text, sizeof text - 1, &(fsdp_encode_options){.add_specials = true}, &ids) ==
            FSDP_OK &&
        fsdp_tokenizer_decode(t, ids.ids, ids.count, NULL, &decoded, &decoded_bytes) != FSDP_OK)
        abort();
    free(decoded);
    fsdp_token_list_release(&ids);
    fsdp_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static fsdp_tokenizer *tokenizer;
    const char *text = (const char *)data;

    if (!tokenizer)
        tokenizer = make_tokenizer();
    try_tokenizer(data, bytes);
    check_text(tokenizer, text, fsdp__utf8_prefix(text, bytes));
    return 0;
}
