/* Ids and texts as Hugging Face's tokenizers gives them, from files beside the sources (FSDP_REFERENCE). */
#include <jansson.h>

#include "fsdp/tokenizer.h"
#include "support/test.h"

/* free() it; skips the case where the files are not there. */
static char *reference_path(const char *name)
{
    const char *folder = getenv("FSDP_REFERENCE");
    char path[4096];

    if (!folder) {
        print_message("[  SKIPPED ] FSDP_REFERENCE names no folder\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/tokenizer/%s", folder, name);
    return strdup(path);
}

static void check_ids(const fsdp_token_list *actual, const json_t *expected, const char *text)
{
    if (actual->count != (int64_t)json_array_size(expected))
        TEST_FAIL("'%s': %lld ids, expected %zu", text, (long long)actual->count, json_array_size(expected));
    for (int64_t i = 0; i < actual->count; i++)
        if (actual->ids[i] != json_integer_value(json_array_get(expected, (size_t)i)))
            TEST_FAIL("'%s': id %lld is %d", text, (long long)i, actual->ids[i]);
}

static void check_vector(const fsdp_tokenizer *tokenizer, fsdp_encoder *encoder, const json_t *vector)
{
    const json_t *text = json_object_get(vector, "text"), *ids = json_object_get(vector, "ids");
    fsdp_token_list alone = {0}, cached = {0};
    char *decoded = NULL;
    size_t bytes = 0;

    CHECK_OK(fsdp_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), NULL, &alone));
    CHECK_OK(fsdp_encoder_encode(encoder, json_string_value(text), json_string_length(text), NULL, &cached));
    check_ids(&alone, ids, json_string_value(text));
    check_ids(&cached, ids, json_string_value(text));
    CHECK_OK(fsdp_tokenizer_decode(tokenizer, alone.ids, alone.count, NULL, &decoded, &bytes));
    text = json_object_get(vector, "decoded");
    CHECK_EQ(bytes, json_string_length(text));
    CHECK_BYTES(decoded, json_string_value(text), bytes);
    free(decoded);
    fsdp_token_list_release(&alone);
    fsdp_token_list_release(&cached);
}

static void check_folder(const char *tokenizer_name, const char *vectors_name)
{
    char *path = reference_path(tokenizer_name), *vectors_path = reference_path(vectors_name);
    json_t *vectors = json_load_file(vectors_path, JSON_ALLOW_NUL, NULL);
    fsdp_tokenizer *tokenizer = NULL;
    fsdp_encoder *encoder = NULL;

    CHECK(json_array_size(vectors) > 0);
    CHECK_OK(fsdp_tokenizer_open(path, &tokenizer));
    CHECK_OK(fsdp_encoder_create(tokenizer, &encoder));
    CHECK_EQ(fsdp_tokenizer_vocab_size(tokenizer), 700);
    CHECK_EQ(fsdp_tokenizer_eos(tokenizer), 0);
    for (int round = 0; round < 2; round++) /* the second from the words of the first */
        for (size_t i = 0; i < json_array_size(vectors); i++)
            check_vector(tokenizer, encoder, json_array_get(vectors, i));
    fsdp_encoder_free(encoder);
    fsdp_tokenizer_close(tokenizer);
    json_decref(vectors);
    free(path);
    free(vectors_path);
}

CALL_TEST(gpt2_agrees_to_the_id, check_folder("gpt2-tokenizer.json", "gpt2-vectors.json"))
CALL_TEST(llama_3_agrees_to_the_id, check_folder("llama3-tokenizer.json", "llama3-vectors.json"))
