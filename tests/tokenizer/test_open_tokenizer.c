/* Files of tokenizers: those that are read, and what is refused by its name. */
#include "base/compiler.h"
#include "tokenizer/small.h"
#include "tokenizer/tokenizer.h"

/* ---- folders ---- */

#define VOCAB \
    "{\"a\": 0, \"b\": 1, \"\u0120\": 2, \"ab\": 3, \"\u0120ab\": 4, \"<|endoftext|>\": 5, \"1\": 6, \"11\": 7}"
#define MERGES "#version: 0.2\na b\r\n\u0120 ab\n1 1\n"

static fsdp_tokenizer *open_folder(const char *directory)
{
    fsdp_tokenizer *t = NULL;

    CHECK_OK(fsdp_tokenizer_open(directory, &t));
    return t;
}

TEST(vocab_and_merges_are_gpt2s)
{
    char *directory = test_directory();
    fsdp_tokenizer *t;

    test_write_text(directory, "vocab.json", VOCAB);
    test_write_text(directory, "merges.txt", MERGES);
    t = open_folder(directory);
    CHECK_IDS(t, "ab ab<|endoftext|>11", 3, 4, 5, 7);
    CHECK_EQ(fsdp_tokenizer_eos(t), 5);
    fsdp_tokenizer_close(t);
    test_write_text(directory, "tokenizer_config.json",
                    "{\"model_max_length\": 1000000000000000019884624838656, "
                    "\"tokenizer_class\": \"Qwen2Tokenizer\", \"eos_token\": {\"content\": \"<|im_end|>\"}, "
                    "\"added_tokens_decoder\": {\"8\": {\"content\": \"<|im_end|>\", \"special\": true}}}");
    test_write_text(directory, "added_tokens.json", "{\"<|im_end|>\": 8, \"<x>\": 9}");
    t = open_folder(directory);
    CHECK_IDS(t, "ab ab<|im_end|>11<x>", 3, 4, 8, 6, 6, 9);
    CHECK_EQ(fsdp_tokenizer_eos(t), 8);
    CHECK_EQ(fsdp_tokenizer_vocab_size(t), 10);
    fsdp_tokenizer_close(t);
    test_write_text(directory, "tokenizer_config.json", "{\"tokenizer_class\": \"BartTokenizer\"}");
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_UNSUPPORTED,
                "tokenizer_class without a tokenizer.json 'BartTokenizer'");
}

TEST(broken_pairs_name_file_and_line)
{
    char *directory = test_directory(), *merges = test_path(directory, "merges.txt");
    fsdp_tokenizer *t = NULL;

    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_NOT_FOUND,
                "neither a tokenizer.json nor a tokenizer.model nor a vocab.json");
    test_write_text(directory, "vocab.json", VOCAB);
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_NOT_FOUND, "merges.txt");
    test_write_text(directory, "merges.txt", "#version\na b\nab\n");
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_FORMAT, "merges.txt': line 3 is not two tokens");
    test_write_text(directory, "merges.txt", "a b\na c\n");
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_FORMAT, "merge 1: 'c' is not in the vocabulary");
    test_write_file(merges, "a b\n\0 ab\n", 9); /* what is behind it would be merged by nobody */
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_FORMAT, "merges.txt': it has a NUL at offset 4");
    test_write_text(directory, "merges.txt", MERGES);
    test_write_text(directory, "tokenizer_config.json", "{\"eos_token\": \"<none>\"}");
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_FORMAT,
                "tokenizer_config.json': the eos_token '<none>' is not a token");
    CHECK_NULL(t);
}

TEST(the_end_of_text_is_what_the_files_say)
{
    char *directory = test_directory(), *json, *path = test_path(directory, "tokenizer.json");
    fsdp_tokenizer *t;

    json = small_json(&(small_parts){.added_tokens =
                                         "[{\"content\": \"<|end_of_text|>\", \"id\": 270, \"special\": true}, "
                                         "{\"content\": \"<end>\", \"id\": 271, \"special\": true}]"});
    test_write_text(directory, "tokenizer.json", json);
    t = open_folder(directory);
    CHECK_EQ(fsdp_tokenizer_eos(t), 270);
    fsdp_tokenizer_close(t);
    test_write_text(directory, "special_tokens_map.json", "{\"eos_token\": \"<end>\"}");
    CHECK_OK(fsdp_tokenizer_open(path, &t)); /* the file's folder says it as well */
    CHECK_EQ(fsdp_tokenizer_eos(t), 271);
    fsdp_tokenizer_close(t);
}

/* ---- tokenizer.json ---- */

static void check_refused(const small_parts *parts, fsdp_status status, const char *part)
{
    char *text = small_json(parts);
    fsdp_tokenizer *t = NULL;

    CHECK_ERROR(fsdp__tokenizer_parse("t.json", text, strlen(text), &t), status, "cannot read 't.json': ");
    CHECK_CONTAINS(fsdp_last_error(), part);
    CHECK_NULL(t);
}

