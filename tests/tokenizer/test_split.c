/* The words of a text, as Hugging Face's pre-tokenizers split it; and what of patterns is refused. */
#include "base/compiler.h"
#include "tokenizer/small.h"
#include "tokenizer/tokenizer.h"

typedef struct words {
    char text[512];
} words;

static fsdp_status add_word(void *arg, const char *word, size_t bytes)
{
    words *w = arg;
    size_t used = strlen(w->text);

    snprintf(w->text + used, sizeof w->text - used, "%s%.*s", used ? "|" : "", (int)bytes, word);
    return FSDP_OK;
}

static void check_words(const char *pre_tokenizer, const char *text, const char *expected)
{
    fsdp_tokenizer *t = small_tokenizer(&(small_parts){.pre_tokenizer = pre_tokenizer});
    fsdp__matcher *matcher = NULL;
    words found = {{0}};

    CHECK_OK(fsdp__matcher_create(&matcher));
    CHECK_OK(fsdp__pre_tokenize(&t->pre_tokenizer, matcher, text, strlen(text), add_word, &found));
    CHECK_STRING(found.text, expected);
    fsdp__matcher_free(matcher);
    fsdp_tokenizer_close(t);
}

#define SPLIT(pattern, behavior, invert)                                                       \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": " pattern \
    ", \"behavior\": \"" behavior "\", \"invert\": " invert                                    \
    "}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}"
#define REGEX(text) "{\"Regex\": \"" text "\"}"

static void every_behavior_splits_as_it_says(void **state)
{
    static const char *const behaviors[][2] = {
        {SPLIT(REGEX("1|2"), "Removed", "false"), "th|3he"},
        {SPLIT(REGEX("1|2"), "Removed", "true"), "1|1|2|1|2|1"},
        {SPLIT(REGEX("1|2"), "Isolated", "false"), "1|th|1|2|1|2|3he|1"},
        {SPLIT(REGEX("1|2"), "Isolated", "true"), "1|th|1|2|1|2|3he|1"},
        {SPLIT(REGEX("1|2"), "MergedWithPrevious", "false"), "1|th1|2|1|2|3he1"},
        {SPLIT(REGEX("1|2"), "MergedWithPrevious", "true"), "1th|1|2|1|23he|1"},
        {SPLIT(REGEX("1|2"), "MergedWithNext", "false"), "1th|1|2|1|23he|1"},
        {SPLIT(REGEX("1|2"), "MergedWithNext", "true"), "1|th1|2|1|2|3he1"},
        {SPLIT(REGEX("1|2"), "Contiguous", "false"), "1|th|1212|3he|1"},
        {SPLIT(REGEX("1|2"), "Contiguous", "true"), "1|th|1212|3he|1"},
        {SPLIT("{\"String\": \"2\"}", "Isolated", "false"), "1th1|2|1|2|3he1"},
        {SPLIT("{\"String\": \"h.\"}", "Isolated", "false"), "1th12123he1"},
        {SPLIT("{\"String\": \"\"}", "Isolated", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
        {SPLIT(REGEX(""), "Isolated", "false"), "1|t|h|1|2|1|2|3|h|e|1"},
    };

    (void)state;
    for (size_t i = 0; i < FSDP__COUNT_OF(behaviors); i++)
        check_words(behaviors[i][0], "1th12123he1", behaviors[i][1]);
}

static void white_space_is_unicodes(void **state)
{
    static const char spaces[] = SPLIT(REGEX("\\\\s+"), "Isolated", "false");
    static const char others[] = SPLIT(REGEX("[^\\\\S\\\\n]"), "Isolated", "false");

    (void)state;
    check_words(spaces, "a \u3000b\u180e\u2028c", "a| \u3000|b\u180e|\u2028|c");
    check_words(others, "a \n\u2003b", "a| |\n|\u2003|b");
}

static void gpt2_splits_as_ever(void **state)
{
    static const char gpt2[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";

    (void)state;
    check_words(gpt2, "It's  we'll 12x3, \n\n ok?! \u4f60\u597d ",
                "It|'s| | we|'ll| 12|x|3|,| \n\n| ok|?!| \u4f60\u597d| ");
}

static void what_oniguruma_reads_otherwise_is_refused(void **state)
{
    static const char *const patterns[] = {"\\\\h", "a{2}+", "[a&&b]", "[a[b]]",    "(?<=a)b",
                                           "^a",    "a$",    "(?m:.)", "(*NO_JIT)a"};

    (void)state;
    for (size_t i = 0; i < FSDP__COUNT_OF(patterns); i++) {
        char split[512], *text;
        fsdp_tokenizer *t = NULL;

        snprintf(split, sizeof split, SPLIT(REGEX("%s"), "Isolated", "false"), patterns[i]);
        text = small_json(&(small_parts){.pre_tokenizer = split});
        CHECK_ERROR(fsdp__tokenizer_parse("t.json", text, strlen(text), &t), FSDP_UNSUPPORTED,
                    "cannot read 't.json': pattern");
        CHECK_NULL(t);
        free(text);
    }
}

TEST_MAIN(cmocka_unit_test(every_behavior_splits_as_it_says), cmocka_unit_test(white_space_is_unicodes),
          cmocka_unit_test(gpt2_splits_as_ever), cmocka_unit_test(what_oniguruma_reads_otherwise_is_refused))
