/* small.c - a small tokenizer's JSON. */
#include "tokenizer/small.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "tokenizer/tokenizer.h"

static const char *const merges[][2] = {
    {"\u0120", "t"}, {"h", "e"},  {"\u0120t", "he"},    {"i", "n"},      {"in", "g"},
    {"e", "r"},      {"t", "h"},  {"th", "e"},          {"\u0120", "a"}, {"\u0120", "\u0120"},
    {"1", "2"},      {"12", "3"}, {"\u010a", "\u010a"}, {"\u010a", "a"},
};

/* As files write a byte. */
static void print_byte(unsigned byte, FILE *out)
{
    unsigned code = byte, before = 0;
    bool visible = (byte > ' ' && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);

    for (unsigned b = 0; b < byte; b++)
        before += !((b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad));
    if (!visible)
        code = 256 + before;
    fprintf(out, "\"\\u%04x\": %u,\n", code, byte);
}

static const char *or_else(const char *part, const char *usual)
{
    return part ? part : usual;
}

static void print_model(const small_parts *parts, FILE *out)
{
    size_t count = FSDP__COUNT_OF(merges);

    fprintf(out, "\"model\": {\"type\": \"BPE\", %s\"vocab\": {\n", or_else(parts->model, ""));
    for (unsigned byte = 0; byte < 256; byte++)
        print_byte(byte, out);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "\"%s%s\": %zu%s\n", merges[i][0], merges[i][1], 256 + i, i + 1 < count ? "," : "},");
    fprintf(out, "\"merges\": [\n");
    for (size_t i = 0; i < count; i++)
        fprintf(out, parts->merges_as_pairs ? "[\"%s\", \"%s\"]%s\n" : "\"%s %s\"%s\n", merges[i][0], merges[i][1],
                i + 1 < count ? "," : "]}");
}

char *small_json(const small_parts *parts)
{
    FILE *out = test_begin_text();

    fprintf(out, "{\"added_tokens\": %s,\n", or_else(parts->added_tokens, "[]"));
    fprintf(out, "\"normalizer\": %s,\n", or_else(parts->normalizer, "null"));
    fprintf(out, "\"pre_tokenizer\": %s,\n",
            or_else(parts->pre_tokenizer, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"));
    fprintf(out, "\"post_processor\": %s,\n", or_else(parts->post_processor, "null"));
    fprintf(out, "\"decoder\": %s,\n", or_else(parts->decoder, "{\"type\": \"ByteLevel\"}"));
    print_model(parts, out);
    fprintf(out, "}\n");
    return test_end_text(out);
}

fsdp_tokenizer *small_tokenizer(const small_parts *parts)
{
    char *text = small_json(parts);
    fsdp_tokenizer *tokenizer = NULL;

    CHECK_OK(fsdp__tokenizer_parse("tokenizer.json", text, strlen(text), &tokenizer));
    return tokenizer;
}

void check_encodes(const fsdp_tokenizer *tokenizer, const char *text, const fsdp_encode_options *options,
                   const int32_t *expected)
{
    fsdp_token_list list = {0};
    int64_t count = 0;

    CHECK_OK(fsdp_tokenizer_encode(tokenizer, text, strlen(text), options, &list));
    while (expected[count] >= 0)
        count++;
    for (int64_t i = 0; i < list.count && i < count; i++)
        if (list.ids[i] != expected[i])
            TEST_FAIL("'%s': id %lld is %d, expected %d", text, (long long)i, list.ids[i], expected[i]);
    CHECK_EQ(list.count, count);
    fsdp_token_list_release(&list);
}

void check_origins(const fsdp_tokenizer *tokenizer, const char *text, const char *expected)
{
    fsdp_encoder *encoder = NULL;

    CHECK_OK(fsdp_encoder_create(tokenizer, &encoder));
    for (int round = 0; round < 2; round++) {
        fsdp_token_list ids = {0};
        fsdp__origins origins = {0};
        char shown[256] = "";

        CHECK_OK(fsdp__encoder_trace(encoder, text, strlen(text), NULL, &ids, &origins));
        CHECK_EQ(ids.count, origins.count);
        for (int64_t i = 0; i < origins.count; i++) {
            size_t used = strlen(shown);

            snprintf(shown + used, sizeof shown - used, "%s%zu-%zu", i ? " " : "", origins.items[i].begin,
                     origins.items[i].end);
        }
        CHECK_STRING(shown, expected);
        fsdp_token_list_release(&ids);
        fsdp__free(origins.items);
    }
    fsdp_encoder_free(encoder);
}
