/* Tokenizers in files of llama.cpp, there and back: byte-level BPE, and SentencePiece's of a tokenizer.json and of a
 * tokenizer.model (tests/numbers/pieces.py); what llama.cpp would do otherwise. Where a python has the packages gguf
 * and sentencepiece (FSDP_GGUF_PYTHON names one), the tokens are those that llama.cpp's converter writes. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "hub/gguf.h"
#include "support/test.h"

#define PIECES TEST_SOURCE_DIR "/tests/numbers/pieces/"

static fsdp_model_config config_of(int64_t vocab_size)
{
    return (fsdp_model_config){.architecture = FSDP_LLAMA,
                               .vocab_size = vocab_size,
                               .has_bos_token = true,
                               .bos_token = 3,
                               .eos_token_count = 1,
                               .eos_tokens = {5}};
}

static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":5,\"content\":\"<|end|>\",\"special\":true},{\"id\":6,\"content\":"
    "\"<|call|>\",\"special\":false}],\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
    "\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<|end|>\",\"type_id\":"
    "0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
    "\"\\u0120\":"
    "2,\"ab\":3,\"\\u0120ab\":4},\"merges\":[\"a b\",[\"\\u0120\",\"ab\"]]}}";
static const char settings_json[] =
    "{\"bos_token\":\"<|end|>\",\"eos_token\":{\"content\":\"<|end|>\"},\"chat_template\":[{\"name\":\"tool_use\","
    "\"template\":\"T\"},{\"name\":\"default\",\"template\":\"{{ messages }}\"}]}";

TEST(a_tokenizer_goes_there_and_back)
{
    char *directory = test_directory(), *json, *settings;
    fsdp_model_config config = config_of(9);
    fsdp__gguf_header h;
    fsdp__gguf file;

    test_write_text(directory, "tokenizer.json", tokenizer_json);
    test_write_text(directory, "tokenizer_config.json", settings_json);
    fsdp__gguf_header_begin(&h);
    CHECK_OK(fsdp__gguf_put_tokenizer(&h, directory, &config));
    CHECK_OK(fsdp__gguf_header_finish(&h));
    CHECK_OK(fsdp__gguf_parse("x.gguf", h.data, (size_t)h.bytes, &file));
    CHECK_OK(fsdp__gguf_tokenizer(&file, &json, &settings));
    CHECK_CONTAINS(json, "\"individual_digits\": true");
    CHECK_CONTAINS(json, "\"<|end|>\": 5");
    CHECK_CONTAINS(json, "\"\u0120ab\": 4");
    CHECK_CONTAINS(json, "TemplateProcessing");
    CHECK_CONTAINS(settings, "\"chat_template\": \"{{ messages }}\"");
    CHECK_CONTAINS(settings, "\"eos_token\": \"<|end|>\"");
    CHECK(strstr(json, "[PAD") == NULL);
    fsdp__free(json);
    fsdp__free(settings);
    fsdp__gguf_release(&file);
    fsdp__gguf_header_release(&h);
    config.vocab_size = 6;
    fsdp__gguf_header_begin(&h);
    CHECK_EQ(fsdp__gguf_put_tokenizer(&h, directory, &config), FSDP_INVALID);
    CHECK_CONTAINS(fsdp_last_error(), "has token 6, but the model has 6");
    fsdp__gguf_header_release(&h);
}

TEST(a_vocabulary_and_merges_are_written_as_they_are)
{
    char *directory = test_directory();
    const fsdp__gguf_value *merges, *types;
    fsdp_model_config config = config_of(9);
    char *pre = NULL;
    fsdp__gguf_header h;
    fsdp__gguf file;

    test_write_text(directory, "vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}");
    test_write_text(directory, "merges.txt", "#version: 0.2\r\na b\r\n");
    test_write_text(
        directory, "tokenizer_config.json",
        "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"added_tokens_decoder\":{\"3\":{\"content\":\"<|endoftext|>\","
        "\"special\":true},\"4\":{\"content\":\"<think>\"}}}");
    fsdp__gguf_header_begin(&h);
    CHECK_OK(fsdp__gguf_put_tokenizer(&h, directory, &config));
    CHECK_OK(fsdp__gguf_header_finish(&h));
    CHECK_OK(fsdp__gguf_parse("x.gguf", h.data, (size_t)h.bytes, &file));
    CHECK_OK(fsdp__gguf_string(&file, "tokenizer.ggml.pre", true, &pre));
    CHECK_STRING(pre, "qwen2");
    CHECK_OK(fsdp__gguf_array(&file, "tokenizer.ggml.merges", FSDP__GGUF_TEXT, &merges));
    CHECK_OK(fsdp__gguf_array(&file, "tokenizer.ggml.token_type", FSDP__GGUF_I32, &types));
    CHECK_EQ(merges->count, 1);
    CHECK_EQ(fsdp__gguf_i32_at(types, 2), 1);
    CHECK_EQ(fsdp__gguf_i32_at(types, 3), 3);
    CHECK_EQ(fsdp__gguf_i32_at(types, 4), 4);
    fsdp__free(pre);
    fsdp__gguf_release(&file);
    fsdp__gguf_header_release(&h);
}

/* transformers takes the file, too. */
TEST(a_template_in_a_file_wins_over_a_list)
{
    char *directory = test_directory(), *json, *settings;
    fsdp_model_config config = config_of(9);
    fsdp__gguf_header h;
    fsdp__gguf file;

    test_write_text(directory, "tokenizer.json", tokenizer_json);
    test_write_text(directory, "tokenizer_config.json", settings_json);
    test_write_text(directory, "chat_template.jinja", "{{ other }}");
    fsdp__gguf_header_begin(&h);
    CHECK_OK(fsdp__gguf_put_tokenizer(&h, directory, &config));
    CHECK_OK(fsdp__gguf_header_finish(&h));
    CHECK_OK(fsdp__gguf_parse("x.gguf", h.data, (size_t)h.bytes, &file));
    CHECK_OK(fsdp__gguf_tokenizer(&file, &json, &settings));
    CHECK_CONTAINS(settings, "\"chat_template\": \"{{ other }}\"");
    fsdp__free(json);
    fsdp__free(settings);
    fsdp__gguf_release(&file);
    fsdp__gguf_header_release(&h);
}

