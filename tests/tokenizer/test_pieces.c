/* Tokenizers of SentencePiece, as tokenizer.model and as tokenizer.json: ids and texts are those of the packages
 * sentencepiece and tokenizers (tests/numbers/pieces.py). */
#include <jansson.h>

#include "base/alloc.h"
#include "tokenizer/small.h"
#include "tokenizer/tokenizer.h"

#define FOLDER TEST_SOURCE_DIR "/tests/numbers/pieces/"

static json_t *expected(void)
{
    json_t *all = json_load_file(FOLDER "expected.json", 0, NULL);

    return CHECK_PTR(all);
}

static fsdp_tokenizer *open_one(const char *name)
{
    fsdp_tokenizer *t = NULL;
    char path[1024];

    snprintf(path, sizeof path, FOLDER "%s", name);
    CHECK_OK(fsdp_tokenizer_open(path, &t));
    return t;
}

static bool has_id(const json_t *ids, int32_t id)
{
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (json_integer_value(json_array_get(ids, i)) == id)
            return true;
    return false;
}

static void check_ids(const char *name, const char *text, const fsdp_token_list *got, const json_t *wanted)
{
    bool same = got->count == (int64_t)json_array_size(wanted);

    for (int64_t i = 0; same && i < got->count; i++)
        same = got->ids[i] == json_integer_value(json_array_get(wanted, (size_t)i));
    if (!same) {
        for (int64_t i = 0; i < got->count; i++)
            print_message("%d ", got->ids[i]);
        TEST_FAIL("%s: '%s': expected %s", name, text, json_dumps(wanted, 0));
    }
}

/* Compares where tokens stand; `wanted` NULL: what sentencepiece says of it is something else. */
static void check_places(const char *name, const char *text, const fsdp__origins *got, const json_t *wanted)
{
    for (int64_t i = 0; wanted && i < got->count; i++) {
        const json_t *begin = json_array_get(wanted, (size_t)(2 * i)),
                     *end = json_array_get(wanted, (size_t)(2 * i + 1));

        if (got->items[i].begin != (size_t)json_integer_value(begin) ||
            got->items[i].end != (size_t)json_integer_value(end))
            TEST_FAIL("%s: '%s': token %lld has bytes %zu to %zu, expected %lld to %lld", name, text, (long long)i,
                      got->items[i].begin, got->items[i].end, (long long)json_integer_value(begin),
                      (long long)json_integer_value(end));
    }
    CHECK(!wanted || got->count == (int64_t)json_array_size(wanted) / 2);
}

/* Decodes token by token. */
static void check_pushed(const fsdp_tokenizer *t, const fsdp_token_list *ids, const char *wanted)
{
    fsdp_decoder *decoder = NULL;
    char got[4096] = "";
    const char *text;
    size_t bytes;

    CHECK_OK(fsdp_decoder_create(t, NULL, &decoder));
    for (int64_t i = 0; i < ids->count; i++) {
        CHECK_OK(fsdp_decoder_push(decoder, ids->ids[i], &text, &bytes));
        strncat(got, text, sizeof got - strlen(got) - 1);
    }
    CHECK_OK(fsdp_decoder_finish(decoder, &text, &bytes));
    strncat(got, text, sizeof got - strlen(got) - 1);
    CHECK_STRING(got, wanted);
    fsdp_decoder_free(decoder);
}

static void check_text(const char *name, const fsdp_tokenizer *t, fsdp_encoder *encoder, const char *text,
                       const json_t *ids, const json_t *places, const char *decoded)
{
    /* SentencePiece finds no control tokens in a text. */
    fsdp_encode_options plain = {.plain_specials = strstr(name, ".model") != NULL};
    fsdp_token_list alone = {0}, cached = {0};
    fsdp__origins origins = {0};
    char *got = NULL;
    size_t bytes;

    CHECK_OK(fsdp_tokenizer_encode(t, text, strlen(text), &plain, &alone));
    CHECK_OK(fsdp__encoder_trace(encoder, text, strlen(text), &plain, &cached, &origins));
    check_ids(name, text, &alone, ids);
    check_ids(name, text, &cached, ids);
    check_places(name, text, &origins, places);
    if (!plain.plain_specials || !has_id(ids, t->bpe.unknown)) { /* which it decodes to two question marks */
        CHECK_OK(fsdp_tokenizer_decode(t, alone.ids, alone.count, NULL, &got, &bytes));
        CHECK_STRING(got, decoded);
        check_pushed(t, &alone, decoded);
        free(got);
    }
    fsdp_token_list_release(&alone);
    fsdp_token_list_release(&cached);
    fsdp__free(origins.items);
}

