/* Where in the text tokens stand, for tokens of bytes; test_pieces.c has those of SentencePiece. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "tokenizer/small.h"
#include "tokenizer/tokenizer.h"

#define SPACE_IN_FRONT "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"
#define TRIMS "{\"type\": \"ByteLevel\", \"trim_offsets\": true}"
#define ADDED "{\"id\": 270, \"content\": \"<e>\", \"special\": true, "

static const struct {
    small_parts parts;
    const char *text, *origins;
} cases[] = {
    {{0}, "", ""},
    {{0}, "a the\u00e9", "0-1 1-5 5-6 6-7"},
    {{.pre_tokenizer = SPACE_IN_FRONT}, "the the", "0-3 3-7"},
    {{.pre_tokenizer = SPACE_IN_FRONT}, "\u00e9", "0-2 0-1 1-2"}, /* the space alone has the character */
    {{.pre_tokenizer = SPACE_IN_FRONT, .post_processor = TRIMS}, "the the", "0-3 4-7"},
    {{.post_processor = TRIMS}, "x  b", "0-1 2-2 3-3 3-4"},
    {{.post_processor = "{\"type\": \"ByteLevel\", \"trim_offsets\": false}"}, "x  b", "0-1 1-2 2-3 3-4"},
    {{.added_tokens = "[" ADDED "\"lstrip\": true}]"}, "x <e> y", "0-1 1-5 5-6 6-7"},
    {{.added_tokens = "[" ADDED "\"rstrip\": true}]"}, "x <e> y", "0-1 1-2 2-6 6-7"},
    {{.normalizer = "{\"type\": \"NFC\"}"}, "xe\u0301y", "0-1 1-4 1-4 4-5"},
    {{.normalizer = "{\"type\": \"NFC\"}"}, "\n\u0340y", "0-1 1-3 1-3 3-4"}, /* the line's end stays as it is */
    {{.normalizer = "{\"type\": \"NFC\"}", .added_tokens = "[" ADDED "\"normalized\": true}]"},
     "e\u0301<e>\u00e9",
     "0-3 0-3 3-6 6-7 7-8"},
    {{.normalizer = "{\"type\": \"Replace\", \"pattern\": {\"String\": \"xyz\"}, \"content\": \"in\"}"},
     "axyzg",
     "0-1 1-5"},
};

TEST(tokens_stand_where_they_were_made)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_tokenizer *t = small_tokenizer(&cases[i].parts);

        check_origins(t, cases[i].text, cases[i].origins);
        fsdp_tokenizer_close(t);
    }
}

static void check_model(const char *model, const char *text, const char *origins)
{
    FILE *out = test_begin_text();
    fsdp_tokenizer *t = NULL;
    char *json;

    fprintf(out,
            "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": {\"type\": "
            "\"ByteLevel\"}, \"model\": {%s}}",
            model);
    json = test_end_text(out);
    CHECK_OK(fsdp__tokenizer_parse("tokenizer.json", json, strlen(json), &t));
    check_origins(t, text, origins);
    fsdp_tokenizer_close(t);
}

CALL_TEST(bytes_without_a_token_move_no_other,
          check_model("\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]", "axb xba", "0-3 5-6 6-7"))
CALL_TEST(an_unknown_token_stands_for_one_byte,
          check_model("\"unk_token\": \"?\", \"vocab\": {\"a\": 0, \"?\": 1}, \"merges\": []", "xya", "0-1 1-2 2-3"))
CALL_TEST(a_fused_unknown_token_stands_for_several,
          check_model("\"unk_token\": \"?\", \"fuse_unk\": true, \"vocab\": {\"a\": 0, \"?\": 1}, \"merges\": []",
                      "xya", "0-2 2-3"))

TEST(long_words_have_the_same_origins)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){0});
    char text[201] = "";
    fsdp_token_list ids = {0};
    fsdp__origins origins = {0};

    while (strlen(text) < 200)
        strcat(text, "thing");
    CHECK_OK(fsdp__tokenizer_trace(t, text, 200, NULL, &ids, &origins));
    CHECK_EQ(origins.count, 80); /* th, ing */
    for (int64_t i = 0; i < origins.count; i++) {
        CHECK_EQ(origins.items[i].begin, (size_t)(i / 2 * 5 + (i % 2 ? 2 : 0)));
        CHECK_EQ(origins.items[i].end, (size_t)(i / 2 * 5 + (i % 2 ? 5 : 2)));
    }
    fsdp_token_list_release(&ids);
    fsdp__free(origins.items);
    fsdp_tokenizer_close(t);
}

TEST(a_failed_allocation_loses_nothing)
{
    fsdp_tokenizer *t =
        small_tokenizer(&(small_parts){.normalizer = "{\"type\": \"NFC\"}", .pre_tokenizer = SPACE_IN_FRONT});
    fsdp_token_list ids = {0};
    fsdp__origins origins = {0};

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        ids.count = origins.count = 0;
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__tokenizer_trace(t, "e\u0301 the", 7, NULL, &ids, &origins));
    }
    CHECK_EQ(origins.count, 4);
    fsdp_token_list_release(&ids);
    fsdp__free(origins.items);
    fsdp_tokenizer_close(t);
}