/* ---- SentencePiece ---- */

/* Writes a folder's tokenizer into a header, and parses that. */
static fsdp_status there(const char *directory, int64_t vocab_size, fsdp__gguf_header *h, fsdp__gguf *file)
{
    fsdp_model_config config = config_of(vocab_size);
    fsdp_status status;

    fsdp__gguf_header_begin(h);
    status = fsdp__gguf_put_tokenizer(h, directory, &config);
    if (status != FSDP_OK)
        return status;
    CHECK_OK(fsdp__gguf_header_finish(h));
    CHECK_OK(fsdp__gguf_parse("x.gguf", h->data, (size_t)h->bytes, file));
    return FSDP_OK;
}

static int32_t type_of(const fsdp__gguf *file, uint64_t id)
{
    const fsdp__gguf_value *types;

    CHECK_OK(fsdp__gguf_array(file, "tokenizer.ggml.token_type", FSDP__GGUF_I32, &types));
    return fsdp__gguf_i32_at(types, id);
}

TEST(pieces_have_types_and_scores)
{
    char *directory = test_directory();
    const fsdp__gguf_value *texts, *scores;
    const unsigned char *at;
    fsdp__gguf_header h;
    fsdp__gguf file;
    int64_t flag = -1;

    test_copy_file(PIECES, "across.model", directory, "tokenizer.model");
    CHECK_OK(there(directory, 425, &h, &file));
    CHECK_OK(fsdp__gguf_array(&file, "tokenizer.ggml.tokens", FSDP__GGUF_TEXT, &texts));
    CHECK_OK(fsdp__gguf_array(&file, "tokenizer.ggml.scores", FSDP__GGUF_REAL, &scores));
    CHECK_EQ(texts->count, 425);
    CHECK_EQ(scores->count, 425);
    CHECK_EQ(type_of(&file, 0), 2); /* unknown */
    CHECK_EQ(type_of(&file, 1), 3);
    CHECK_EQ(type_of(&file, 4), 4); /* two marks, written as spaces */
    CHECK_EQ(type_of(&file, 5), 6);
    CHECK_EQ(type_of(&file, 424), 5);
    CHECK(fsdp__gguf_real_at(scores, 424) == -10000);
    at = texts->data;
    for (int i = 0; i < 4; i++)
        (void)fsdp__gguf_next_text(&at);
    CHECK_EQ(fsdp__gguf_next_text(&at).bytes, 2);
    CHECK_OK(fsdp__gguf_integer(&file, "tokenizer.ggml.add_space_prefix", true, &flag));
    CHECK_EQ(flag, 0);
    CHECK_OK(fsdp__gguf_integer(&file, "tokenizer.ggml.add_bos_token", true, &flag));
    CHECK_EQ(flag, 1);
    fsdp__gguf_release(&file);
    fsdp__gguf_header_release(&h);
}