static void check_tokenizer(const char *name)
{
    json_t *all = expected(), *texts = json_object_get(all, "texts"), *own = json_object_get(all, name);
    json_t *ids = json_object_get(own, "ids"), *decoded = json_object_get(own, "decoded");
    json_t *places = json_object_get(own, "places");
    fsdp_tokenizer *t = open_one(name);
    fsdp_encoder *encoder = NULL;

    CHECK(json_array_size(texts) > 20);
    CHECK_OK(fsdp_encoder_create(t, &encoder));
    for (int round = 0; round < 2; round++) /* the second finds words in the cache */
        for (size_t i = 0; i < json_array_size(texts); i++)
            check_text(name, t, encoder, json_string_value(json_array_get(texts, i)), json_array_get(ids, i),
                       json_array_get(places, i), json_string_value(json_array_get(decoded, i)));
    fsdp_encoder_free(encoder);
    fsdp_tokenizer_close(t);
    json_decref(all);
}

CALL_TEST(bpe_of_sentencepiece, check_tokenizer("bpe.model"))
CALL_TEST(bpe_whose_pieces_cross_spaces, check_tokenizer("across.model"))
CALL_TEST(unigram_with_a_table_of_characters, check_tokenizer("unigram.model"))
CALL_TEST(unigram_with_an_unknown_token, check_tokenizer("plain.model"))
CALL_TEST(json_as_of_llama_2, check_tokenizer("llama.json"))
CALL_TEST(json_as_of_mistral, check_tokenizer("mistral.json"))
CALL_TEST(json_as_of_gemma, check_tokenizer("gemma.json"))
CALL_TEST(json_as_of_t5, check_tokenizer("t5.json"))

/* A space in front has the first character, what the table writes has what it takes, the space that is left of several
 * has all of them, and each byte of a character has the whole character. */
TEST(tokens_of_a_model_stand_where_they_were_made)
{
    fsdp_tokenizer *t = open_one("unigram.model");

    check_origins(t, "\ufb01", "0-3 0-3 0-3");
    check_origins(t, "a  b ", "0-1 1-3 3-4");
    check_origins(t, "a\U0001f642<tool>", "0-1 1-5 1-5 1-5 1-5 5-11");
    fsdp_tokenizer_close(t);
}

TEST(specials_go_around_a_text)
{
    static const char *const names[] = {"llama.json", "mistral.json", "gemma.json", "t5.json"};
    json_t *all = expected();
    const char *text = json_string_value(json_array_get(json_object_get(all, "texts"), 6));

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fsdp_tokenizer *t = open_one(names[i]);
        fsdp_token_list ids = {0};

        CHECK_OK(fsdp_tokenizer_encode(t, text, strlen(text), &(fsdp_encode_options){.add_specials = true}, &ids));
        check_ids(names[i], text, &ids, json_object_get(json_object_get(all, names[i]), "with_specials"));
        fsdp_token_list_release(&ids);
        fsdp_tokenizer_close(t);
    }
    json_decref(all);
}

static char *read_file(const char *name, size_t *bytes)
{
    FILE *file = fopen(name, "rb");
    char *data = malloc(1 << 16);

    CHECK(file != NULL);
    *bytes = fread(data, 1, 1 << 16, file);
    fclose(file);
    return data;
}

static void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

TEST(a_folder_with_a_model_says_what_goes_around_a_text)
{
    static const char config[] = "{\"add_bos_token\": false, \"add_eos_token\": true, \"added_tokens_decoder\": "
                                 "{\"3\": {\"content\": \"<0x00>\","
                                 "\"special\": false}}}";
    char *directory = test_directory(), *data;
    fsdp_tokenizer *t = NULL;
    fsdp_token_list ids = {0};
    size_t bytes;

    data = read_file(FOLDER "bpe.model", &bytes);
    write_file(test_path(directory, "tokenizer.model"), data, bytes);
    CHECK_OK(fsdp_tokenizer_open(directory, &t));
    CHECK_EQ(fsdp_tokenizer_eos(t), 2);
    CHECK_EQ(fsdp_tokenizer_vocab_size(t), 420);
    CHECK_EQ(fsdp_tokenizer_id(t, "<s>"), 1);
    CHECK_OK(fsdp_tokenizer_encode(t, "a</s>", 5, &(fsdp_encode_options){.add_specials = true}, &ids));
    CHECK(ids.count == 3 && ids.ids[0] == 1 && ids.ids[2] == 2);
    fsdp_tokenizer_close(t);
    write_file(test_path(directory, "tokenizer_config.json"), config, sizeof config - 1);
    CHECK_OK(fsdp_tokenizer_open(directory, &t));
    ids.count = 0;
    CHECK_OK(fsdp_tokenizer_encode(t, "a", 1, &(fsdp_encode_options){.add_specials = true}, &ids));
    CHECK(ids.count == 2 && ids.ids[1] == 2);
    fsdp_token_list_release(&ids);
    fsdp_tokenizer_close(t);
    free(data);
}