TEST(what_is_not_supported_is_refused_by_name)
{
    static const struct {
        small_parts parts;
        const char *named;
    } refused[] = {
        {{.normalizer = "{\"type\": \"Lowercase\"}"}, "normalizer 'Lowercase'"},
        {{.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"NFKC\"}]}"},
         "'NFKC'"},
        {{.pre_tokenizer = "{\"type\": \"Whitespace\"}"}, "pre-tokenizer 'Whitespace'"},
        {{.pre_tokenizer = "null"}, "pre-tokenizer 'without ByteLevel'"},
        {{.pre_tokenizer = "{\"type\": \"Digits\"}"}, "pre-tokenizer 'without ByteLevel'"},
        {{.pre_tokenizer =
              "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": \"Digits\"}]}"},
         "'Digits' after ByteLevel"},
        {{.post_processor = "{\"type\": \"BertProcessing\"}"}, "post-processor 'BertProcessing'"},
        {{.decoder = "{\"type\": \"WordPiece\"}"}, "decoder 'WordPiece'"},
        {{.model = "\"byte_fallback\": true, "}, "'byte_fallback'"},
        {{.model = "\"dropout\": 0.1, "}, "'dropout'"},
        {{.model = "\"end_of_word_suffix\": \"</w>\", "}, "end_of_word_suffix '</w>'"},
        {{.model = "\"continuing_subword_prefix\": \"##\", "}, "continuing_subword_prefix '##'"},
    };
    static const char pieces[] = "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}";
    fsdp_tokenizer *t = NULL;

    for (size_t i = 0; i < FSDP__COUNT_OF(refused); i++)
        check_refused(&refused[i].parts, FSDP_UNSUPPORTED, refused[i].named);
    CHECK_ERROR(fsdp__tokenizer_parse("t.json", pieces, strlen(pieces), &t), FSDP_UNSUPPORTED, "the model 'WordPiece'");
}