/* ---- what is refused ---- */

static void check_refused(const char *directory, int64_t vocab_size, const char *says)
{
    fsdp__gguf_header h;
    fsdp__gguf file;

    CHECK(there(directory, vocab_size, &h, &file) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), says);
    fsdp__gguf_header_release(&h);
}

static void check_json_refused(const char *from, const char *to, const char *says)
{
    char *directory = test_directory(), *path = test_path(directory, "tokenizer.json"), *text, *at, *changed;
    size_t bytes;

    test_copy_file(PIECES, "llama.json", directory, "tokenizer.json");
    text = test_read_file(path, &bytes);
    at = CHECK_PTR(strstr(text, from));
    changed = calloc(bytes + strlen(to) + 1, 1);
    memcpy(changed, text, (size_t)(at - text));
    strcat(changed, to);
    strcat(changed, at + strlen(from));
    test_write_text(directory, "tokenizer.json", changed);
    check_refused(directory, 425, says);
    free(changed);
    test_directory_free(directory);
}

TEST(a_tokenizer_that_llama_cpp_would_cut_otherwise_is_not_written)
{
    char *directory = test_directory();

    test_copy_file(PIECES, "unigram.model", directory, "tokenizer.model");
    check_refused(directory, 425, "is a Unigram model, not BPE");
    test_copy_file(PIECES, "t5.json", directory, "tokenizer.json");
    check_refused(directory, 425, "only SentencePiece's BPE, and byte-level BPE");
    test_copy_file(PIECES, "llama.json", directory, "tokenizer.json");
    check_refused(directory, 300, "has token");
    test_copy_file(PIECES, "across.model", directory, "tokenizer.model");
    check_refused(directory, 425, "in tokenizer.json, but");
    check_json_refused("{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}", "{\"type\":\"NFKC\"}",
                       "its normalizer or pre_tokenizer does something else");
    check_json_refused("\"merges\":[[", "\"merges\":[[\"t\",\"h\"],[", "");
    check_json_refused("\"merges\":[[", "\"merges\":[[\"t\",\"\u2581\"],[", "which is no token");
}

static void check_file_refused(void (*fill)(fsdp__gguf_header *), const char *says)
{
    char *json, *settings;
    fsdp__gguf_header h;
    fsdp__gguf file;

    fsdp__gguf_header_begin(&h);
    fsdp__gguf_put_text(&h, "tokenizer.ggml.model", "llama");
    fill(&h);
    CHECK_OK(fsdp__gguf_header_finish(&h));
    CHECK_OK(fsdp__gguf_parse("x.gguf", h.data, (size_t)h.bytes, &file));
    CHECK(fsdp__gguf_tokenizer(&file, &json, &settings) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), says);
    fsdp__gguf_release(&file);
    fsdp__gguf_header_release(&h);
}

static void put_some(fsdp__gguf_header *h, const char *third, int scores, float step)
{
    static const char *const texts[] = {"a", "b", "ab", "ba"};

    fsdp__gguf_put_array(h, "tokenizer.ggml.tokens", FSDP__GGUF_TEXT, 4);
    for (int i = 0; i < 4; i++)
        fsdp__gguf_add_text(h, i == 2 ? third : texts[i], strlen(i == 2 ? third : texts[i]));
    fsdp__gguf_put_array(h, "tokenizer.ggml.token_type", FSDP__GGUF_I32, 4);
    for (int i = 0; i < 4; i++)
        fsdp__gguf_add_i32(h, 1);
    fsdp__gguf_put_array(h, "tokenizer.ggml.scores", FSDP__GGUF_REAL, (uint64_t)scores);
    for (int i = 0; i < scores; i++)
        fsdp__gguf_add_real(h, -step * (float)i);
}