/* A message of one field in front of a model: the last value of a field counts, and messages are merged. */
static void check_refused(const char *field, size_t field_bytes, fsdp_status status, const char *part)
{
    fsdp_tokenizer *t = NULL;
    size_t bytes;
    char *data = read_file(FOLDER "bpe.model", &bytes);

    memcpy(data + bytes, field, field_bytes);
    CHECK_ERROR(fsdp__tokenizer_parse_model("t.model", data, bytes + field_bytes, &t), status, part);
    CHECK_NULL(t);
    free(data);
}

TEST(what_a_model_may_not_have_is_named)
{
    fsdp_tokenizer *t = NULL;

    CHECK_ERROR(fsdp__tokenizer_parse_model("t.model", "{\"a\": 1}", 8, &t), FSDP_FORMAT, "no tokenizer.model");
    CHECK_ERROR(fsdp__tokenizer_parse_model("t.model", "", 0, &t), FSDP_FORMAT, "it has no pieces");
    check_refused("\x12\x02\x18\x03", 4, FSDP_UNSUPPORTED, "a model_type of words or characters");
    check_refused("\x12\x03\xc0\x01\x01", 5, FSDP_UNSUPPORTED, "treat_whitespace_as_suffix is not supported");
    check_refused("\x1a\x02\x28\x00", 4, FSDP_UNSUPPORTED, "escape_whitespaces false is not supported");
    check_refused("\x1a\x05\x12\x03"
                  "abc",
                  7, FSDP_FORMAT, "the normalizer's table of characters is damaged");
    check_refused("\x0a\x05\x0a\x03"
                  "<s>",
                  7, FSDP_FORMAT, "token '<s>' has two ids, 1 and 420");
    check_refused("\x0a\x00", 2, FSDP_FORMAT, "piece 420 has no text");
    check_refused("\x0a\x05\x0a\x01"
                  "q\x18\x09",
                  7, FSDP_FORMAT, "piece 420 is of a type");
    check_refused("\x0a\x05\x0a\x01"
                  "\x7f\x18\x05",
                  7, FSDP_UNSUPPORTED, "piece 420 is marked as unused");
}

TEST(a_json_that_is_neither_kind_is_refused)
{
    static const char *const cases[][2] = {
        {"\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",-1]]}", "the decoder 'null' is not supported"},
        {"\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}", "'unk_id' is -1"},
        {"\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\"]]}", "piece 0 is not [\"a\", -1.5]"},
        {"\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":{}}", "'vocab' is not a list"},
        {"\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0},\"merges\":[]}",
         "neither an unk_token nor a token for each byte"},
        {"\"normalizer\":{\"type\":\"Precompiled\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",-1]]"
         "}",
         "the normalizer 'Precompiled' is not supported"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":"
         "0,"
         "\"vocab\":[[\"a\",-1]]}",
         "the mark of spaces '_' is not supported"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"last\"},\"model\":{\"type\":\"Unigram\","
         "\"unk_id\":0,\"vocab\":[[\"a\",-1]]}",
         "the prepend_scheme 'last' is not supported"},
        {"\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":2,\"stop\":0},\"model\":{\"type\":\"Unigram\","
         "\"unk_id\":0,\"vocab\":[[\"a\",-1]]}",
         "Strip of more than a space in front"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_tokenizer *t = NULL;
        char text[1024];

        snprintf(text, sizeof text, "{%s}", cases[i][0]);
        CHECK(fsdp__tokenizer_parse("t.json", text, strlen(text), &t) != FSDP_OK);
        CHECK_CONTAINS(fsdp_last_error(), cases[i][1]);
    }
}

TEST(every_allocation_may_fail)
{
    static const char *const names[] = {"unigram.model", "across.model", "mistral.json"};
    static const char text[] = "the <tool> of\ta x\u4f60";

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fsdp_tokenizer *t = NULL;
        char path[1024];

        snprintf(path, sizeof path, FOLDER "%s", names[i]);
        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n); n += n / 8) {
            CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_tokenizer_open(path, &t));
            fsdp_tokenizer_close(t);
            t = NULL;
        }
        t = open_one(names[i]);
        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
            fsdp_token_list ids = {0};

            CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_tokenizer_encode(t, text, sizeof text - 1, NULL, &ids));
            fsdp_token_list_release(&ids);
        }
        fsdp_tokenizer_close(t);
    }
}