TEST(what_is_malformed_is_refused)
{
    static const struct {
        small_parts parts;
        const char *named;
    } refused[] = {
        {{.normalizer = "3"}, "the normalizer is not an object"},
        {{.normalizer = "{\"type\": \"Sequence\"}"}, "no list 'normalizers'"},
        {{.pre_tokenizer = "{\"type\": \"Sequence\"}"}, "no list 'pretokenizers'"},
        {{.pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {}}"},
         "neither a Regex nor"},
        {{.pre_tokenizer = "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"(a\"}}"},
         "pattern '(a': missing closing parenthesis at its offset 2"},
        {{.decoder = "{}"}, "key 'type' is missing"},
        {{.post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [3]}"}, "part 0 of the post-processor"},
        {{.post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<b>\"}}], "
                            "\"special_tokens\": {\"<b>\": {\"ids\": [999]}}}"},
         "an id that no token has"},
        {{.added_tokens = "[{\"content\": \"<e>\"}]"}, "key 'id' is missing"},
        {{.added_tokens = "[{\"content\": \"a\\u0000b\", \"id\": 270}]"},
         "a NUL (\\u0000) in a string near '\"a\\u0000b\"'"},
        {{.model = "\"unk_token\": \"<u>\", "}, "the unk_token '<u>' is not in the vocabulary"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(refused); i++)
        check_refused(&refused[i].parts, FSDP_FORMAT, refused[i].named);
}

#define ID(content, id) "{\"content\": \"" content "\", \"id\": " #id "}"

/* tokenizers gives ids by itself: its own would be 270, 271, ... */
TEST(ids_that_tokenizers_would_not_give_are_refused)
{
    static const char *const refused[][2] = {
        {"[" ID("<e>", 271) "]", "added token '<e>' has id 271, and Hugging Face's tokenizers would give it 270"},
        {"[" ID("<e>", 270) ", " ID("<f>", 272) "]",
         "'<f>' has id 272, and Hugging Face's tokenizers would give it 271"},
        {"[" ID("<e>", 271) ", " ID("<f>", 270) "]",
         "'<e>' has id 271, and Hugging Face's tokenizers would give it 270"},
        {"[" ID("<e>", 3) "]", "'<e>' has id 3, and Hugging Face's tokenizers would give it 270"},
        {"[" ID("<e>", -1) "]", "'<e>' has id -1, and"},
        {"[" ID("<e>", 2000000000) "]", "'<e>' has id 2000000000, and"},
        {"[" ID("he", 270) "]", "token 'he' has two ids, 257 and 270"},
        {"[" ID("<e>", 270) ", " ID("<e>", 271) "]", "token '<e>' has two ids, 270 and 271"},
        {"[" ID("<e>", 270) ", " ID("<f>", 270) "]",
         "'<f>' has id 270, and Hugging Face's tokenizers would give it 271"},
    };
    static const char taken[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": 0, \"b\": 2}, \"merges\": []}, "
        "\"added_tokens\": [" ID("<e>", 2) "]}";
    fsdp_tokenizer *t = NULL;

    for (size_t i = 0; i < FSDP__COUNT_OF(refused); i++)
        check_refused(&(small_parts){.added_tokens = refused[i][0]}, FSDP_FORMAT, refused[i][1]);
    CHECK_ERROR(fsdp__tokenizer_parse("t.json", taken, strlen(taken), &t), FSDP_FORMAT,
                "token '<e>' has id 2, as another token has");
}

/* Expected ids are those of transformers, which adds what the config has to what tokenizer.json has. */
TEST(the_configs_tokens_count_beside_those_of_the_json)
{
    char *directory = test_directory();
    char *json = small_json(&(small_parts){.added_tokens = "[" ID("<e>", 270) ", " ID("the", 263) "]"});
    fsdp_tokenizer *t;

    test_write_text(directory, "tokenizer.json", json);
    test_write_text(directory, "tokenizer_config.json",
                    "{\"added_tokens_decoder\": {\"272\": {\"content\": \"<g>\"}, \"271\": {\"content\": \"<f>\"}, "
                    "\"270\": {\"content\": \"<e>\", \"lstrip\": true}}, \"eos_token\": \"<g>\"}");
    t = open_folder(directory);
    CHECK_IDS(t, "a <e><f>the<g>", 'a', 270, 271, 263, 272);
    CHECK_EQ(fsdp_tokenizer_eos(t), 272);
    fsdp_tokenizer_close(t);
    test_write_text(directory, "tokenizer_config.json",
                    "{\"added_tokens_decoder\": {\"272\": {\"content\": \"<g>\"}}}");
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_FORMAT,
                "tokenizer_config.json': added token '<g>' has id 272");
    test_write_text(directory, "tokenizer_config.json",
                    "{\"added_tokens_decoder\": {\"271\": {\"content\": \"<e>\"}}}");
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_FORMAT, "token '<e>' has two ids, 270 and 271");
    test_write_text(directory, "tokenizer_config.json", "{\"added_tokens_decoder\": {\"x\": {\"content\": \"<e>\"}}}");
    CHECK_ERROR(fsdp_tokenizer_open(directory, &t), FSDP_FORMAT, "'x' is not followed by a token and its id");
    CHECK_NULL(t);
}

static void check_text_refused(const char *text, const char *part)
{
    fsdp_tokenizer *t = NULL;

    CHECK_ERROR(fsdp__tokenizer_parse("t.json", text, strlen(text), &t), FSDP_FORMAT, part);
}

TEST(models_without_tokens_or_merges_are_refused)
{
    check_text_refused("{}", "key 'model' is missing");
    check_text_refused("{\"model\": {}}", "'vocab' is not an object");
    check_text_refused("{\"model\": {\"vocab\": {\"a\": \"b\"}}}", "the id of token 'a' is not an integer");
    check_text_refused("{\"model\": {\"vocab\": {\"a\": 0}}}", "'merges' is not an array");
    check_text_refused("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a a a\"]}}", "merge 0 is neither");
    check_text_refused("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}", "merge 0 is neither");
    check_text_refused("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}", "'aa' is not in the vocabulary");
    check_text_refused("{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}",
                       "token 'b' has id 0, as another");
}

/* ---- memory ---- */

#define LONG_8 "<aaaaaa>"
#define LONG_64 LONG_8 LONG_8 LONG_8 LONG_8 LONG_8 LONG_8 LONG_8 LONG_8

TEST(a_lack_of_memory_is_an_error)
{
    char *text = small_json(&(small_parts){
        .normalizer = "{\"type\": \"NFC\"}",
        .added_tokens =
            "[{\"content\": \"<e>\", \"id\": 270, \"special\": true}, {\"content\": \"e\u0301\", \"id\": 271}, "
            "{\"content\": \"" LONG_64 LONG_64 LONG_64 LONG_64 LONG_64 "\", \"id\": 272}]",
        .pre_tokenizer =
            "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"String\": \"x\"}, "
            "\"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\"}]}"});

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_tokenizer *t = NULL;
        fsdp_token_list list = {0};
        fsdp_status status = fsdp__tokenizer_parse("t.json", text, strlen(text), &t);
        char *decoded = NULL;
        size_t bytes = 0;

        if (status == FSDP_OK)
            status = fsdp_tokenizer_encode(t, "the<e>a\u0301 xthe", 14, NULL, &list);
        if (status == FSDP_OK)
            status = fsdp_tokenizer_decode(t, list.ids, list.count, NULL, &decoded, &bytes);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        free(decoded);
        fsdp_token_list_release(&list);
        fsdp_tokenizer_close(t);
    }
}