static void one_score(fsdp__gguf_header *h)
{
    put_some(h, "ab", 4, 0);
}

static void few_scores(fsdp__gguf_header *h)
{
    put_some(h, "ab", 3, 1);
}

static void twice(fsdp__gguf_header *h)
{
    put_some(h, "a", 4, 1);
}

static void not_utf8(fsdp__gguf_header *h)
{
    put_some(h, "\xff", 4, 1);
}

static void nothing(fsdp__gguf_header *h)
{
    (void)h;
}

TEST(what_is_wrong_with_pieces_of_a_file_is_said)
{
    check_file_refused(one_score, "'x.gguf': all tokens have the same score");
    check_file_refused(few_scores, "there are 4 tokens, but 3 values of 'tokenizer.ggml.scores'");
    check_file_refused(twice, "token 2 is empty, is given twice, or is no UTF-8");
    check_file_refused(not_utf8, "token 2 is empty, is given twice, or is no UTF-8");
    check_file_refused(nothing, "key 'tokenizer.ggml.tokens' is missing");
}

/* ---- memory ---- */

/* Writes the tokenizer of a folder and reads it again; one of the allocations may fail. */
static fsdp_status there_and_back(const char *directory)
{
    const fsdp_model_config config = config_of(425);
    FSDP__SCOPED(fsdp__gguf_header_release) fsdp__gguf_header h;
    FSDP__SCOPED(fsdp__gguf_release) fsdp__gguf file = {0};
    FSDP__FREED char *json = NULL, *settings = NULL;

    fsdp__gguf_header_begin(&h);
    FSDP_TRY(fsdp__gguf_put_tokenizer(&h, directory, &config));
    FSDP_TRY(fsdp__gguf_header_finish(&h));
    FSDP_TRY(fsdp__gguf_parse("x.gguf", h.data, (size_t)h.bytes, &file));
    return fsdp__gguf_tokenizer(&file, &json, &settings);
}

TEST(every_allocation_that_fails_is_told)
{
    static const char *const ways[][2] = {{"across.model", "tokenizer.model"}, {"llama.json", "tokenizer.json"}};

    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i++) {
        char *directory = test_directory();

        test_copy_file(PIECES, ways[i][0], directory, ways[i][1]);
        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
            CHECK_FAULT(FSDP__FAULT_ALLOCATION, there_and_back(directory));
        test_directory_free(directory);
    }
}

/* ---- the package gguf ---- */

TEST(the_package_gguf_has_the_same_tokens)
{
    static const char *const ways[][2] = {{"llama.json", "tokenizer.json"},
                                          {"mistral.json", "tokenizer.json"},
                                          {"bpe.model", "tokenizer.model"},
                                          {"across.model", "tokenizer.model"}};
    const char *python = getenv("FSDP_GGUF_PYTHON");
    char command[2048];

    if (!python || !*python)
        skip(); /* a python with the packages gguf, sentencepiece and transformers */
    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i++) {
        char *directory = test_directory(), *path = test_path(directory, "x.gguf");
        fsdp__gguf_header h;
        fsdp__gguf file;

        test_copy_file(PIECES, ways[i][0], directory, ways[i][1]);
        test_write_text(
            directory, "tokenizer_config.json",
            "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"unk_token\":\"<unk>\",\"bos_token\":\"<s>\",\"eos_"
            "token\":\"</s>\"}");
        CHECK_OK(there(directory, 425, &h, &file));
        test_write_file(path, h.data, (size_t)h.bytes);
        snprintf(command, sizeof command, "'%s' '%s/tests/hub/check_gguf_tokens.py' '%s' '%s'", python, TEST_SOURCE_DIR,
                 path, directory);
        CHECK_EQ(system(command), 0);
        fsdp__gguf_release(&file);
        fsdp__gguf_header_release(&h);
        test_directory_free(directory);
    }
}
